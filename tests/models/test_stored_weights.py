"""Weights kept in int8 and float16: restored exactly, loaded as they were checked, refused when they do not fit."""

import json
import shutil
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.models.saved_folder import rewrite_config, rewrite_tensors
from tests.raising import raises

from ripe_mambaspike import create_model, from_pretrained, fuse
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import WeightsError
from ripe_mambaspike.models.pretrained import save_pretrained
from ripe_mambaspike.models.stored import Stored, check_stored, from_file, precision_of, restore, scale_shape, to_file


def rounded(tensor):
    """int8 by the plainest rule there is."""
    scale = tensor.detach().flatten(1).abs().amax(1).clamp(min=1e-6) / 127
    scale = scale.reshape(scale_shape(tensor.shape))
    return Stored((tensor.detach() / scale).round().to(torch.int8), scale)


@pytest.fixture(scope="module")
def network():
    fields = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 5, "num_classes": 7}
    model = create_model("nmnist", seed=0, **fields)
    randomize(model, 0)
    return fuse(model, quiet=True)


@pytest.fixture(scope="module")
def stored(network):
    """Kernels and matrices in int8, what a norm has for every step in float16."""
    parameters = [(name, tensor) for name, tensor in network.named_parameters() if tensor.ndim > 1]
    halves = ("scale", "shift", "A_log")
    return {n: Stored(t.detach().half(), None) if n.endswith(halves) else rounded(t) for n, t in parameters}


@pytest.fixture(scope="module")
def saved_stored(network, stored, tmp_path_factory):
    return save_pretrained(network, tmp_path_factory.mktemp("stored"), stored=stored)


@pytest.fixture
def folder(saved_stored, tmp_path):
    """The network's folder with stored weights, which a test may change."""
    return shutil.copytree(saved_stored, tmp_path / "stored")


def test_every_pair_of_value_and_scale_is_one_float32_product():
    values = torch.arange(-127, 128, dtype=torch.int8).repeat(3, 1)
    scale = torch.tensor([[0.1], [1 / 3], [7e-5]])
    expected = [[float(torch.tensor(float(v)) * s) for v in range(-127, 128)] for (s,) in scale]
    assert restore(Stored(values, scale)).tolist() == expected


def test_float16_is_widened_exactly():
    values = torch.tensor([[0.1, 65504.0, 6e-8, -0.0]], dtype=torch.float16)
    assert restore(Stored(values, None)).tolist() == [[float(v) for v in values[0]]]
    assert restore(Stored(values, None), torch.float64).dtype == torch.float64


def test_a_folder_gives_back_the_restored_numbers(network, stored, events, tmp_path):
    save_pretrained(network, tmp_path, stored=stored, beside={"note.txt": b"hello"})
    loaded = from_pretrained(tmp_path, form="deployed")
    for name, parameter in network.named_parameters():
        expected = restore(stored[name]) if name in stored else parameter
        assert torch.equal(loaded.get_parameter(name), expected), name
    assert loaded.dtype == torch.float32
    assert not loaded.training
    assert torch.isfinite(loaded(events())).all()
    assert (tmp_path / "note.txt").read_bytes() == b"hello"
    document = json.loads((tmp_path / "config.json").read_text())
    assert document["weights"]["precision"] == "int8"
    assert document["dtype"] == "float32"


def test_the_file_has_values_under_their_own_names_and_scales_behind(network, stored, tmp_path):
    save_pretrained(network, tmp_path, stored=stored)
    tensors = load_file(tmp_path / "model.safetensors")
    assert torch.equal(tensors["head.weight"], stored["head.weight"].values)
    assert torch.equal(tensors["head.weight.scale"], stored["head.weight"].scale)
    kinds = {name: tensor.dtype for name, tensor in tensors.items()}
    assert kinds["entry.shift"] == torch.float16
    assert kinds["head.bias"] == torch.float32
    assert kinds["stages.0.first_conv.weight"] == torch.int8
    assert len(kinds) == len(network.state_dict()) + sum(one.scale is not None for one in stored.values())


def test_float16_without_int8_is_named_float16(network, stored, tmp_path):
    halves = {name: Stored(network.get_parameter(name).detach().half(), None) for name in stored}
    assert (precision_of(halves), precision_of(stored)) == ("float16", "int8")
    save_pretrained(network, tmp_path, stored=halves)
    loaded = from_pretrained(tmp_path)
    assert torch.equal(loaded.head.weight, network.head.weight.half().float())
    assert torch.equal(loaded.head.bias, network.head.bias)


def test_a_float16_network_is_loaded_as_float16(network, tmp_path):
    """Without stored weights a float16 network loads as float16, as ever."""
    save_pretrained(deepcopy(network).half(), tmp_path)
    assert from_pretrained(tmp_path).dtype == torch.float16


