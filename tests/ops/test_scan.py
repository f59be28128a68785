"""The selective scan against one loop over its tokens and channels."""

import pytest
import torch

from ripe_mambaspike.ops import selective_scan
from ripe_mambaspike.ops.mamba_inner import scan

B, D, N = 2, 3, 5
LENGTHS = [1, 2, 7, 33, 130, 257]


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def inputs(length, batch=B, channels=D, states=N, state=True):
    given = {
        "x": draw(batch, length, channels),
        "delta": torch.rand(batch, length, channels).double(),
        "decay": -3 * torch.rand(channels, states).double(),
        "input_weight": draw(batch, length, states),
        "output_weight": draw(batch, length, states),
        "skip": draw(channels),
    }
    return given | ({"initial_state": draw(batch, channels, states)} if state else {})


def slow_scan(x, delta, decay, input_weight, output_weight, skip=None, initial_state=None):
    batch, length, channels = x.shape
    outputs, finals = [], []
    for d in range(channels):
        hidden = x.new_zeros(batch, decay.shape[1]) if initial_state is None else initial_state[:, d]
        tokens = []
        for t in range(length):
            step = delta[:, t, d, None]
            hidden = torch.exp(step * decay[d]) * hidden + step * input_weight[:, t] * x[:, t, d, None]
            y = (output_weight[:, t] * hidden).sum(-1)
            tokens.append(y if skip is None else y + skip[d] * x[:, t, d])
        outputs.append(torch.stack(tokens, 1))
        finals.append(hidden)
    return torch.stack(outputs, 2), torch.stack(finals, 1)


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_slow_reference(agree, length, state):
    agree(selective_scan, slow_scan, inputs(length, state=state), float32=1e-5)


def test_without_a_skip(agree):
    given = inputs(33)
    del given["skip"]
    agree(selective_scan, slow_scan, given, float32=1e-5)


@pytest.mark.parametrize("chunk", [1, 2, 5, 37, 64])
def test_any_chunk_length(agree, chunk):
    agree(lambda **given: selective_scan(**given, chunk=chunk), slow_scan, inputs(37), float32=1e-5)


BLOCKS = [
    pytest.param(2 * 3, 3, id="two-samples-at-a-time"),
    pytest.param(3, 5, id="one-sample-at-a-time"),
    pytest.param(2, 10, id="one-sample-and-two-channels"),
    pytest.param(0, 15, id="one-channel-that-is-too-long"),
]


@pytest.mark.parametrize(("fitting", "blocks"), BLOCKS)
def test_blocks_of_the_batch_and_of_the_channels(agree, reproducible, monkeypatch, fitting, blocks):
    """Five samples of three channels, the last block of either smaller than the others."""
    monkeypatch.setattr(scan, "MAX_ELEMENTS", fitting * 64 * 2 + 1)
    given = inputs(64, batch=5, channels=3, states=2)
    assert len(list(scan._blocks(torch.zeros(8, 5, 3, 8), given["decay"]))) == blocks
    agree(selective_scan, slow_scan, given, float32=1e-5)
    reproducible(selective_scan, given)


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("sizes", [(1, 2, 34), (12, 25), (36, 1)])
def test_pieces_with_carried_state_equal_one_call(agree_in_float32, over_time, sizes, state):
    def in_pieces(x, delta, input_weight, output_weight, decay, skip, initial_state=None):
        def piece(x, delta, b, c, state):
            return selective_scan(x, delta, decay, b, c, skip, state)

        return over_time(piece, [x, delta, input_weight, output_weight], sizes, initial_state)

    agree_in_float32(in_pieces, selective_scan, inputs(37, state=state), tolerance=4e-6)


@pytest.mark.parametrize("length", [1, 33, 130])
def test_same_bits_whatever_the_memory_held(reproducible, length):
    reproducible(selective_scan, inputs(length))


@pytest.mark.parametrize("length", [7, 130])
def test_bfloat16_keeps_its_state_in_float32(close_in_bfloat16, length):
    close_in_bfloat16(selective_scan, inputs(length), 1e-2, states=1)


def test_half_precision_activations_with_float32_parameters():
    """What autocast hands over: half-precision activations, float32 decay and skip."""
    given = {name: tensor.float() for name, tensor in inputs(130).items()}
    halves = {name: given[name].bfloat16() for name in ("x", "delta", "input_weight", "output_weight")}
    y, final = selective_scan(**given | halves)
    expected, expected_final = selective_scan(**given | {name: half.float() for name, half in halves.items()})
    assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(y.float(), expected, rtol=1e-2, atol=1e-2)
    assert torch.equal(final, expected_final)


def test_a_huge_step_forgets_all_but_its_own_input(agree, evaluate):
    given = inputs(130)
    given["delta"][:, 3::7] = 1e3
    given["decay"][0] = -1e4
    given["decay"][1, ::2] = -1e-4
    agree(selective_scan, slow_scan, given, float32=1e-5)
    outputs, gradients = evaluate(
        selective_scan, given | {"delta": torch.full_like(given["delta"], 1e3)}, torch.float32
    )
    assert all(tensor.isfinite().all() for tensor in (*outputs, *gradients.values()))


@pytest.mark.parametrize("length", LENGTHS)
def test_everything_huge_equals_the_slow_reference(agree, length):
    given = inputs(length)
    given["delta"] = torch.full_like(given["delta"], 1e3)
    given["decay"] = torch.full_like(given["decay"], -1e4)
    agree(selective_scan, slow_scan, given)


def test_a_step_of_zero_keeps_the_state(agree):
    given = inputs(37)
    given["delta"] = torch.zeros_like(given["delta"])
    agree(selective_scan, slow_scan, given, float32=1e-5)
    y, final = selective_scan(**given)
    torch.testing.assert_close(final, given["initial_state"], rtol=0, atol=0)
    expected = torch.einsum("bln,bdn->bld", given["output_weight"], final) + given["skip"] * given["x"]
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)


def test_double_precision_gradients_by_finite_differences():
    given = inputs(7, batch=1, channels=2, states=2)
    leaves = [tensor.requires_grad_() for tensor in given.values()]
    assert torch.autograd.gradcheck(lambda *args: selective_scan(*args, chunk=3), leaves)


def test_no_loop_over_the_tokens(count_operations):
    """Four times the tokens cost two more doublings, of three combinations of the chunks (one in forward alone)."""
    lengths = (4096, 16384, 65536)
    forward = [count_operations(selective_scan, inputs(length, 1, 2, 2), backward=False) for length in lengths]
    both = [count_operations(selective_scan, inputs(length, 1, 2, 2)) for length in lengths]
    for counts, most in ((forward, 30), (both, 90)):
        assert 0 < counts[1] - counts[0] <= most
        assert counts[2] - counts[1] == counts[1] - counts[0]
        assert counts[2] < 1000


def test_inputs_are_left_as_they_were():
    given = inputs(33)
    copies = {name: tensor.clone() for name, tensor in given.items()}
    leaves = {name: tensor.requires_grad_() for name, tensor in given.items()}
    y, final = selective_scan(**leaves)
    (y.sum() + final.sum()).backward()
    assert all(torch.equal(leaves[name], copies[name]) for name in copies)
