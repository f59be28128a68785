"""Inputs a network cannot read, and those it can though they are unusual."""

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike.errors import InputError


@pytest.mark.parametrize(
    ("x", "mentions"),
    [
        (torch.zeros(5, 2, 18, 18), ["(5, 2, 18, 18)", "(batch, steps, 2, height, width)"]),
        (torch.zeros(1, 5, 3, 18, 18), ["(1, 5, 3, 18, 18)"]),
        (torch.zeros(0, 5, 2, 18, 18), ["(0, 5, 2, 18, 18)"]),
        (torch.zeros(1, 0, 2, 18, 18), ["(1, 0, 2, 18, 18)"]),
        (torch.zeros(1, 6, 2, 18, 18), ["6", "5"]),
        (torch.zeros(1, 5, 2, 18, 7), ["18×7", "8×8"]),
        (torch.zeros(1, 5, 2, 18, 18, dtype=torch.float64), ["float64", "float32"]),
        (torch.zeros(1, 5, 2, 18, 18, dtype=torch.int64), ["int64", "float32"]),
        ([[1.0]], ["list"]),
    ],
)
def test_invalid_inputs_are_refused_in_one_line(small, x, mentions):
    with raises(InputError, "x", mentions=mentions) as caught:
        small()(x)
    assert "\n" not in str(caught.value)


def test_more_tokens_than_positions(small, events):
    with raises(InputError, "num_tokens", mentions=(9, 10)):
        small(num_tokens=10)(events(18))


def test_the_baseline_accepts_one_resolution(tiny_baseline, events):
    with raises(InputError, "x", mentions=("13×18", "18×13")):
        tiny_baseline()(events(18, 13))
    assert tiny_baseline(pool_size=2)(events(18, 13)).shape == (2, 1, 3)
    with raises(InputError, "x", mentions=("at most 7", "got 8")):
        tiny_baseline()(events(13, 18, steps=8))


def test_streaming_beyond_the_last_step_is_refused(small, events):
    model = small().eval()
    state = model.front_end(events(steps=4)).state
    with raises(InputError, "x", mentions=("at most 5", "2 after 4")):
        model.front_end(events(steps=2), state=state, first_step=4)


@pytest.mark.parametrize("size", [(34, 34), (48, 48), (128, 128), (8, 8), (9, 31), (40, 17)])
def test_any_resolution(small, events, size):
    model = small().eval()
    with torch.no_grad():
        out = model.run(events(*size, steps=2, samples=1))
    assert out.logits.shape == (1, 2, 7)
    assert out.logits.isfinite().all()
    assert out.attention.shape[-2:] == tuple(-(-side // 8) for side in size)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("steps", [1, 3])
def test_fewer_steps(small, events, steps, training):
    model = small().train(training)
    assert model(events(steps=steps)).shape == (2, steps, 7)


def test_without_events_the_output_is_finite(small):
    for training in (True, False):
        assert small().train(training)(torch.zeros(2, 5, 2, 18, 18)).isfinite().all()


def test_samples_are_independent(small, louder, events):
    model = louder(small()).eval()
    x = events(samples=3)
    with torch.no_grad():
        whole, alone = model(x), model(x[1:2])
    torch.testing.assert_close(whole[1:2], alone, rtol=1e-5, atol=1e-6)


def test_autocast_takes_float32_events(small, events):
    model = small().eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert model(events()).isfinite().all()
