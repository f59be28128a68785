"""Folders of exported networks: the manifest, and the archive of a torch.export graph."""

import json
import re
import tempfile
from pathlib import Path
from random import Random

from fuzz.mutate import mutate, mutate_json
from fuzz.target import Target, WrongAnswer
from fuzz.targets.models import FIELDS, LABELS, folder_target, lay_out
from ripe_mambaspike.deploy.export.manifest import MANIFEST
from ripe_mambaspike.deploy.export.registry import ExportOptions
from ripe_mambaspike.deploy.export.run import load_export, load_exported
from ripe_mambaspike.deploy.export.write import to_deployed, write_export
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.models.labels import LABELS_FILE
from ripe_mambaspike.models.registry import create_model

EXPRESSION = re.compile(r"[A-Za-z0-9_+\-*/%(), <>=.]*", re.ASCII)
TARGET = re.compile(r"(torch\.ops\.[a-z_]+\.[A-Za-z0-9_.]+|_?operator\.[a-z_]+|[A-Za-z0-9_.]*)", re.ASCII)


def make(name: str) -> Target:
    return _archive(name) if name == "torch-export" else _folder(name)


def _folder(name: str) -> Target:
    """An ONNX export without looking into its graph, which ONNX Runtime does when it is first used."""
    files = _exported("onnx", (MANIFEST, LABELS_FILE, "clip.onnx"))
    return folder_target(name, files, _open, {"clip.onnx": (MANIFEST, "graphs", "0", "sha256")})


def _open(case: bytes, folder: Path) -> None:
    lay_out(case, folder)
    load_exported(folder)
    load_export(folder)


def _archive(name: str) -> Target:
    """The checks of a torch.export archive before PyTorch loads it: only plain arithmetic may pass."""
    seed = _exported("torch-export", ("clip.pt2",))["clip.pt2"]
    return Target(name, "others", [seed], _check_archive, (b"expr_str", b"PK\x03\x04"), (RipeError,), _change_archive)


def _check_archive(case: bytes, folder: Path) -> None:
    from ripe_mambaspike.deploy.export.pt2_archive import MODEL, SAMPLES, members_of, rebuilt

    try:
        passed, _ = rebuilt(case)
    except Exception:  # `load` makes one sentence of whatever it is
        return
    members = members_of(passed)
    if members[SAMPLES]:
        raise WrongAnswer("something to unpickle passed")
    waiting = [json.loads(members[MODEL])]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            expression = value.get("expr_str", "")
            if not isinstance(expression, str) or not EXPRESSION.fullmatch(expression) or "__" in expression:
                raise WrongAnswer(f"the expression {str(expression)[:100]!r} passed")
            target = value.get("target", "")
            if isinstance(target, str) and not TARGET.fullmatch(target):
                raise WrongAnswer(f"the call of {target[:100]!r} passed")
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _change_archive(case: bytes, random: Random) -> bytes:
    """The archive with one entry changed and repacked, so that its checksums are valid."""
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(case)) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    name = random.choice(list(entries))
    if name.endswith(".json") and random.random() < 0.7:
        entries[name] = mutate_json(entries[name], random)
    else:
        entries[name] = mutate(entries[name], random)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for one, data in entries.items():
            archive.writestr(one, data)
    return made.getvalue()


def _exported(to: str, names: tuple[str, ...]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        model = create_model("nmnist", num_classes=3, seed=0, **FIELDS).eval()
        out = Path(place) / "out"
        write_export(to_deployed(model), ExportOptions(to, graphs=("clip",), static=True), out, LABELS)
        return {name: (out / name).read_bytes() for name in names}
