"""Deployed → training form: it fuses back to the same kernels, computes the same, and can be trained."""

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import create_model, expand, from_pretrained, fuse
from ripe_mambaspike.errors import ConfigError, InputError, VerificationError
from ripe_mambaspike.models import expand as expanding
from ripe_mambaspike.models.form_agreement import compare_forms, probe
from ripe_mambaspike.nn.repconv import RepConv

VARIANTS = [
    {},
    {"causal": True},
    {"repconv": False},
    {"tdm": False},
    {"stage_channels": (16, 12, 8)},  # a chain through fewer channels than it reads
    {"bridge": "stage3"},
]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
@pytest.mark.parametrize("measured", [False, True])
def test_it_computes_the_same_and_fuses_back(loud, fields, measured):
    deployed = fuse(loud(**fields), quiet=True).double()
    clips = [probe(deployed, samples=3, seed=seed) for seed in (1, 2)] if measured else []
    expanded = expand(deployed, clips)
    assert expanded.config.form == "training"
    assert expanded.labels == deployed.labels
    again = compare_forms(deployed, expanded, probe(deployed))
    assert again.error < 1e-12
    assert (again.flips, again.spikes > 100) == (0, True)
    back = fuse(expanded, quiet=True).state_dict()
    for name, value in deployed.state_dict().items():
        torch.testing.assert_close(back[name], value, rtol=1e-12, atol=1e-13, msg=name)


def test_every_branch_has_a_part_and_gets_a_gradient(loud):
    expanded = expand(fuse(loud(), quiet=True), [probe(loud(), samples=2).float()]).train()
    expanded(probe(loud(), samples=2).float()).mean(1).square().sum().backward()
    for conv in (one for one in expanded.modules() if isinstance(one, RepConv)):
        for branch in conv.branches:
            assert bool(branch.norm.weight.any()) == bool(len(branch.convs))  # identity and average pool begin at 0
            assert bool(branch.norm.weight.grad.any())
            assert all(bool(part.weight.grad.any()) for part in branch.convs)


def test_the_norms_have_the_statistics_of_the_clips(loud):
    """In training mode, where batches have the same statistics, the network begins where the deployed one is."""
    deployed = fuse(loud(drop_path_rate=0.0), quiet=True).double()
    clips = probe(deployed, samples=4, seed=3)
    with torch.no_grad():
        wanted = deployed(clips)
        measured = expand(deployed, [clips]).train()(clips)
        unmeasured = expand(deployed).train()(clips)
    assert (measured - wanted).abs().mean() < 0.05 * (unmeasured - wanted).abs().mean()


def test_a_shipped_network_expands():
    model = from_pretrained("nmnist-simulated")
    expanded = expand(model)
    assert expanded.parameter_count() > 1.5 * model.parameter_count()
    assert expanded.class_names == model.class_names
    x = probe(model, samples=2).float()
    with torch.no_grad():
        torch.testing.assert_close(expanded(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_wrong_expansion_raises(loud, monkeypatch):
    true = expanding._branches

    def wrong(old, new):
        (branch, (kernels, scale)), *others = true(old, new)
        return [(branch, ([kernels[0] * (1 + 1e-8)], scale)), *others]

    monkeypatch.setattr(expanding, "_branches", wrong)
    with pytest.raises(VerificationError):
        expand(fuse(loud(), quiet=True))


def test_wrong_input(loud):
    with raises(ConfigError, field="form"):
        expand(loud())
    with raises(ConfigError, field="model"):
        expand(create_model("event-mlp"))
    deployed = fuse(loud(), quiet=True)
    with raises(InputError, field="clips"):
        expand(deployed, [torch.zeros(3, 2, 16, 16)])
    deployed.head.register_forward_hook(lambda *_: None)
    with pytest.raises(ConfigError):
        expand(deployed)
