"""The network over the fused operators is the network: in float64, with the operators' references, to the last digits.

What the kernels themselves do in float32 is tested operator by operator; here it is the algebra around them: branch
statistics from patch moments, biases left out, projections merged, spikes as bytes.
"""

import itertools

import pytest
import torch

from ripe_mambaspike.models.fused import kernels_cover
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.fused import layers
from ripe_mambaspike.nn.repconv import RepConv
from ripe_mambaspike.ops.backend import backend, kernels

RELAXED = ForwardMode(relaxed=True, sharpness=3.0)
FIELDS = [
    {},
    {"neurons": "lif"},
    {"neurons": ("silif", "csilif", "lif")},
    {"attention": "low-rank"},
    {"attention": "grouped"},
    {"attention": "sigmoid"},
    {"attention": "gate"},
    {"attention": "none"},
    {"repconv": False},
    {"tdm": False},
    {"bridge": "stage3"},
    {"mixer": "gru"},
    {"mixer": "flat"},
    {"mixer": "none"},
    {"num_tokens": 4},
    {"head_hidden_size": 24},
    {"mixer": "flat-matched"},
    {"attention_feature_map": "relu"},
    {"attention_feature_map": "softplus", "attention_epsilon": 0.1, "attention": "low-rank"},
    {"attention_feature_map": "exp"},
    {"attention_epsilon": 0.1},
    {"bridge_dim": 11, "pool_ratios": (2, 1, 3)},
    {"d_state": 6, "d_conv": 3, "expand": 3},
]


def evaluated(model, x, mode, choice):
    """(output, gradients, running statistics) of one pass with a loss that reaches every output."""
    model.hierarchy.drop_rates = [0.0] * 3
    model.zero_grad()
    with kernels(choice):
        out = model.run(x, mode)
        generator = torch.Generator().manual_seed(1)
        weights = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in (out.logits, out.attention)]
        loss = (out.logits * weights[0]).sum() + out.rates.sum() + (out.attention * weights[1]).mean()
        loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    return out, gradients, {name: buffer.clone() for name, buffer in model.named_buffers()}


def is_fast(fields, training, mode):
    """Every variant in training with the relaxed pass, which reaches all gradients; the other modes with a few."""
    return (training and mode is RELAXED) or fields in (FIELDS[:3] if mode is RELAXED else FIELDS[:1])


CASES = [
    pytest.param(*case, marks=[] if is_fast(*case) else pytest.mark.slow)
    for case in itertools.product(FIELDS, (True, False), (HARD, RELAXED))
]


