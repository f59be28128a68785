"""A graph compiled ahead of time and run from its package: the same logits; other sizes and damaged files raise."""

import shutil
import zipfile

import pytest
import torch
from tests.deploy.networks import as_int8
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.deploy.export.graph import make_graph, resized
from ripe_mambaspike.deploy.export.registry import export_format
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.stored import restore
from ripe_mambaspike.ops.mamba_inner import traced_scan

pytestmark = pytest.mark.slow

aoti = export_format("aoti")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def model():
    """A small deployed network with one int8 matrix."""
    small = {"stage_channels": (4, 8, 8), "embed_dims": (4, 8, 8), "time_steps": 2, "form": "deployed"}
    network = create_model("nmnist", seed=0, **small).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "dt_proj.bias" in name:
                parameter.fill_(-3)  # so that states carried from chunk to chunk affect the logits
        name = next(name for name, _ in network.named_parameters() if "hierarchy" in name and "in_proj" in name)
        matrix = network.get_parameter(name)
        network.stored = {name: as_int8(matrix)}
        matrix.copy_(restore(network.stored[name]))
    return network


@pytest.fixture(scope="module")
def graph(model):
    """The tail, with its scan in chunks of 2: few operations, several chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traced_scan, "CHUNK", 2)
        yield make_graph("tail", model, 10, 12, model.stored)


@pytest.fixture(scope="module")
def package(graph, tmp_path_factory):
    """Compiled once, since compiling is slow."""
    path = tmp_path_factory.mktemp("aoti") / "tail.pt2"
    aoti.save(graph, path, dynamic=False)
    return path


def inputs(graph, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(one.shape, generator=generator) for one in graph.example)


@needs_compiler
def test_the_package_gives_pytorchs_logits(model, graph, package):
    run = aoti.load(package, trust=True)
    for seed in range(3):
        features, attention = inputs(graph, seed)
        with torch.no_grad():
            expected = model.classify(features, attention)
        (logits,) = run(features, attention)
        assert logits.shape == (1, 2, 10)
        assert (logits - expected).abs().max() <= 2e-6 * expected.abs().max()


@needs_compiler
def test_inputs_of_another_size_are_refused(graph, package):
    run = aoti.load(package, trust=True)
    with raises(InputError, "inputs", package, ("(2, 2, 4, 4)", "torch.float32 (1, 2, 4, 4)")):
        run(*resized(graph, 2, 10, 12).example)
    with raises(InputError, "inputs", package, "torch.float64"):
        run(*(one.double() for one in graph.example))


@needs_compiler
def test_damaged_files_are_refused(package, tmp_path):
    whole = bytearray(package.read_bytes())
    path = tmp_path / "tail.pt2"
    turned = bytearray(whole)
    turned[len(turned) // 2] ^= 255
    for content in (b"", b"nothing of the kind", whole[: len(whole) // 2], bytes(len(whole)), turned):
        path.write_bytes(content)
        with raises(InputError, path=path):
            aoti.load(path, trust=True)


def test_foreign_and_absent_files_are_refused(tmp_path):
    with raises(InputError, path=tmp_path / "absent.pt2"):
        aoti.load(tmp_path / "absent.pt2", trust=True)
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as archive:
        archive.writestr("other/readme", "no code")
    with raises(InputError, path=tmp_path / "other.pt2", mentions="no library"):
        aoti.load(tmp_path / "other.pt2", trust=True)


def test_free_sizes_are_refused_before_anything_is_compiled(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(type(aoti), "unavailable_reason", lambda self: None)
    with raises(ConfigError, "static", mentions="batch, height3, positions, width3"):
        aoti.save(graph, tmp_path / "tail.pt2")
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_compile_is_refused_and_nothing_is_written(graph, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("reason\nand many lines more")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
    monkeypatch.setattr(type(aoti), "unavailable_reason", lambda self: None)
    with raises(ConfigError, "to", mentions=("tail graph", "got reason")) as caught:
        aoti.save(graph, tmp_path / "tail.pt2", dynamic=False)
    assert "lines more" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_small_weights_are_not_expanded_in_the_package(model, graph, tmp_path, monkeypatch):
    frozen = []

    def remember(program, *, package_path, inductor_configs):
        frozen.append(inductor_configs["freezing"])
        raise RuntimeError("enough")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", remember)
    monkeypatch.setattr(type(aoti), "unavailable_reason", lambda self: None)
    for one in (graph, make_graph("tail", model, 10, 12)):
        with raises(ConfigError, "to"):
            aoti.save(one, tmp_path / "tail.pt2", dynamic=False)
    assert frozen == [False, True]


def test_a_missing_compiler_is_named(graph, tmp_path, monkeypatch):
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", lambda: "no-such-compiler")
    with raises(ConfigError, "to", mentions="C++ compiler"):
        aoti.save(graph, tmp_path / "tail.pt2", dynamic=False)
    assert list(tmp_path.iterdir()) == []
