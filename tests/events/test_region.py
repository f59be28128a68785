"""Whether a recording fits the sensor that a network was trained on, and the part of it that is binned."""

import numpy as np
import pytest

from raising import raises
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.events.region import GUESSED, SensorRegion, check_crop, crop_events

CROP = (10, 20, 30, 40)


def recording(size=(128, 128), right=127, bottom=127, **metadata):
    x, y = np.array([0, 10, 39, 40, right]), np.array([0, 20, 59, 30, bottom])
    return Recording(make_events(x, y, np.arange(5), np.arange(5) % 2), size, "memory", metadata)


def test_the_networks_sensor_decides_where_a_file_names_none():
    quiet = recording(size=(34, 34), right=33, bottom=33, sensor_size_from=GUESSED)
    quiet.events["x"], quiet.events["y"] = 5, 7
    fitted = SensorRegion((128, 128)).fit(quiet)
    assert fitted.sensor_size == (128, 128)
    assert fitted.metadata["sensor_size_from"] == "the network"
    assert fitted.warnings == ()


def test_a_guessed_size_is_a_warning():
    fitted = SensorRegion().fit(recording(sensor_size_from=GUESSED))
    assert (fitted.sensor_size, fitted.metadata["sensor_size_from"]) == ((128, 128), GUESSED)
    (sentence,) = fitted.warnings
    assert "128×128" in sentence
    assert SensorRegion().fit(fitted) is fitted  # with one warning
    assert SensorRegion().fit(recording()).warnings == ()


@pytest.mark.parametrize("size_from", ["the file", "the caller", None])
def test_another_sensor_is_refused_unless_given(size_from):
    given = recording(sensor_size_from=size_from)
    with raises(InputError, field="sensor_size", mentions=["64×64", "128×128", "--sensor-size", "--crop"]):
        SensorRegion((64, 64)).fit(given)
    fitted = SensorRegion((128, 128), size_given=True).fit(given)
    assert (fitted.sensor_size, len(fitted)) == ((128, 128), 5)


def test_events_beyond_the_networks_sensor_are_another_sensors():
    given = recording(sensor_size_from=GUESSED)
    with raises(InputError, field="sensor_size"):
        SensorRegion((64, 64)).fit(given)
    fitted = SensorRegion((64, 64), size_given=True).fit(given)  # left out and counted
    assert (len(fitted), fitted.sensor_size) == (4, (64, 64))
    assert "1 events outside the 64×64 sensor left out" in fitted.warnings


def test_a_crop_is_taken_of_the_whole_sensor():
    region = SensorRegion((128, 128), CROP)
    fitted = region.fit(recording())
    assert fitted.sensor_size == region.binned_size == (30, 40)
    assert fitted["x"].tolist() == [0, 29]
    assert fitted["y"].tolist() == [0, 39]
    assert fitted["t"].tolist() == [1, 2]
    assert fitted.metadata["whole_size"] == (128, 128)
    assert region.fit(fitted) is fitted
    stored = Recording(fitted.events, (30, 40), "store/x", {"crop": CROP})  # cropped when its set was prepared
    assert region.fit(stored) is stored
    with raises(InputError, field="crop"):
        SensorRegion((128, 128), (0, 0, 30, 40)).fit(stored)


def test_a_given_crop_takes_a_part_of_any_sensor_that_contains_it():
    region = SensorRegion((34, 34), CROP, crop_given=True)
    assert len(region.fit(recording(sensor_size_from="the file"))) == 2
    with raises(InputError, field="crop"):
        region.fit(recording(size=(34, 34), right=33, bottom=33, sensor_size_from="the file"))
    both = SensorRegion((64, 64), CROP, size_given=True, crop_given=True)
    with raises(InputError, field="sensor_size"):
        both.check_size((128, 128))


def test_a_crop_without_events_is_refused():
    with raises(InputError, field="crop"):
        SensorRegion((128, 128), (100, 0, 5, 5)).fit(recording())


@pytest.mark.parametrize(
    "crop",
    [(0, 0, 0, 5), (-1, 0, 5, 5), (120, 0, 9, 5), (0, 0, 5), "0 0 5 5", (0, 0, 5.0, 5), (True, 0, 5, 5), None],
    ids=str,
)
def test_invalid_crops(crop):
    with raises(InputError, field="crop"):
        check_crop(crop, (128, 128))


def test_cropping_leaves_the_given_events_alone():
    given = recording().events
    before = given.copy()
    assert len(crop_events(given, CROP)) == 2
    assert (given == before).all()
