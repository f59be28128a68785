"""Folders that cannot be loaded: the error names the file and the field, and nothing is unpickled."""

import pickle
import shutil

import pytest
import torch
from tests.models.saved_folder import replace_weights, rewrite_config, rewrite_tensors
from tests.raising import raises

from ripe_mambaspike import dual_kernel, from_pretrained, fuse
from ripe_mambaspike.errors import ConfigError, WeightsError
from ripe_mambaspike.models.pretrained import load_weights


def refused(folder, path=None, field=None, *values, kind=WeightsError, **options):
    with raises(kind, field, path, values) as caught:
        from_pretrained(folder, **options)
    assert "\n" not in str(caught.value)


def test_a_missing_folder(tmp_path):
    refused(tmp_path / "nowhere", tmp_path / "nowhere")


def test_a_file_instead_of_a_folder(saved):
    refused(saved / "config.json", saved / "config.json")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file(saved, name):
    (saved / name).unlink()
    refused(saved, saved / name)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_at_the_path_of_a_file_is_refused(saved, name):
    (saved / name).unlink()
    (saved / name).mkdir()
    refused(saved, saved / name)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_truncated_weights(saved, keep):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(saved, path, "weights.sha256")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_truncated_weights_whose_checksum_fits(saved, keep):
    replace_weights(saved, (saved / "model.safetensors").read_bytes()[:keep])
    refused(saved, saved / "model.safetensors")


@pytest.mark.parametrize("at", [0, 5000, -1])
def test_one_flipped_byte(saved, at):
    path = saved / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    refused(saved, path, "weights.sha256")


def test_the_weights_of_another_network(saved, small, tmp_path):
    other = small(seed=9).save_pretrained(tmp_path / "other")
    shutil.copy(other / "model.safetensors", saved)
    refused(saved, saved / "model.safetensors", "weights.sha256")


@pytest.mark.parametrize("text", ["", "{", "not json", "\x00\x01", '{"format": ', '{"version": NaN}'])
def test_a_config_that_is_not_json(saved, text):
    (saved / "config.json").write_text(text)
    refused(saved, saved / "config.json")


def test_a_config_that_is_not_text(saved):
    (saved / "config.json").write_bytes(b"\xff\xfe\x00\x81")
    refused(saved, saved / "config.json")


@pytest.mark.parametrize(
    ("field", "values", "change"),
    [
        ("format", (), lambda d: d.clear()),
        ("format", ("ripe-mambaspike",), lambda d: d.update(format="timm")),
        ("version", ("3",), lambda d: d.update(version=3)),
        ("version", (), lambda d: d.update(version="1")),
        ("architecture", ("resnet", "mamba-spike"), lambda d: d.update(architecture="resnet")),
        ("architecture", (), lambda d: d.update(architecture=["resnet"])),
        ("config", (), lambda d: d.update(config=None)),
        ("config", (), lambda d: d.update(config=[1])),
        ("weights", (), lambda d: d.pop("weights")),
        ("time_stepz", ("time_stepz", "'time_steps'"), lambda d: d["config"].update(time_stepz=3)),
        ("time_steps", ("five",), lambda d: d["config"].update(time_steps="five")),
        ("time_steps", ("0",), lambda d: d["config"].update(time_steps=0)),
        ("form", ("odd", "deployed"), lambda d: d["config"].update(form="odd")),
        ("config.tdm", (), lambda d: d["config"].pop("tdm")),
        ("neurons", ("other",), lambda d: d["config"].update(neurons=["lif", "lif", "other"])),
        ("neurons", (), lambda d: d["config"].update(neurons=[["lif"], "lif", "lif"])),
        ("attention", (), lambda d: d["config"].update(attention=["ds-mpa"])),
        ("stage_channels", ("(8, 12)",), lambda d: d["config"].update(stage_channels=[8, 12])),
        ("weights.sha256", (), lambda d: d["weights"].pop("sha256")),
        ("dtype", ("float64", "float32"), lambda d: d.update(dtype="float64")),
        ("dtype", ("bfloat16", "float32"), lambda d: d.update(dtype="bfloat16")),
        ("parameters", ("3",), lambda d: d.update(parameters=3)),
        ("parameters", (), lambda d: d.update(parameters=None)),
    ],
)
def test_wrong_fields_of_the_config_are_refused(saved, field, values, change):
    rewrite_config(saved, change)
    refused(saved, saved / "config.json", field, *values, kind=(WeightsError, ConfigError))


def test_a_list_is_not_a_config(saved):
    (saved / "config.json").write_text("[1, 2]")
    refused(saved, saved / "config.json")


@pytest.mark.parametrize("field", [{"time_steps": 4}, {"num_classes": 6}, {"tdm": False}, {"form": "deployed"}])
def test_a_config_for_another_network(saved, field):
    rewrite_config(saved, lambda document: document["config"].update(field))
    refused(saved, saved / "model.safetensors")


@pytest.mark.parametrize(
    ("field", "values", "change"),
    [
        ("extra", (), lambda t: t.update(extra=torch.zeros(1))),
        ("head.bias", (), lambda t: t.pop("head.bias")),
        (None, (), lambda t: t.clear()),
        ("head.bias", ("(8,)", "(7,)"), lambda t: t.update({"head.bias": torch.zeros(8)})),
        ("head.bias", ("(7, 1)", "(7,)"), lambda t: t.update({"head.bias": torch.zeros(7, 1)})),
        ("weights", ("float64", "float32"), lambda t: t.update({"head.bias": torch.zeros(7).double()})),
        ("weights", ("int64",), lambda t: t.update({k: v.long() for k, v in t.items()})),
    ],
    ids=["extra", "missing", "empty", "shape", "dimensions", "dtype", "integers"],
)
def test_tensors_that_do_not_fit(saved, field, values, change):
    rewrite_tensors(saved, change)
    refused(saved, saved / "model.safetensors", field, *values)


def test_a_fused_file_for_a_training_network(small, louder, tmp_path):
    model = louder(small())
    deployed, dual = fuse(model, quiet=True), dual_kernel(model, quiet=True)
    refused(deployed.save_pretrained(tmp_path), tmp_path, "form", "deployed", "training", form="training")
    refused(dual.save_pretrained(tmp_path), tmp_path, "form", "dual-kernel", "deployed", form="deployed")
    refused(tmp_path, None, "form", "fused", form="fused", kind=ConfigError)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pairs = ((model, deployed, "deployed"), (model, dual, "dual-kernel"), (deployed, model, "training"))
    for network, other, kind in pairs:
        with raises(WeightsError, path="file.safetensors") as caught:
            load_weights(network, other.state_dict(), "file.safetensors")
        assert f"a {kind} file" in str(caught.value)
        assert network.config.form in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_a_pickle_is_never_loaded(saved, tmp_path):
    state = {"head.bias": torch.zeros(7), "trap": Trap()}
    torch.save(state, tmp_path / "torch.pt")
    for data in (pickle.dumps(state), (tmp_path / "torch.pt").read_bytes()):
        replace_weights(saved, data)
        refused(saved, saved / "model.safetensors")
