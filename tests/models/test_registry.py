"""Networks by name: every config builds and runs, seeds hold, and invalid fields are refused."""

import dataclasses

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import create_model, list_models
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import build, meta_model, model_config
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.ops.backend import kernels

RIPE = ["dvsgesture", "cifar10dvs", "ncaltech101", "nmnist", "dailydvs200", "dailydvs200-lite"]
BASELINES = ["mamba-spike", "mamba-spike-nmnist", "mamba-spike-pooled"]
PEERS = [
    "c3d", "cnn-gru", "event-mlp", "frame-cnn", "ms-resnet", "plif-net", "plif-net-cifar10dvs", "plif-net-nmnist",
    "qkformer", "rtformer", "sdt", "sdt-v2", "sdt-v2-stride4", "spikepool", "spikepool-large", "spikformer",
    "spikmamba", "spikmamba-256", "statten", "swformer", "tet-vggsnn", "tsm",
]  # fmt: skip


def test_the_names():
    assert list_models()[: len(RIPE + BASELINES)] == RIPE + BASELINES
    assert sorted(list_models()[len(RIPE + BASELINES) :]) == PEERS


@pytest.mark.parametrize("name", RIPE)
@pytest.mark.parametrize("form", ["training", "deployed", "dual-kernel"])
def test_every_network_runs(name, form):
    model = create_model(name, form=form).eval()
    with torch.no_grad():
        out = model.run(synthetic_clip(2, 34, 34))
    assert out.logits.shape == (1, 2, model.config.num_classes)
    assert out.logits.isfinite().all()
    assert out.rates.shape == (6,)
    assert out.attention.shape == (1, 2, model.config.stage_channels[-1], 5, 5)
    assert out.token_indices is None


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_runs(name):
    model = create_model(name).eval()
    height, width = model.config.in_size
    with torch.no_grad():
        out = model.run(synthetic_clip(2, height, width))
    assert out.logits.shape == (1, 1, 10)
    assert out.logits.isfinite().all()
    assert out.rates.shape == (3,)


@pytest.mark.parametrize("name", RIPE + BASELINES + PEERS)
def test_who_answers_once_says_so(name):
    model = meta_model(model_config(name, time_steps=3, in_size=64), name=name).eval()
    with torch.no_grad(), kernels("off"):  # there are none on the meta device
        logits = model(torch.empty(2, 3, 2, 64, 64, device="meta"))
    assert logits.shape == (2, 1 if model.answers_once else 3, model.num_classes)


@pytest.mark.parametrize("name", RIPE)
def test_the_shipped_configs(name):
    config = model_config(name)
    steps = 16 if name == "dvsgesture" else 10
    classes = {"dvsgesture": 11, "ncaltech101": 101, "cifar10dvs": 10, "nmnist": 10}.get(name, 200)
    side = {"nmnist": 34}.get(name, 224 if name.startswith("daily") else 128)
    assert (config.time_steps, config.num_classes, config.in_size) == (steps, classes, (side, side))
    assert config.neurons == ("csilif", "silif", "silif")
    assert config.pool_ratios == (1, 2, 2)
    assert config.num_tokens is None


