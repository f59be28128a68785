"""What a network says of a recording: the clip's class, its probability, and the classes over time."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from raising import raises
from ripe_mambaspike import bin_events, create_model, fuse
from ripe_mambaspike.api import load
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import InputError, WeightsError
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.predict import predict, step_edges
from ripe_mambaspike.models.labels import Labels, save_labels

FIELDS = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 6, "in_size": 18, "num_classes": 4}
NAMES = ("clap", "wave", "roll", "drums")


def recording(count=4000, size=(24, 20), seed=0, start=1_000_000):
    random = np.random.default_rng(seed)
    t = np.sort(random.integers(0, 300_000, count)) + start
    return Recording(
        make_events(random.integers(0, size[0], count), random.integers(0, size[1], count), t, t % 2), size
    )


@pytest.fixture
def network():
    model = create_model("nmnist", seed=0, **FIELDS)
    randomize(model, 0)
    return model.eval()


@pytest.fixture
def saved(network, tmp_path):
    """A run's folder."""
    network.save_pretrained(tmp_path / "run" / "best")
    save_labels(Labels(NAMES, "x", None, 5, (17, 19), "time", False, 3, "validation"), tmp_path / "run" / "best")
    return tmp_path / "run"


def set_labels(folder, **changes):
    labels = Labels(NAMES, "x", None, 5, (17, 19), "time", False, 3, "validation")
    save_labels(replace(labels, **changes), folder / "best")


@pytest.mark.parametrize("by", ["time", "count"])
@pytest.mark.parametrize("binary", [False, True], ids=["counts", "binary"])
def test_the_clip_is_binned_as_in_training_and_its_mean_is_taken(saved, network, by, binary):
    set_labels(saved, by=by, binary=binary)
    clip = recording()
    made = predict(load(saved), clip)
    with torch.no_grad():
        logits = network(bin_events(clip, 5, by=by, grid=(17, 19), binary=binary)[None])[0].float()
    wanted = torch.softmax(logits.mean(0), -1)
    assert list(made.probabilities) == list(NAMES)
    assert list(made.probabilities.values()) == pytest.approx(wanted.tolist(), abs=1e-6)
    assert made.label == NAMES[int(wanted.argmax())]
    assert made.probability == max(made.probabilities.values())
    order = sorted(made.probabilities.items(), key=lambda one: -one[1])
    assert made.runner_up == order[1]
    # Over time: the class that leads by the mean so far.
    assert len(made.timeline) == 5
    for step, moment in enumerate(made.timeline):
        so_far = torch.softmax(logits[: step + 1].double().mean(0), -1)
        assert moment.label == NAMES[int(so_far.argmax())]
        assert moment.probability == pytest.approx(float(so_far.max()), abs=1e-5)
    assert (made.timeline[-1].label, made.timeline[-1].probability) == (made.label, made.probability)


def test_without_labels_classes_have_numbers_and_the_config_gives_the_bins(saved, network):
    (saved / "best" / "labels.json").unlink()
    classifier = load(saved)
    assert (classifier.class_names, classifier.time_steps, classifier.grid) == (("0", "1", "2", "3"), 6, (18, 18))
    assert (classifier.bin_by, classifier.binary) == ("time", False)
    clip = recording()
    with torch.no_grad():
        wanted = int(network.predict(bin_events(clip, 6, grid=18)[None]))
    assert predict(classifier, clip).label == str(wanted)


def test_time_steps_and_grid_can_be_given(saved, network):
    clip = recording()
    classifier = load(saved, time_steps=3, grid=12)
    with torch.no_grad():
        logits = network(bin_events(clip, 3, grid=12)[None])[0]
    made = predict(classifier, clip)
    assert len(made.timeline) == 3
    assert list(made.probabilities.values()) == pytest.approx(torch.softmax(logits.mean(0), -1).tolist(), abs=1e-6)


def test_the_deployed_form_predicts_the_same(saved, network, tmp_path):
    fuse(network).save_pretrained(tmp_path / "small")
    save_labels(Labels(NAMES, "x", None, 5, (17, 19), "time", False, 3, "validation"), tmp_path / "small")
    clip = recording()
    training, deployed = predict(load(saved), clip), predict(load(tmp_path / "small"), clip)
    assert deployed.label == training.label
    assert list(deployed.probabilities.values()) == pytest.approx(list(training.probabilities.values()), abs=1e-4)


