"""Zoom and smooth displacements, against loops over pixels and control points."""

import math

import pytest
import torch

from raising import raises
from ripe_mambaspike.data.augment import (
    Augmentation,
    Warp,
    augment_clips,
    batch_generator,
    displace,
    elastic_displacement,
)
from ripe_mambaspike.data.augment.warp import POINTS
from ripe_mambaspike.errors import ConfigError

SHAPES = [(3, 4, 2, 5, 7), (1, 1, 2, 34, 34), (4, 2, 2, 8, 8), (2, 3, 2, 1, 6)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def counts(shape):
    """Whole counts that differ from pixel to pixel, none of them zero: a lost or moved one shows."""
    return (torch.randperm(math.prod(shape)) % 251 + 1).view(shape).float()


def bump(distance):
    """The cubic B-spline."""
    distance = abs(distance)
    if distance < 1:
        return 2 / 3 - distance**2 + distance**3 / 2
    return max(2 - distance, 0) ** 3 / 6


def slow_spline(points, height, width):
    """[POINTS, POINTS] → [H, W] without scale, and the scale's two factors."""
    at = [[1 + (POINTS - 3) * i / max(size - 1, 1) for i in range(size)] for size in (height, width)]
    weights = [[[bump(place - k) for k in range(POINTS)] for place in places] for places in at]
    field = [
        [sum(points[i][j] * row[i] * column[j] for i in range(POINTS) for j in range(POINTS)) for column in weights[1]]
        for row in weights[0]
    ]
    scale = [math.sqrt(sum(w * w for pixel in side for w in pixel) / len(side)) for side in weights]
    return torch.tensor(field, dtype=torch.float64) / (scale[0] * scale[1])


@shapes
def test_displace_takes_the_nearest_pixel(shape):
    x = counts(shape)
    samples, _, _, height, width = shape
    factors = 0.7 + torch.rand(samples, 2, dtype=torch.float64)
    offsets = 2 * torch.randn(samples, 2, height, width, dtype=torch.float64)
    expected = torch.zeros_like(x)
    cy, cx = (height - 1) / 2, (width - 1) / 2
    for b in range(samples):
        for row in range(height):
            for column in range(width):
                c = math.floor((column - cx + offsets[b, 0, row, column].item()) / factors[b, 0].item() + cx + 0.5)
                r = math.floor((row - cy + offsets[b, 1, row, column].item()) / factors[b, 1].item() + cy + 0.5)
                if 0 <= r < height and 0 <= c < width:
                    expected[b, :, :, row, column] = x[b, :, :, r, c]
    assert torch.equal(displace(x, factors, offsets), expected)


@shapes
def test_neutral_parameters_return_the_same_bits(shape):
    x = counts(shape)
    still = torch.zeros(len(x), 2, *shape[-2:], dtype=torch.float64)
    assert torch.equal(displace(x, torch.ones(len(x), 2), still), x)


def test_a_factor_above_one_enlarges():
    x = torch.zeros(1, 1, 2, 21, 21)
    x[..., 8:13, 8:13] = 1
    still = torch.zeros(1, 2, 21, 21, dtype=torch.float64)
    wide = displace(x, torch.tensor([[2.0, 1.0]]), still)[0, 0, 0]
    rows, columns = wide.any(1), wide.any(0)
    assert (int(rows.sum()), int(columns.sum())) == (5, 10)


@pytest.mark.parametrize("size", [(34, 34), (9, 20), (1, 5)], ids=str)
def test_the_field_is_a_cubic_spline_of_its_control_points(size):
    points = torch.randn(2, 2, POINTS, POINTS, dtype=torch.float64)
    field = elastic_displacement(points, *size)
    for b in range(2):
        for axis in range(2):
            torch.testing.assert_close(field[b, axis], slow_spline(points[b, axis].tolist(), *size))


def test_displacements_have_the_root_mean_square_of_their_points():
    points = 3 * torch.randn(4000, 2, POINTS, POINTS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    field = elastic_displacement(points, 20, 30)
    assert abs(field.square().mean().sqrt().item() - 3) < 0.05
    steps = field.diff(dim=3).square().mean().sqrt()
    assert steps < 0.2 * field.square().mean().sqrt()  # smooth: neighbours move together


def test_off_draws_nothing():
    x, generator = counts((4, 3, 2, 8, 8)), batch_generator(0, 0, 0)
    before = generator.get_state()
    assert Warp()(x, generator) is x
    assert torch.equal(generator.get_state(), before)


def test_a_clip_is_warped_alike_in_all_steps_and_polarities():
    frame = counts((6, 1, 1, 16, 16))
    x = frame.expand(6, 4, 2, 16, 16)
    for index in range(5):
        warped = Warp(0.3, 0.05)(x, batch_generator(0, 0, index))
        assert not torch.equal(warped, x)
        assert torch.equal(warped, warped[:, :1, :1].expand_as(warped))
        assert set(warped.unique().tolist()) <= {0.0, *frame.unique().tolist()}  # copied or dropped, never blended


def test_zoom_stays_within_its_bound_and_reaches_it():
    """The extent of a square of 40 pixels in frames of 101."""
    x = torch.zeros(400, 1, 2, 101, 101)
    x[..., 30:71, 30:71] = 1
    warped = Warp(zoom=0.5)(x, batch_generator(0, 0, 0))[:, 0, 0]
    widths, heights = warped.any(1).sum(1), warped.any(2).sum(1)
    for extent in (widths, heights):
        assert 41 / 1.5 - 1.5 <= extent.min() < 41 / 1.3
        assert 41 * 1.3 < extent.max() <= 41 * 1.5 + 1.5
    ratio = widths / heights
    assert ratio.max() <= 1.5 ** (2 / 3) + 0.1  # the aspect changes less
    assert ratio.max() > 1.1


def test_it_comes_first_and_leaves_the_other_draws_alone():
    """The draws of a later transform follow those of the warp; without it, runs are as they were before it existed."""
    x = counts((8, 3, 2, 12, 12))
    settings = Augmentation(nda_operations=0, polarity_flip=0.5, zoom=0.2, elastic=0.03)
    generator = batch_generator(1, 2, 3)
    expected = Warp(0.2, 0.03)(x, generator)
    for transform in settings.clip_transforms()[1:]:
        expected = transform(expected, generator)
    assert torch.equal(augment_clips(x, settings, batch_generator(1, 2, 3)), expected)


@pytest.mark.parametrize(("field", "value"), [("zoom", 1.0), ("zoom", -0.1), ("elastic", 0.5), ("elastic", math.nan)])
def test_settings_out_of_range_are_refused(field, value):
    with raises(ConfigError, field):
        Augmentation(**{field: value})
