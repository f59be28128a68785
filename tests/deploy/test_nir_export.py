"""The front-end as a NIR file: its spikes equal PyTorch's; what NIR cannot express is listed and kept as metadata."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

nir = pytest.importorskip("nir")

from tests.raising import raises  # noqa: E402

from ripe_mambaspike import create_model  # noqa: E402
from ripe_mambaspike.deploy.export.nir_neurons import neuron_graph  # noqa: E402
from ripe_mambaspike.deploy.export.nir_run import run_graph  # noqa: E402
from ripe_mambaspike.deploy.export.registry import export_format  # noqa: E402
from ripe_mambaspike.errors import ConfigError, InputError, RipeError  # noqa: E402
from ripe_mambaspike.models.synthetic import synthetic_clip  # noqa: E402
from ripe_mambaspike.nn.neurons import LIF, NEURONS, ConstantsNeuron, CSiLIF, SiLIF  # noqa: E402
from ripe_mambaspike.nn.norm import TimeAffine  # noqa: E402
from ripe_mambaspike.ops.neurons import NeuronConstants  # noqa: E402

nir_file = export_format("nir")
SHARED = Path(os.environ.get("RIPE_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")
DT = 0.004


SMALL = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 5, "form": "deployed"}


@torch.no_grad()
def network(*, same_steps=False, dtype=torch.float64, **overrides):
    """A deployed network in which all layers fire; its norms change with the step unless `same_steps`."""
    model = create_model("nmnist", seed=0, **{**SMALL, **overrides}).to(dtype).eval()
    for part in model.modules():
        if isinstance(part, TimeAffine):
            part.scale.uniform_(1, 4)
            part.shift.uniform_(-0.3, 0.6)
            if same_steps:
                part.scale[:], part.shift[:] = part.scale[:1].clone(), part.shift[:1].clone()
        if getattr(part, "coefficient", None) is not None:
            part.coefficient.uniform_(-0.4, 0.4)
        if hasattr(part, "threshold"):
            part.threshold.uniform_(0.2, 0.6)
    return model


def spikes_of(model, x):
    with torch.no_grad():
        return list(model.front_end(x, observe=("spikes",)).observed.values())[1::2]


@pytest.mark.parametrize("tdm", [True, False], ids=["filtered", "unfiltered"])
@pytest.mark.parametrize("neurons", ["lif", "silif", "csilif"])
def test_a_front_end_that_nir_expresses_has_the_network_s_spikes(tmp_path, neurons, tdm):
    model = network(neurons=neurons, tdm=tdm, attention="none", same_steps=True)
    x = synthetic_clip(5, 18, 22, 3, seed=1).double()
    missing = nir_file.save(model, tmp_path / "front.nir", 18, 22)
    ours, theirs = spikes_of(model, x), nir_file.load(tmp_path / "front.nir")(x)
    assert [one.shape for one in ours] == [one.shape for one in theirs]
    assert min(one.mean().item() for one in ours) > 0.01
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert not any("norms over time" in sentence or "attention" in sentence for sentence in missing)


def test_another_reset_factor(tmp_path):
    model = network(neurons="csilif", csilif_reset=0.2, attention="none", same_steps=True)
    x = synthetic_clip(5, 16, 16, 2, seed=1).double()
    nir_file.save(model, tmp_path / "front.nir", 16, 16)
    front, ours = nir_file.load(tmp_path / "front.nir"), spikes_of(model, x)
    assert min(one.mean().item() for one in ours) > 0.01
    assert all(torch.equal(one, other) for one, other in zip(ours, front(x), strict=True))
    assert front.network.config == model.config
    assert front.network.stages[0].first_neuron.reset_factor == 0.2
    other = network(neurons="csilif", attention="none", same_steps=True)
    other.load_state_dict(model.state_dict())
    assert any(not torch.equal(one, another) for one, another in zip(ours, spikes_of(other, x), strict=True))


@pytest.mark.parametrize("feature_map", ["relu", "softplus", "exp"])
def test_metadata_restores_other_feature_maps(tmp_path, feature_map):
    model = network(attention_feature_map=feature_map, attention_epsilon=0.1, time_steps=4, bridge_dim=13)
    x = synthetic_clip(4, 16, 16, 2, seed=2).double()
    nir_file.save(model, tmp_path / "front.nir", 16, 16)
    front = nir_file.load(tmp_path / "front.nir")
    ours = spikes_of(model, x)
    assert all(torch.equal(one, other) for one, other in zip(ours, front.restored(x), strict=True))
    assert torch.equal(front.network(x), model(x))


class LeakyWithGain(ConstantsNeuron):
    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 2, channels))

    def constants(self, device):
        ones = torch.ones_like(self.gain)
        return NeuronConstants(0.75 * ones, None, self.gain, 0.5 * ones)


def test_a_registered_neuron_with_constants(tmp_path, monkeypatch):
    monkeypatch.setitem(NEURONS, "leaky-with-gain", LeakyWithGain)
    model = network(neurons="leaky-with-gain", attention="none", same_steps=True)
    x = synthetic_clip(5, 16, 16, 2, seed=1).double()
    nir_file.save(model, tmp_path / "front.nir", 16, 16)
    front, ours = nir_file.load(tmp_path / "front.nir"), spikes_of(model, x)
    assert min(one.mean().item() for one in ours) > 0.01
    assert all(torch.equal(one, other) for one, other in zip(ours, front(x), strict=True))
    assert torch.equal(front.network.stages[0].first_neuron.gain, model.stages[0].first_neuron.gain)


@pytest.mark.parametrize("attention", ["ds-mpa", "low-rank", "grouped", "sigmoid", "gate"])
def test_metadata_restores_the_spikes_of_what_nir_cannot_express(tmp_path, attention):
    model = network(attention=attention, time_steps=4)
    x = synthetic_clip(4, 16, 16, 2, seed=2).double()
    missing = nir_file.save(model, tmp_path / "front.nir", 16, 16)
    front = nir_file.load(tmp_path / "front.nir")
    ours = spikes_of(model, x)
    assert all(torch.equal(one, other) for one, other in zip(ours, front.restored(x), strict=True))
    assert any(not torch.equal(one, other) for one, other in zip(ours, front(x), strict=True))
    assert front.not_expressed == missing
    assert "stage3.first_norm and stage3.second_norm have the mean" in missing[0]
    assert f"the attention ({attention}) does: stage1.attention" in missing[1]
    assert len(missing) == 5


def test_the_network_is_rebuilt_from_the_file(tmp_path):
    model = network(num_tokens=4, dtype=torch.float32)
    missing = nir_file.save(model, tmp_path / "front.nir", 20, 20)
    again = nir_file.load(tmp_path / "front.nir").network
    assert again.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    x = synthetic_clip(5, 20, 20)
    assert torch.equal(again(x), model(x))
    assert any("4 most salient positions" in sentence for sentence in missing)


def test_nir_read_opens_the_file(tmp_path):
    model = network()
    missing = nir_file.save(model, tmp_path / "front.nir", 16, 16)
    graph = nir.read(tmp_path / "front.nir")
    assert set(graph.inputs) == {"events"}
    assert set(graph.outputs) == {"stage1.spikes", "stage2.spikes", "stage3.spikes"}
    assert all(sentence in json.loads(graph.metadata["not_expressed"]) for sentence in missing)
    conv = graph.nodes["stage2.first_conv"]
    assert np.array_equal(conv.weight, model.stages[1].first_conv.weight.detach().numpy())
    assert tuple(conv.stride) == (2, 2)
    norm = graph.nodes["stage2.first_norm"].metadata
    assert np.array_equal(norm["shift"], model.stages[1].first_norm.shift.detach().numpy())


@pytest.mark.slow
def test_spikes_on_real_recordings(tmp_path):
    folder = SHARED / "nmnist-real" / "Train"
    if not folder.is_dir():
        pytest.skip("there are no real recordings here: set RIPE_SHARED_DATA to their folder")
    from ripe_mambaspike.events import bin_events, read

    paths = sorted(folder.glob("*/*.bin"))[::150]
    x = torch.stack([bin_events(read(path), 10, grid=(34, 34)) for path in paths])
    path = tmp_path / "front.nir"
    for overrides in ({}, {"attention": "none", "same_steps": True}):
        model = network(stage_channels=(32, 64, 128), time_steps=10, dtype=torch.float32, **overrides)
        nir_file.save(model, path, 34, 34)
        front = nir_file.load(path)
        run = front if overrides else front.restored
        ours, theirs = spikes_of(model.double(), x.double()), run(x.double())  # rounding differs in float32
        assert min(one.mean().item() for one in ours) > 0.01
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", [LIF, SiLIF, CSiLIF], ids=["lif", "silif", "csilif"])
def test_a_neuron_s_graph_has_its_potentials_and_spikes(kind):
    neuron = kind(6).double()
    with torch.no_grad():
        for name, value in neuron.named_parameters():
            value.add_(torch.rand_like(value) - (0.8 if name == "threshold" else 0.5))
    x = torch.randn(2, 12, 6, 3, 2, dtype=torch.float64) * 3
    graph = neuron_graph(neuron.constants(x.device), (3, 2), {})
    seen = run_graph(graph, x, DT, watch=["potential", "output"])
    with torch.no_grad():
        (spikes, potential), _ = neuron(x)
    assert 0.02 < spikes.mean() < 0.98
    assert torch.equal(seen["output"], spikes)
    torch.testing.assert_close(seen["potential"], potential, rtol=1e-12, atol=1e-12)


def test_a_decay_of_0_or_1_is_expressed_by_sums():
    neuron = SiLIF(3)
    with torch.no_grad():
        neuron.log_step.copy_(torch.tensor([-40.0, math.log(DT), 40.0]))  # decay 1, between, 0
        neuron.threshold.copy_(torch.tensor([-0.5, 0.3, 0.3]))
    x = torch.randn(2, 9, 3, 2, 2)
    graph = neuron_graph(neuron.constants(x.device), (2, 2), {})
    assert "leak" in graph.nodes
    with torch.no_grad():
        (spikes, _), _ = neuron(x)
    assert torch.equal(run_graph(graph, x, DT)["output"], spikes)


def test_a_neuron_fires_at_its_threshold_not_only_above_it():
    x = torch.tensor([1.0, 0.0, 0.5, 0.75]).reshape(1, 4, 1, 1, 1)  # u: 1 fires, 0, 0.5, 1 fires
    graph = neuron_graph(LIF(1).constants(x.device), (1, 1), {})
    assert run_graph(graph, x, DT)["output"].flatten().tolist() == [1, 0, 0, 1]


def test_a_threshold_is_rounded_down_to_the_signal_s_precision():
    shape = np.array([3])
    above = np.nextafter(np.float32(1), np.float32(2))
    levels = np.array([np.nextafter(1.0, 0.0), 1.0, (1.0 + float(above)) / 2])
    nodes = {"input": nir.Input(shape), "fire": nir.Threshold(levels), "output": nir.Output(shape)}
    graph = nir.NIRGraph(nodes, [("input", "fire"), ("fire", "output")])
    x = torch.tensor([[[1.0] * 3, [float(above)] * 3]], dtype=torch.float32)
    assert run_graph(graph, x, DT)["output"].tolist() == [[[1, 0, 0], [1, 1, 1]]]


def test_an_integrator_follows_its_equation():
    shape = np.array([2])
    node = nir.LI(tau=np.array([0.01, 0.03]), r=np.array([2.0, 0.5]), v_leak=np.array([0.3, -0.1]))
    nodes = {"input": nir.Input(shape), "li": node, "output": nir.Output(shape)}
    graph = nir.NIRGraph(nodes, [("input", "li"), ("li", "output")])
    x = torch.randn(1, 6, 2, dtype=torch.float64)
    v, expected, parts = np.zeros(2), [], 20_000
    for current in x[0].numpy():
        for _ in range(parts):  # Euler's method in very small steps
            v = v + DT / parts / node.tau * (node.v_leak - v + node.r * current)
        expected.append(v)
    torch.testing.assert_close(run_graph(graph, x, DT)["output"][0].numpy(), np.stack(expected), rtol=1e-3, atol=1e-4)


def test_edges_add_up_and_a_delay_lasts_its_steps():
    shape = np.array([1])
    nodes = {
        "input": nir.Input(shape),
        "later": nir.Delay(np.array([2 * DT])),
        "sum": nir.Scale(np.array([10.0])),
        "output": nir.Output(shape),
    }
    graph = nir.NIRGraph(nodes, [("input", "sum"), ("input", "later"), ("later", "sum"), ("sum", "output")])
    x = torch.arange(1.0, 6.0).reshape(1, 5, 1)
    assert run_graph(graph, x, DT)["output"].flatten().tolist() == [10, 20, 40, 60, 80]


def test_a_graph_that_cannot_be_run_is_refused():
    shape = np.array([1])
    ends = {"input": nir.Input(shape), "output": nir.Output(shape)}
    x = torch.ones(1, 2, 1)
    loop = nir.NIRGraph(
        {**ends, "a": nir.Scale(np.ones(1)), "b": nir.Scale(np.ones(1))},
        [("input", "a"), ("a", "b"), ("b", "a"), ("b", "output")],
    )
    with raises(InputError, "edges", mentions=("delay", "a → b → a")):
        run_graph(loop, x, DT)
    foreign = nir.NIRGraph({**ends, "a": nir.I(np.ones(1))}, [("input", "a"), ("a", "output")])
    with raises(InputError, "a", mentions=("Input, Output, Scale", "got I")):
        run_graph(foreign, x, DT)
    half = nir.NIRGraph({**ends, "a": nir.Delay(np.array([DT / 2]))}, [("input", "a"), ("a", "output")])
    with raises(InputError, "a", mentions=f"whole steps of {DT} s"):
        run_graph(half, x, DT)


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "front.nir"
    nir_file.save(network(dtype=torch.float32), path, 16, 16)
    whole = path.read_bytes()
    damaged = [b"", b"nothing of the kind", whole[: len(whole) // 2], whole[:2000], bytes(len(whole))]
    for content in damaged:
        path.write_bytes(content)
        with raises(RipeError, path=path):
            nir_file.load(path)
    with raises(InputError, path=tmp_path / "absent.nir"):
        nir_file.load(tmp_path / "absent.nir")
    nir.write(path, nir.NIRGraph.from_list(nir.Linear(np.ones((2, 2)))))
    with raises(InputError, "version", path, ("got none 0", "ripe-front-end 1")):
        nir_file.load(path)


def test_a_file_with_a_missing_tensor_is_refused(tmp_path):
    path = tmp_path / "front.nir"
    nir_file.save(network(dtype=torch.float32), path, 16, 16)
    graph = nir.read(path)
    del graph.nodes["stage1.attention"].metadata["gain"]
    nir.write(path, graph)
    with raises(RipeError, field="stages.0.attention.gain"):
        nir_file.load(path)


def test_other_networks_sizes_and_folders_are_refused_and_nothing_is_written(tmp_path):
    model = create_model("nmnist", seed=0, **{**SMALL, "form": "training"})
    path = tmp_path / "front.nir"
    with raises(ConfigError, "form", mentions=("expected deployed", "got training of 'nmnist'")):
        nir_file.save(model, path, 16, 16)
    with raises(ConfigError, "form", mentions="got dual-kernel"):
        nir_file.save(create_model("nmnist", **{**SMALL, "form": "dual-kernel"}), path, 16, 16)
    with raises(ConfigError, "model", mentions="'mamba-spike-nmnist'"):
        nir_file.save(create_model("mamba-spike-nmnist"), path, 16, 16)
    deployed = network()
    with raises(ConfigError, "grid", mentions="4×16"):
        nir_file.save(deployed, path, 4, 16)
    with raises(ConfigError, "dtype", mentions="got bfloat16"):
        nir_file.save(network().bfloat16(), path, 16, 16)
    with raises(InputError, path=tmp_path / "absent" / "front.nir"):
        nir_file.save(deployed, tmp_path / "absent" / "front.nir", 16, 16)
    assert list(tmp_path.iterdir()) == []


def test_clips_that_do_not_fit_are_refused(tmp_path):
    nir_file.save(network(dtype=torch.float32), tmp_path / "front.nir", 16, 16)
    front = nir_file.load(tmp_path / "front.nir")
    with raises(InputError, "x", mentions=("(2, 18, 16)", "(2, 16, 16)")):
        front(torch.zeros(1, 5, 2, 18, 16))
    with raises(InputError, "x", mentions=("at most 5", "got 6")):
        front(torch.zeros(1, 6, 2, 16, 16))


def test_the_missing_package_is_named(tmp_path, monkeypatch):
    assert nir_file.unavailable_reason() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for attempt in (
        lambda: nir_file.save(network(dtype=torch.float32), tmp_path / "x.nir", 16, 16),
        lambda: nir_file.load(tmp_path / "x.nir"),
    ):
        with raises(ConfigError, "to", mentions='pip install "ripe-mambaspike[nir]"'):
            attempt()
