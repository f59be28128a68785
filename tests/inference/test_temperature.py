"""The temperature with the lowest NLL, and the calibration error."""

import numpy as np
import pytest
import torch

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.inference.temperature import (
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
)


def drawn(count, temperature, seed=0):
    """Logits [N, 4], and labels drawn from the softmax of logits / temperature."""
    draw = np.random.default_rng(seed)
    logits = torch.from_numpy(draw.normal(0, 3, (count, 4)))
    shares = torch.softmax(logits / temperature, -1).numpy()
    return logits, torch.tensor([draw.choice(4, p=row / row.sum()) for row in shares])


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_the_temperature_of_the_labels_is_found(temperature):
    logits, labels = drawn(4000, temperature)
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(temperature, rel=0.08)
    best = negative_log_likelihood(logits / found, labels)
    for other in (0.5 * found, 0.97 * found, 1.03 * found, 2 * found):
        assert negative_log_likelihood(logits / other, labels) > best


def test_clips_that_are_all_right_say_nothing():
    logits, _ = drawn(50, 1.0)
    assert fit_temperature(logits, logits.argmax(-1)) == 1.0


def test_a_network_worse_than_chance_is_refused():
    logits, _ = drawn(50, 1.0)
    with raises(InputError, field="clips"):
        fit_temperature(logits, logits.argmin(-1))


def test_calibration_error_by_hand():
    """Two bins of two clips: confidence 0.9 with half right, confidence 0.6 with all right."""
    shares = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 1])
    assert expected_calibration_error(shares.log(), labels) == pytest.approx(0.5 * 0.4 + 0.5 * 0.4)
    certain = torch.tensor([[900.0, 0.0]] * 2)
    assert expected_calibration_error(certain, torch.tensor([0, 0])) == 0


def test_calibrated_probabilities_have_a_small_error():
    logits, labels = drawn(4000, 2.5)
    found = fit_temperature(logits, labels)
    assert expected_calibration_error(logits / found, labels) < 0.03 < expected_calibration_error(logits, labels)
