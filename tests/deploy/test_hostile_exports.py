"""Export folders from unknown authors are refused; nothing in them is run, waited for or read without end."""

import json
import math
import os
import shutil

import pytest
import torch
from hostile import SAMPLES, describe_again, members, rewrite, save_folder, saved, write
from tests.raising import raises

from ripe_mambaspike import write as write_recording
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.deploy.export.manifest import MANIFEST, MAX_GRAPH_BYTES
from ripe_mambaspike.deploy.export.registry import export_format
from ripe_mambaspike.deploy.export.run import load_exported
from ripe_mambaspike.errors import InputError, RipeError, WeightsError
from ripe_mambaspike.events.recording import Recording, make_events

X = torch.ones(2, 1, 2, 8, 8)
needs_posix = pytest.mark.skipif(os.name != "posix", reason="pipes and devices are POSIX's")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return save_folder(tmp_path_factory.mktemp("good"))


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "export")


def test_the_unchanged_folder_loads(good):
    assert load_exported(good)(X).shape == (2, 1, 3)


def test_a_folder_from_before_shapes_were_written_loads(folder):
    rewrite(folder, lambda document: document["graphs"][0].pop("tensors"))
    assert load_exported(folder)(X).shape == (2, 1, 3)


def test_code_in_a_graph_with_a_correct_checksum_runs_only_with_trust(folder, tmp_path, capsys):
    """The author of a folder writes its checksums too. `ripe predict` runs no code from it without --trust."""
    mark, recording = tmp_path / "made-by-code", tmp_path / "clip.npz"
    write(folder / "clip.pt2", {**members(folder / "clip.pt2"), SAMPLES: saved(mark)})
    describe_again(folder)
    write_recording(Recording(make_events([1, 2], [3, 4], [5, 6], [0, 1]), (8, 8)), recording)
    assert main(["predict", str(folder), str(recording)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n"), "--trust" in printed.err) == ("", 1, True)
    assert not mark.exists()
    main(["predict", str(folder), str(recording), "--trust"])
    assert mark.exists()


@pytest.mark.parametrize("to", ["aoti", "executorch"])
def test_formats_that_carry_code_need_trust(folder, to):
    rewrite(folder, lambda document: document.update(to=to))
    with raises(InputError, "trust", folder):
        load_exported(folder)
    assert load_exported(folder, trust=True).manifest.to == to


@pytest.mark.parametrize("name", ["aoti", "executorch"])
def test_loading_a_single_file_needs_trust_too(folder, name):
    with raises(InputError, "trust"):
        export_format(name).load(folder / "clip.pt2")


def test_a_graph_replaced_after_the_check_is_refused(folder, tmp_path):
    """The bytes that are loaded are those that were checked."""
    network = load_exported(folder)
    mark = tmp_path / "made-by-code"
    write(folder / "clip.pt2", {**members(folder / "clip.pt2"), SAMPLES: saved(mark)})
    with raises(WeightsError, path=folder / "clip.pt2"):
        network(X)
    assert not mark.exists()


# The manifest

ODD = [
    None, True, 0, -1, 3, 2**63, 10**400, 1.5, math.nan, "", "x", "\0", "../x", "a\nb", "\ud800", "x" * 100_000,
    [], [None], [1, 2], {}, {"x": 1}, [1] * 5000,
]  # fmt: skip


def places(value, path=()):
    """The path of every value in a document."""
    if path:
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def refusal(folder):
    try:
        load_exported(folder)
    except (WeightsError, InputError) as error:
        return str(error)
    return None


def test_odd_values_anywhere_in_the_manifest_are_refused(good, tmp_path):
    """Every entry replaced by every odd value: refused, or opened where the value is valid."""
    text = (good / MANIFEST).read_text()
    shutil.copy(good / "clip.pt2", tmp_path)
    refused = opened = 0
    for path in places(json.loads(text)):
        for odd in (*ODD, "leave out"):
            document = json.loads(text)
            place = document
            for key in path[:-1]:
                place = place[key]
            if odd == "leave out":
                del place[path[-1]]
            else:
                place[path[-1]] = odd
            (tmp_path / MANIFEST).write_text(json.dumps(document))
            message = refusal(tmp_path)
            refused, opened = refused + (message is not None), opened + (message is None)
            assert message is None or (len(message) <= 1000 and message.isprintable())
    assert refused > 1000
    assert opened < refused / 10


@pytest.mark.parametrize(
    "text",
    ["", "[", "7", '"export"', "[" * 10**5, '{"format": ' + "9" * 5000 + "}", "\ufeff{}", '{"format": NaN}', "\udcff"],
    ids=["empty", "cut", "number", "text", "deep", "digits", "mark", "nan", "bytes"],
)
def test_manifests_that_are_not_json_objects(folder, text):
    (folder / MANIFEST).write_bytes(text.encode("utf-8", "surrogateescape"))
    with raises(WeightsError, path=folder / MANIFEST):
        load_exported(folder)


@pytest.mark.parametrize(
    "name", ["clip.pt2\0", "../export/clip.pt2", "/etc/passwd", "a/b", "a\\b", ".", "..", "", ".hidden", "é", "x" * 300]
)
def test_file_names_outside_the_folder(folder, name):
    rewrite(folder, lambda document: document["graphs"][0].update(file=name))
    with raises(WeightsError, "graphs[0].file"):
        load_exported(folder)


def test_one_graph_named_twice(folder):
    rewrite(folder, lambda document: document.update(graphs=document["graphs"] * 2))
    with raises(WeightsError, "graphs"):
        load_exported(folder)


# Files that are not regular


@needs_posix
@pytest.mark.parametrize("name", [MANIFEST, "clip.pt2"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop", "sparse"])
def test_files_that_are_not_regular(folder, name, kind):
    path = folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(2**40)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    with raises(WeightsError, path=path):
        load_exported(folder)


def test_a_graph_of_another_size_than_the_manifest_says(folder):
    path = folder / "clip.pt2"
    size = path.stat().st_size
    for claimed in (size - 1, MAX_GRAPH_BYTES + 1, 10**18):
        rewrite(folder, lambda document, claimed=claimed: document["graphs"][0].update(bytes=claimed))
        with pytest.raises(WeightsError):
            load_exported(folder)


def test_logits_of_another_shape(folder):
    rewrite(folder, lambda document: document["config"].update(num_classes=4))
    with raises(WeightsError, "logits", folder):
        load_exported(folder)(X)


def test_logits_that_are_no_numbers(folder):
    parts = members(folder / "clip.pt2")
    weights = {name: b"\xff" * len(data) for name, data in parts.items() if "weights/weight_" in name}  # NaN in float32
    write(folder / "clip.pt2", {**parts, **weights})
    with raises(WeightsError, "logits"):
        load_exported(describe_again(folder))(X)


def test_a_step_graph_with_other_outputs(folder):
    def change(document):
        clip = document["graphs"][0]
        shutil.copy(folder / "clip.pt2", folder / "step.pt2")
        shutil.copy(folder / "clip.pt2", folder / "tail.pt2")
        document["graphs"] = [{**clip, "kind": kind, "file": f"{kind}.pt2"} for kind in ("step", "tail")]

    with pytest.raises(RipeError):
        load_exported(rewrite(folder, change))(X)


# ONNX


@pytest.fixture
def onnx_graph(tmp_path, monkeypatch):
    """Make a small ONNX file as this package would, after a change to it."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from ripe_mambaspike.deploy.export.formats import onnx as onnx_file

    def make(change=lambda model: None):
        shapes = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y")]
        node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
        weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
        graph = onnx.helper.make_graph([node], "small", shapes[:1], shapes[1:], [weight])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
        change(model)
        onnx.helper.set_model_props(
            model, {"format": onnx_file.MARK, "kind": "clip", "sha256": onnx_file._checksum(model)}
        )
        (tmp_path / "clip.onnx").write_bytes(model.SerializeToString())
        return tmp_path / "clip.onnx"

    monkeypatch.chdir(tmp_path)
    return make, export_format("onnx").load


def external(tensor):
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = 1
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "secret.bin"


def in_a_branch(model):
    """A tensor of a graph inside a node's attribute."""
    attribute = model.graph.node[0].attribute.add()
    attribute.name, attribute.type = "body", 5
    tensor = attribute.g.initializer.add()
    tensor.name, tensor.data_type = "inner", 1
    external(tensor)


def test_onnx_tensors_in_another_file(onnx_graph, tmp_path):
    make, load = onnx_graph
    x = torch.zeros(2)
    assert load(make())(x)[0].tolist() == [1, 2]
    (tmp_path / "secret.bin").write_bytes(bytes(8))  # in the working directory, where onnxruntime would find it
    for change in (lambda model: external(model.graph.initializer[0]), in_a_branch):
        with raises(InputError, "external_data", tmp_path / "clip.onnx"):
            load(make(change))


def test_operators_from_outside_onnx(onnx_graph):
    make, load = onnx_graph

    def of_a_library(model):
        model.graph.node[0].domain = "com.microsoft"

    def imported(model):
        model.opset_import.add().domain = "com.example"

    def of_its_own(model):
        model.functions.add().name = "Add"

    for change in (of_a_library, imported, of_its_own):
        with raises(InputError, "domain"):
            load(make(change))


def test_an_onnx_graph_that_the_runtime_rejects(onnx_graph, capfd):
    """The runtime's own messages are not printed."""
    make, load = onnx_graph

    def of_no_kind(model):
        model.graph.node[0].op_type = "NoSuchOperator"

    with pytest.raises(InputError):
        load(make(of_no_kind))
    assert capfd.readouterr() == ("", "")


# NIR


def test_nir_files_with_links_to_other_files(tmp_path):
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("nir")

    path, secret = tmp_path / "front.nir", tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["node"] = [1.0]

    def link(file):
        file["node"] = h5py.ExternalLink(str(secret), "node")

    def soft(file):
        file["node"] = h5py.SoftLink("/")

    def virtual(file):
        layout = h5py.VirtualLayout((1,), "f8")
        layout[:] = h5py.VirtualSource(str(secret), "node", (1,))
        file.create_virtual_dataset("node", layout)

    def elsewhere(file):
        file.create_dataset("node", (1,), "f8", external=[(str(secret), 0, 8)])

    def huge(file):
        file.create_dataset("node", (2**40,), "f8", chunks=(2**10,), compression="gzip")

    def circle(file):
        file["node/node"] = file.create_group("node")

    for make in (link, soft, virtual, elsewhere, huge, circle):
        with h5py.File(path, "w") as file:
            make(file)
        with raises(InputError, path=path):
            export_format("nir").load(path)
