"""Inputs of every fused operator, and how one is compared with its reference in float64; `operator_sizes` lists sizes.

Inputs are float64 numbers that bfloat16 holds exactly, so that every precision is given the same ones. A backend is
`native` or `triton` (in Triton's interpreter where there is no GPU); the same cases run on a GPU in `tests/gpu`.
"""

from typing import NamedTuple

import pytest
import torch

from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.enter_fire import EnterFireInputs
from ripe_mambaspike.ops.joined_tokens import JoinedTokensInputs, PooledSpikesInputs
from ripe_mambaspike.ops.leaky_fire import LeakyFireInputs
from ripe_mambaspike.ops.mamba_inner import MambaInnerInputs
from ripe_mambaspike.ops.membrane_attention import AttendFireInputs, AttendInputs
from ripe_mambaspike.ops.merge_branches import MergeBranchesInputs
from ripe_mambaspike.ops.norm_fire import Firing, NormFireInputs
from ripe_mambaspike.ops.operator import OPERATORS
from ripe_mambaspike.ops.patch_moments import PatchMomentsInputs
from ripe_mambaspike.ops.pooled_rates import PooledRatesInputs
from ripe_mambaspike.ops.row_norm import RowNormInputs
from ripe_mambaspike.ops.stack_branches import StackBranchesInputs
from ripe_mambaspike.ops.step_affine import StepAffineInputs
from ripe_mambaspike.ops.step_moments import StepMomentsInputs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # of references, where they take long
# In the activations' precision; all other numbers are parameters, float32.
ACTIVATIONS = {
    "x", "potential", "grad_proxy", "features", "query", "key", "value", "kernel", "inputs", "x_proj", "spikes",
    "grad_proxies", "like", "convolved", "attended",
}  # fmt: skip
# Outputs that are float32 in every precision.
FLOAT32_OUTPUTS = {
    "mean", "variance", "second", "tokens", "final_membrane", "final_membrane_imag", "final_spikes", "final_ssm",
    "final_state", "bias", "means", "variances", "scale", "shift",
}  # fmt: skip
NATIVE = pytest.mark.skipif(unavailable_reason() is not None, reason=f"no C++ operators: {unavailable_reason()}")


class Run(NamedTuple):
    backend: str
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def tolerance(self, name, one):
        """How far an output or a gradient may be off, by the operator's name and its own (`x` is a gradient)."""
        if (bound := BOUNDS.get((name, self.backend if self.device == "cpu" else "cuda", self.dtype))) is not None:
            return bound.get(one, bound[""]) if isinstance(bound, dict) else bound
        return 1e-2 if self.dtype == torch.bfloat16 else 1e-5


# Where an operator is held to less than 1e-5 in float32 and 1e-2 in bfloat16.
BOUNDS = {
    ("mamba_inner", "native", torch.float32): 3e-6,
    ("patch_moments", "native", torch.float32): 3e-6,
    ("patch_moments", "native", torch.bfloat16): {"x": 4e-3, "": 3e-6},
    ("patch_moments", "triton", torch.float32): 3e-6,
    ("patch_moments", "cuda", torch.bfloat16): {"mean": 1e-5, "second": 1e-4, "": 1e-2},
    ("pooled_rates", "triton", torch.float32): 2e-6,
    ("pooled_spikes", "triton", torch.float32): 1e-6,
    ("pooled_spikes", "cuda", torch.float32): 1e-6,
    ("joined_tokens", "triton", torch.bfloat16): 1e-5,
    ("joined_tokens", "cuda", torch.bfloat16): 1e-5,
    ("step_moments", "native", torch.bfloat16): {"mean": 1e-5, "variance": 1e-5, "": 1e-2},
    ("step_moments", "cuda", torch.bfloat16): {"mean": 1e-5, "variance": 1e-5, "": 1e-2},
}

NATIVE_FLOAT32 = pytest.param(Run("native"), marks=NATIVE, id="native-f32")
NATIVE_BFLOAT16 = pytest.param(Run("native", torch.bfloat16), marks=NATIVE, id="native-bf16")
TRITON = pytest.param(Run("triton"), id="triton-f32")


