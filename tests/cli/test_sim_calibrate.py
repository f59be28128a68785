"""`ripe sim calibrate`: recordings that pair with their pictures, and what is refused."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from ripe_mambaspike.events import Recording, make_events, write

SHARED = Path(os.environ.get("RIPE_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
real_data = pytest.mark.skipif(
    not (SHARED / "nmnist-real").is_dir() or not (SHARED / "mnist").is_dir(),
    reason="the shared recordings are not there (RIPE_SHARED_DATA)",
)


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(side.to_bytes(4, "big") for side in array.shape)
    return head + array.tobytes()


@pytest.fixture
def places(tmp_path):
    """Six recordings of six digits, 1 to 6, and the digits as MNIST has them."""
    real, images = tmp_path / "real", tmp_path / "images"
    images.mkdir()
    labels = np.array([3, 1, 4, 1, 5, 9], np.uint8)
    (images / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    (images / "train-images-idx3-ubyte").write_bytes(idx(np.full((6, 28, 28), 9, np.uint8)))
    for number, label in enumerate(labels, 1):
        folder = real / "Train" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        events = make_events(range(20), range(20), range(0, 300_000, 15_000), [0, 1] * 10)
        write(Recording(events, (34, 34)), folder / f"{number:05d}.bin")
    return real, images


def words(places, *more):
    real, images = places
    return ["sim", "calibrate", "--real", real, "--images", images, "--out", real.parent / "out", *more]


def test_a_recording_of_another_digit_is_refused(places, refused):
    (places[0] / "Train" / "3").rename(places[0] / "Train" / "8")
    refused(words(places), "Train/8/00001.bin", "3")


def test_a_recording_without_a_picture_is_refused(places, refused):
    folder = places[0] / "Train" / "9"
    (folder / "00006.bin").rename(folder / "00099.bin")
    refused(words(places), "00099.bin")


def test_too_few_recordings_are_refused(places, refused, tmp_path):
    for number in (1, 2, 4, 5):
        for path in places[0].rglob(f"0000{number}.bin"):
            path.unlink()
    refused(words(places), "0", "2")
    refused(words((tmp_path / "nowhere", places[1])), "nowhere")
    refused(words((places[0], tmp_path / "nothing")), "nothing")
    refused(words(places, "--rounds", "0"), "--rounds", "0", "1 to 100000")
    assert not (tmp_path / "out").exists()


@real_data
@pytest.mark.slow
def test_the_shipped_calibration_meets_its_targets(ripe, tmp_path):
    """On the 200 recordings that were not fitted."""
    result = ripe(*words((SHARED / "nmnist-real", SHARED / "mnist"))[:6], "--out", tmp_path, "--keep", "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert document["recordings"] == 200
    assert document["missed"] == []
    assert abs(document["events"]["ratio"] - 1) < 0.05
    assert abs(document["on_share"]["real"] - document["on_share"]["simulated"]) < 0.02
    assert document["image_correlation"]["mean"] > 0.95
    assert document["sequence_correlation"]["mean"] > 0.88
    for name in ("calibration.json", "comparison.json", "comparison.png", "twins.png"):
        assert (tmp_path / name).stat().st_size > 500
