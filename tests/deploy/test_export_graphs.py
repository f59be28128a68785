"""Graphs for export compute what the deployed network computes: whole clips, and steps in a row with the tail.

Most tests run the graphs as modules, with the operators in the form that torch.export traces (`exporting`); what the
formats make of them is tested with each format.
"""

import pytest
import torch
from tests.deploy.networks import VARIANTS, as_int8
from tests.raising import raises

from ripe_mambaspike import create_model, dual_kernel, fuse
from ripe_mambaspike.deploy.export.graph import NEXT, graph_kinds, make_graph, step_states
from ripe_mambaspike.deploy.export.trace import check_length, trace_graph
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.stored import Stored, restore
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.attention import ATTENTIONS, NoAttention, register_attention
from ripe_mambaspike.nn.neurons import LIF, NEURONS, register_neuron
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.mamba_inner import traced_scan
from ripe_mambaspike.ops.mamba_inner.scan import selective_scan
from ripe_mambaspike.ops.mamba_inner.traced_scan import CHUNK

MORE_VARIANTS = [
    {},
    {"num_tokens": 6},
    {"pool_ratios": (2, 3, 4)},
    {"causal": True},
    {"causal": True, "mixer": "none"},
]


def apart(given, wanted):
    return float((given - wanted).abs().max() / wanted.abs().max())


def make_graphs(model, x, stored=None):
    return {kind: make_graph(kind, model, *x.shape[-2:], stored) for kind in graph_kinds(model.config)}


def chained(graphs, x):
    """The logits of step after step, and the tail where there is one."""
    config = graphs["step"].module.model.config
    causal, states = config.causal, step_states(config, x.shape[0], *x.shape[-2:], x.dtype)
    kept = []
    for index in range(x.shape[1]):
        first, *rest = graphs["step"].module(x[:, index], torch.tensor(index), *states.values())
        kept.append([first] if causal else [first, rest.pop(0)])
        states = dict(zip(states, rest, strict=True))
    outputs = [torch.stack(parts, 1) for parts in zip(*kept, strict=True)]
    if causal:
        return outputs[0]
    tail = graphs["tail"]
    return tail.module(*outputs, *(states[name] for name in tail.input_names[2:]))


@torch.no_grad()
@pytest.mark.parametrize("fields", [*VARIANTS, *MORE_VARIANTS], ids=str)
def test_every_variant_equals_the_reference(loud, fields, monkeypatch):
    model = fuse(loud(**{"time_steps": 3, **fields}).double(), quiet=True)
    for dtype, size, most in ((torch.float64, (21, 26), 1e-12), (torch.float32, (18, 18), 1e-5)):
        model = model.to(dtype)
        x = synthetic_clip(model.config.time_steps, *size, samples=2, seed=3).to(dtype)
        expected = []
        for choice in ("off", "plain"):
            with kernels(choice):
                expected.append(model(x))
        graphs = make_graphs(model, x)
        for exporting in (False, True):
            with monkeypatch.context() as patch:
                patch.setattr(torch.compiler, "is_exporting", lambda exporting=exporting: exporting)
                for given in (graphs["clip"].module(x), chained(graphs, x)):
                    assert max(apart(given, wanted) for wanted in expected) <= most


@torch.no_grad()
def test_states_are_the_network_s(loud, exporting):
    """Spikes are among the states."""
    model = fuse(loud(time_steps=3).double(), quiet=True)
    x = synthetic_clip(3, 34, 27, samples=2, seed=3).double()
    step = make_graph("step", model, 34, 27)
    states = step_states(model.config, 2, 34, 27, torch.float64)
    for index in range(3):
        states = dict(zip(states, step.module(x[:, index], torch.tensor(index), *states.values())[2:], strict=True))
    wanted = model.front_end(x).state
    for name, state in states.items():
        torch.testing.assert_close(state, wanted[name].to(state.dtype), rtol=1e-12, atol=1e-12)
    assert all(states[f"stages.{level}.second_conv.input"].mean() > 0.01 for level in range(3))


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 3, 18 * CHUNK + 5])
@pytest.mark.parametrize("state", [False, True], ids=["from zero", "from a state"])
def test_the_scan_at_odd_lengths(length, state):
    generator = torch.Generator().manual_seed(length)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x, delta, into, out_of = draw(3, length, 5), draw(3, length, 5).abs(), draw(3, length, 4), draw(3, length, 4)
    decay, begin = -draw(5, 4).exp(), draw(3, 5, 4) if state else None
    given = traced_scan.traced_scan(x, delta, decay, into, out_of, begin)
    wanted = selective_scan(x, delta, decay, into, out_of, None, begin)
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_scan_stays_finite_with_steps_of_any_size():
    delta = torch.tensor([0.0, 1e-30, 1e4, 1e30]).repeat(20).reshape(1, 80, 1)
    ones = torch.ones(1, 80, 2)
    decay = torch.tensor([[-1.0, -16.0]])
    assert traced_scan.traced_scan(torch.ones(1, 80, 1), delta, decay, ones, ones, None)[0].isfinite().all()


