"""The Triton scan against the reference in float64: outputs, every gradient, all ways to cut the sequence."""

from typing import NamedTuple

import pytest
import torch

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.ops.mamba_inner import InnerWeights, mamba_inner, mamba_inner_reference

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5


class Case(NamedTuple):
    batch: int = 1
    length: int = 7
    directions: int = 2
    channels: int = 6
    taps: int = 4
    rank: int = 2
    states: int = 4
    biased: bool = True
    step: float = -1.0  # the bias of the step
    decay: float = 0.0  # the logarithm of a typical decay

    def __str__(self) -> str:
        return "-".join(map(str, self))


def drawn(case: Case, seed: int = 0) -> list[torch.Tensor | None]:
    """inputs and the weights, float64 numbers that float32 can hold."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    each = (case.directions, case.channels)
    width = case.rank + 2 * case.states
    tensors = [
        normal(case.batch, case.length, case.directions, 2 * case.channels),
        normal(*each, case.taps) * 0.5,
        normal(*each) * 0.1 if case.biased else None,
        normal(case.directions, width, case.channels) / case.channels**0.5,
        normal(*each, case.rank) * 0.5,
        normal(*each) * 0.5 + case.step,
        -torch.exp(normal(*each, case.states) + case.decay),
        normal(*each),
    ]
    return [None if tensor is None else tensor.double() for tensor in tensors]


def evaluated(fn, tensors, dtype):
    """The output and the gradient of every tensor, for one fixed random cotangent."""
    leaves = [None if tensor is None else tensor.to(dtype).requires_grad_() for tensor in tensors]
    out = fn(leaves[0], InnerWeights(*leaves[1:]))
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, [leaf for leaf in leaves if leaf is not None], cotangent)]


def check(case: Case) -> None:
    tensors = drawn(case)
    names = ["out", "inputs", *InnerWeights._fields]
    if not case.biased:
        names.remove("conv_bias")
    expected = evaluated(mamba_inner_reference, tensors, torch.float64)
    actual = evaluated(mamba_inner, tensors, torch.float32)
    for name, given, wanted in zip(names, actual, expected, strict=True):
        assert given.dtype == torch.float32
        assert given.shape == wanted.shape, name
        assert given.isfinite().all(), name
        error = (given.double() - wanted).abs().max() / (wanted.abs().max() or 1.0)
        assert error < TOLERANCE, f"{name} is off by {error:.1e}"


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of four tokens: the interpreter takes long over every token of a tile, also past the end."""
    from ripe_mambaspike.ops.mamba_inner import triton_scan as scan_calls
    from ripe_mambaspike.ops.mamba_inner import triton_scan_plan as scan_plan

    monkeypatch.setattr(scan_plan, "TILE", 4)
    for owner, name in ((scan_calls, "forward_tile"), (scan_calls, "backward_tile"), (scan_plan, "backward_tile")):
        monkeypatch.setattr(owner, name, lambda *_: 4)


@pytest.fixture
def chunks_of(small_tiles, monkeypatch):
    """From here on sequences are cut into chunks of this many tokens."""
    from ripe_mambaspike.ops.mamba_inner import triton as mamba
    from ripe_mambaspike.ops.mamba_inner import triton_scan_plan as scan_plan

    def force(chunk):
        monkeypatch.setattr(mamba, "cut_of", lambda sizes, groups=1: scan_plan.cut_in(sizes, chunk))

    return force


@pytest.mark.parametrize(
    "case",
    [
        Case(length=1, rank=1),
        Case(length=2, directions=1, taps=1, biased=False),
        Case(batch=2, rank=3, taps=3),
        Case(length=17, directions=1, channels=32, rank=1, biased=False),
        Case(length=4, channels=70, directions=1, states=16, rank=3),
        Case(length=4, channels=3, directions=1, states=1, rank=1),
    ],
    ids=str,
)
def test_matches_the_reference(case, small_tiles):
    check(case)


@pytest.mark.parametrize("states", [16, 64])
def test_tiles_as_long_as_on_a_gpu(states):
    check(Case(directions=1, states=states))


@pytest.mark.parametrize(("lanes", "channels"), [(8, 16), (16, 16), (32, 32), (8, 19)])
def test_lanes_share_the_states_of_a_channel(lanes, channels, monkeypatch, chunks_of):
    """Whole tiles and blocks of channels as well as cut ones."""
    from ripe_mambaspike.ops.mamba_inner import triton_scan_plan as scan_plan

    monkeypatch.setattr(scan_plan, "LEAST_LANES", lanes)
    chunks_of(8)
    check(Case(length=16 + channels % 16, channels=channels, states=16))


@pytest.mark.parametrize(
    ("length", "channels", "lanes", "tile"), [(4096, 64, 8, 16), (2048, 128, 16, 8), (1024, 256, 32, 4)]
)
def test_large_batches_are_not_cut_going_forwards(length, channels, lanes, tile):
    from ripe_mambaspike.ops.mamba_inner.triton_scan_plan import (
        Cut,
        Sizes,
        cut_of,
        forward_held,
        forward_lanes,
        forward_tile,
    )

    sizes = Sizes(64, length, 2, channels, 4, 2, 16)
    assert cut_of(sizes) == Cut(length, 1)
    assert forward_lanes(sizes) == lanes
    assert forward_tile(16, lanes, forward_held(sizes, cut_of(sizes))) == tile


