"""Shipped networks by name, runs as folders of networks, and networks of the hub."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import create_model, from_pretrained, list_pretrained, load
from ripe_mambaspike.errors import ConfigError, WeightsError
from ripe_mambaspike.models import hub
from ripe_mambaspike.models.shipped import pretrained_name, weights_folder
from ripe_mambaspike.models.synthetic import synthetic_clip

DIGITS = weights_folder() / "nmnist-simulated"
MAX_BYTES = 15_000_000  # of all networks in the package


@pytest.fixture
def small():
    fields = {"stage_channels": (4, 4, 4), "embed_dims": (4, 8, 8), "in_size": 16, "time_steps": 3}
    return create_model("nmnist", seed=0, num_classes=3, **fields).eval()


def test_names_and_their_size():
    assert list_pretrained() == [
        "gestures-simulated", "gestures-simulated-causal", "nmnist-simulated", "nmnist-simulated-real",
    ]  # fmt: skip
    assert sum(path.stat().st_size for path in weights_folder().rglob("*") if path.is_file()) < MAX_BYTES


def test_a_name_is_the_shipped_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named, direct = from_pretrained("nmnist-simulated"), from_pretrained(DIGITS)
    assert all(torch.equal(value, direct.state_dict()[key]) for key, value in named.state_dict().items())
    assert load("gestures-simulated").class_names[1] == "right_hand_wave"


def test_a_network_in_a_folder_of_that_name_comes_first(tmp_path, monkeypatch, small):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nmnist-simulated").mkdir()  # of recordings, for instance
    assert from_pretrained("nmnist-simulated").num_classes == 10
    small.save_pretrained("nmnist-simulated")
    assert from_pretrained("nmnist-simulated").num_classes == 3


def test_a_run_is_its_best_network(tmp_path, small):
    small.save_pretrained(tmp_path / "run" / "best")
    x = synthetic_clip(3, 16, 16, seed=1)
    assert torch.equal(from_pretrained(tmp_path / "run")(x), small(x))
    with raises(WeightsError, path=tmp_path / "other"):
        from_pretrained(tmp_path / "other")


@pytest.mark.parametrize("name", ["nmnist-simulated", "nmnist"])
def test_create_model_with_weights_and_a_new_head(name):
    model, again = (create_model(name, pretrained=True, num_classes=4, seed=seed) for seed in (1, 1))
    whole = from_pretrained(DIGITS)
    assert model.training
    assert (model.head.weight.shape, model.config.num_classes) == ((4, whole.head.in_features), 4)
    assert torch.equal(model.head.weight, again.head.weight)
    x = synthetic_clip(10, 34, 34, seed=2)
    assert torch.equal(model.eval().forward_features(x), whole.forward_features(x))
    assert not torch.equal(model.head.weight, create_model(name, pretrained=True, num_classes=4, seed=2).head.weight)


def test_create_model_keeps_the_head_of_the_same_classes():
    model = create_model("nmnist-simulated", pretrained=True, num_classes=10, in_size=28)
    assert torch.equal(model.head.weight, from_pretrained(DIGITS).head.weight)
    assert model.class_names == from_pretrained(DIGITS).class_names
    assert model.config.in_size == (28, 28)


def test_create_model_gives_the_training_form_too():
    """With branches, and the same answers; a new head comes last."""
    model = create_model("nmnist", pretrained=True, form="training", num_classes=4, seed=1)
    assert (model.config.form, model.training, model.num_classes) == ("training", True, 4)
    assert model.parameter_count() > 1.7 * from_pretrained(DIGITS).parameter_count()
    x = synthetic_clip(10, 34, 34, seed=2)
    features, expected = (one.eval().forward_features(x) for one in (model, from_pretrained(DIGITS)))
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4)


def test_what_the_weights_do_not_fit_is_refused():
    with raises(ConfigError, field="time_steps"):
        create_model("nmnist", pretrained=True, time_steps=12)
    with raises(ConfigError, field="form"):
        create_model("nmnist", pretrained=True, form="dual-kernel")
    with raises(ConfigError, field="pretrained"):
        create_model("cifar10dvs", pretrained=True)
    assert pretrained_name("dvsgesture") == "gestures-simulated"


def test_only_what_cannot_be_a_folder_is_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    assert hub.is_hub_id("someone/digits")
    for other in ("runs/typo", "digits", "/a/b", "a/b/c", "./b", "../b", Path("someone/digits"), None):
        assert not hub.is_hub_id(other)
    with raises(WeightsError, path=Path("runs/typo")):
        from_pretrained("runs/typo")


def test_a_hub_id_without_the_package_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "_make_hub_class", lambda: (_ for _ in ()).throw(ImportError()))
    with raises(WeightsError, field="folder", path="someone/digits"):
        from_pretrained("someone/digits")


@pytest.fixture
def hosted(tmp_path, monkeypatch, small):
    """A folder that stands for the hub: downloads copy from it."""
    huggingface = pytest.importorskip("huggingface_hub")
    from huggingface_hub import hub_mixin

    home, cache = tmp_path / "hub" / "someone" / "digits", tmp_path / "cache"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def snapshot(hub_id, allow_patterns, **_):
        folder = tmp_path / "hub" / hub_id
        shutil.copytree(folder, cache, ignore=lambda _, names: [n for n in names if n not in allow_patterns])
        return str(cache)

    monkeypatch.setattr(huggingface, "snapshot_download", snapshot)
    monkeypatch.setattr(hub_mixin, "hf_hub_download", lambda repo_id, filename, **_: str(home / filename))
    hub._make_hub_class.cache_clear()
    hub._make_hub_class()(small).save_pretrained(home)
    yield home
    hub._make_hub_class.cache_clear()


def test_a_network_of_the_hub(hosted, tmp_path, small):
    (hosted / "pytorch_model.bin").write_bytes(b"a pickle")
    loaded, x = from_pretrained("someone/digits"), synthetic_clip(3, 16, 16, seed=1)
    assert torch.equal(loaded(x), small(x))
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["config.json", "model.safetensors"]
    assert torch.equal(hub.load_from_hub(str(hosted))(x), small(x))


def test_a_hostile_config_of_the_hub_is_refused(hosted):
    document = json.loads((hosted / "config.json").read_text())
    (hosted / "config.json").write_text(json.dumps({**document, "model": "x", "weights": {"sha256": "0"}}))
    with raises(WeightsError, field="weights.sha256"):
        from_pretrained("someone/digits")
    (hosted / "config.json").write_text("[]")
    with pytest.raises(WeightsError):
        from_pretrained("someone/digits")


def test_a_form_is_checked_on_the_hub_too(hosted):
    with raises(WeightsError, field="form", path="someone/digits"):
        from_pretrained("someone/digits", form="deployed")
