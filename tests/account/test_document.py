"""Parameters by part, bytes, and the whole account of one network as plain data."""

import json

import pytest
import torch

from ripe_mambaspike import create_model, dual_kernel, fuse
from ripe_mambaspike.account.document import account_clip
from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.models.flops import count_flops
from ripe_mambaspike.models.registry import list_models, model_config
from ripe_mambaspike.models.synthetic import synthetic_clip

SMALL = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 5}


@pytest.mark.parametrize("name", list_models())
def test_parts_add_up(name):
    parameters = count_parameters(model_config(name))
    assert sum(parameters.by_part.values()) == parameters.deployed
    assert sum(parameters.training_by_part.values()) == parameters.training
    assert parameters.by_part.keys() == parameters.training_by_part.keys()


@pytest.mark.parametrize("form", ["training", "deployed", "dual-kernel"])
def test_counts_do_not_depend_on_the_form_the_config_names(form):
    parameters = count_parameters(model_config("cifar10dvs", form=form))
    assert (parameters.training, parameters.deployed, parameters.dual_kernel) == (1_516_057, 869_593, 1_155_289)


def test_counts_are_those_of_real_networks():
    model = create_model("nmnist", seed=0, **SMALL)
    deployed = fuse(model, quiet=True)
    parameters = count_parameters(model.config)
    assert parameters.training == sum(p.numel() for p in model.parameters())
    assert parameters.deployed == sum(p.numel() for p in deployed.parameters())
    assert parameters.dual_kernel == sum(p.numel() for p in dual_kernel(deployed, quiet=True).parameters())


def test_weight_bytes():
    parameters = count_parameters(model_config("cifar10dvs"))
    assert parameters.weight_bytes == {"fp32": 4 * 869_593, "fp16": 2 * 869_593, "int8": 869_593}


def test_without_the_filter_there_is_no_dual_kernel():
    assert count_parameters(model_config("nmnist", tdm=False)).dual_kernel is None
    assert count_parameters(model_config("mamba-spike")).dual_kernel is None


@pytest.mark.parametrize("form", ["training", "deployed"])
def test_the_account_of_a_clip(form):
    model = create_model("nmnist", seed=0, **SMALL, form=form).train()
    document = account_clip(model, synthetic_clip(3, 20, 30), "a clip")
    parameters, flops = (
        count_parameters(model.config),
        count_flops(model.config.replace(time_steps=3, in_size=(20, 30))),
    )
    assert document["parameters"]["training"] == parameters.training
    assert document["parameters"]["deployed"] == parameters.deployed
    assert document["parameters"]["by_part"] == parameters.by_part
    assert document["flops"] == {"total": flops.total, "without_scan": flops.without_scan, "by_part": flops.by_part}
    assert document["weight_bytes"] == parameters.weight_bytes
    assert document["dual_kernel"]["weights"] == parameters.dual_kernel
    assert document["counted_at"] == {"time_steps": 3, "in_size": [20, 30]}
    assert document["energy"]["assumptions"]["measured_on"] == "a clip"
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_the_accounts_spikes_are_those_of_the_evaluated_network():
    model = create_model("nmnist", seed=0, **SMALL)
    x = synthetic_clip(5, 18, 18)
    rates = [layer["rate"] for layer in account_clip(model, x, "x")["energy"]["layers"]]
    with torch.no_grad():
        expected = model.eval().run(x).rates
    assert rates[1::2] == pytest.approx(expected[::2].tolist())
    assert rates[2::2] == pytest.approx(expected[1:-1:2].tolist())


def test_accounting_leaves_the_network_as_it_was():
    model = create_model("nmnist", seed=0, **SMALL).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    account_clip(model, synthetic_clip(5, 18, 18), "x")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
