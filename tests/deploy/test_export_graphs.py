"""Graphs for export compute what the deployed network computes: whole clips, and steps in a row with the tail."""

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import create_model, dual_kernel, fuse
from ripe_mambaspike.deploy.export.graph import NEXT, clip_graph, initial_states, step_graph, tail_graph
from ripe_mambaspike.deploy.export.graph_scan import CHUNK, scan
from ripe_mambaspike.deploy.export.trace import check_length
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.stored import Stored, restore
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.state import below
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.mamba_inner.scan import selective_scan

VARIANTS = [
    {},
    {"attention": "low-rank"},
    {"attention": "grouped"},
    {"attention": "sigmoid"},
    {"attention": "gate"},
    {"attention": "none", "tdm": False, "bridge": "stage3"},
    {"tdm": False},
    {"bridge": "stage3"},
    {"mixer": "transformer"},
    {"mixer": "gru"},
    {"mixer": "conv1d"},
    {"mixer": "none"},
    {"mixer": "flat"},
    {"num_tokens": 6},
    {"neurons": "lif"},
    {"neurons": "csilif"},
    {"head_hidden_size": 30},
    {"time_steps": 1},
    {"pool_ratios": (2, 3, 4)},
]


def apart(given, wanted):
    return float((given - wanted).abs().max() / wanted.abs().max())


def chained(model, x, stored=None):
    """The logits of step after step and the tail."""
    sizes = x.shape[-2:]
    step, tail = step_graph(model, *sizes, stored), tail_graph(model, *sizes, stored)
    states = initial_states(step, x.shape[0], *sizes)
    features, maps = [], []
    for index in range(x.shape[1]):
        feature, attention, *states = step.module(x[:, index], torch.tensor(index), *states)
        features.append(feature)
        maps.append(attention)
    named = dict(zip(step.input_names[2:], states, strict=True))
    salience = [named[name] for name in tail.input_names[2:]]
    return tail.module(torch.stack(features, 1), torch.stack(maps, 1), *salience)


@torch.no_grad()
@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_every_variant_equals_the_reference(loud, fields):
    model = fuse(loud(**{"time_steps": 3, **fields}).double(), quiet=True)
    for dtype, size, most in ((torch.float64, (21, 26), 1e-12), (torch.float32, (18, 18), 1e-5)):
        model = model.to(dtype)
        x = synthetic_clip(model.config.time_steps, *size, samples=2, seed=3).to(dtype)
        for choice in ("off", "plain"):
            with kernels(choice):
                wanted = model(x)
            assert apart(clip_graph(model, *size).module(x), wanted) <= most
            assert apart(chained(model, x), wanted) <= most


@torch.no_grad()
def test_spikes_are_the_reference_s(loud):
    model = fuse(loud(time_steps=3).double(), quiet=True)
    x = synthetic_clip(3, 34, 27, samples=2, seed=3).double()
    states = clip_graph(model, 34, 27).module.front(x)[2]
    front = model.front_end(x, observe=("spikes",))
    for level in (1, 2, 3):
        own = below(front.state, f"stages.{level - 1}")
        assert torch.equal(states[f"stage{level}.inner_spikes"], own["second_conv.input"])
        assert torch.equal(states[f"stage{level}.input"], own["first_conv.input"])
    assert min(spikes.mean() for spikes in front.observed.values()) > 0.01


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 3])
def test_the_scan_at_awkward_lengths(length):
    generator = torch.Generator().manual_seed(length)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x, delta, into, out_of = (
        draw(2, 3, length, 5),
        draw(2, 3, length, 5).abs(),
        draw(2, 3, length, 4),
        draw(2, 3, length, 4),
    )
    decay = -draw(2, 1, 5, 4).exp()
    given = scan(x, delta, decay, into, out_of)
    for direction in range(2):
        parts = (part[direction] for part in (x, delta))
        wanted = selective_scan(*parts, decay[direction, 0], into[direction], out_of[direction])[0]
        torch.testing.assert_close(given[direction], wanted, rtol=1e-12, atol=1e-12)