class Draw:
    """Random tensors, the same for the same seed."""

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape, scale=1.0, mean=0.0):
        return (scale * torch.randn(shape, generator=self.generator) + mean).bfloat16().double()

    def uniform(self, *shape, low=0.0, high=1.0):
        return (low + (high - low) * torch.rand(shape, generator=self.generator)).bfloat16().double()

    def spikes(self, *shape, rate=0.3, relaxed=False):
        drawn = torch.rand(shape, generator=self.generator)
        return drawn.bfloat16().double() if relaxed else (drawn < rate).to(torch.uint8)

    def affine(self, steps, channels, normed=True):
        if not normed:
            return {"scale": None, "shift": None}
        return {
            "scale": self.uniform(steps, channels, low=0.5, high=1.5),
            "shift": self.uniform(steps, channels, low=-0.3, high=0.4),
        }

    def firing(self, channels, rotating=False, relaxed=False, filtered=True, sharpness=2.0):
        return Firing(
            decay=self.uniform(channels, low=0.3, high=0.9),
            rotation=self.uniform(channels, low=0.1, high=0.5) if rotating else None,
            gain=self.uniform(channels, low=0.5, high=1.2),
            threshold=self.uniform(channels, low=0.4, high=1.1),
            coefficient=self.uniform(channels, low=-0.5, high=0.6) if filtered else None,
            relaxed=relaxed,
            sharpness=sharpness,
        )


def norm_fire_inputs(size, rotating=False, relaxed=False, normed=True, filtered=True, keep=True, sharpness=2.0, seed=0):
    d = Draw(seed)
    firing = d.firing(size[3], rotating, relaxed, filtered, sharpness)
    x, affine = d.normal(*size, mean=0.25), d.affine(size[1], size[3], normed)
    i = NormFireInputs(x, **affine, firing=firing, keep_potential=keep)
    return i if relaxed else settled(i, "x", lambda i: OPERATORS["norm_fire"].reference(i)[2], 2e-4)


def attention_parts(d, size, normed=True, rate=0.3, relaxed=False):
    channels = size[3]
    return {
        "potential": d.normal(*size),
        "spikes": d.spikes(*size, rate=rate, relaxed=relaxed),
        "features": d.normal(*size),
        **d.affine(size[1], channels, normed),
        **{name: d.normal(channels, channels, scale=channels**-0.5) for name in ("query", "key", "value")},
        "keep_attention": True,
    }


def attend_inputs(size, normed=True, rate=0.3, relaxed=False, seed=0):
    d = Draw(seed)
    parts = attention_parts(d, size, normed, rate, relaxed)
    return AttendInputs(**parts, gain=d.uniform(size[3], low=0.5, high=1.5), grad_proxy=torch.zeros(size).double())


def attend_fire_inputs(size, rotating=False, relaxed=False, normed=True, filtered=True, sharpness=2.0, seed=0):
    d = Draw(seed)
    parts = attention_parts(d, size, normed, relaxed=relaxed)
    firing = d.firing(size[3], rotating, relaxed, filtered, sharpness)
    i = AttendFireInputs(**parts, firing=firing, attention_gain=d.uniform(size[3], low=0.5, high=1.5))

    def potential(i):
        given = (*i[:2], i.potential, *i[2:8], i.attention_gain, True)
        out, _ = OPERATORS["attend"].reference(AttendInputs(*given))
        return OPERATORS["norm_fire"].reference(NormFireInputs(out, None, None, i.firing))[2]

    return i if relaxed else settled(i, "features", potential, 4e-3)


def enter_fire_inputs(steps, channels, height, width, rotating=False, relaxed=False, filtered=True):
    for seed in range(50):
        d = Draw(seed)
        i = EnterFireInputs(
            x=d.uniform(2, steps, 2, height, width, high=3.0).round(),
            **{f"entry_{name}": value for name, value in d.affine(steps, 2).items()},
            filter_coefficient=d.uniform(2, low=-0.8, high=0.8) if filtered else None,
            kernel=d.uniform(channels, 2, 3, 3, low=-0.6, high=0.6),
            **d.affine(steps, channels),
            firing=d.firing(channels, rotating, relaxed, filtered, sharpness=3.0),
        )
        potential = OPERATORS["enter_fire"].reference(i)[1]
        if relaxed or ((potential - i.firing.threshold).abs() > 2e-5).all():
            return i
    raise AssertionError("some potential stays near its threshold")


def settled(i, drive, potential_of, margin):
    """The inputs with what drives the neuron pushed wherever rounding could decide about a spike."""
    i = cast(i, torch.float64, DEVICE)
    for _ in range(400):
        near = (potential_of(i) - i.firing.threshold).abs() < margin
        if not near.any():
            return i
        i = i._replace(**{drive: (getattr(i, drive) + 0.25 * near).bfloat16().double()})
    raise AssertionError("some potential stays near its threshold")


def leaky_fire_inputs(size, hard=True, detached=True, surrogate="atan", resumed=True, sharpness=2.0):
    """size [G, T, N]; nowhere can rounding decide about a spike."""
    d = Draw()
    decay, gain = d.uniform(1, low=0.4, high=0.9), d.uniform(1, low=0.5, high=1.2)
    state = d.normal(size[0], size[2]) if resumed else None
    x = d.normal(*size, scale=1.5, mean=0.4)
    i = LeakyFireInputs(x, decay, gain, state, 0.8125, hard, detached, surrogate, sharpness)
    i = cast(i, torch.float64, DEVICE)
    for _ in range(400):
        near = (leaky_potential(i) - i.threshold).abs() < 2e-4
        if not near.any():
            return i
        i = i._replace(x=(i.x + 0.25 * near).bfloat16().double())
    raise AssertionError("some potential stays near its threshold")


