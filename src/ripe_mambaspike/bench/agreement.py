"""Checks that the fused path agrees with the reference path, before a speed-up is reported.

The relaxed pass has no thresholds, so rounding errors stay small: its logits, loss and gradients must be close. In the
hard pass a potential within rounding of its threshold may fire on one path and not on the other, and such a flip
affects the layers after it; there, rates and the share of differing spikes are bounded instead.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.bench.network import Network, autocast
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.train.objective import LossTerms, tet
from ripe_mambaspike.train.step import StepSettings

RELAXED = ForwardMode(relaxed=True, track_statistics=False)
LOGITS = {"float32": 1e-3, "bfloat16": 5e-2}  # relative, of the relaxed pass
RATES = 1e-3  # absolute
FLIPS = 5e-4  # of all positions and steps; a single flip in a clip of 128² was measured to grow to 1.2e-4
LOSS = {"float32": 1e-3, "bfloat16": 2e-2}
GRADIENTS = 1e-2  # of the largest gradient, in float32
NORMS = {"float32": 1e-2, "bfloat16": 5e-2}  # of the whole gradient


class Check(NamedTuple):
    """One comparison."""

    what: str
    found: float
    allowed: float

    @property
    def holds(self) -> bool:
        return self.found <= self.allowed  # false for NaN


class Agreement(NamedTuple):
    checks: tuple[Check, ...]
    samples: int  # compared

    @property
    def agrees(self) -> bool:
        return all(check.holds for check in self.checks)

    @property
    def sentence(self) -> str:
        """A summary of the checks that hold, or of those that do not."""
        shown = [check for check in self.checks if self.agrees or not check.holds]
        parts = (f"{c.what} {c.found:.1e} ({'at most' if c.holds else 'allowed'} {c.allowed:.1e})" for c in shown)
        return ("agrees: " if self.agrees else "does not agree: ") + ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        checks = {c.what: {"found": finite(c.found), "allowed": c.allowed} for c in self.checks}
        return {"agrees": self.agrees, "samples": self.samples, "checks": checks}


def finite(value: float) -> float | None:
    """NaN and Inf as None, since JSON has neither."""
    return value if abs(value) < float("inf") else None


def relative(given: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest magnitude; NaN if either has NaN or shapes differ."""
    if given.shape != expected.shape:
        return float("nan")
    if expected.numel() == 0:
        return 0.0
    given, expected = (t.detach().to(torch.promote_types(t.dtype, torch.float32)) for t in (given, expected))
    return float((given - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


@torch.inference_mode()
def compare_inference(model: RipeMambaSpike, x: Tensor, precision: str, graph: Network | None = None) -> Agreement:
    """Compare the deployed network on both paths, and the captured one with the uncaptured one."""
    relaxed, rates, spikes, hard = {}, {}, {}, {}
    for choice in ("off", "auto"):
        with kernels(choice), autocast(x.device, precision):
            relaxed[choice] = model.run(x, RELAXED).logits
            out = model.run(x, observe=("spikes",) if precision == "float32" else ())
            rates[choice], hard[choice] = out.rates.float(), out.logits
            spikes[choice] = {name: one != 0 for name, one in out.observed.items()}
    checks = [
        Check("relaxed logits differ by", relative(relaxed["auto"], relaxed["off"]), LOGITS[precision]),
        _compare_rates(model, x, rates, precision),
    ]
    if precision == "float32":
        flips = share_of_flips(spikes["auto"], spikes["off"])
        checks.append(Check("share of spikes flipped", flips, FLIPS))
        if flips == 0:
            checks.append(Check("logits differ by", relative(hard["auto"], hard["off"]), LOGITS[precision]))
    if graph is not None:
        checks.append(Check("captured logits differ by", relative(graph(x), hard["auto"]), LOGITS[precision]))
    return Agreement(tuple(checks), x.shape[0])


def _compare_rates(model: RipeMambaSpike, x: Tensor, rates: dict[str, Tensor], precision: str) -> Check:
    """In bfloat16 both paths flip spikes, so both are compared with float32: ours may differ by RATES, or by twice as
    much as the reference path does."""
    expected, allowed = rates["off"], RATES
    if precision == "bfloat16":
        with kernels("off"):
            expected = model.run(x).rates.float()
        allowed = max(RATES, 2 * float((rates["off"] - expected).abs().max()))
    return Check("rates differ by", float((rates["auto"] - expected).abs().max()), allowed)


def share_of_flips(given: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The share of all positions and steps whose spikes differ; NaN if the layers are not the same."""
    if {name: one.shape for name, one in given.items()} != {name: one.shape for name, one in expected.items()}:
        return float("nan")
    flipped = sum(int((given[name] != one).sum()) for name, one in expected.items())
    return flipped / sum(one.numel() for one in expected.values())


@torch.inference_mode()
def compare_captured(graph: Network, plain: Network, x: Tensor, precision: str) -> Agreement:
    """Compare a captured network of any kind with the same network called as it is."""
    return Agreement((Check("captured logits differ by", relative(graph(x), plain(x)), LOGITS[precision]),), x.shape[0])


def compare_losses(given: LossTerms, expected: LossTerms, precision: str, samples: int) -> Agreement:
    """Compare one training step, taken in two ways from the same weights: its loss and the size of its gradient.

    Single weights are not compared: where a gradient is close to zero, AdamW turns its rounding into a whole step.
    """
    assert given.norm is not None
    assert expected.norm is not None
    loss = Check("loss differs by", relative(given.loss, expected.loss), LOSS[precision])
    norm = Check("gradient norm differs by", relative(given.norm, expected.norm), NORMS[precision])
    return Agreement((loss, norm), samples)


def compare_training(
    model: RipeMambaSpike, x: Tensor, targets: Tensor, settings: StepSettings, precision: str
) -> Agreement:
    """Loss and gradients of the relaxed pass in training, the same tokens and the same paths dropped on both."""
    losses, gradients = {}, {}
    mode = RELAXED
    for choice in ("off", "auto"):
        model.zero_grad(set_to_none=True)
        torch.manual_seed(0)
        with kernels(choice):
            with autocast(x.device, precision):
                logits = model.run(x, mode).logits
            loss = tet(logits, targets, settings.weights.spread, settings.weights.label_smoothing)
            loss.backward()
        losses[choice] = loss.detach()
        gradients[choice] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    checks = [Check("relaxed loss differs by", relative(losses["auto"], losses["off"]), LOSS[precision])]
    if precision == "float32":
        found = gradient_difference(gradients["auto"], gradients["off"])
        checks.append(Check("gradients differ by", found, GRADIENTS))
    return Agreement(tuple(checks), x.shape[0])


def gradient_difference(given: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest difference of any parameter's gradient over the largest gradient of all."""
    if given.keys() != expected.keys():
        return float("nan")
    largest = max(float(grad.abs().max()) for grad in expected.values())
    worst = [float((given[name] - grad).abs().max()) for name, grad in expected.items()]
    return float(torch.tensor(worst).max()) / max(largest, 1e-12)  # torch's maximum propagates NaN