@pytest.mark.parametrize(
    ("fields", "training", "mode"),
    CASES,
    ids=lambda one: {HARD: "hard", RELAXED: "relaxed"}.get(one) if isinstance(one, ForwardMode) else str(one),
)
def test_outputs_gradients_and_statistics_in_float64(small, louder, events, fields, training, mode):
    x = events(19, 15, samples=2, dtype=torch.float64)
    results = []
    for choice in ("off", "plain"):
        model = louder(small(**fields)).double().train(training)
        results.append(evaluated(model, x, mode, choice))
    (expected, wanted, statistics), (given, got, followed) = results
    torch.testing.assert_close(given.logits, expected.logits, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(given.attention, expected.attention, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(given.rates, expected.rates, rtol=0, atol=1e-6)  # kept in float32
    assert (given.token_indices is None) == (expected.token_indices is None)
    if given.token_indices is not None:
        assert torch.equal(given.token_indices, expected.token_indices)
    for name, reference in wanted.items():
        reference = torch.zeros(()) if reference is None else reference
        found = torch.zeros(()) if got[name] is None else got[name]
        scale = max(1e-3, float(reference.abs().max()))
        assert float((found - reference).abs().max()) <= 1e-9 * scale, name
    for name, reference in statistics.items():
        torch.testing.assert_close(followed[name], reference, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("fields", [{}, {"form": "deployed"}, {"neurons": "lif"}, {"attention": "gate"}], ids=str)
@torch.no_grad()
def test_without_gradients_in_float64(small, louder, events, fields):
    """Inference takes other operators: events to the first neuron, and attention and neuron, in one each."""
    x = events(17, 22, samples=2, dtype=torch.float64)
    model = louder(small(**fields)).double().eval()
    for mode in (HARD, RELAXED):
        with kernels("off"):
            expected = model.run(x, mode)
        with kernels("plain"):
            given = model.run(x, mode)
            if mode is HARD:
                torch.testing.assert_close(model(x), given.logits, rtol=0, atol=0)
        torch.testing.assert_close(given.logits, expected.logits, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(given.attention, expected.attention, rtol=1e-11, atol=1e-11)


def test_a_relaxed_pass_that_does_not_track_leaves_statistics_alone(small, louder, events):
    model = louder(small()).double().train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with kernels("plain"):
        model.run(events(16, 16, samples=2, dtype=torch.float64), ForwardMode(relaxed=True, track_statistics=False))
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_a_branchs_shift_gets_exactly_no_gradient(small, louder, events):
    """The norm behind the convolution takes any constant away; rounding must not become a gradient."""
    model = louder(small()).double().train()
    with kernels("plain"):
        model.run(events(16, 16, samples=2, dtype=torch.float64)).logits.square().sum().backward()
    for stage in model.stages:
        for conv in (stage.first_conv, stage.second_conv):
            assert all(not branch.norm.bias.grad.any() for branch in conv.branches)


def test_passes_without_kernels(small, events, caplog):
    x = events(16, 16, samples=2)
    with kernels("plain"):
        assert kernels_cover(small().eval(), x)
        assert not kernels_cover(small().eval(), x, ForwardMode(literal=True))
        assert not kernels_cover(small(form="dual-kernel"), x)
        mixed = small().train()
        mixed.entry.eval()
        assert not kernels_cover(mixed, x)
    with kernels("off"):
        assert not kernels_cover(small().eval(), x)


@pytest.mark.parametrize("choice", ["off", "plain"])
def test_several_passes_equal_single_ones(small, louder, events, choice):
    """One plan for both passes: outputs, running statistics and the sum of the gradients are those of two runs."""
    x = events(16, 16, dtype=torch.float64)
    modes = [ForwardMode(sharpness=3.0), ForwardMode(relaxed=True, track_statistics=False)]
    results = []
    for together in (True, False):
        model = louder(small(num_tokens=3)).double().train()
        with kernels(choice):
            if together:
                outputs = model.run_passes(x, modes)
            else:
                first = model.run(x, modes[0])
                outputs = [first, model.run(x, modes[1], first.token_indices)]
            sum(out.logits.square().sum() for out in outputs).backward()
        buffers = torch.cat([buffer.flatten() for buffer in model.buffers()])
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append(([out.logits for out in outputs], buffers, gradients))
    (given, buffers, got), (expected, statistics, wanted) = results
    torch.testing.assert_close(given, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(buffers, statistics, rtol=1e-12, atol=1e-12)
    for name, gradient in wanted.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-8, atol=1e-10, msg=name)


def test_per_channel_numbers_of_a_bfloat16_network_are_float32(small, events):
    """Operators read them as float32 wherever the weights are kept in less."""
    from ripe_mambaspike.models.fused import plan_network

    planned = plan_network(small(form="deployed").bfloat16().eval(), events(16, dtype=torch.bfloat16))
    numbers = [*planned.entry, *planned.coefficients, *planned.bridge.norm, *planned.hierarchy.norm]
    for stage in planned.stages:
        numbers += [stage.inner_coefficient, stage.first.scale, stage.first.shift, stage.attention.gain]
        numbers += [value for neuron in (stage.first_neuron, stage.second_neuron) for value in neuron]
    assert {value.dtype for value in numbers if value is not None} == {torch.float32}


def test_branch_by_branch_equals_moments(small, louder, events, monkeypatch):
    """On a CPU the number of patches chooses the way; both give the same pass, gradients and statistics."""
    x = events(19, 15, samples=2)
    taken = []
    each_branch = RepConv.each_branch
    monkeypatch.setattr(RepConv, "each_branch", lambda *given, **how: taken.append(1) or each_branch(*given, **how))
    results = []
    for few in (0, 10**9):
        monkeypatch.setattr(layers, "MIN_PATCHES", few)
        results.append(evaluated(louder(small()).train(), x, RELAXED, "auto"))
    if backend(x) != "native":
        pytest.skip("there is no compiler, and without one the moments are always taken")
    assert len(taken) == 6  # the second network's, each convolution once
    (expected, wanted, statistics), (given, got, followed) = results
    torch.testing.assert_close(given.logits, expected.logits, rtol=1e-3, atol=1e-4)
    for name, reference in wanted.items():
        scale = max(1e-2, float(reference.abs().max()))
        assert float((got[name] - reference).abs().max()) <= 5e-3 * scale, name
        if "branches" in name and name.endswith("norm.bias"):
            assert not got[name].any()  # the norm behind them takes it away: rounding would be all there is
    for name, reference in statistics.items():
        torch.testing.assert_close(followed[name], reference, rtol=1e-4, atol=1e-4)
