"""FLOPs of any network, counted by PyTorch while it runs on the meta device, in the convention of `flops`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.flops import SCAN_OPERATIONS
from ripe_mambaspike.nn.mamba import Mamba
from ripe_mambaspike.ops.backend import kernels


def count_by_running(model: Model, in_size: tuple[int, int], time_steps: int) -> dict[str, int]:
    """Operations of one sample by part: the network's children, other products, and the selective scan."""
    scanned = 0

    def count_scan(module: nn.Module, inputs: tuple[Tensor, ...], _: object) -> None:
        nonlocal scanned
        assert isinstance(module, Mamba)
        scanned += SCAN_OPERATIONS * inputs[0].shape[1] * module.A_log.numel()

    hooks = [module.register_forward_hook(count_scan) for module in model.modules() if isinstance(module, Mamba)]
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution: _convolution})
    x = torch.empty(1, time_steps, 2, *in_size, device="meta", dtype=model.dtype)
    try:
        with torch.no_grad(), kernels("off"), counter:  # there are none on the meta device
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    counts = counter.get_flop_counts()
    parts = {name: sum(counts.get(f"{type(model).__name__}.{name}", {}).values()) for name, _ in model.named_children()}
    parts = {name: count for name, count in parts.items() if count}
    other = counter.get_total_flops() - sum(parts.values())
    return {**parts, **({"other": other} if other else {}), "scan": scanned}


def _convolution(
    x_shape: Any, w_shape: Any, _bias: Any, _stride: Any, _padding: Any, _dilation: Any, transposed: bool, *_: Any,
    out_shape: Any = None, **__: Any,
) -> int:  # fmt: skip
    """As PyTorch counts it; Mamba's depthwise convolution over the sequence counts as elementwise work."""
    if len(x_shape) == 3 and w_shape[1] == 1:
        return 0
    return conv_flop_count(x_shape, w_shape, out_shape, transposed=transposed)