def test_the_scan_stays_finite_with_steps_of_any_size():
    delta = torch.tensor([0.0, 1e-30, 1e4, 1e30]).repeat(20).reshape(1, 1, 80, 1)
    ones = torch.ones(1, 1, 80, 2)
    assert scan(torch.ones(1, 1, 80, 1), delta, torch.tensor([[[[-1.0, -16.0]]]]), ones, ones).isfinite().all()


def test_names_say_what_a_step_carries(loud):
    graph = step_graph(fuse(loud(num_tokens=4), quiet=True), 18, 26)
    assert graph.input_names[:6] == (
        "x",
        "step",
        "stage1.input",
        "stage1.first_neuron.real",
        "stage1.first_neuron.imag",
        "stage1.inner_spikes",
    )
    assert graph.input_names[-5:-2] == ("bridge.total1", "bridge.total2", "bridge.total3")
    assert graph.output_names == ("features", "attention", *(NEXT + name for name in graph.input_names[2:]))
    states = initial_states(graph, 3, 18, 26)
    assert [tuple(state.shape) for state in states[:2]] == [(3, 2, 18, 26), (3, 8, 9, 13)]
    assert tuple(states[-1].shape) == (3, 3 * 4)
    assert not any(state.any() for state in states)


def small_weights(model, kind):
    """Matrices as int8, the rest as float16; or all as float16."""
    stored = {}
    for name, weight in model.state_dict().items():
        if kind == "int8" and weight.ndim > 1:
            scale = weight.abs().amax(tuple(range(1, weight.ndim)), keepdim=True).clamp(min=1e-6) / 127
            stored[name] = Stored((weight / scale).round().to(torch.int8), scale)
        else:
            stored[name] = Stored(weight.half(), None)
    return stored


@torch.no_grad()
@pytest.mark.parametrize("kind", ["int8", "float16"])
@pytest.mark.parametrize("fields", [{}, {"mixer": "gru"}, {"mixer": "transformer", "attention": "grouped"}], ids=str)
def test_stored_weights_are_expanded_as_restore_does(loud, fields, kind):
    model = fuse(loud(time_steps=2, **fields), quiet=True)
    stored = small_weights(model, kind)
    plain = create_model("nmnist", **{k: getattr(model.config, k) for k in model.config.field_names()}).eval()
    plain.load_state_dict({name: restore(one) for name, one in stored.items()})
    x = synthetic_clip(2, 18, 18, samples=2, seed=3)
    graph = clip_graph(model, 18, 18, stored)
    assert torch.equal(graph.module(x), clip_graph(plain, 18, 18).module(x))
    assert apart(chained(model, x, stored), graph.module(x)) <= 1e-5
    held = sum(
        t.numel() * t.element_size() for t in graph.module.state_dict().values() if t.dtype == stored_dtype(kind)
    )
    assert held >= 0.9 * sum(
        one.values.numel() * one.values.element_size() for one in stored.values() if one.values.ndim > 1
    )


def stored_dtype(kind):
    return torch.int8 if kind == "int8" else torch.float16


@torch.no_grad()
def test_fewer_steps(loud):
    model = fuse(loud(time_steps=4), quiet=True)
    x = synthetic_clip(2, 18, 18, seed=3)
    assert apart(clip_graph(model, 18, 18, steps=2).module(x), model(x)) <= 1e-5


def test_refusals(loud):
    training = loud(time_steps=2)
    with raises(ConfigError, field="form"):
        clip_graph(training, 18, 18)
    with raises(ConfigError, field="form"):
        step_graph(dual_kernel(training, quiet=True), 18, 18)
    with raises(ConfigError, field="model"):
        tail_graph(create_model("mamba-spike-nmnist"), 18, 18)
    fused = fuse(training, quiet=True)
    with raises(ConfigError, field="in_size"):
        clip_graph(fused, 7, 18)
    with raises(ConfigError, field="time_steps"):
        clip_graph(fused, 18, 18, steps=3)
    with raises(ConfigError, field="stored"):
        clip_graph(fused, 18, 18, {"head.weight": Stored(torch.zeros(1, dtype=torch.int8), None)})


def test_clips_too_long_for_any_free_size_are_refused():
    check_length("clip", (torch.empty(1, 16, 2, 1024, 1024, device="meta"),))
    with raises(InputError, field="clips"):
        check_length("clip", (torch.empty(1, 25, 2, 1024, 1024, device="meta"),))
