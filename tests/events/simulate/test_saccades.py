"""A picture that is moved over the sensor: where it is seen, how blurred, how late."""

import math

import pytest
import torch

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.simulate.saccades import Saccades, SaccadeVariation, saccade_scene, scale_saccades

PATH = ((0.0, 0.0), (2.0, -1.0), (2.0, 3.0))
PLAIN = Saccades(PATH, 10_000, 20_000, blur=0.01, contrast=1.0, inverted=False)


def picture(batch=1, rows=4, columns=6, seed=0):
    return torch.rand(batch, rows, columns, generator=torch.Generator().manual_seed(seed))


def seen(saccades, pictures, times, size=(12, 10), moved=None):
    return saccade_scene(pictures, saccades, size, moved)(torch.tensor(times, dtype=torch.float64))


def test_at_rest_the_picture_is_in_the_middle():
    light = seen(PLAIN, picture(), [0])
    assert light.shape == (1, 1, 10, 12)
    torch.testing.assert_close(light[0, 0, 3:7, 3:9] - 1, picture()[0])
    light[0, 0, 3:7, 3:9] = 1
    assert (light == 1).all()


def test_it_moves_along_its_path():
    still = seen(PLAIN, picture(), [0])[0, 0]
    there = seen(PLAIN, picture(), [10_000, 5_000, 20_000, 99_000])[0]
    torch.testing.assert_close(there[0], still.roll((-1, 2), (0, 1)))
    half = seen(
        Saccades(((0.0, 0.0), (1.0, -0.5)), 10_000, 20_000, blur=0.01, contrast=1.0, inverted=False),
        picture(),
        [10_000],
    )
    torch.testing.assert_close(there[1], half[0, 0])
    torch.testing.assert_close(there[2], there[3])  # it stays where the path ends


def test_blur_against_a_loop():
    """Each sensor pixel sees a Gaussian's share of each picture cell, summed one by one."""
    saccades = Saccades(((0.3, -0.4), (0.3, -0.4)), 1000, 1000, (1.3, 0.8), 0.6, 2.0, inverted=True)
    shown = picture(rows=3, columns=5)
    light = seen(saccades, shown, [500], size=(9, 7))[0, 0]

    def share(pixel, pixels, cell, cells, middle, scale):
        place = (pixel - (pixels - 1) / 2 - middle) / scale
        left, right = cell - cells / 2 - place, cell + 1 - cells / 2 - place
        return (math.erf(right / 0.6 / math.sqrt(2)) - math.erf(left / 0.6 / math.sqrt(2))) / 2

    for y in range(7):
        for x in range(9):
            total = sum(
                float(shown[0, row, column]) * share(y, 7, row, 3, -0.4, 0.8) * share(x, 9, column, 5, 0.3, 1.3)
                for row in range(3)
                for column in range(5)
            )
            assert abs(float(light[y, x]) - 1 / (1 + 2 * total)) < 1e-5


def test_each_picture_may_differ():
    rested = Saccades(PATH, 10_000, 20_000, blur=0.01, contrast=1.0, inverted=False, rests_us=(10_000.0,))
    moved = SaccadeVariation(
        torch.tensor([[0.0, 0.0], [1.0, 2.0]]).double(),
        torch.tensor([1.0, 0.5]).double(),
        torch.tensor([[0.0, 2_000.0], [1_000.0, 0.0]]).double(),
    )
    both = seen(rested, picture(2), [5_000, 15_000], moved=moved)
    torch.testing.assert_close(both[0, 0], seen(rested, picture(2)[:1], [5_000])[0, 0])
    torch.testing.assert_close(both[0, 1], seen(rested, picture(2)[:1], [13_000])[0, 0])
    late = Saccades(
        tuple((x / 2 + 1, y / 2 + 2) for x, y in PATH), 10_000, 20_000, blur=0.01, contrast=1.0, inverted=False
    )
    torch.testing.assert_close(both[1, 0], seen(late, picture(2)[1:], [4_000])[0, 0])


def test_scaled_looks_the_same_on_more_pixels():
    small = Saccades(PATH, 10_000, 20_000, blur=0.4, contrast=1.0, inverted=False)
    one = seen(small, picture(), [7_000], size=(12, 10))[0, 0]
    four = seen(scale_saccades(small, 4.0), picture(), [7_000], size=(48, 40))[0, 0]
    blocks = torch.nn.functional.avg_pool2d(four[None], 4)[0]
    assert (blocks - one).abs().max() < 0.05


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("path", ((0.0, 0.0),), "got 1 points"),
        ("blur", 0.0, "above 0, got 0.0"),
        ("contrast", -1.0, "got -1.0"),
        ("scale", (1.0, float("nan")), "got nan"),
    ],
)
def test_invalid_saccades(field, value, message):
    with raises(InputError, field=field, mentions=[message]):
        Saccades(**{"path": PATH, "knot_us": 1000, "duration_us": 1000, field: value})
