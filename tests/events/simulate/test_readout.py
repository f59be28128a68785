"""What a sensor's readout adds to events: echoes, overshoots and noise, in the shares that were asked for."""

import numpy as np
import pytest

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import pack_events
from ripe_mambaspike.events.simulate.readout import Readout, add_readout

SIZE, SECOND = (40, 30), 1_000_000


@pytest.fixture
def events():
    """One event a pixel, ON and OFF by turns."""
    y, x = np.divmod(np.arange(1200), 40)
    return pack_events(x, y, 100 + 500 * np.arange(1200), np.arange(1200) % 2 == 0)


def test_nothing_is_added_by_default(events):
    assert np.array_equal(add_readout(events, Readout(), SIZE, SECOND, 0), events)


def test_on_events_come_twice(events):
    made = add_readout(events, Readout(echo=0.5), SIZE, SECOND, 0)
    added = len(made) - len(events)
    assert abs(added - 300) < 60
    assert made["p"].sum() == 600 + added
    assert (np.diff(made["t"]) >= 0).all()
    pixel = made["y"].astype(int) * 40 + made["x"]
    order = np.lexsort((made["t"], pixel))
    twice = np.flatnonzero(np.diff(pixel[order]) == 0)
    assert len(twice) == added
    assert np.diff(made["t"][order])[twice].max() <= 1


def test_off_events_follow_on_events(events):
    made = add_readout(events, Readout(overshoot=1.0, overshoot_us=200.0, overshoot_spread=0.1), SIZE, SECOND, 0)
    assert len(made) == 1800
    assert made["p"].sum() == 600
    on, off = made[made["p"] == 1], made[made["p"] == 0]
    after = {(one["x"], one["y"]): one["t"] for one in off}
    delays = [int(after[one["x"], one["y"]]) - int(one["t"]) for one in on]
    assert 190 < np.median(delays) < 210


def test_noise_has_its_rate_and_polarity():
    nothing = pack_events(*(np.zeros(0, int) for _ in range(4)))
    made = add_readout(nothing, Readout(noise_hz=4.0, noise_on=0.25, hot_share=0.01, hot_hz=500.0), SIZE, SECOND, 3)
    counts = np.bincount(made["y"].astype(int) * 40 + made["x"], minlength=1200)
    assert abs(np.median(counts) - 4) <= 1
    assert abs(made["p"].mean() - 0.25) < 0.03
    assert 2 <= (counts > 300).sum() <= 30
    assert made["t"].max() < SECOND


def test_a_seed_gives_the_same_events_and_another_others(events):
    readout = Readout(echo=0.3, overshoot=0.3, noise_hz=1.0)
    first, again, other = (add_readout(events, readout, SIZE, SECOND, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_events_after_the_end_are_left_out(events):
    readout = Readout(echo=1.0, overshoot=1.0, overshoot_us=1000.0)
    assert add_readout(events, readout, SIZE, 300_000, 0)["t"].max() < 300_000


@pytest.mark.parametrize(
    ("field", "value"), [("echo", 1.5), ("overshoot", -0.1), ("noise_hz", float("nan")), ("noise_on", 2.0)]
)
def test_a_share_out_of_range_is_refused(field, value):
    with raises(InputError, field=field):
        Readout(**{field: value})