def test_a_seed_gives_the_same_weights_and_leaves_the_generator_alone(small):
    before = torch.get_rng_state()
    first, second, other = small(seed=5), small(seed=5), small(seed=6)
    assert torch.equal(torch.get_rng_state(), before)
    states = [model.state_dict() for model in (first, second, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["head.weight"], states[2]["head.weight"])


def test_without_a_seed_the_global_generator_is_used(small):
    torch.manual_seed(3)
    first = small(seed=None)
    torch.manual_seed(3)
    second = small(seed=None)
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(second.head.weight, small(seed=None).head.weight)


def test_overrides_reach_the_config():
    config = model_config("dvsgesture", time_steps=7, in_size=40, neurons="lif", stage_channels=[4, 8, 12])
    assert (config.time_steps, config.in_size, config.neurons) == (7, (40, 40), ("lif",) * 3)
    assert config.stage_channels == (4, 8, 12)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.time_steps = 3


@pytest.mark.parametrize(
    ("fields", "mentions"),
    [
        ({"time_stepz": 4}, ["time_stepz", "time_steps"]),
        ({"time_steps": 0}, ["time_steps", "0"]),
        ({"time_steps": 2.5}, ["time_steps", "2.5"]),
        ({"time_steps": True}, ["time_steps", "True"]),
        ({"time_steps": "many"}, ["time_steps", "many"]),
        ({"num_classes": -1}, ["num_classes", "-1"]),
        ({"num_classes": 2**40}, ["num_classes", str(2**40)]),
        ({"in_size": 7}, ["in_size", "7", "8"]),
        ({"in_size": (8, 8, 8)}, ["in_size", "(8, 8, 8)"]),
        ({"stage_channels": (8, 8)}, ["stage_channels", "(8, 8)", "3"]),
        ({"stage_channels": (8, 0, 8)}, ["stage_channels", "(8, 0, 8)"]),
        ({"embed_dims": "wide"}, ["embed_dims", "wide"]),
        ({"neurons": "izhikevich"}, ["neurons", "izhikevich", "csilif"]),
        ({"neurons": ["lif", "lif"]}, ["neurons", "lif"]),
        ({"neurons": 3}, ["neurons", "3"]),
        ({"mixer": "rnn"}, ["mixer", "rnn", "gru"]),
        ({"attention": "softmax"}, ["attention", "softmax", "ds-mpa"]),
        ({"attention": None}, ["attention", "None"]),
        ({"bridge": "none"}, ["bridge", "none", "stage3"]),
        ({"num_tokens": 0}, ["num_tokens", "0"]),
        ({"repconv": "yes"}, ["repconv", "yes"]),
        ({"tdm": 1}, ["tdm", "1"]),
        ({"drop_path_rate": 1.0}, ["drop_path_rate", "1.0"]),
        ({"drop_path_rate": float("nan")}, ["drop_path_rate", "nan"]),
        ({"csilif_reset": -0.1}, ["csilif_reset", "-0.1"]),
        ({"csilif_reset": "half"}, ["csilif_reset", "half"]),
        ({"csilif_reset": float("nan")}, ["csilif_reset", "nan"]),
        ({"detach_reset": 1}, ["detach_reset", "1"]),
        ({"attention_feature_map": "softmax"}, ["attention_feature_map", "softmax", "softplus"]),
        ({"attention_epsilon": 0}, ["attention_epsilon", "0"]),
        ({"attention_epsilon": float("inf")}, ["attention_epsilon", "inf"]),
        ({"bridge_dim": 0}, ["bridge_dim", "0"]),
        ({"bridge_dim": (8, 8, 8)}, ["bridge_dim", "(8, 8, 8)"]),
        ({"d_state": 0}, ["d_state", "0"]),
        ({"d_state": 4.0}, ["d_state", "4.0"]),
        ({"d_conv": 1}, ["d_conv", "1", "2"]),
        ({"expand": True}, ["expand", "True"]),
        ({"mixer": "flat-matched", "causal": True}, ["mixer", "flat-matched", "causal"]),
        ({"form": "fused"}, ["form", "fused", "deployed"]),
        ({"form": "dual-kernel", "tdm": False}, ["dual-kernel", "tdm"]),
        ({"attention": "grouped", "stage_channels": (6, 8, 8)}, ["stage_channels", "(6, 8, 8)", "4"]),
        ({"mixer": "transformer", "embed_dims": (6, 8, 8)}, ["embed_dims", "(6, 8, 8)", "4"]),
    ],
)
def test_invalid_fields_are_refused_in_one_line(fields, mentions):
    with raises(ConfigError, mentions=mentions) as caught:
        create_model("dvsgesture", **fields)
    assert "\n" not in str(caught.value)


def test_unknown_names_are_refused():
    with raises(ConfigError, "model", mentions=("'dvsgestures'", "'dvsgesture'")):
        create_model("dvsgestures")
    with raises(ConfigError, "form", mentions=("'deployed'",)):
        create_model("mamba-spike", form="deployed")
    with raises(ConfigError, "config", mentions=("str",)):
        build("dvsgesture", "dvsgesture")


@pytest.mark.parametrize("name", RIPE + BASELINES)
def test_configs_survive_a_round_trip_through_a_dictionary(name):
    config = model_config(name)
    assert type(config).from_dict(config.to_dict(), "test") == config
