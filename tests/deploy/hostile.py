"""A small exported program, and ways to change it that PyTorch's own reader would follow."""

import hashlib
import io
import json
import pickle
import zipfile

import torch
from torch import nn

from ripe_mambaspike.deploy.export.graph import Graph
from ripe_mambaspike.deploy.export.manifest import MANIFEST, Manifest, TensorShape, describe_file
from ripe_mambaspike.deploy.export.registry import export_format
from ripe_mambaspike.models.registry import create_model

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLES = "data/sample_inputs/model.pt"


class Small(nn.Module):
    """Any batch [B, 1, 2, 8, 8] → [B, 1, 3], with a weight and a constant."""

    size = (8, 8)

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(128, 3)
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x):
        return self.head(x.flatten(2)) + self.shift

    def example(self, batch, height, width):
        return (torch.zeros(batch, 1, 2, 8, 8),)


def small_graph():
    module = Small().eval()
    return Graph("clip", module, module.example(2, 8, 8), ("x",), ("logits",), {"x": {0: "batch"}}, {"time_steps": 1})


def save_small(path):
    export_format("torch-export").save(small_graph(), path)
    return path


def save_folder(folder):
    """An export of the clip graph alone, as `ripe export` would describe it."""
    path = save_small(folder / "clip.pt2")
    config = create_model("nmnist", num_classes=3, time_steps=1, in_size=(8, 8)).config.to_dict()
    shapes = [TensorShape(role="input", name="x", dtype="float32", shape=("B", 1, 2, 8, 8))]
    graph = describe_file("clip", path, ("x",), ("logits",), shapes)
    manifest = Manifest(
        to="torch-export",
        weights="fp32",
        network="nmnist",
        config=config,
        time_steps=1,
        grid=(8, 8),
        static=False,
        graphs=(graph,),
    )
    (folder / MANIFEST).write_bytes(manifest.to_json())
    return folder


def rewrite(folder, change):
    """The manifest changed in place."""
    document = json.loads((folder / MANIFEST).read_bytes())
    change(document)
    (folder / MANIFEST).write_text(json.dumps(document))
    return folder


def describe_again(folder):
    """The manifest of the folder as its author would write it: right for whatever the graph's file is now."""
    data = (folder / "clip.pt2").read_bytes()
    facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return rewrite(folder, lambda document: document["graphs"][0].update(facts))


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def write(path, parts):
    """The parts as an archive; a list of pairs may name one twice."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items() if isinstance(parts, dict) else parts:
            archive.writestr(f"archive/{name}", data)
    return path


def changed(path, out, change, part=MODEL):
    """The archive with one JSON part changed in place."""
    parts = members(path)
    document = json.loads(parts[part])
    change(document)
    return write(out, {**parts, part: json.dumps(document).encode()})


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w')",)


def pickled(path):
    return pickle.dumps(Touch(path))


def saved(path):
    held = io.BytesIO()
    torch.save(Touch(path), held)
    return held.getvalue()
