"""Every fused operator, forward and with backward, against its reference at the same size."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.bench.agreement import Agreement, Check, relative
from ripe_mambaspike.bench.machine import describe
from ripe_mambaspike.bench.measure import Subject, measure, ratio
from ripe_mambaspike.bench.memory import explain_out_of_memory
from ripe_mambaspike.bench.network import Progress, autocast, check_sizes, precisions_of, quiet, repeats_of
from ripe_mambaspike.bench.operators import Call, Case, cases
from ripe_mambaspike.bench.options import OperatorOptions
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.nn.eval_mode import choose_device
from ripe_mambaspike.ops.backend import backend, implementation, kernels
from ripe_mambaspike.ops.operator import OPERATORS

TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}  # both sides round; the reference is computed in float32
# Of the reference's own error where it stores the same numbers in bfloat16. What drives a potential reaches 10 there,
# and is off by up to 0.03; a relaxed spike, a sigmoid of twice the potential, is off by half of what adds up.
OWN_ROUNDING = 1.5
FLIPS = 1e-3  # of the spikes of one operator
TIMED_OPERATORS = (
    "enter_fire", "norm_fire", "leaky_fire", "step_moments", "attend", "attend_fire", "patch_moments",
    "pooled_rates", "mamba_inner", "row_norm",
)  # fmt: skip


def bench_ops(options: OperatorOptions, progress: Progress = quiet) -> dict[str, Any]:
    """One row per operator, size and precision; a row without a kernel on this machine has the reason."""
    device = choose_device(options.device)
    on_cpu = device.type == "cpu"
    batch = options.batch if options.batch is not None else 1 if on_cpu else 32
    repeats = repeats_of(options.repeats, device)
    check_sizes(in_sizes=(options.in_size,), time_steps=(options.time_steps,), batches=(batch,), repeats=repeats)
    for name in options.only:
        if name not in TIMED_OPERATORS:
            raise ConfigError.expected("--only", f"one of {', '.join(TIMED_OPERATORS)}", repr(name))
    rows = []
    size = (batch, options.time_steps, options.in_size)
    for precision in precisions_of(options.precision or ("float32" if on_cpu else "both")):
        both = (cases(device, precision, *size, relaxed=relaxed) for relaxed in (True, False))
        for smooth, hard in zip(*both, strict=True):
            if options.only and hard.operator not in options.only:
                continue
            progress(f"{hard.name}, {precision} …")
            with explain_out_of_memory(device, hard.name):
                rows.append({"precision": precision, **bench_case(smooth, hard, device, precision, repeats)})
    names = ("batch", "time_steps", "side")
    return {"bench": "ops", "machine": describe(device), **dict(zip(names, size, strict=True)), "rows": rows}


def bench_case(smooth: Case, hard: Case, device: torch.device, precision: str, repeats: int) -> dict[str, Any]:
    """Compare, then time. The smooth case is the same operator with relaxed spikes, so that none can flip."""
    row: dict[str, Any] = {"operator": hard.operator, "setting": hard.setting}
    if reason := missing(hard, device, precision):
        return {**row, "unavailable": reason}
    agreement = compare_case(smooth, hard, precision)
    row |= {"agreement": agreement.to_dict(), "summary": agreement.sentence}
    held = sum(tensor.nbytes for tensor in hard.tensors.values())
    for part, make in (("forward", _forward), ("backward", _backward)):
        if part == "backward" and not hard.learned:
            continue
        ours, reference = make(hard, hard.ours, "auto"), make(hard, hard.reference, "off")
        reference = partial(_run_in_context, autocast(device, precision), reference)
        found, _ = measure({"ours": Subject(ours, held), "reference": Subject(reference, held)}, device, repeats)
        row[part] = {name: measured.to_dict() for name, measured in found.items()}
        row[part]["speedup"] = ratio(found["reference"], found["ours"]) if agreement.agrees else None
    return row


def missing(case: Case, device: torch.device, precision: str) -> str | None:
    """Why there is no kernel to measure here; None if there is one."""
    x = torch.empty(0, device=device, dtype=getattr(torch, precision))
    try:
        with kernels("auto"):
            kind = backend(x)
        if kind is None:
            return "this machine runs the reference"
        implementation(kind, OPERATORS[case.operator].folder, case.operator)
    except (ImportError, AttributeError) as error:
        return f"there is no kernel ({error})"
    return None


def compare_case(smooth: Case, hard: Case, precision: str) -> Agreement:
    """Outputs and gradients of the smooth case against the reference in float32, and the hard case's spikes."""
    allowed = TOLERANCE[precision]
    in_float32 = {name: t.float() if t.is_floating_point() else t for name, t in smooth.tensors.items()}
    with kernels("auto"):
        given, given_grads = _run(smooth, smooth.ours, smooth.tensors)
    with kernels("off"):
        expected, expected_grads = _run(smooth, smooth.reference, in_float32)
        rounding = smooth.rounds_potentials and precision == "bfloat16"
        rounded = _run(smooth, smooth.reference, smooth.tensors)[0] if rounding else ()
    if rounded:
        checks = [
            Check(
                f"difference of {name}", relative(ours, theirs), max(allowed, OWN_ROUNDING * relative(stored, theirs))
            )
            for name, ours, theirs, stored in zip(smooth.outputs, given, expected, rounded, strict=True)
        ]
    else:
        checks = [Check("output differs by", _max_relative_error(given, expected), allowed)]
    if smooth.learned:
        checks.append(Check("gradients differ by", _max_relative_error(given_grads, expected_grads), allowed))
    if hard.spikes and precision == "float32":
        with torch.no_grad(), kernels("auto"):
            ours = hard.ours(**hard.tensors)
        with torch.no_grad(), kernels("off"):
            theirs = hard.reference(**hard.tensors)
        flips = max(float(((ours[i] != 0) != (theirs[i] != 0)).float().mean()) for i in hard.spikes)
        checks.append(Check("share of spikes flipped", flips, FLIPS))
    return Agreement(tuple(checks), next(iter(hard.tensors.values())).shape[0])