def test_nothing_stored_is_a_plain_save(network, tmp_path):
    save_pretrained(network, tmp_path, stored={})
    assert torch.equal(from_pretrained(tmp_path).head.weight, network.head.weight)
    assert "precision" not in json.loads((tmp_path / "config.json").read_text())["weights"]


def test_a_failing_write_leaves_the_old_folder_whole(network, stored, tmp_path, monkeypatch):
    save_pretrained(network, tmp_path, stored=stored, beside={"labels.json": b"old"})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    replace = Path.replace

    def no_room(path, target):
        if "config.json" in path.name:
            raise OSError("no space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", no_room)
    with raises(WeightsError, "folder", tmp_path, ("no space",)):
        save_pretrained(network, tmp_path, beside={"labels.json": b"new"})
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def without_scale(tensors):
    del tensors["head.weight.scale"]


def with_flat_scale(tensors):
    tensors["head.weight.scale"] = tensors["head.weight.scale"].flatten()


def with_half_scale(tensors):
    tensors["head.weight.scale"] = tensors["head.weight.scale"].half()


def with_negative_scale(tensors):
    tensors["head.weight.scale"][2] *= -1


def with_lost_scale(tensors):
    tensors["head.weight.scale"][2] = float("nan")


def with_infinite_half(tensors):
    tensors["entry.shift"][0, 0] = float("inf")


def with_int16(tensors):
    tensors["head.weight"] = tensors["head.weight"].short()


def with_int8_vector(tensors):
    tensors["head.bias"] = tensors["head.bias"].to(torch.int8)


def with_an_unknown_tensor(tensors):
    tensors["unknown"] = torch.ones(3)


def with_a_short_matrix(tensors):
    for name in ("head.weight", "head.weight.scale"):
        tensors[name] = tensors[name][:-1].clone()


def without_a_matrix(tensors):
    del tensors["head.weight"], tensors["head.weight.scale"]


EDITS = {  # and the field and the values that the error names
    without_scale: ("head.weight", "int8", "head.weight.scale"),
    with_flat_scale: ("head.weight.scale", "float32 (7,)", "float32 (7, 1)"),
    with_half_scale: ("head.weight.scale", "float16"),
    with_negative_scale: ("head.weight.scale", "positive"),
    with_lost_scale: ("head.weight.scale", "positive"),
    with_infinite_half: ("entry.shift", "finite"),
    with_int16: ("head.weight", "int16", "int8, float16 or float32"),
    with_int8_vector: ("head.bias", "int8"),
    with_an_unknown_tensor: ("unknown",),
    with_a_short_matrix: ("head.weight", "(6, 24)", "(7, 24)"),
    without_a_matrix: ("head.weight",),
}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_files_that_do_not_fit_are_refused(folder, edit):
    rewrite_tensors(folder, edit)
    field, *values = EDITS[edit]
    with raises(WeightsError, field, folder / "model.safetensors", values) as caught:
        from_pretrained(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("precision", "file", "values"),
    [
        ("int4", "model.safetensors", ("int4", "float16, int8")),
        (8, "config.json", ()),
        ("float16", "model.safetensors", ("float16", "int8")),
    ],
    ids=["unknown", "number", "another"],
)
def test_a_config_with_another_precision_is_refused(folder, precision, file, values):
    rewrite_config(folder, lambda document: document["weights"].update(precision=precision))
    with raises(WeightsError, "weights.precision", folder / file, values):
        from_pretrained(folder)


def test_a_config_without_the_precision_is_refused(folder):
    rewrite_config(folder, lambda document: document["weights"].update(precision=None))
    with raises(WeightsError, path=folder / "model.safetensors"):
        from_pretrained(folder)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999], ids=["empty", "half", "nearly"])
def test_a_file_cut_short_is_refused(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with raises(WeightsError, "weights.sha256", path):
        from_pretrained(folder)


def test_weights_of_another_network_are_not_written(network, small, stored, tmp_path):
    other = small(num_classes=9, form="deployed")
    with raises(WeightsError, "head.weight", mentions=((7, 24), (9, 24))):
        save_pretrained(other, tmp_path / "new", stored=stored)
    with raises(WeightsError, "other"):
        check_stored(network, {"other": stored["head.weight"]})
    with raises(WeightsError, "head.weight", mentions=("float16", "scales")):
        to_file(network, {"head.weight": Stored(network.head.weight.detach().half(), stored["head.weight"].scale)})
    assert not (tmp_path / "new").exists()


def test_to_file_and_from_file_are_inverse(network, stored):
    tensors = from_file(to_file(network, stored), "int8", "here")
    assert list(tensors) == list(network.state_dict())
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
