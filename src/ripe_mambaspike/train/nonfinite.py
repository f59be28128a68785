"""Find the source of NaN or Inf: the first module of the network that outputs one."""

import torch
from torch import Tensor, nn

from ripe_mambaspike.models.base import Model
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.train.step import StepSettings, compute_loss


def find_nonfinite(model: Model, x: Tensor, targets: Tensor, settings: StepSettings) -> str:
    """A description of the source, computed with the weights before the step that failed."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the weight {name}"
    if not torch.isfinite(x).all():
        return "the input"
    found: list[str] = []
    names = {module: name for name, module in model.named_modules()}

    def look(module: nn.Module, _: object, out: object) -> None:
        tensors = [t for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, Tensor)]
        if not found and any(not torch.isfinite(t).all() for t in tensors if t.is_floating_point()):
            found.append(names[module] or "the network")

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    try:
        with kernels("off"), torch.no_grad():
            for relaxed in (False, True)[: settings.passes]:
                mode = ForwardMode(relaxed=relaxed, sharpness=settings.sharpness, track_statistics=False)
                model.run_passes(x, [mode])
                if found:
                    return found[0] + (" in the relaxed pass" if relaxed else "")
    finally:
        for hook in hooks:
            hook.remove()
    return _first_bad_gradient(model, x, targets, settings)


def _first_bad_gradient(model: Model, x: Tensor, targets: Tensor, settings: StepSettings) -> str:
    model.zero_grad(set_to_none=True)
    compute_loss(model, x, targets, settings).loss.backward()
    for name, parameter in reversed(list(model.named_parameters())):  # in the order of backpropagation
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name}"
    grads = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    if not torch.isfinite(nn.utils.get_total_norm(list(grads.values()))):  # its squares exceed what float32 can hold
        return f"the norm of the gradient (largest for {max(grads, key=lambda name: float(grads[name].abs().max()))})"
    return "not reproducible on a second pass"