def _max_relative_error(given: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest relative difference; NaN is propagated."""
    found = [relative(ours, theirs) for ours, theirs in zip(given, expected, strict=True)]
    return float(torch.tensor(found).max())


def _run(case: Case, call: Call, tensors: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Outputs, and the gradients of the learned tensors for one fixed gradient of every output."""
    leaves = {name: t.detach().requires_grad_(name in case.learned) for name, t in tensors.items()}
    outputs = call(**leaves)
    if not case.learned:
        return outputs, ()
    return outputs, _gradients(case, leaves, outputs, [_direction(out) for out in outputs])


def _direction(out: Tensor) -> Tensor:
    """A fixed gradient of an output, the same numbers in every precision."""
    wave = torch.arange(out.numel(), device=out.device).mul_(7).remainder_(13).sub_(6).to(torch.float32)
    return wave.div_(8).view(out.shape).to(out.dtype)


def _gradients(
    case: Case, leaves: dict[str, Tensor], outputs: Sequence[Tensor], directions: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    learned = [leaves[name] for name in case.learned]
    found = torch.autograd.grad(list(outputs), learned, list(directions), allow_unused=True)
    return tuple(torch.zeros_like(t) if g is None else g for t, g in zip(learned, found, strict=True))


def _forward(case: Case, call: Call, choice: str) -> Callable[[], object]:
    @torch.inference_mode()
    def job() -> object:
        with kernels(choice):
            return call(**case.tensors)

    return job


def _backward(case: Case, call: Call, choice: str) -> Callable[[], object]:
    """Forward and backward; the output gradients are created once, by the first call."""
    directions: list[Tensor] = []

    def job() -> object:
        with kernels(choice):
            leaves = {name: t.detach().requires_grad_(name in case.learned) for name, t in case.tensors.items()}
            outputs = call(**leaves)
            if not directions:
                directions.extend(_direction(out) for out in outputs)
            return _gradients(case, leaves, outputs, directions)

    return job


def _run_in_context(context: Any, job: Callable[[], object]) -> object:
    with context:
        return job()
