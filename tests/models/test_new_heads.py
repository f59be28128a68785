"""A replaced head and its class names: kept, saved and loaded together."""

import logging
from dataclasses import replace

import pytest
import torch
from tests.raising import raises
from torch import nn

from ripe_mambaspike import from_pretrained
from ripe_mambaspike.errors import ConfigError, WeightsError
from ripe_mambaspike.models.labels import LABELS_FILE, Labels, read_labels
from ripe_mambaspike.nn.neurons import SiLIF
from ripe_mambaspike.ops.membrane_attention.reference import sigmoid_attention

NAMES = tuple("abcdefg")
LABELS = Labels(NAMES, "mine", "all", 5, (16, 16), "count", True, 3, "paper", "key", (34, 34), None, 900)


@pytest.mark.parametrize("head_hidden_size", [None, 24])
@pytest.mark.parametrize("form", ["training", "deployed"])
def test_reset_classifier(small, events, tmp_path, head_hidden_size, form):
    model = small(form=form, head_hidden_size=head_hidden_size).double().eval()
    model.labels = LABELS
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.reset_classifier(4, ["left", "right", "up", "down"])
    assert model.config.num_classes == 4
    assert model.class_names == ("left", "right", "up", "down")
    assert model.dtype == torch.float64
    assert model(events(dtype=torch.float64)).shape == (2, 5, 4)
    last = "head." if head_hidden_size is None else "head.3."
    kept = {name for name in before if not name.startswith(last)}
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in kept)
    loaded = from_pretrained(model.save_pretrained(tmp_path / "new"))
    assert loaded.labels == model.labels == Labels(model.class_names, None, None, 5, (16, 16), "count", True)
    x = events(dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


def test_reset_classifier_of_the_baseline(tiny_baseline, events):
    model = tiny_baseline().eval()
    model.reset_classifier(9)
    assert model(events(13, 18, steps=7)).shape == (2, 1, 9)
    assert (model.class_names, model.config.num_classes) == (None, 9)


@pytest.mark.parametrize("names", [["a"], ["a", "b", "b"], ["a", "b", "c", "d"]])
def test_names_that_do_not_fit(small, names):
    model = small()
    head = model.head
    with raises(ConfigError, "class_names"):
        model.reset_classifier(3, names)
    assert model.head is head
    with pytest.raises(ConfigError):
        model.reset_classifier(-1)


def test_names_are_loaded_saved_and_removed_with_the_network(small, tmp_path):
    model = small()
    model.labels = LABELS
    model.save_pretrained(tmp_path)
    assert read_labels(tmp_path) == from_pretrained(tmp_path).labels == LABELS
    small(seed=1).save_pretrained(tmp_path)  # its classes are others, without names
    assert not (tmp_path / LABELS_FILE).exists()
    assert from_pretrained(tmp_path).labels is None


def test_names_of_any_characters(small, tmp_path):
    model = small()
    model.labels = replace(LABELS, classes=("é", "\ud800", "\n", "\u202e", *"xyz"))
    assert from_pretrained(model.save_pretrained(tmp_path)).labels == model.labels
    model.labels = replace(LABELS, classes=("a", "", *"bcdef"))
    with raises(WeightsError, "classes[1]"):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_names_of_another_number_are_refused(small, tmp_path):
    small(num_classes=6).save_pretrained(tmp_path)
    other = small()
    other.labels = LABELS
    other.save_pretrained(tmp_path / "other")
    (tmp_path / LABELS_FILE).write_bytes((tmp_path / "other" / LABELS_FILE).read_bytes())
    with pytest.raises(WeightsError) as caught:
        from_pretrained(tmp_path)
    assert (caught.value.field, caught.value.path) == ("classes", tmp_path / LABELS_FILE)


@pytest.mark.parametrize("head_hidden_size", [None, 24])
def test_a_replaced_head_updates_the_config(small, events, tmp_path, caplog, head_hidden_size):
    model = small(head_hidden_size=head_hidden_size).eval()
    model.labels = LABELS
    if head_hidden_size is None:
        model.head = nn.Linear(24, 4)
    else:
        model.head[-1] = nn.Linear(24, 4)
    with caplog.at_level(logging.WARNING):
        model.save_pretrained(tmp_path)
    assert len(caplog.records) == 1
    loaded = from_pretrained(tmp_path)
    assert loaded.config.num_classes == model.config.num_classes == 4
    assert loaded.class_names == ("0", "1", "2", "3")
    assert (loaded.labels.by, loaded.labels.binary, loaded.labels.set) == ("count", True, None)
    with torch.no_grad():
        assert torch.equal(loaded(events()), model(events()))


def test_names_that_fit_a_replaced_head_stay(small, tmp_path, caplog):
    model = small()
    model.head = nn.Linear(24, 2)
    model.labels = Labels(("yes", "no"), None, None, 5, (16, 16), "time", False)
    model.save_pretrained(tmp_path)
    assert from_pretrained(tmp_path).class_names == ("yes", "no")
    assert not caplog.records


class Mine(SiLIF):
    pass


def mine(model):
    model.stages[1].first_neuron.__class__ = Mine


def scaled(model):
    model.head.forward = lambda x: 2 * x


UNKNOWN = {
    "head.bias": lambda m: setattr(m, "head", nn.Linear(24, 7, bias=False)),
    "head.weight": lambda m: setattr(m, "head", nn.Linear(25, 7)),
    "head.0.bias": lambda m: setattr(m, "head", nn.Sequential(nn.Linear(24, 7), nn.Dropout(0.5))),
    "extra.bias": lambda m: setattr(m, "extra", nn.Linear(2, 2)),
    "stages.1.first_neuron": mine,
    "stages.2.attention": lambda m: setattr(m.stages[2].attention, "attend", sigmoid_attention),
    "hierarchy.norm": lambda m: setattr(m.hierarchy.norm, "eps", 0.1),
    "head": scaled,
}


@pytest.mark.parametrize("field", UNKNOWN)
def test_a_network_that_differs_from_its_config_is_not_written(small, tmp_path, field):
    model = small()
    UNKNOWN[field](model)
    with pytest.raises(WeightsError) as caught:
        model.save_pretrained(tmp_path / "new")
    assert caught.value.field in (field, field.replace("head.0.bias", "head.bias"))
    assert not (tmp_path / "new").exists()


def test_an_earlier_save_stays_when_the_next_is_refused(small, tmp_path):
    model = small()
    model.labels = LABELS
    model.save_pretrained(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    model.head = nn.Linear(25, 7)
    with pytest.raises(WeightsError):
        model.save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_mixed_precision_is_not_written(small, tmp_path):
    model = small()
    model.head = nn.Linear(24, 7).double()
    with pytest.raises(WeightsError):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_hooked_network_can_be_saved(small, tmp_path):
    model = small()
    model.head.register_forward_hook(lambda *given: None)
    model.hierarchy.drop_rates = [0.0] * 3
    model.entry.momentum = 0.5
    from_pretrained(model.save_pretrained(tmp_path))
