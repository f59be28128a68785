"""However the Triton scan cuts a sequence, lays out its channels and saves memory, it gives the reference's numbers."""

import pytest
from tests.ops.operator_cases import Run, assert_same_bits, check, evaluate, mamba_inputs

triton_scan = pytest.importorskip("ripe_mambaspike.ops.mamba_inner.triton_scan", reason="Triton is not installed")
from ripe_mambaspike.ops.mamba_inner import triton, triton_conv, triton_scan_plan  # noqa: E402

pytestmark = pytest.mark.slow

RUN = Run("triton")


@pytest.fixture
def chunks_of(short_scan_tiles, monkeypatch):
    """From here on sequences are cut into chunks of this many tokens."""

    def force(chunk):
        monkeypatch.setattr(triton, "cut_of", lambda sizes, groups=1: triton_scan_plan.cut_in(sizes, chunk))

    return force


@pytest.mark.parametrize("states", [16, 64])
def test_tiles_as_long_as_on_a_gpu(states):
    check("mamba_inner", mamba_inputs(1, 7, 1, 6, states=states), RUN)


@pytest.mark.parametrize(("lanes", "channels"), [(8, 16), (16, 16), (32, 32), (8, 19)])
def test_lanes_share_the_states_of_a_channel(lanes, channels, monkeypatch, chunks_of):
    """Whole tiles and blocks of channels as well as cut ones."""
    monkeypatch.setattr(triton_scan_plan, "MIN_LANES", lanes)
    chunks_of(8)
    check("mamba_inner", mamba_inputs(1, 16 + channels % 16, 2, channels, states=16), RUN)


@pytest.mark.parametrize(
    ("sizes", "chunk"),
    [
        ((1, 13, 2, 6, 3), 8),
        ((1, 16, 1, 64, 2, 16), 8),
        ((1, 70, 1, 3), 4),  # more chunks than are handed over at a time
        ((1, 38, 1, 33), 16),
    ],
    ids=str,
)
def test_chunks_hand_over_their_states(sizes, chunk, chunks_of):
    chunks_of(chunk)
    check("mamba_inner", mamba_inputs(*sizes), RUN)


@pytest.mark.parametrize(
    ("step", "decay"),
    [(-12.0, -1.0), (30.0, -1.0), (3.0, -8.0), (0.0, -1e-4), (-14.0, -50.0)],
    ids=["tiny steps", "large steps", "all is forgotten", "nothing is forgotten", "tiny steps and strong decay"],
)
def test_extreme_steps_and_decays(step, decay, chunks_of):
    chunks_of(8)
    check("mamba_inner", mamba_inputs(1, 13, 1, 6, step=step, decay=decay), RUN)


def test_samples_in_turn_when_scratch_is_short(monkeypatch, chunks_of):
    monkeypatch.setattr(triton_scan_plan, "SCRATCH_BYTES", 2 * 4 * 2 * 4 * 6)  # bytes of two samples with two tiles
    chunks_of(4)
    check("mamba_inner", mamba_inputs(3, 6, 1, 6), RUN)


def test_the_same_bits_in_chunks_whatever_memory_held(chunks_of, request):
    chunks_of(8)
    i = mamba_inputs(1, 10, 1, 6)
    first = evaluate("mamba_inner", i, RUN)
    request.getfixturevalue("poisoned_empty")
    for _ in range(2):
        assert_same_bits(evaluate("mamba_inner", i, RUN), first)


def test_convolution_gradients_over_segments(chunks_of, monkeypatch):
    monkeypatch.setattr(triton_conv, "SEGMENT", 8)
    monkeypatch.setattr(triton_conv, "TILE_ELEMENTS", 64)  # tiles of four tokens
    check("mamba_inner", mamba_inputs(1, 19, 2, 6), RUN)


@pytest.mark.parametrize(
    ("length", "channels", "lanes", "tile"), [(4096, 64, 8, 16), (2048, 128, 16, 8), (1024, 256, 32, 4)]
)
def test_large_batches_are_not_cut_going_forwards(length, channels, lanes, tile):
    plan = triton_scan_plan
    sizes = plan.Sizes(64, length, 2, channels, 4, 2, 16)
    assert plan.cut_of(sizes) == plan.ChunkPlan(length, 1)
    assert plan.forward_lanes(sizes) == lanes
    assert plan.forward_tile(16, lanes, plan.forward_held(sizes, plan.cut_of(sizes))) == tile


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize(("length", "channels"), [(4096, 64), (2048, 128), (1024, 256), (70, 6)])
def test_chunks_cover_the_sequence_once(batch, length, channels):
    sizes = triton_scan_plan.Sizes(batch, length, 2, channels, 4, 2, 16)
    chunk, chunks = triton_scan_plan.cut_of(sizes)
    assert chunk % 16 == 0
    assert (chunks - 1) * chunk < length <= chunks * chunk
    assert chunks == 1 or sizes.sequences * sizes.blocks() < triton_scan_plan.MIN_BACKWARD_PROGRAMS