def test_half_precision(saved, network, tmp_path):
    network.bfloat16().save_pretrained(tmp_path / "half")
    made = predict(load(tmp_path / "half"), recording())
    assert sum(made.probabilities.values()) == pytest.approx(1, abs=1e-5)


def test_a_network_with_one_output_per_clip_has_a_timeline_of_one(tmp_path):
    fields = {
        "channels": (4, 5, 6),
        "embed_dim": 16,
        "depth": 2,
        "time_steps": 7,
        "in_size": (13, 18),
        "num_classes": 3,
    }
    create_model("mamba-spike", seed=0, **fields).save_pretrained(tmp_path)
    clip = recording()
    (moment,) = predict(load(tmp_path), clip).timeline
    assert (moment.start_us, moment.stop_us) == (clip.first_us, clip.last_us + 1)


@pytest.mark.parametrize("steps", [1, 3, 5, 16])
@pytest.mark.parametrize("by", ["time", "count"])
@pytest.mark.parametrize("count", [1, 3, 500])
def test_steps_lie_where_the_binning_puts_them(by, steps, count):
    clip = recording(count=count, seed=count)
    edges = step_edges(clip, steps, by)
    assert len(edges) == steps + 1
    assert (edges[0], edges[-1]) == (clip.first_us, clip.last_us + 1)
    assert edges == sorted(edges)
    if len(set(clip["t"].tolist())) < count:
        return  # events of one time may lie on both sides of an edge between equal counts
    inside = [int(((clip["t"] >= start) & (clip["t"] < stop)).sum()) for start, stop in pairwise(edges)]
    assert inside == bin_events(clip, steps, by=by, grid=8).sum((1, 2, 3)).int().tolist()


def test_events_out_of_order_change_nothing(saved):
    clip = recording()
    shuffled = replace(clip, events=clip.events[np.random.default_rng(1).permutation(len(clip))])
    for by in ("time", "count"):
        if by == "count" and len(set(clip["t"].tolist())) < len(clip):
            clip = replace(clip, events=clip.events[np.unique(clip["t"], return_index=True)[1]])
            shuffled = replace(clip, events=clip.events[::-1].copy())
        set_labels(saved, by=by)
        classifier = load(saved)
        assert predict(classifier, shuffled) == predict(classifier, clip)


def test_a_sensor_smaller_than_the_grid_is_refused_unless_a_grid_is_given(saved):
    clip = recording(size=(12, 40))
    with raises(InputError, field="grid", mentions=("12×40", "19×17", 12)):
        predict(load(saved), clip)
    assert predict(load(saved, grid=17), clip).label in NAMES
    assert predict(load(saved, grid=12), clip).label in NAMES


def test_no_events(saved):
    for by in ("time", "count"):
        set_labels(saved, by=by)
        with raises(InputError, field="recording"):
            predict(load(saved), recording(count=0))


@pytest.mark.parametrize(
    ("field", "value"), [("time_steps", 0), ("time_steps", 7), ("grid", 7), ("grid", -1), ("grid", 1 << 20)]
)
def test_sizes_that_the_network_does_not_take(saved, field, value):
    with raises(InputError, field=field, mentions=(value,)):
        load(saved, **{field: value})


def test_labels_of_another_network(saved):
    set_labels(saved, classes=("a", "b"))
    with raises(WeightsError, field="classes"):
        load(saved)
    set_labels(saved, time_steps=9)
    with raises(WeightsError, field="data.time_steps", path=saved / "best" / "labels.json", mentions=(9,)):
        load(saved)
    (saved / "best" / "labels.json").write_text(json.dumps({"format": "ripe-labels"}))
    with raises(WeightsError, path=saved / "best" / "labels.json"):
        load(saved)


def test_logits_that_are_not_finite_are_an_error(saved, network):
    with torch.no_grad():
        network.head.bias.fill_(3e38)  # finite, as a file's weights are; the mean of two of them is not
        network.head.weight.fill_(0)
    network.save_pretrained(saved / "best")
    with raises(WeightsError, field="logits"):
        predict(load(saved), recording())
