"""torch.export's own file: saved, loaded, run at other sizes, and refused when damaged."""

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import fuse
from ripe_mambaspike.deploy.export.graph import make_graph, resized
from ripe_mambaspike.deploy.export.pt2_archive import rebuilt
from ripe_mambaspike.deploy.export.registry import export_format
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.models.stored import Stored
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.ops.mamba_inner import traced_scan

pytestmark = pytest.mark.slow

torch_export = export_format("torch-export")


@pytest.fixture
def small(loud):
    """Without blocks, so that symbolic sizes are traced quickly."""
    return fuse(loud(time_steps=2, mixer="none"), quiet=True)


@torch.no_grad()
def test_one_file_serves_every_batch_and_size(small, tmp_path):
    torch_export.save(make_graph("clip", small, 18, 18), tmp_path / "clip.pt2")
    run = torch_export.load(tmp_path / "clip.pt2")
    for samples, height, width in ((1, 18, 18), (3, 34, 34), (2, 21, 26), (1, 8, 8)):
        x = synthetic_clip(2, height, width, samples, seed=3)
        (logits,) = run(x)
        torch.testing.assert_close(logits, small(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_loaded_step_gives_the_graph_s_outputs(small, tmp_path, monkeypatch):
    graph = make_graph("step", small, 18, 18)
    torch_export.save(graph, tmp_path / "step.pt2", dynamic=False)
    run = torch_export.load(tmp_path / "step.pt2")
    states = tuple(torch.rand_like(state) for state in graph.example[2:])
    inputs = (synthetic_clip(1, 18, 18, 1, seed=3)[:, 0], torch.tensor(1), *states)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    for given, wanted in zip(run(*inputs), graph.module(*inputs), strict=True):
        assert torch.equal(given, wanted)


@torch.no_grad()
def test_the_whole_network_with_stored_weights(loud, tmp_path):
    model = fuse(loud(time_steps=2), quiet=True)
    stored = {name: Stored(p.detach().half(), None) for name, p in model.named_parameters() if p.ndim > 1}
    graph = make_graph("clip", model, 18, 18, stored)
    torch_export.save(graph, tmp_path / "clip.pt2", dynamic=False)
    program = torch.export.load(tmp_path / "clip.pt2")
    halves = sum(t.numel() for t in program.state_dict.values() if t.dtype == torch.float16)
    assert halves == sum(one.values.numel() for one in stored.values())
    x = synthetic_clip(2, 18, 18, 1, seed=3)
    torch.testing.assert_close(torch_export.load(tmp_path / "clip.pt2")(x)[0], graph.module(x))


def test_damaged_files_and_other_sizes(small, tmp_path):
    graph = make_graph("step", small, 18, 18)
    place = tmp_path / "step.pt2"
    torch_export.save(graph, place, dynamic=False)
    run, data = torch_export.load(place), place.read_bytes()
    with raises(InputError, "inputs", place, "(2, 2, 18, 18)"):
        run(*resized(graph, 2, 18, 18).example)
    middle = len(data) // 2
    for damaged in (data[:middle], data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :], b"no", b""):
        place.write_bytes(damaged)
        with raises(InputError, path=place):
            torch_export.load(place)
    with raises(InputError, path=tmp_path / "absent.pt2"):
        torch_export.load(tmp_path / "absent.pt2")


@pytest.mark.parametrize(
    "fields",
    [
        *({"attention": kind} for kind in ("low-rank", "grouped", "sigmoid", "gate", "none")),
        *({"mixer": kind} for kind in ("transformer", "gru", "conv1d", "flat")),
        *({"attention_feature_map": kind} for kind in ("relu", "softplus", "exp")),
        {"mixer": "flat-matched", "bridge_dim": 13, "csilif_reset": 0.2},
        {"num_tokens": 3, "in_size": (18, 18)},
        {"head_hidden_size": 16, "bridge": "stage3", "neurons": "lif", "tdm": False},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_every_kind_of_layer_is_read_without_trust(loud, tmp_path, monkeypatch, fields):
    """Their operators are on the list of those that a file may call."""
    monkeypatch.setattr(traced_scan, "CHUNK", 4)
    model = fuse(loud(time_steps=1, **fields), quiet=True)
    torch_export.save(make_graph("clip", model, 18, 18), tmp_path / "clip.pt2", dynamic=False)
    archive, facts = rebuilt((tmp_path / "clip.pt2").read_bytes())
    assert facts["kind"] == "clip"
    assert len(archive) > 100_000
