"""The comparison against slow references, and the regression where its answer is known."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from makers import random_events

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import make_events
from ripe_mambaspike.events.simulate import compare as c

SIZE, DURATION = (9, 7), 100_000


def drawn(seed, count=60):
    return random_events(count, SIZE, DURATION, seed)


def one(x=0, y=0, t=0, p=1):
    return make_events([x], [y], [t], [p])


def none():
    return make_events([], [], [], [])


def slow_bins(events, size, duration, bins):
    counts = np.zeros((bins, 2, size[1], size[0]))
    for event in events:
        at = 0
        while at < bins - 1 and int(event["t"]) * bins >= (at + 1) * duration:
            at += 1
        counts[at, event["p"], event["y"], event["x"]] += 1
    return counts


def slow_box(plane):
    made = np.zeros_like(plane)
    for y in range(plane.shape[0]):
        for x in range(plane.shape[1]):
            for dy in (-1, 0, 1):
                for dx in (-1, 0, 1):
                    if 0 <= y + dy < plane.shape[0] and 0 <= x + dx < plane.shape[1]:
                        made[y, x] += plane[y + dy, x + dx] / 9
    return made


def slow_correlation(ours, theirs):
    ours, theirs = ours.ravel().tolist(), theirs.ravel().tolist()
    a, b = math.fsum(ours) / len(ours), math.fsum(theirs) / len(theirs)
    together = math.fsum((x - a) * (y - b) for x, y in zip(ours, theirs, strict=True))
    return together / math.sqrt(math.fsum((x - a) ** 2 for x in ours) * math.fsum((y - b) ** 2 for y in theirs))


def test_counts_box_and_correlation_are_those_of_loops():
    ours, theirs = drawn(1), drawn(2, 45)
    counts = [slow_bins(each, SIZE, DURATION, 10) for each in (ours, theirs)]
    assert (c.count_bins(ours, SIZE, DURATION) == counts[0]).all()
    boxed = [np.stack([slow_box(plane) for plane in each.reshape(-1, 7, 9)]) for each in counts]
    np.testing.assert_allclose(c.smoothed(counts[0]).reshape(-1, 7, 9), boxed[0], atol=1e-12)
    made = c.compare_recordings([ours], [theirs], [0], SIZE, DURATION)
    assert made.sequence[0] == pytest.approx(slow_correlation(*boxed), abs=1e-12)
    images = [each.reshape(10, 2, 7, 9).sum(0) for each in boxed]
    assert made.image[0] == pytest.approx(slow_correlation(*images), abs=1e-12)


def test_polarities_are_two_planes():
    on, off = make_events([4] * 5, [3] * 5, range(5), [1] * 5), make_events([4] * 5, [3] * 5, range(5), [0] * 5)
    assert c.compare_recordings([on], [on], [0], SIZE, DURATION).image[0] == pytest.approx(1)
    assert c.compare_recordings([on], [off], [0], SIZE, DURATION).image[0] < 0


def test_the_image_ignores_time_and_the_sequence_does_not():
    made = c.compare_recordings([one(4, 3, 0)], [one(4, 3, 99_999)], [0], SIZE, DURATION)
    assert made.image[0] == pytest.approx(1)
    assert made.sequence[0] < 0


def test_means_a_class_ratios_and_on_share():
    real = [drawn(1, 10), drawn(2, 20), drawn(3, 60)]
    simulated = [drawn(4, 20), drawn(5, 30), drawn(6, 30)]
    made = c.compare_recordings(real, simulated, [7, 3, 7], SIZE, DURATION)
    assert made.events == c.RealSimulated(30, 80 / 3)
    assert made.events.ratio == pytest.approx(8 / 9)
    assert made.classes == (c.ClassEvents(3, 1, c.RealSimulated(20, 30)), c.ClassEvents(7, 2, c.RealSimulated(35, 25)))
    # Of all events: a recording counts by how many it has.
    assert made.on_share.real == pytest.approx(sum(int(each["p"].sum()) for each in real) / 90)


def test_rate_is_in_events_a_second_of_equal_windows():
    real = [make_events([0] * 4, [0] * 4, [0, 4999, 5000, 304_999], [1] * 4), one(t=304_999)]
    made = c.compare_recordings(real, real, [0, 0], SIZE, 305_000)
    assert len(made.rate_real) == 61
    assert made.rate_real[:2] == pytest.approx((200, 100))  # two events and one in two recordings, in 5 ms
    assert made.rate_real[-1] == pytest.approx(200)
    assert sum(made.rate_real) * 0.005 == pytest.approx(2.5)
    assert made.rate_real == made.rate_simulated


def test_late_events_are_counted_in_the_last_part():
    assert c.count_bins(one(t=DURATION + 5000), SIZE, DURATION)[-1].sum() == 1
    assert c.mean_rate([one(t=DURATION + 5000)], DURATION)[-1] == pytest.approx(200)


def test_features_in_their_order():
    events = make_events([0] * 5, [0] * 5, [0, 10, 30, 60, 99_999], [1, 1, 1, 0, 0])
    made = dict(zip(c.FEATURES, c.features(events, DURATION).tolist(), strict=True))
    assert len(made) == 17
    assert (made["events"], made["ON share"]) == (5, 0.6)
    assert [made[f"bin {index}"] for index in range(1, 11)] == [0.8, *[0.0] * 8, 0.2]
    # Intervals 10, 20, 30, 99939.
    assert made["interval 10%"] == pytest.approx(13)
    assert made["interval 50%"] == pytest.approx(25)
    assert made["interval 90%"] == pytest.approx(30 + 0.7 * 99_909)
    shuffled = events[[3, 0, 4, 1, 2]]
    assert (c.features(shuffled, DURATION) == c.features(events, DURATION)).all()


def test_intervals_are_means_over_recordings():
    real = [make_events([0] * 3, [0] * 3, [0, 10, 20], [1] * 3), make_events([0] * 3, [0] * 3, [0, 30, 60], [1] * 3)]
    made = c.compare_recordings(real, list(reversed(real)), [0, 1], SIZE, DURATION)
    assert made.intervals == (c.RealSimulated(20, 20),) * 5


def gaussian(seed, rows=400, columns=17, shift=0.0):
    return np.random.default_rng(seed).normal(shift, 1, (rows, columns))


def test_separable_by_one_column():
    real, simulated = gaussian(0, 100), gaussian(1, 100)
    real[:, 4], simulated[:, 4] = np.linspace(0, 1, 100), np.linspace(1.5, 2, 100)
    assert c.separability(real, simulated) > 0.98


def test_separable_only_by_two_columns_together():
    common = 10 * gaussian(0, 200, 1)
    real = np.concatenate([common, common + 0.2 * gaussian(1, 200, 1)], 1)
    simulated = np.concatenate([common, common + 2 + 0.2 * gaussian(2, 200, 1)], 1)
    assert c.separability(real[:, :1], simulated[:, :1]) == 0.5
    assert c.separability(real, simulated) > 0.98


def test_one_distribution_is_not_separable():
    assert abs(c.separability(gaussian(0), gaussian(1)) - 0.5) < 0.06


def test_accuracy_is_that_of_the_best_rule():
    # Two Gaussians one apart: half-way is right 69.1 % of the time.
    made = c.separability(gaussian(0, 4000, 1), gaussian(1, 4000, 1, 1.0))
    assert made == pytest.approx(0.691, abs=0.015)


def test_identical_twins_are_at_chance_level():
    # Whatever was learned, twins get one score, and it is right for one of them.
    rows = gaussian(3, 57)
    assert c.separability(rows, rows.copy()) == 0.5


def test_twins_are_in_one_fold_and_every_pair_is_tested_once(monkeypatch):
    real, simulated = np.arange(23.0)[:, None], np.arange(23.0)[:, None]
    calls = []

    def remembered(ours, theirs):
        calls.append((ours.ravel(), theirs.ravel()))
        return np.zeros(2)

    monkeypatch.setattr(c, "regression", remembered)
    monkeypatch.setattr(c, "_standard", lambda rows: (np.zeros(1), np.ones(1)))
    c.separability(real, simulated)
    assert len(calls) == 5
    held = []
    for ours, theirs in calls:
        assert (ours == theirs).all()
        held.extend(set(range(23)) - set(ours.astype(int)))
    assert sorted(held) == list(range(23))


def test_held_out_rows_do_not_change_the_scale(monkeypatch):
    seen = []
    kept = c._standard
    monkeypatch.setattr(c, "_standard", lambda rows: seen.append(len(rows)) or kept(rows))
    c.separability(gaussian(0, 20, 2), gaussian(1, 20, 2))
    assert seen == [32] * 5


def test_the_regression_is_at_its_minimum_and_repeats_itself():
    real, simulated = gaussian(0, 80, 3), gaussian(1, 60, 3, 0.7)
    weights = c.regression(real, simulated)

    def loss(at):
        total = 0.0
        for rows, side in ((real, -1), (simulated, 1)):
            total += sum(math.log1p(math.exp(-side * (at[0] + row @ at[1:]))) for row in rows)
        return total / 140 + c.PENALTY / 2 * float(at[1:] @ at[1:])

    best = loss(weights)
    for index in range(4):
        for step in (-0.01, 0.01):
            moved = weights.copy()
            moved[index] += step
            assert loss(moved) > best
    assert (weights[1:] > 0).all()
    assert (c.regression(real, simulated) == weights).all()


def test_separable_far_apart_and_constant_columns_stay_finite():
    real, simulated = np.zeros((40, 3)), np.zeros((40, 3))
    simulated[:, 1] = 1e6
    assert np.isfinite(c.regression(real, simulated / 1e6)).all()
    assert c.separability(real, simulated) == 1.0


def test_features_say_in_which_direction():
    real, simulated = [drawn(each, 50) for each in range(12)], [drawn(each + 50, 90) for each in range(12)]
    made = c.compare_recordings(real, simulated, [0] * 12, SIZE, DURATION)
    by_name = {each.name: each for each in made.features}
    assert tuple(by_name) == c.FEATURES
    assert by_name["interval 50%"].apart < -1
    assert by_name["events"].mean == c.RealSimulated(50, 90)
    assert by_name["events"].weight > 0
    assert made.separability > 0.9


def perfect():
    real = [drawn(each) for each in range(6)]
    return c.compare_recordings(real, real, [0, 0, 1, 1, 2, 2], SIZE, DURATION)


def test_identical_recordings_meet_every_target():
    made = perfect()
    assert c.unmet_targets(made) == []
    assert made.image == pytest.approx((1,) * 6)
    assert made.separability == 0.5


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"events": c.RealSimulated(100, 105)}, []),
        ({"events": c.RealSimulated(100, 105.1)}, ["mean events:"]),
        ({"events": c.RealSimulated(100, 94.9)}, ["mean events:"]),
        (
            {
                "classes": (
                    c.ClassEvents(0, 1, c.RealSimulated(100, 110)),
                    c.ClassEvents(4, 1, c.RealSimulated(100, 89)),
                )
            },
            ["class 4"],
        ),
        ({"on_share": c.RealSimulated(0.5, 0.519)}, []),
        ({"on_share": c.RealSimulated(0.5, 0.479)}, ["ON share"]),
        ({"image": (0.9, 0.89, 0.91)}, []),
        ({"image": (0.9, 0.89, 0.9)}, ["event image"]),
        ({"sequence": (0.7,)}, ["ten-bin sequence"]),
        ({"separability": 1.0}, []),
        ({"events": c.RealSimulated(100, 80), "sequence": (0.7,)}, ["mean events", "sequence"]),
    ],
)
def test_each_target_has_its_own_tolerance(changes, names):
    found = c.unmet_targets(replace(perfect(), **changes))
    assert len(found) == len(names)
    assert all(name in line for name, line in zip(names, found, strict=True))


def test_the_document_is_json_and_has_the_numbers():
    made = c.compare_recordings([none(), drawn(1)], [one(), drawn(2)], [5, 6], SIZE, DURATION)
    document = json.loads(json.dumps(made.document(), allow_nan=False))
    assert document["classes"]["5"] == {"recordings": 1, "real": 0, "simulated": 1, "ratio": None}
    assert document["recordings"] == 2
    assert document["image_correlation"]["worst"] == 0.0  # nothing happens: the same everywhere
    assert document["image_correlation"]["each"] == list(made.image)
    assert list(document["intervals_us"]) == ["10%", "25%", "50%", "75%", "90%"]
    assert document["separability"]["features"][0]["name"] == "events"
    assert any("class 5" in line for line in c.unmet_targets(made))


def test_nothing_one_event_and_constant_images():
    made = c.compare_recordings([none()], [none()], [0], SIZE, DURATION)
    assert (made.image, made.sequence, made.separability) == ((0.0,), (0.0,), 0.5)
    assert made.events.ratio == 1.0
    assert made.intervals == (c.RealSimulated(DURATION, DURATION),) * 5
    single = c.compare_recordings([one()], [one()], [0], (1, 1), DURATION)  # ON beside OFF still makes two values
    assert single.image[0] == pytest.approx(1)
    both = make_events([0, 0], [0, 0], [0, 0], [0, 1])
    assert c.compare_recordings([both], [both], [0], (1, 1), DURATION).image == (0.0,)
    assert c.correlation(np.full((2, 3), 1 / 3), np.arange(6.0).reshape(2, 3)) == 0.0


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (([one()], [one(), one()], [0], SIZE, DURATION), "real", "1, 2 and 1"),
        (([one()], [one()], [], SIZE, DURATION), "real", "1, 1 and 0"),
        (([], [], [], SIZE, DURATION), "real", "at least 1"),
        (([one()], [one()], [0], SIZE, 0), "duration_us", "got 0"),
        (([one()], [one(x=9)], [0], SIZE, DURATION), "simulated recording 0", "(9, 0)"),
        (([one(), one(t=-1)], [one()] * 2, [0, 0], SIZE, DURATION), "real recording 1", "from 0 µs on"),
    ],
)
def test_invalid_input_is_named(arguments, field, value):
    with raises(InputError, field=field, mentions=[value]):
        c.compare_recordings(*arguments)
