"""NDA's operations one by one, against loops over pixels."""

import math

import pytest
import torch

from raising import raises
from ripe_mambaspike.data.augment import affine_transform, cutout, roll, rotations, shears, temporal_cutout
from ripe_mambaspike.errors import InputError

SHAPES = [(3, 4, 2, 5, 7), (1, 1, 2, 34, 34), (4, 2, 2, 8, 8), (2, 3, 2, 1, 6)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def counts(shape, dtype=torch.float32):
    """Whole counts that differ from pixel to pixel, none of them zero: a lost or moved one shows."""
    return (torch.randperm(math.prod(shape)) % 251 + 1).view(shape).to(dtype)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def slow_map(x, source):
    """Pixel by pixel: out[..., row, column] = x[..., source(sample, row, column)], or zero where that is no pixel."""
    out = torch.zeros_like(x)
    height, width = x.shape[-2:]
    for sample in range(len(x)):
        for row in range(height):
            for column in range(width):
                r, c = source(sample, row, column)
                if 0 <= r < height and 0 <= c < width:
                    out[sample, :, :, row, column] = x[sample, :, :, r, c]
    return out


def centered(x, sample_map):
    """A source for `slow_map` from a map of (sample, x, y) around the centre."""
    cy, cx = (x.shape[-2] - 1) / 2, (x.shape[-1] - 1) / 2

    def source(sample, row, column):
        from_x, from_y = sample_map(sample, column - cx, row - cy)
        return math.floor(from_y + cy + 0.5), math.floor(from_x + cx + 0.5)

    return source


@shapes
def test_roll_is_cyclic_by_whole_pixels(shape):
    x = counts(shape)
    samples, _, _, height, width = shape
    down = torch.randint(-2 * height, 2 * height, (samples,))
    right = torch.randint(-2 * width, 2 * width, (samples,))
    expected = torch.zeros_like(x)
    for b in range(samples):
        for r in range(height):
            for c in range(width):
                expected[b, :, :, (r + down[b]) % height, (c + right[b]) % width] = x[b, :, :, r, c]
    given = roll(x, down, right)
    assert torch.equal(given, expected)
    assert torch.equal(given.sum((-1, -2)), x.sum((-1, -2)))
    assert torch.equal(roll(given, -down, -right), x)


@shapes
def test_shear_x_moves_rows(shape):
    x = counts(shape)
    amount = torch.rand(len(x), dtype=torch.float64) - 0.5
    expected = slow_map(x, centered(x, lambda b, right, down: (right - amount[b].item() * down, down)))
    assert torch.equal(affine_transform(x, shears(amount, torch.zeros_like(amount))), expected)


@shapes
def test_shear_y_moves_columns(shape):
    x = counts(shape)
    amount = torch.rand(len(x), dtype=torch.float64) - 0.5
    expected = slow_map(x, centered(x, lambda b, right, down: (right, down - amount[b].item() * right)))
    assert torch.equal(affine_transform(x, shears(torch.zeros_like(amount), amount)), expected)


@shapes
def test_rotation_turns_clockwise(shape):
    x = counts(shape)
    degrees = 40 * torch.rand(len(x), dtype=torch.float64) - 20

    def back(sample, right, down):
        """Where (right, down) was before a clockwise turn: polar coordinates, y down."""
        angle = math.atan2(down, right) - math.radians(degrees[sample].item())
        return math.hypot(right, down) * math.cos(angle), math.hypot(right, down) * math.sin(angle)

    assert torch.equal(affine_transform(x, rotations(degrees)), slow_map(x, centered(x, back)))


@pytest.mark.parametrize("side", [6, 7])
def test_quarter_turns_keep_every_count(side):
    x = counts((4, 2, 2, side, side))
    turned = affine_transform(x, rotations(numbers(0, 90, 180, -90)))
    for sample, quarters in enumerate((0, -1, 2, 1)):  # rot90 turns the other way
        assert torch.equal(turned[sample], x[sample].rot90(quarters, (-2, -1)))


def test_whole_translations_are_exact():
    x = counts((4, 2, 2, 34, 33))
    matrices = torch.eye(2, 3, dtype=torch.float64).repeat(4, 1, 1)
    moves = [(0, 0), (3, -2), (-5, 1), (40, 0)]
    matrices[:, :, 2] = torch.tensor(moves, dtype=torch.float64)
    expected = slow_map(x, lambda b, r, c: (r + moves[b][1], c + moves[b][0]))
    assert torch.equal(affine_transform(x, matrices), expected)
    assert not affine_transform(x, matrices)[3].any()


def test_a_half_pixel_goes_the_same_way_in_every_row():
    x = counts((1, 1, 2, 6, 6))
    matrices = torch.eye(2, 3, dtype=torch.float64)[None]
    matrices[:, 0, 2] = 0.5
    assert torch.equal(affine_transform(x, matrices)[..., :-1], x[..., 1:])


@shapes
def test_cutout_zeroes_the_square_and_nothing_else(shape):
    x = counts(shape)
    samples, _, _, height, width = shape
    top, left = torch.randint(-2, height, (samples,)), torch.randint(-2, width, (samples,))
    side = torch.randint(1, 4, (samples,))
    expected = x.clone()
    for b in range(samples):
        for r in range(height):
            for c in range(width):
                if top[b] <= r <= top[b] + side[b] - 1 and left[b] <= c <= left[b] + side[b] - 1:
                    expected[b, :, :, r, c] = 0
    assert torch.equal(cutout(x, top, left, side), expected)


@pytest.mark.parametrize("steps", [1, 5])
def test_temporal_cutout_zeroes_a_run_of_steps(steps):
    x = counts((4, steps, 2, 3, 5))
    start, length = torch.tensor([0, 1, 2, 4]), torch.tensor([1, 3, 0, 1])
    expected = x.clone()
    for b in range(4):
        for t in range(steps):
            if start[b] <= t < start[b] + length[b]:
                expected[b, t] = 0
    assert torch.equal(temporal_cutout(x, start, length), expected)


def every_operation(x):
    """Each operation with parameters that change x, and with parameters that do not."""
    zero, one = torch.zeros(len(x), dtype=torch.long), torch.ones(len(x), dtype=torch.long)
    none, some = zero.double(), one.double()
    return {
        "roll": (lambda p: roll(x, *p), (one, -one), (zero, zero)),
        "shear_x": (lambda p: affine_transform(x, shears(*p)), (0.3 * some, none), (none, none)),
        "shear_y": (lambda p: affine_transform(x, shears(*p)), (none, 0.3 * some), (none, none)),
        "rotate": (lambda p: affine_transform(x, rotations(p)), 15 * some, none),
        "cutout": (lambda p: cutout(x, *p), (zero, zero, 2 * one), (zero, zero, zero)),
        "temporal": (lambda p: temporal_cutout(x, *p), (zero, one), (zero, zero)),
    }


NAMES = ["roll", "shear_x", "shear_y", "rotate", "cutout", "temporal"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_neutral_parameters_return_the_same_bits(name, dtype):
    for shape in [*SHAPES, (2, 2, 2, 128, 127)]:
        x = torch.rand(shape).to(dtype)
        apply, _, nothing = every_operation(x)[name]
        given = apply(nothing)
        assert given.dtype == dtype
        assert torch.equal(given, x)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_counts_stay_whole_the_input_stays_and_dtype_is_kept(name, dtype):
    x = counts((3, 4, 2, 9, 8), dtype)
    before = x.clone()
    apply, something, _ = every_operation(x)[name]
    given = apply(something)
    assert torch.equal(x, before)
    assert given.dtype == dtype
    assert not torch.equal(given, x)
    assert set(given.flatten().tolist()) <= {0.0, *x.flatten().tolist()}


@pytest.mark.parametrize("name", NAMES[:-1])
def test_all_steps_and_both_polarities_move_together(name):
    x = counts((3, 1, 1, 9, 8)).expand(3, 4, 2, 9, 8)
    apply, something, _ = every_operation(x)[name]
    given = apply(something)
    assert torch.equal(given, given[:, :1, :1].expand_as(given))


@pytest.mark.parametrize("name", NAMES)
def test_uninitialized_memory_and_strides_do_not_matter(name, poisoned_empty):
    x = counts((3, 4, 2, 9, 8))
    apply, something, _ = every_operation(x)[name]
    strided = every_operation(x.transpose(-1, -2).contiguous().transpose(-1, -2))[name][0]
    assert torch.equal(strided(something), apply(something))
    assert apply(something).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("x", "mentions"),
    [
        (torch.zeros(2, 3, 2, 4, 4, dtype=torch.uint8), ("torch.uint8", "floating-point")),
        (torch.zeros(2, 3, 2, 4), ("(2, 3, 2, 4)", "(B, T, 2, H, W)")),
        (torch.zeros(2, 3, 1, 4, 4), ("(2, 3, 1, 4, 4)",)),
        (torch.zeros(2, 0, 2, 4, 4), ("(2, 0, 2, 4, 4)",)),
    ],
    ids=["uint8", "no-time", "one-polarity", "no-steps"],
)
def test_what_is_no_clip_is_refused(name, x, mentions):
    apply, something, _ = every_operation(x)[name]
    with raises(InputError, "clips", mentions=mentions):
        apply(something)