@pytest.mark.parametrize(
    ("case", "chunk"),
    [
        (Case(length=13, rank=3), 8),
        (Case(length=16, directions=1, channels=64, states=16), 8),
        (Case(length=70, directions=1, channels=3), 4),  # more chunks than are handed over at a time
        (Case(length=38, directions=1, channels=33), 16),
    ],
    ids=str,
)
def test_chunks_hand_over_their_states(case, chunk, chunks_of):
    chunks_of(chunk)
    check(case)


@pytest.mark.parametrize(
    ("step", "decay"),
    [(-12.0, 0.0), (30.0, 0.0), (3.0, 5.0), (0.0, -9.0), (-14.0, 4.0)],
    ids=["tiny steps", "large steps", "all is forgotten", "nothing is forgotten", "tiny steps and strong decay"],
)
def test_extreme_steps_and_decays(step, decay, chunks_of):
    chunks_of(8)
    check(Case(length=13, directions=1, step=step, decay=decay))


def test_samples_in_turn_when_scratch_is_short(monkeypatch, chunks_of):
    from ripe_mambaspike.ops.mamba_inner import triton_scan_plan as scan_plan

    monkeypatch.setattr(scan_plan, "SCRATCH", 2 * 4 * 2 * 4 * 6)  # bytes of two samples with two tiles
    chunks_of(4)
    check(Case(batch=3, directions=1, length=6))


def test_convolution_gradients_over_segments(chunks_of, monkeypatch):
    from ripe_mambaspike.ops.mamba_inner import triton_conv as conv_calls

    monkeypatch.setattr(conv_calls, "SEGMENT", 8)
    monkeypatch.setattr(conv_calls, "ELEMENTS", 64)  # tiles of four tokens
    check(Case(length=19))


def test_same_bits_twice_and_over_poisoned_memory(chunks_of, request):
    chunks_of(8)
    tensors = drawn(Case(length=10, directions=1))
    first, second = (evaluated(mamba_inner, tensors, torch.float32) for _ in range(2))
    request.getfixturevalue("poisoned_empty")
    nan_where_not_finite = evaluated(mamba_inner, tensors, torch.float32)
    for one, two, three in zip(first, second, nan_where_not_finite, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_gradients_need_not_be_contiguous(small_tiles):
    tensors = [tensor.float() for tensor in drawn(Case(channels=4, length=4))]
    grad = torch.randn(1, 2, 4, 4).transpose(1, 2)
    expected = torch.ops.ripe.mamba_inner_backward(*tensors, grad.contiguous())
    for given, wanted in zip(torch.ops.ripe.mamba_inner_backward(*tensors, grad), expected, strict=True):
        assert torch.equal(given, wanted)


def test_number_of_states_is_checked():
    tensors = [tensor.float() for tensor in drawn(Case(states=3))]
    with pytest.raises(ConfigError, match="3 states"):
        mamba_inner(tensors[0], InnerWeights(*tensors[1:]))


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize(("length", "channels"), [(4096, 64), (2048, 128), (1024, 256), (70, 6)])
def test_chunks_cover_the_sequence_once(batch, length, channels):
    from ripe_mambaspike.ops.mamba_inner.triton_scan_plan import ENOUGH, Sizes, cut_of

    sizes = Sizes(batch, length, 2, channels, 4, 2, 16)
    chunk, chunks = cut_of(sizes)
    assert chunk % 16 == 0
    assert (chunks - 1) * chunk < length <= chunks * chunk
    assert chunks == 1 or sizes.sequences * sizes.blocks() < ENOUGH


@pytest.mark.parametrize("length", [1, 7])
def test_a_handful_of_tokens_in_bfloat16(length):
    """They are computed in float32, so that the interpreter can show it: within the rounding of the results."""
    generator = torch.Generator().manual_seed(length)

    def draw(*shape, dtype=torch.float32):
        return torch.randn(shape, generator=generator).to(dtype)

    inputs = draw(1, length, 2, 12, dtype=torch.bfloat16)
    weights = (draw(2, 6, 4), draw(2, 6), draw(2, 10, 6, dtype=torch.bfloat16), draw(2, 6, 2), draw(2, 6))
    given = [inputs, *weights, -draw(2, 6, 4).exp(), draw(2, 6)]
    results = []
    for function, dtype in ((mamba_inner, None), (mamba_inner_reference, torch.float64)):
        leaves = [(t if dtype is None else t.to(dtype)).clone().requires_grad_() for t in given]
        out = function(leaves[0], InnerWeights(*leaves[1:]))
        results.append([out, *torch.autograd.grad(out.sum(), leaves)])
    for ours, expected in zip(*results, strict=True):
        assert (ours.double() - expected).abs().max() <= 1e-2 * expected.abs().max()
