"""One step: gradients of several batches, clipping, and which weights decay."""

import pytest
import torch

from ripe_mambaspike.models.registry import create_model
from ripe_mambaspike.train.step import (
    StepSettings,
    _summation_order,
    accumulated_step,
    add_gradient,
    make_optimizer,
    split_by_decay,
)


@pytest.fixture
def network(make_network):
    return make_network(drop_path_rate=0.0)


def clips(count, seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.poisson(torch.full((count, 4, 2, 16, 16), 0.5), generator=random)
    return x, torch.randint(0, 11, (count,), generator=random)


def gradients(model):
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def test_gradients_are_added_up_by_clips(network):
    network.double()  # so that rounding does not hide a wrong share
    five, three = ((x.double(), y) for x, y in (clips(5), clips(3, seed=1)))
    settings = StepSettings(clip_grad_norm=1e30)
    found, parts = [], []
    for batch in (five, three):
        network.zero_grad(set_to_none=True)
        parts.append(add_gradient(network, *batch, settings))
        found.append(gradients(network))
    optimizer = make_optimizer(network, 1e-3, 0.05)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    together = accumulated_step(network, optimizer, [five, three], settings)
    added = gradients(network)
    assert before.keys() - added.keys() == {"tokens.activity", "tokens.earliness"}  # which are not learned
    for name, gradient in added.items():
        wanted = (5 * found[0][name] + 3 * found[1][name]) / 8
        assert torch.allclose(gradient, wanted, rtol=1e-9, atol=1e-11 + 1e-9 * float(wanted.abs().max())), name
    for name in ("loss", "hard", "relaxed", "consistency", "rate", "rates", "right"):
        one, two = (getattr(part, name).double() for part in parts)
        assert torch.allclose(getattr(together, name).double(), (5 * one + 3 * two) / 8, rtol=1e-6), name
    norm = torch.stack([gradient.norm() for gradient in added.values()]).norm()
    assert torch.allclose(together.norm, norm, rtol=1e-5)
    assert all(int(state["step"]) == 1 for state in optimizer.state.values())  # one step for both
    assert any(not torch.equal(before[name], p) for name, p in network.named_parameters())


def test_the_gradient_is_clipped(network):
    settings = StepSettings(clip_grad_norm=0.01)
    parts = accumulated_step(network, make_optimizer(network, 1e-3, 0.05), [clips(4)], settings)
    assert parts.norm > 0.01
    left = torch.stack([gradient.norm() for gradient in gradients(network).values()]).norm()
    assert float(left) == pytest.approx(0.01, rel=1e-4)


BRANCHES = [f"branches.{branch}.convs.0.weight" for branch in range(5)] + ["branches.4.convs.1.weight"]
STAGE = [f"{conv}.{name}" for conv in ("first_conv", "second_conv") for name in BRANCHES] + [
    "attention.query.0",
    "attention.key.0",
    "attention.value.0",
]
MAMBA = [
    f"hierarchy.blocks.{block}.{way}.{name}.weight"
    for block in range(3)
    for way in ("forward_mamba", "backward_mamba")
    for name in ("in_proj", "conv1d", "x_proj", "dt_proj", "out_proj")
]
MERGE = [f"hierarchy.blocks.{block}.merge.weight" for block in range(3)]
OTHERS = [
    *(f"bridge.mixture.scales.{scale}.conv.weight" for scale in range(3)),
    "bridge.attention.weight",
    "hierarchy.transitions.1.widen.weight",
    "hierarchy.transitions.2.widen.weight",
    "head.weight",
]
KERNELS = [*(f"stages.{stage}.{name}" for stage in range(3) for name in STAGE), *OTHERS]
DECAYED = {
    "kernels": [*KERNELS, *MAMBA, *MERGE],
    "release": [*KERNELS, *(f"stages.{stage}.attention.gain" for stage in range(3))],
}


@pytest.mark.parametrize("rule", list(DECAYED))
def test_what_decays(network, rule):
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    decayed, kept = ([names[id(p)] for p in group] for group in split_by_decay(network, rule))
    assert sorted(decayed) == sorted(DECAYED[rule])
    learned = [name for name in names.values() if not name.startswith("tokens.")]
    assert sorted([*decayed, *kept]) == sorted(learned)
    groups = make_optimizer(network, 1e-3, 0.05, rule).param_groups
    assert [[names[id(p)] for p in group["params"]] for group in groups] == [decayed, kept]
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0]
    assert all(group["betas"] == (0.9, 0.999) for group in groups)


def test_the_release_decays_as_many_parameters_as_it_says():
    """Of the 344,064 weights in the blocks, 43,008 of them merge projections, none decays; of the gains all do."""
    with torch.device("meta"):
        network = create_model("dvsgesture")
    kernels, release = (sum(p.numel() for p in split_by_decay(network, rule)[0]) for rule in ("kernels", "release"))
    assert (kernels, release) == (1_481_152, 1_137_312)
    assert kernels - 344_064 + 32 + 64 + 128 == release


@pytest.mark.parametrize("mixer", ["transformer", "gru", "conv1d", "flat"])
def test_in_the_release_nothing_inside_a_block_decays_whatever_the_mixer(make_network, mixer):
    model = make_network(mixer=mixer)
    inside = {id(parameter) for parameter in model.hierarchy.blocks.parameters()}
    assert inside
    assert not inside & {id(parameter) for parameter in split_by_decay(model, "release")[0]}
    assert inside & {id(parameter) for parameter in split_by_decay(model, "kernels")[0]}


@pytest.mark.parametrize("lr", [1e-3, torch.tensor(1e-3)], ids=["number", "tensor"])
def test_temporal_filters_can_learn_at_a_rate_of_their_own(network, lr):
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    groups = make_optimizer(network, lr, 0.05, tdm_lr_scale=50.0).param_groups
    decayed, kept = split_by_decay(network)
    coefficients = [f"stages.{stage}.{conv}_conv.coefficient" for stage in range(3) for conv in ("first", "second")]
    assert [[names[id(p)] for p in group["params"]] for group in groups] == [
        [names[id(p)] for p in decayed],
        coefficients,
        [names[id(p)] for p in kept if names[id(p)] not in coefficients],
    ]
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0, 0.0]
    assert [float(group["lr"]) for group in groups] == pytest.approx([1e-3, 50e-3, 1e-3])


def test_what_decays_in_a_head_with_a_hidden_layer(make_network):
    model = make_network(head_hidden_size=20)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, kept = ({names[id(p)] for p in group} for group in split_by_decay(model))
    head = {name for name in names.values() if name.startswith("head.")}
    matrices = {name for name in head if model.get_parameter(name).ndim == 2}
    assert len(matrices) == 2
    assert head & decayed == matrices
    assert head & kept == head - matrices


@pytest.mark.parametrize("name", ["nmnist", "mamba-spike-nmnist"])
def test_the_norm_of_the_gradient_has_every_parameter_once(name):
    model = create_model(name)
    ordered, named = _summation_order(model), dict(model.named_parameters())
    assert sorted(map(id, ordered)) == sorted(map(id, named.values()))
    at = {id(parameter): index for index, parameter in enumerate(ordered)}
    for one in [name.removesuffix(".A_log") for name in named if name.endswith(".A_log")]:
        order = [at[id(named[f"{one}.{part}"])] for part in ("dt_proj.weight", "A_log", "D", "out_proj.weight")]
        assert order == sorted(order)