def leaky_potential(i):
    membrane, potentials = torch.zeros_like(i.x[:, 0]) if i.initial_state is None else i.initial_state, []
    for x in i.x.unbind(1):
        potentials.append(i.decay * membrane + i.gain * x)
        fired = potentials[-1] >= i.threshold
        membrane = torch.where(fired, 0.0 if i.hard_reset else potentials[-1] - i.threshold, potentials[-1])
    return torch.stack(potentials, 1)


def rates_inputs(lead, scales, grid, relaxed=False, rate=0.3):
    d = Draw()
    spikes = [d.spikes(*lead, *scale, rate=rate, relaxed=relaxed) for scale in scales]
    return PooledRatesInputs(spikes, [torch.zeros(one.shape).double() for one in spikes], *grid, [], None, False)


def mamba_inputs(batch, length, directions, channels, rank=2, states=4, biased=True, taps=4, step=-2.0, decay=None):
    d = Draw()
    each = (directions, channels)
    made = d.uniform(*each, states, low=-float(states), high=-0.02)
    return MambaInnerInputs(
        inputs=d.normal(batch, length, directions, 2 * channels),
        conv1d_weight=d.normal(*each, taps, scale=0.5),
        conv1d_bias=d.normal(*each, scale=0.1) if biased else None,
        x_proj=d.normal(directions, rank + 2 * states, channels, scale=channels**-0.5),
        dt_proj=d.normal(*each, rank, scale=rank**-0.5),
        dt_bias=d.normal(*each, scale=0.5) + step,
        A=made if decay is None else torch.full_like(made, decay),
        D=d.normal(*each),
    )


def row_norm_inputs(*shape):
    d = Draw()
    x, weight, bias = d.normal(*shape), d.uniform(shape[-1], low=0.5, high=1.5), d.normal(shape[-1])
    return RowNormInputs(x, weight, bias, torch.float64)


def joined_inputs(samples, steps, positions, width):
    d = Draw()
    lead = (samples, steps, positions)
    vectors = [d.normal(width) for _ in range(5)]
    return JoinedTokensInputs(d.normal(*lead, 2 * width), *vectors[:3], d.normal(*lead, width), *vectors[3:])


def step_moments_inputs(*size, level=0.3):
    return StepMomentsInputs(Draw().normal(*size, mean=level))


def step_affine_inputs(steps, rows, channels):
    """Statistics of `steps` steps, of a norm that has `rows` of them."""
    d = Draw()
    mean, variance = d.normal(steps, channels, mean=0.3), d.uniform(steps, channels, low=0.02, high=2.0)
    affine = d.affine(rows, channels)
    return StepAffineInputs(mean, variance, affine["scale"], affine["shift"], d.normal(channels))


def stack_branches_inputs(channels, in_channels, branched=True):
    d = Draw()
    square = d.normal(channels, in_channels, 3, 3)
    if not branched:
        return StackBranchesInputs(square, None, None, None, None, None, False, torch.float64)
    point, row, column = (d.normal(channels, in_channels, *size) for size in ((1, 1), (1, 3), (3, 1)))
    chain = d.normal(channels, in_channels, 1, 1), d.normal(channels, channels, 3, 3)
    return StackBranchesInputs(square, point, row, column, *chain, channels == in_channels, torch.float64)


def merge_branches_inputs(branches, channels, in_channels, patches=None):
    """Moments of random patches; with fewer of them than numbers in one, the covariance is singular."""
    d = Draw()
    size = 9 * in_channels
    seen = d.normal(2 * size if patches is None else patches, size, mean=0.25)
    kernels = d.normal(branches, channels, size, scale=size**-0.5)
    weight, shift = d.uniform(branches, channels, low=0.5, high=1.5), d.normal(branches, channels)
    return MergeBranchesInputs(kernels, weight, shift, seen.mean(0), seen.T @ seen / len(seen), torch.float64)


def patch_moments_inputs(stride, *shape):
    return PatchMomentsInputs(Draw().normal(*shape, mean=0.25), stride)


def pooled_spikes_inputs(lead, scales, grid, relaxed=False, rate=0.3):
    given = rates_inputs(lead, scales, grid, relaxed, rate)
    return PooledSpikesInputs(given.spikes, torch.zeros(2).double(), *grid)


