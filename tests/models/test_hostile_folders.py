"""Folders of networks made to hang the reader or to fill the memory."""

import os
import time

import pytest
import torch
from tests.models.saved_folder import rewrite_config
from tests.raising import raises

from ripe_mambaspike import create_model, from_pretrained
from ripe_mambaspike.errors import ConfigError, RipeError, WeightsError
from ripe_mambaspike.models.config import MambaSpikeConfig, RipeConfig
from ripe_mambaspike.models.registry import build

SECONDS = 30  # far more than a refusal takes; a hang has no end


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "labels.json"])
@pytest.mark.parametrize("kind", ["fifo", "device", "sparse", "folder", "socket-like"])
def test_special_files_are_refused(saved, name, kind):
    path = saved / name
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket-like":
        path.symlink_to(saved / "nowhere")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    began = time.monotonic()
    with pytest.raises(WeightsError) as caught:
        from_pretrained(saved)
    assert time.monotonic() - began < SECONDS
    assert str(path) in str(caught.value)


def test_a_file_longer_than_the_network(saved):
    path = saved / "model.safetensors"
    size = path.stat().st_size
    with path.open("ab") as file:
        file.truncate(4 * size + (1 << 20))
    with raises(WeightsError, path=path):
        from_pretrained(saved)


HOSTILE = [
    ("time_steps", 10**9),
    ("num_classes", 10**12),
    ("num_classes", 2**63),
    ("stage_channels", [16384, 16384, 16384]),
    ("stage_channels", [32, 64, 10**9]),
    ("embed_dims", [16384, 16384, 16384]),
    ("head_hidden_size", 10**8),
    ("bridge_dim", 10**9),
    ("d_state", 10**9),
    ("d_conv", 2**40),
    ("expand", 10**6),
    ("csilif_reset", 1e300),
    ("csilif_reset", 10**400),
    ("attention_epsilon", -1),
    ("attention_feature_map", "x" * 1_000_000),
    ("in_size", [10**6, 10**6]),
    ("in_size", 8.5),
    ("num_tokens", 10**15),
    ("drop_path_rate", 1.0),
    ("neurons", ["lif"] * 100_000),
    ("stage_channels", "x" * 1_000_000),
]


@pytest.mark.parametrize(("field", "value"), HOSTILE, ids=lambda one: str(one)[:30])
def test_oversized_config_values_are_refused(saved, field, value):
    rewrite_config(saved, lambda document: document["config"].update({field: value}))
    began = time.monotonic()
    with pytest.raises(RipeError) as caught:
        from_pretrained(saved)
    assert time.monotonic() - began < SECONDS
    assert field in str(caught.value)
    assert len(str(caught.value)) <= 1000


@pytest.mark.parametrize("name", [["x"], 7, "x" * 100_000])
def test_invalid_names_are_refused(saved, name):
    rewrite_config(saved, lambda document: document.update(name=name))
    with raises(WeightsError, "name"):
        from_pretrained(saved)


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (RipeConfig, {"stage_channels": (16384, 16384, 16384)}),
        (RipeConfig, {"embed_dims": (64, 64, 16384)}),
        (RipeConfig, {"embed_dims": (64, 64, 16384), "mixer": "flat-matched"}),
        (RipeConfig, {"embed_dims": (64, 64, 4096), "expand": 64, "d_state": 1024}),
        (RipeConfig, {"bridge_dim": 16384, "stage_channels": (64, 64, 8192)}),
        (MambaSpikeConfig, {"embed_dim": 16384, "depth": 256}),
        (MambaSpikeConfig, {"in_size": (4096, 4096)}),
        (MambaSpikeConfig, {"pool_size": 16384}),
        (MambaSpikeConfig, {"depth": 16384}),
    ],
)
def test_networks_too_large_to_build(config, fields):
    began = time.monotonic()
    with pytest.raises(ConfigError):
        build(config(**fields), "large")
    assert time.monotonic() - began < SECONDS


def test_large_networks_can_be_built():
    create_model("dailydvs200", stage_channels=(128, 256, 512), embed_dims=(128, 256, 512), form="deployed")
    MambaSpikeConfig(in_size=(480, 640)).check_size()  # 630 million parameters
    with torch.device("meta"):  # and counted at any size
        assert build(MambaSpikeConfig(in_size=(720, 1280)), "wide").parameter_count() > 2**30


def test_a_name_with_nul(tmp_path):
    with pytest.raises(WeightsError):
        from_pretrained(f"{tmp_path}/a\0b")
