"""A small exported program, and ways to change it that PyTorch's own reader would follow."""

import io
import json
import pickle
import zipfile

import torch
from torch import nn

from ripe_mambaspike.deploy.export import torch_export
from ripe_mambaspike.deploy.graph import Graph

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLES = "data/sample_inputs/model.pt"


class Small(nn.Module):
    """Any batch [B, 1, 8, 8] → [B, 1, 3], with a weight and a constant."""

    facts = {"steps": 1}  # noqa: RUF012
    size = (8, 8)

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x):
        return self.head(x.flatten(2)) + self.shift

    def example(self, batch, height, width):
        return (torch.zeros(batch, 1, 8, 8),)


def small_graph():
    module = Small().eval()
    return Graph("clip", module, module.example(2, 8, 8), ("x",), ("logits",), {"x": {0: "batch"}})


def save_small(path):
    torch_export.save(small_graph(), path)
    return path


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
