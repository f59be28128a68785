"""Streams and predictions on a GPU: those of the whole clip, by captured graphs."""

import numpy as np
import pytest
import torch

from ripe_mambaspike import create_model, fuse
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.events.binning import bin_events
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.capture import CapturedShapes
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.predict import predict
from ripe_mambaspike.inference.streamer import Streamer
from ripe_mambaspike.models.base import clip_logits

SENSOR = (34, 34)


def make_classifier(causal=False, **more):
    fields = {"stage_channels": (16, 32, 48), "embed_dims": (16, 32, 48), "time_steps": 4, "in_size": 34}
    model = create_model("nmnist", seed=0, causal=causal, **fields, **more).eval()
    randomize(model, 0)
    model = model if causal else fuse(model, quiet=True)
    return Classifier(model.cuda(), tuple("0123456789"), 4, (34, 34), "time", False)


def make_stream(count=4000):
    rng = np.random.default_rng(0)
    times = np.sort(rng.integers(0, 2000, count))
    times[0] = 0
    return make_events(rng.integers(0, 34, count), rng.integers(0, 34, count), times, rng.integers(0, 2, count))


@pytest.mark.parametrize("hop", [100, 170])
def test_windows_are_those_of_the_clip(hop):
    classifier, events = make_classifier(), make_stream()
    found = Streamer(classifier, SENSOR, window_us=400, hop_us=hop).push(events)
    assert len(found) > 5
    for one in found:
        span = {"start_us": one.start_us, "stop_us": one.stop_us}
        clip = bin_events(Recording(events, SENSOR).crop(*span.values()), 4, grid=(34, 34), **span)
        with torch.no_grad():
            logits = classifier.model(clip.unsqueeze(0).cuda())
        wanted = torch.softmax(clip_logits(logits)[0], -1).cpu()
        torch.testing.assert_close(torch.tensor(one.probabilities), wanted, atol=1e-5, rtol=1e-4)


def test_a_causal_stream_is_one_long_run():
    classifier, events = make_classifier(causal=True), make_stream()
    streamer = Streamer(classifier, SENSOR, window_us=400)
    found = streamer.push(events) + streamer.advance(2000)
    clip = bin_events(Recording(events, SENSOR), 20, grid=(34, 34), start_us=0, stop_us=2000)
    with torch.no_grad():
        logits = classifier.model.run(clip.unsqueeze(0).cuda(), state={}).logits
    for index, one in enumerate(found):
        mean = torch.softmax(clip_logits(logits[:, index : index + 4])[0], -1).cpu()
        torch.testing.assert_close(torch.tensor(one.probabilities), mean, atol=1e-4, rtol=1e-3)


def test_predictions_and_evaluations_are_captured():
    classifier = make_classifier()
    recording = Recording(make_stream(), SENSOR)
    made = predict(classifier, recording)
    assert predict(classifier, recording) == made
    captured = CapturedShapes(classifier.model)
    x = torch.rand(3, 4, 2, 34, 34, device="cuda").round()
    with torch.no_grad():
        plain = classifier.model.run(x)
    for _ in range(2):
        out = captured.run(x)
        torch.testing.assert_close(out.logits, plain.logits)
        torch.testing.assert_close(out.rates, plain.rates)
    assert len(captured._captured) == 1


def recorded(updates):
    return [graph for graph, *_ in updates._recorded.values() if graph is not None]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("fields", [{}, {"num_tokens": 9}], ids=["all tokens", "some tokens"])
def test_windows_are_replayed_with_the_same_bits(monkeypatch, fields, early):
    classifier, events = make_classifier(**fields), make_stream()
    options = {"window_us": 400, "hop_us": 100, "early": early, "attention": True}
    with monkeypatch.context() as patch:
        patch.setenv("RIPE_CUDA_GRAPHS", "off")
        expected = Streamer(classifier, SENSOR, **options).push(events)
    streamer = Streamer(classifier, SENSOR, **options)
    found = streamer.push(events)
    batch = streamer._processor._network
    assert recorded(batch._step)
    assert recorded(batch._tails[4])
    assert len(found) == len(expected) > 10
    for one, other in zip(found, expected, strict=True):
        assert (one.probabilities, one.rates, one.step) == (other.probabilities, other.rates, other.step)
        assert torch.equal(one.attention, other.attention)


def test_a_causal_stream_is_replayed_with_the_same_bits(monkeypatch):
    """And after a silence, which resets the state."""
    classifier, events = make_classifier(causal=True), make_stream()
    later = events.copy()
    later["t"] += 20_000
    with monkeypatch.context() as patch:
        patch.setenv("RIPE_CUDA_GRAPHS", "off")
        plain = Streamer(classifier, SENSOR, window_us=400, attention=True)
        expected = plain.push(events) + plain.push(later)
    streamer = Streamer(classifier, SENSOR, window_us=400, attention=True)
    found = streamer.push(events) + streamer.push(later)
    assert recorded(streamer._processor._run._continue)
    assert len(found) == len(expected) > 10
    for one, other in zip(found, expected, strict=True):
        assert (one.probabilities, one.rates, one.start_us) == (other.probabilities, other.rates, other.start_us)
        assert torch.equal(one.attention, other.attention)