def test_names_and_shapes_of_a_step_s_states(loud):
    graph = make_graph("step", fuse(loud(num_tokens=4), quiet=True), 18, 26)
    assert graph.input_names[:7] == (
        "x",
        "step",
        "stages.0.first_conv.input",
        "stages.0.first_neuron.membrane",
        "stages.0.first_neuron.membrane_imag",
        "stages.0.second_conv.input",
        "stages.0.second_neuron.membrane",
    )
    assert graph.input_names[-5:-2] == tuple(f"bridge.rates.{level}.count" for level in range(3))
    assert graph.output_names == ("features", "attention", *(NEXT + name for name in graph.input_names[2:]))
    states = step_states(graph.module.model.config, 3, 18, 26)
    assert [tuple(state.shape) for state in list(states.values())[:2]] == [(3, 2, 18, 26), (3, 8, 9, 13)]
    assert tuple(states["tokens.earliness"].shape) == (3, 3 * 4)
    assert not any(state.any() for state in states.values())


def small_weights(model, kind):
    """Matrices as int8, the rest as float16; or all as float16."""
    stored = {}
    for name, weight in model.state_dict().items():
        if kind == torch.int8 and weight.ndim > 1:
            stored[name] = as_int8(weight)
        else:
            stored[name] = Stored(weight.half(), None)
    return stored


@torch.no_grad()
@pytest.mark.parametrize("kind", [torch.int8, torch.float16], ids=str)
@pytest.mark.parametrize("fields", [{}, {"mixer": "gru"}, {"mixer": "transformer", "attention": "grouped"}], ids=str)
def test_stored_weights_are_expanded_as_restore_does(loud, fields, kind, exporting):
    model = fuse(loud(time_steps=2, **fields), quiet=True)
    stored = small_weights(model, kind)
    plain = create_model("nmnist", **{k: getattr(model.config, k) for k in model.config.field_names()}).eval()
    plain.load_state_dict({name: restore(one) for name, one in stored.items()})
    x = synthetic_clip(2, 18, 18, samples=2, seed=3)
    graphs = make_graphs(model, x, stored)
    logits = graphs["clip"].module(x)
    assert torch.equal(logits, make_graph("clip", plain, 18, 18).module(x))
    assert apart(chained(graphs, x), logits) <= 1e-5
    held = sum(t.numel() * t.element_size() for t in graphs["clip"].module.state_dict().values() if t.dtype == kind)
    matrices = [one.values for one in stored.values() if one.values.ndim > 1]
    assert held >= 0.9 * sum(values.numel() * values.element_size() for values in matrices)


@torch.no_grad()
def test_fewer_steps(loud, exporting):
    model = fuse(loud(time_steps=4), quiet=True)
    x = synthetic_clip(2, 18, 18, seed=3)
    assert apart(make_graph("clip", model, 18, 18, time_steps=2).module(x), model(x)) <= 1e-5


@torch.no_grad()
@pytest.mark.slow
def test_the_traced_program_gives_the_module_s_outputs(loud):
    """And no operator outside PyTorch's own."""
    model = fuse(loud(time_steps=2, causal=True), quiet=True)
    graph = make_graph("step", model, 18, 18)
    program = trace_graph(graph, dynamic=False)
    x = synthetic_clip(1, 18, 18, 1, seed=3)[:, 0]
    inputs = (x, torch.tensor(1), *(torch.rand_like(state) for state in graph.example[2:]))
    for given, wanted in zip(program.module()(*inputs), graph.module(*inputs), strict=True):
        torch.testing.assert_close(given, wanted)
    assert not [node for node in program.graph.nodes if "ripe" in str(node.target)]


def test_networks_and_sizes_that_are_refused(loud):
    training = loud(time_steps=2)
    with raises(ConfigError, "form", mentions=("expected deployed", "got training of 'nmnist'")):
        make_graph("clip", training, 18, 18)
    with raises(ConfigError, "form", mentions="got dual-kernel of 'nmnist'"):
        make_graph("step", dual_kernel(training, quiet=True), 18, 18)
    with raises(ConfigError, "graphs", mentions=("mamba-spike", "tail")):
        make_graph("tail", create_model("mamba-spike-nmnist"), 18, 18)
    fused = fuse(training, quiet=True)
    with raises(ConfigError, "in_size", mentions=("8×8", "7×18")):
        make_graph("clip", fused, 7, 18)
    with raises(ConfigError, "time_steps", mentions=("from 1 to 2", "got 3")):
        make_graph("clip", fused, 18, 18, time_steps=3)
    with raises(ConfigError, "stored", mentions="head.weight of shape (1,)"):
        make_graph("clip", fused, 18, 18, {"head.weight": Stored(torch.zeros(1, dtype=torch.int8), None)})
    with raises(ConfigError, "graphs", mentions=("clip, step", "got tail")):
        make_graph("tail", fuse(loud(causal=True), quiet=True), 18, 18)


def test_layers_that_are_not_exportable_are_refused():
    """They are not exported as something else."""
    try:
        register_neuron("mine")(type("Mine", (LIF,), {"exportable": False}))
        register_attention("mine")(type("MyAttention", (NoAttention,), {"exportable": False}))
        for field in ("neurons", "attention"):
            model = create_model("nmnist", form="deployed", time_steps=2, **{field: "mine"}).eval()
            for kind in ("clip", "step", "tail"):
                with raises(ConfigError, field, mentions="stages.0."):
                    make_graph(kind, model, 18, 18)
    finally:
        NEURONS.pop("mine", None)
        ATTENTIONS.pop("mine", None)


def test_clips_with_too_many_tokens_are_refused():
    check_length("clip", (torch.empty(1, 16, 2, 1024, 1024, device="meta"),))
    with raises(InputError, "clips", mentions=("409600", str(traced_scan.MAX_TOKENS))):
        check_length("clip", (torch.empty(1, 25, 2, 1024, 1024, device="meta"),))