def cast(i, dtype, device="cpu"):
    """The inputs in this precision, parameters in float32 at least."""
    small = torch.float32 if dtype == torch.bfloat16 else dtype

    def to(name, value):
        if isinstance(value, list):
            return [to(name, one) for one in value]
        if isinstance(value, tuple):
            return type(value)(*(to(*pair) for pair in value._asdict().items()))
        if isinstance(value, torch.dtype):
            return dtype
        if not isinstance(value, torch.Tensor):
            return value
        wanted = dtype if name in ACTIVATIONS else small
        return value.to(device, wanted if value.is_floating_point() else value.dtype)

    return to("", i)


def evaluate(name, i, run=None, only=None, device="cpu", seed=None):
    """(outputs, gradients) by name: of the reference in float64, or of the operator in a run's precision.

    Gradients of one fixed random combination of all outputs, or of the one output `only`; `seed` makes another one.
    """
    operator = OPERATORS[name]
    i = cast(i, torch.float64, device) if run is None else cast(i, run.dtype, run.device)
    given, leaves = operator.named(i), {}
    for field in (*operator.gradients, "grad_proxies"):
        value = given.get(field)
        for index, one in enumerate(value if isinstance(value, list) else [value]):
            if one is not None:
                leaves[f"{field}.{index}" if isinstance(value, list) else field] = one.requires_grad_()
    if run is None:
        found = operator.reference(i)
    else:
        with kernels(run.backend):
            found = getattr(torch.ops.ripe, name)(*given.values())
    names = [one.removesuffix("[]") for one in operator.outputs]
    outputs = dict(zip(names, (found,) if isinstance(found, torch.Tensor) else found, strict=True))
    likes = operator.fake(i)
    likes = dict(zip(names, (likes,) if isinstance(likes, torch.Tensor) else likes, strict=True))
    outputs = {one: out for one, out in outputs.items() if isinstance(out, torch.Tensor) and likes[one].numel()}
    grads = _gradients(run, outputs, leaves, only, seed) if leaves else {}
    if run is not None:
        for one, out in outputs.items():
            hard = one == "spikes" and not given.get("relaxed", True)
            assert out.dtype == (torch.uint8 if hard else torch.float32 if one in FLOAT32_OUTPUTS else run.dtype), one
    proxy = outputs.pop("grad_proxy", None)
    assert proxy is None or proxy.shape == outputs["spikes"].shape
    return {one: out.detach().cpu() for one, out in outputs.items()}, grads


def _gradients(run, outputs, leaves, only, seed):
    chosen = []
    for name, out in outputs.items():
        if only in (None, name) and not (name == "spikes" and "grad_proxy" in outputs):
            generator = torch.Generator().manual_seed(len(name) if seed is None else seed)
            cotangent = torch.randn(out.shape, generator=generator).bfloat16()
            chosen.append((out, cotangent.to(out.device, out.dtype)))
    with kernels("plain" if run is None else run.backend):
        found = torch.autograd.grad(
            [out for out, _ in chosen], list(leaves.values()), [by for _, by in chosen], materialize_grads=True,
            allow_unused=True,
        )  # fmt: skip
    return {name: grad.cpu() for name, grad in zip(leaves, found, strict=True)}


def relative(given, expected):
    """The largest difference over the largest magnitude; over one where nothing but rounding is expected."""
    if not expected.numel():
        return 0.0
    scale = expected.double().abs().max().item()
    scale = scale if scale > 1e-12 else 1.0
    return (given.double() - expected.double()).abs().max().item() / scale


def check(name, i, run, tolerance=None, only=None, seed=None):
    """The operator's outputs and gradients are its reference's; returns both."""

    def bound(one):
        return run.tolerance(name, one) if tolerance is None else tolerance

    outputs, grads = evaluate(name, i, run, only, seed=seed)
    wanted, wanted_grads = evaluate(name, i, None, only, run.device, seed)
    assert outputs.keys() == wanted.keys()
    for one, given in outputs.items():
        assert given.shape == wanted[one].shape, one
        assert given.double().isfinite().all(), one
        assert relative(given, wanted[one]) < bound(one), f"{one} is off by {relative(given, wanted[one]):.1e}"
    assert grads.keys() == wanted_grads.keys()
    for one, expected in wanted_grads.items():
        assert grads[one].shape == expected.shape, one
        assert grads[one].dtype == (run.dtype if one.split(".")[0] in ACTIVATIONS else torch.float32), one
        assert relative(grads[one], expected) < bound(one), f"gradient of {one}: {relative(grads[one], expected):.1e}"
    return outputs, grads


def assert_same_bits(first, second):
    for one, other in zip(first, second, strict=True):
        for name, expected in one.items():
            assert expected.double().isfinite().all(), name
            assert torch.equal(expected, other[name]), name
