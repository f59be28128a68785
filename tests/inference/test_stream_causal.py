"""A causal network on a stream: its predictions are those of one long run, to rounding."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raising import raises
from ripe_mambaspike import create_model
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.binning import bin_events
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.streamer import Streamer
from ripe_mambaspike.models.base import clip_logits

SENSOR = (20, 18)
FIELDS = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": 16, "num_classes": 3}


@pytest.fixture(scope="module")
def classifier():
    model = create_model("nmnist", seed=0, causal=True, **FIELDS).eval()
    randomize(model, 0)
    return Classifier(model, ("clap", "wave", "roll"), 4, (16, 16), "time", False)


@pytest.fixture(scope="module")
def stream():
    rng = np.random.default_rng(0)
    times = np.sort(rng.integers(0, 2000, 3000))
    times[0] = 0
    return make_events(rng.integers(0, 20, 3000), rng.integers(0, 18, 3000), times, rng.integers(0, 2, 3000))


def predictions_of(streamer, events, cuts=()):
    bounds = [0, *cuts, len(events)]
    found = [one for a, b in zip(bounds, bounds[1:], strict=False) for one in streamer.push(events[a:b])]  # noqa: RUF007
    return found + streamer.advance(2000)


def test_predictions_are_means_over_the_last_steps_of_one_long_run(classifier, stream):
    predictions = predictions_of(Streamer(classifier, SENSOR, window_us=400), stream, [1, 900, 905])
    clip = bin_events(Recording(stream, SENSOR), 20, grid=(16, 16), start_us=0, stop_us=2000)
    with torch.no_grad():
        logits = classifier.model.eval().run(clip.unsqueeze(0), state={}).logits
    assert [(one.start_us, one.stop_us) for one in predictions] == [(100 * k, 100 * k + 400) for k in range(17)]
    for index, prediction in enumerate(predictions):
        mean = torch.softmax(clip_logits(logits[:, index : index + 4])[0], -1)
        torch.testing.assert_close(torch.tensor(prediction.probabilities), mean, atol=1e-4, rtol=1e-4)
        assert prediction.final


def test_packets_and_early_predictions(classifier, stream):
    whole = predictions_of(Streamer(classifier, SENSOR, window_us=400, early=True), stream)
    cut = predictions_of(Streamer(classifier, SENSOR, window_us=400, early=True), stream, [3, 4, 1500])
    assert [one.step for one in whole] == [1, 2, 3, *[4] * 17]
    assert [one.probabilities for one in whole] == [one.probabilities for one in cut]


def test_a_hop_is_a_number_of_bins(classifier, stream):
    predictions = predictions_of(Streamer(classifier, SENSOR, window_us=400, hop_us=200), stream)
    assert [one.stop_us for one in predictions] == list(range(400, 2001, 200))
    with raises(InputError, field="hop_us", mentions=(150, "100 or 200")):
        Streamer(classifier, SENSOR, window_us=400, hop_us=150)
    for hop in (334, 667, 1000):  # bins of 1000 / 3 µs end at these
        Streamer(replace(classifier, time_steps=3), SENSOR, window_us=1000, hop_us=hop)
    with raises(InputError, field="hop_us", mentions=(668, "667 or 1000")):
        Streamer(replace(classifier, time_steps=3), SENSOR, window_us=1000, hop_us=668)


@pytest.mark.parametrize("pause_us", [350, 1100, 1700, 2100, 60_050])
def test_a_silence_is_the_same_however_time_is_cut(classifier, stream, pause_us):
    """In one call of `advance` or in many: the same predictions before and after, and the same count."""
    later = stream.copy()
    later["t"] += int(stream["t"][-1]) + pause_us
    found = []
    for step in (10**9, 130, 1000):
        streamer = Streamer(classifier, SENSOR, window_us=400, hop_us=200)
        predictions = streamer.push(stream)
        for now in range(int(stream["t"][-1]), int(later["t"][0]), step):
            predictions += streamer.advance(now)
        predictions += streamer.push(later)
        found.append(([(one.stop_us, one.probabilities) for one in predictions], streamer.silent))
    assert found[0] == found[1] == found[2]
    assert (found[0][1] > 0) == (pause_us > 1000)


def test_a_long_silence_resets_the_state(classifier, stream):
    streamer = Streamer(classifier, SENSOR, window_us=400)
    streamer.push(stream)
    later = stream.copy()
    later["t"] += 10**15
    again = Streamer(classifier, SENSOR, window_us=400)
    streamer.advance(10**15)
    expected = [one.probabilities for one in again.push(stream[:2000])]
    assert [one.probabilities for one in streamer.push(later[:2000])] == expected
