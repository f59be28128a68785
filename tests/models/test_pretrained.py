"""Weights on disk: what is read is what was written, bit for bit, or the old save is still whole."""

import json
import os
import tempfile
from pathlib import Path

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import dual_kernel, from_pretrained, fuse
from ripe_mambaspike.errors import WeightsError

FILES = ["config.json", "model.safetensors"]


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def same_bits(first, second):
    ours, theirs = first.state_dict(), second.state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name


@pytest.fixture
def in_form(small, tiny_baseline, louder):
    def make(form):
        if form == "mamba-spike":
            return tiny_baseline()
        model = louder(small(num_tokens=4))
        if form == "training":
            return model
        return (fuse if form == "deployed" else dual_kernel)(model, quiet=True)

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("form", ["training", "deployed", "dual-kernel", "mamba-spike"])
def test_round_trip(in_form, events, tmp_path, form, dtype):
    model = in_form(form).to(dtype).eval()
    assert model.save_pretrained(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert names(tmp_path / "a" / "b") == FILES
    loaded = from_pretrained(tmp_path / "a" / "b")
    same_bits(model, loaded)
    assert (loaded.config, loaded.name, type(loaded)) == (model.config, model.name, type(model))
    assert loaded.dtype == dtype
    assert not loaded.training
    size = model.config.in_size if form == "mamba-spike" else (18, 18)
    x = events(*size, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(model(x), loaded(x))


def test_frozen_scalars_stay_frozen_and_the_rest_learns(small, tmp_path):
    model = small(num_tokens=4)
    loaded = from_pretrained(model.save_pretrained(tmp_path))
    expected = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert {name: parameter.requires_grad for name, parameter in loaded.named_parameters()} == expected
    assert [name for name, learned in expected.items() if not learned] == ["tokens.activity", "tokens.earliness"]


def test_what_is_loaded_can_be_trained_fused_and_saved(small, louder, events, tmp_path):
    loaded = from_pretrained(louder(small()).save_pretrained(tmp_path / "training")).train()
    loaded(events()).square().sum().backward()
    assert all(p.grad is not None for p in loaded.parameters() if p.requires_grad)
    again = from_pretrained(fuse(loaded, quiet=True).save_pretrained(tmp_path / "deployed"), form="deployed")
    assert again.config.form == "deployed"


def test_a_network_without_tdm_or_conv_bias(small, tiny_baseline, tmp_path):
    for number, model in enumerate((small(tdm=False), small(bridge="stage3"), tiny_baseline(conv_bias=True))):
        same_bits(model, from_pretrained(model.save_pretrained(tmp_path / str(number))))


def test_a_later_save_replaces_an_earlier_one(small, tmp_path):
    small(seed=1).save_pretrained(tmp_path)
    newer = small(seed=2, time_steps=3)
    newer.save_pretrained(tmp_path)
    same_bits(from_pretrained(tmp_path), newer)
    assert names(tmp_path) == FILES


def test_the_config_says_what_the_file_holds(small, tmp_path):
    model = small()
    document = json.loads((model.save_pretrained(tmp_path) / "config.json").read_text())
    assert document["architecture"] == "ripe-mambaspike"
    assert document["config"] == model.config.to_dict()
    assert document["parameters"] == model.parameter_count()
    assert document["dtype"] == "float32"


def test_files_are_readable_for_other_users(small, tmp_path):
    small().save_pretrained(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_views_are_saved_without_their_storage(small, tmp_path):
    model = small()
    model.head.weight.data = torch.randn(24, 7).T  # not contiguous
    same_bits(model, from_pretrained(model.save_pretrained(tmp_path)))


def test_a_file_at_the_path_of_the_folder_is_refused(small, tmp_path):
    (tmp_path / "taken").write_text("hello")
    with raises(WeightsError, "folder", tmp_path / "taken"):
        small().save_pretrained(tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "hello"


def fail(*args, **kwargs):
    raise OSError("no space left on device")


def fail_for_config(real):
    """The same function, but without room for `config.json`: there is some for the weights."""

    def call(*args, **named):
        return fail() if "config.json" in f"{args[-1:]} {named}" else real(*args, **named)

    return call


BROKEN = {
    "fsync": (os, "fsync", fail),
    "replace": (Path, "replace", fail),
    "mkstemp": (tempfile, "mkstemp", fail),
    "mkstemp of the config": (tempfile, "mkstemp", fail_for_config(tempfile.mkstemp)),
    "replace of the config": (Path, "replace", fail_for_config(Path.replace)),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_failing_write_leaves_the_old_save(small, saved, monkeypatch, broken):
    monkeypatch.setattr(*BROKEN[broken])
    with raises(WeightsError, "folder", saved, ("no space",)):
        small(seed=2).save_pretrained(saved)
    monkeypatch.undo()
    assert names(saved) == FILES
    same_bits(from_pretrained(saved), small())


def test_a_failing_first_write_leaves_nothing_half_written(small, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail)
    with raises(WeightsError, "folder", tmp_path / "new", ("no space",)):
        small().save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists() or names(tmp_path / "new") == []


def test_after_a_kill_between_the_files_the_old_network_is_loaded(small, tmp_path):
    """The new weights are in their place, the new config is not, and the old weights have kept a second name."""
    old = small(seed=1)
    old.save_pretrained(tmp_path)
    new = small(seed=2).save_pretrained(tmp_path / "new")
    kept = tmp_path / ".model.safetensors.abcd1234.old"
    (tmp_path / "model.safetensors").rename(kept)
    (new / "model.safetensors").rename(tmp_path / "model.safetensors")
    same_bits(from_pretrained(tmp_path), old)
    kept.write_bytes(b"damaged")
    with raises(WeightsError, "weights.sha256", tmp_path / "model.safetensors"):
        from_pretrained(tmp_path)
    later = small(seed=3)
    later.save_pretrained(tmp_path)
    same_bits(from_pretrained(tmp_path), later)
    assert not kept.exists()
