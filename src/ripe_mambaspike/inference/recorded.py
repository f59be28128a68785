"""The logits of every clip of an evaluation."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ripe_mambaspike.errors import WeightsError
from ripe_mambaspike.inference.capture import CapturedShapes
from ripe_mambaspike.models.base import Model, Output, clip_logits
from ripe_mambaspike.nn.eval_mode import eval_mode


class RecordedLogits:
    """Runs a network and keeps the logits of every clip, in order."""

    def __init__(self, run: Callable[[Tensor], Output]) -> None:
        self._run = run
        self._kept: list[Tensor] = []

    def __call__(self, x: Tensor) -> Output:
        out = self._run(x)
        self._kept.append(out.logits.detach().to("cpu", torch.float32, copy=True))
        return out

    @property
    def empty(self) -> bool:
        """Whether no clip was seen yet."""
        return not self._kept

    @property
    def steps(self) -> Tensor:
        """The logits of every step of every clip [N, T, classes]."""
        return torch.cat(self._kept)

    @property
    def clips(self) -> Tensor:
        """The logits of every clip [N, classes]."""
        return clip_logits(self.steps)


@torch.no_grad()
def record_logits(model: Model, batches: Iterable[Tensor]) -> Tensor:
    """The logits [N, classes] of batches of clips [B, T, 2, H, W] on the network's device, as they are evaluated."""
    record = RecordedLogits(CapturedShapes(model).run)
    with eval_mode(model), torch.autocast(next(model.parameters()).device.type, enabled=False):
        for x in batches:
            record(x)
    if record.empty:
        return torch.zeros(0, model.num_classes)
    logits = record.clips
    if not bool(logits.isfinite().all()):
        raise WeightsError.expected("logits", "finite numbers", "others")
    return logits
