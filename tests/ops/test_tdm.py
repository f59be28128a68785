"""TDM `(1 + λ) x_t − λ x_{t−1}` and the shift by one step."""

import pytest
import torch

from ripe_mambaspike.ops import shift, tdm

SHAPE = (2, 5, 3, 5, 7)


def tdm_inputs(state=True):
    inputs = {"x": torch.randn(SHAPE).double(), "coefficient": torch.randn(3).double()}
    return inputs | ({"initial_state": torch.randn(2, 3, 5, 7).double()} if state else {})


def shift_inputs(state=True):
    inputs = {"x": torch.randn(SHAPE).double()}
    return inputs | ({"initial_state": torch.randn(2, 3, 5, 7).double()} if state else {})


def slow_tdm(x, coefficient, initial_state=None):
    before = torch.zeros_like(x[:, 0]) if initial_state is None else initial_state
    steps = []
    for t in range(x.shape[1]):
        channels = []
        for c in range(x.shape[2]):
            lam = coefficient[c]
            channels.append((1 + lam) * x[:, t, c] - lam * before[:, c])
        steps.append(torch.stack(channels, 1))
        before = x[:, t]
    return torch.stack(steps, 1), before


def slow_shift(x, initial_state=None):
    out = torch.zeros_like(x)
    for t in range(x.shape[1]):
        if t > 0:
            out[:, t] = x[:, t - 1]
        elif initial_state is not None:
            out[:, 0] = initial_state
    return out, x[:, -1]


CASES = [
    pytest.param(tdm, slow_tdm, tdm_inputs, id="tdm"),
    pytest.param(shift, slow_shift, shift_inputs, id="shift"),
]


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize(("fn", "slow", "inputs"), CASES)
def test_equals_the_slow_reference(agree, fn, slow, inputs, state):
    agree(fn, slow, inputs(state))


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize(("fn", "slow", "inputs"), CASES)
def test_a_single_step(agree, fn, slow, inputs, state):
    given = inputs(state)
    agree(fn, slow, given | {"x": given["x"][:, :1]})


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3), (1, 4)])
@pytest.mark.parametrize(("fn", "slow", "inputs"), CASES)
def test_pieces_with_carried_state_equal_one_call(agree_in_float32, over_time, fn, slow, inputs, sizes, state):
    def in_pieces(x, initial_state=None, **parameters):
        return over_time(lambda x, state: fn(x, **parameters, initial_state=state), [x], sizes, initial_state)

    agree_in_float32(in_pieces, fn, inputs(state))


@pytest.mark.parametrize(("fn", "slow", "inputs"), CASES)
def test_same_bits_whatever_the_memory_held(reproducible, fn, slow, inputs):
    reproducible(fn, inputs())


@pytest.mark.parametrize(("fn", "slow", "inputs"), CASES)
def test_bfloat16(close_in_bfloat16, fn, slow, inputs):
    close_in_bfloat16(fn, inputs(), 1e-2)


@pytest.mark.parametrize(("fn", "slow", "inputs"), CASES)
def test_the_bfloat16_state_is_the_last_input_exactly(fn, slow, inputs):
    given = {name: tensor.bfloat16() for name, tensor in inputs().items()}
    _, state = fn(**given)
    assert torch.equal(state.float(), given["x"][:, -1].float())


def test_a_coefficient_of_zero_passes_the_input_unchanged():
    x = torch.randn(SHAPE)
    out, _ = tdm(x, torch.zeros(3), torch.randn(2, 3, 5, 7))
    assert torch.equal(out, x)


def test_a_constant_input_passes_unchanged_after_the_first_step():
    x = torch.ones(1, 4, 3, 2, 2)
    out, _ = tdm(x, torch.tensor([0.5, 1.0, -2.0]))
    assert torch.equal(out[:, 1:], x[:, 1:])
    assert torch.equal(out[0, 0, :, 0, 0], torch.tensor([1.5, 2.0, -1.0]))


def test_vectors_without_positions():
    x, coefficient = torch.randn(2, 5, 3), torch.randn(3)
    torch.testing.assert_close(tdm(x, coefficient), slow_tdm(x, coefficient), rtol=1e-6, atol=1e-6)


def test_inputs_are_left_as_they_were():
    x, coefficient, state = (tensor.float() for tensor in tdm_inputs().values())
    copies = [tensor.clone() for tensor in (x, coefficient, state)]
    tdm(x, coefficient, state)
    assert all(map(torch.equal, copies, (x, coefficient, state)))
