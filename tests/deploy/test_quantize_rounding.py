"""Integer weights: scales compared with a search by brute force, and the roundings with each other."""

import numpy as np
import pytest
import torch

from ripe_mambaspike.deploy.quantize import rounding


def layer(rows, inputs, samples=200, seed=0):
    """Weights [1, R, K] and inputs [n, K] of which some are strong, some weak and all somewhat alike."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, inputs, generator=generator, dtype=torch.float64)
    x = (x + 3 * torch.randn(samples, 1, generator=generator, dtype=torch.float64)) * torch.logspace(0, -1, inputs)
    return torch.randn(1, rows, inputs, generator=generator, dtype=torch.float64), x


def test_the_scale_has_the_smallest_error():
    weight, x = layer(5, 6)
    weight[0, 2, 0], weight[0, 3] = 30.0, 0.0
    found = rounding.search_scale(weight, (x.T @ x)[None])
    for row in range(5):
        errors = {}
        for ratio in rounding.RATIOS:
            scale = float(np.float32(float(weight[0, row].abs().max()) * (ratio / 127))) or 1.0
            numbers = [max(-127, min(127, round(w / scale))) for w in weight[0, row].tolist()]
            change = weight[0, row] - torch.tensor(numbers, dtype=torch.float64) * scale
            errors.setdefault(float((x @ change).square().sum()), scale)
        assert float(found[0, row, 0]) == pytest.approx(errors[min(errors)], rel=1e-12)


def test_output_error_is_that_of_the_outputs():
    weight, x = layer(4, 7)
    rounded = rounding.round_nearest(weight, (x.T @ x)[None])
    error = rounding.output_error(weight - rounded.restored(), (x.T @ x)[None])
    torch.testing.assert_close(error[0], (x @ weight[0].T - x @ rounded.restored()[0].T).square().sum(0))


@pytest.mark.parametrize("shared", [False, True], ids=["a scale a row", "a scale a group"])
def test_each_rounding_has_a_smaller_error_than_the_one_before(shared):
    weight, x = layer(12, 40)
    weight = weight.reshape(2, 6, 40) if shared else weight
    moments = rounding.damped((x.T @ x)[None].expand(len(weight), -1, -1))
    errors = []
    for name in ("plain", "searched", "compensated"):
        one = rounding.ROUNDINGS[name](weight, moments, shared)
        assert one.scale.shape == ((2, 1, 1) if shared else (1, 12, 1))
        assert torch.equal(one.scale.float().double(), one.scale)
        assert torch.equal(one.values.round().clamp(-127, 127), one.values)
        errors.append(float(rounding.output_error(weight - one.restored(), moments).sum()))
    assert errors[0] > errors[1] > errors[2]


def test_correlated_inputs_compensate_for_each_other():
    """If all inputs are equal, only the sum of a row matters, and compensation gets it right to half a step."""
    weight = torch.full((1, 1, 32), 0.3, dtype=torch.float64)
    weight[0, 0, 0] = 1.0  # 0.3 is 38.1 steps of 1 / 127, so that all others round the same way
    moments = rounding.damped(torch.ones(1, 32, 32, dtype=torch.float64))
    scale = float(rounding.search_scale(weight, moments))
    sums = [
        abs(float((weight - rounding.ROUNDINGS[name](weight, moments, False).restored()).sum()))
        for name in ("plain", "compensated")
    ]
    assert sums[1] <= scale / 2 < sums[0]


def test_a_huge_weight_of_a_silent_input_does_not_set_the_scale():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 100, generator=generator, dtype=torch.float64)
    weight = torch.randn(1, 3, 100, generator=generator, dtype=torch.float64)
    weight[:, :, 4], x[:, 4] = 10.0, 0.0
    moments = rounding.damped((x.T @ x)[None])
    round_nearest, searched = (
        rounding.ROUNDINGS[name](weight, moments, False).restored() for name in ("plain", "searched")
    )
    errors = [float((x @ (weight - one)[0].T).square().mean().sqrt()) for one in (round_nearest, searched)]
    assert errors[1] < 0.7 * errors[0]


def test_rows_of_zeros_and_layers_without_inputs():
    weight = torch.tensor([[[0.0, 0.0], [1e-40, 0.0], [1.0, -0.5]]], dtype=torch.float64)
    for name in rounding.ROUNDINGS:
        one = rounding.ROUNDINGS[name](weight, rounding.damped(torch.zeros(1, 2, 2, dtype=torch.float64)), False)
        assert one.values[0, :2].tolist() == [[0, 0], [0, 0]]
        torch.testing.assert_close(one.restored(), weight, rtol=0, atol=0.5 / 127 + 1e-6)
        assert bool((one.scale > 0).all())
