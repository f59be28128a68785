"""The script of an ONNX export's card answers as `ripe predict` where NumPy and ONNX Runtime are all there is."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ripe_mambaspike import create_model, export, write
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.events import Recording, make_events
from ripe_mambaspike.models.labels import Labels, save_labels
from ripe_mambaspike.ops.mamba_inner import traced_scan

NAMES = ("hand_clapping", "wave [both]", "```", "größer")
SENSOR = (40, 36)
CASES = {
    "time": Labels(NAMES, "folder", None, 3, (16, 20), "time", False, sensor_size=SENSOR, duration_us=90_000),
    "count-crop": Labels(NAMES, "folder", None, 3, (16, 16), "count", True, sensor_size=SENSOR, crop=(3, 5, 24, 26)),
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(find_spec, ("onnxruntime", "onnxscript"))), reason="needs the extra export"),
]


@pytest.fixture
def alone(tmp_path):
    """Words of Python → the process, in an interpreter that has NumPy, ONNX Runtime and nothing else."""
    site = tmp_path / "site"
    site.mkdir()
    for name in ("numpy", "onnxruntime"):
        package = Path(find_spec(name).origin).parent
        (site / name).symlink_to(package)
        if package.with_name(f"{name}.libs").is_dir():  # shared libraries of a wheel
            (site / f"{name}.libs").symlink_to(package.with_name(f"{name}.libs"))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"}

    def run(*words):
        command = [sys.executable, "-S", "-s", *map(str, words)]  # -S: without the packages that are installed
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    for name in ("torch", "ripe_mambaspike", "onnx", "msgspec"):
        assert f"No module named '{name}'" in run("-c", f"import {name}").stderr
    return run


@pytest.fixture
def recordings(tmp_path):
    """In the two formats that the script reads."""
    made = []
    for number, name in enumerate(("a.npz", "b.csv", "c [1].npz", "d.txt")):
        random = np.random.default_rng(number)
        x, y = random.integers(0, SENSOR[0], 4000) * (number + 1) // 4, random.integers(0, SENSOR[1], 4000)
        t = np.sort((random.random(4000) ** (number + 1) * 90_000).astype(np.int64)) + 1_000_000_007
        made.append(write(Recording(make_events(x, y, t, random.integers(0, 2, 4000)), SENSOR), tmp_path / name))
    return made


@pytest.fixture(scope="module", params=CASES)
def exported(request, tmp_path_factory):
    """A network in ONNX with its card; the network that it was made from is in net/ beside it."""
    home = tmp_path_factory.mktemp(request.param)
    fields = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 3, "in_size": 16}
    model = create_model("nmnist", seed=0, num_classes=4, **fields)
    randomize(model, 0)
    folder = model.save_pretrained(home / "net")
    save_labels(CASES[request.param], folder)
    graphs = () if request.param == "time" else ("clip",)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traced_scan, "CHUNK", 4)  # fewer operations to translate
        return export(folder, home / "out", to="onnx", static=True, graphs=graphs).folder


@pytest.fixture
def script(exported, tmp_path):
    """The script of the card, saved in a folder of its own."""
    card = (exported / "README.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```python\n(\"\"\".*?)^```$", card, re.DOTALL | re.MULTILINE)
    path = tmp_path / "classify.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_script_answers_as_ripe_predict(exported, script, alone, recordings, capsys):
    done = alone(script, exported, *recordings)
    assert done.returncode == 0, done.stderr
    assert main(["predict", str(exported.parent / "net"), *map(str, recordings), "--json"]) == 0
    wanted = json.loads(capsys.readouterr().out)["recordings"]
    lines = [re.fullmatch(r"(.*?): (.*) ([\d.]+) %", line).groups() for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines] == [(row["file"], row["label"]) for row in wanted]
    assert [float(line[2]) for line in lines] == pytest.approx([100 * row["probability"] for row in wanted], abs=0.06)
    assert len({line[2] for line in lines}) > 1  # the recordings matter


def test_the_script_refuses_another_sensor(exported, script, alone, tmp_path):
    events = make_events(np.arange(30), np.arange(30), np.arange(30), np.arange(30) % 2)
    for name in ("small.npz", "small.csv"):
        path = write(Recording(events, (34, 34)), tmp_path / name)
        done = alone(script, exported, path)
        assert done.returncode == 1
        assert "(34, 34)" in done.stderr
        assert done.stdout == ""


def test_card_and_manifest_name_the_tensors_of_the_files(exported):
    import onnxruntime

    card, files = (exported / "README.md").read_text(), json.loads((exported / "export.json").read_text())["graphs"]
    rows = re.findall(r"^\| (clip|step|tail) \| (input|output) \| (\S+) \| (\w+) \| (.*) \|$", card, re.MULTILINE)
    listed = [(graph, role, name.replace("\\", ""), shape) for graph, role, name, _, shape in rows]
    found, described = [], []
    for graph in (file["kind"] for file in files):
        session = onnxruntime.InferenceSession(str(exported / f"{graph}.onnx"), providers=["CPUExecutionProvider"])
        for role, tensors in (("input", session.get_inputs()), ("output", session.get_outputs())):
            for one in tensors:
                described.append((graph, role, one.name, one.type, one.shape))
                if not one.name.startswith("next."):
                    found.append((graph, role, one.name, " × ".join(map(str, one.shape)) or "scalar"))
    assert listed == found
    types = {"float32": "tensor(float)", "float64": "tensor(double)", "int64": "tensor(int64)"}
    in_manifest = [(file["kind"], one) for file in files for one in file["tensors"]]
    assert described == [
        (kind, one["role"], one["name"], types[one["dtype"]], one["shape"]) for kind, one in in_manifest
    ]
