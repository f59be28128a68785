"""What the README shows works: its Python runs, its commands run, its numbers are those the commands print."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.data.prepare import prepare
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.events import Recording, make_events, write
from ripe_mambaspike.models.flops import count_flops
from ripe_mambaspike.models.registry import model_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "docs" / "results.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHELL = [
    line.split("  #")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]
IN_TABLE = re.findall(r"\| `(ripe [^`]*)` \|", README + RESULTS)
COMMANDS = sorted({line for line in SHELL + IN_TABLE if line.startswith("ripe ")})


PRINTED = {  # beginning of a command → what it prints
    "ripe account --sweep in_size": r"105\.",
    "ripe account --sweep": r"paper",
    "ripe account cifar10dvs --set": r"total .* [\d,]{7}",
    "ripe account cifar10dvs": r"869,593",
    "ripe account dailydvs200": r"8,038,359",
    "ripe account dvsgesture": r"875,122",
    "ripe account ncaltech101": r"881,332",
    "ripe account nmnist": r'"in_size": \[\s*48,\s*48\s*\]',
    "ripe account spikformer": r"total .* 2,566,923",
    "ripe account runs/mine": r"0 differ from the dense network",
    "ripe bench infer": r"reference",
    "ripe check runs/mine": r"20 claims: \d+ hold, \d+ differ",
    "ripe check": r"437 claims: 363 hold, 74 differ",
    "ripe data convert": r"wave\.npz: 400 events, [\d,]+ bytes, reads back the same",
    "ripe data info": r'"format": "evt3",\s*"sensor_size": \[\s*64,\s*64\s*\],\s*"events": 400',
    "ripe data list": r"share-0\.2 .*\(current\)|\(current\)",
    "ripe data prepare": r"folder: 12 clips of 2 classes",
    "ripe data sets": r"dvsgesture .*1176",
    "ripe data verify": r"the source is unchanged",
    "ripe data view": r"wave\.png: 400 events",
    "ripe eval": r"top-1 [\d.]+ % of \d+ folder .* deployed form",
    "ripe export runs/mine --to onnx": r"clip\.onnx [\d,]+",
    "ripe export runs/mine --to safetensors": r"model\.safetensors [\d,]+",
    "ripe figure": r"figure interface\.svg",
    "ripe fuse": r"→ 86\d,\d{3} parameters; verified: .* 0 of [\d,]+ spikes differ",
    "ripe models": r"dvsgesture",
    "ripe paper": r"paper\.html",
    "ripe predict runs/mine my-gestures": r"5\.npz: (wave|clap) .* Written: predictions\.csv",
    "ripe predict": r"wave\.raw: (wave|clap) [\d.]+ %",
    "ripe recipes": r"synthgesture",
    "ripe record --list": r"camera|connected",
    "ripe record": r"copy\.raw: 400 events",
    "ripe report": r"report\.html",
    "ripe sim make": r"(synthgesture|gestures-hard): 44 clips of 11 classes",
    "ripe stream": r"[\d,]+ predictions",
    "ripe table 6": r"105\.4558 .* 19 agree as printed and 0 differ",
    "ripe study list": r"components .* table-2",
    "ripe train": r"top-1 [\d.]+ % of \d+ folder test clips",
}


def run(arguments, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture
def folder(tmp_path):
    """The recordings that the README speaks of: wave.raw, and a prepared tree my-gestures."""
    random = np.random.default_rng(0)
    for number, name in enumerate(
        ["wave.raw", *(f"my-gestures/{kind}/{n}.npz" for kind in ("wave", "clap") for n in range(6))]
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        times = np.sort(random.integers(0, 500_000, 400 + number))
        x, y = random.integers(0, 64, (2, len(times)))
        write(Recording(make_events(x, y, times, random.integers(0, 2, len(times))), (64, 64)), path)
    root = tmp_path / "my-gestures"
    prepare(list_dataset("folder", root, test_share=0.2), root, root / ".ripe")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python(code, folder):
    done = run([sys.executable, "-c", code], folder)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Where the run that the README trains is kept, once there is one."""
    return tmp_path_factory.mktemp("trained") / "mine"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, folder, trained, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    if "runs/mine" in command and not command.startswith("ripe train"):
        if not trained.exists():
            (first,) = (line for line in COMMANDS if line.startswith("ripe train") and "--out runs/mine" in line)
            assert main([*shlex.split(first)[1:], "--no-report"]) == 0
            shutil.copytree("runs/mine", trained)
        shutil.copytree(trained, "runs/mine", dirs_exist_ok=True)
    capsys.readouterr()
    assert main(shlex.split(command)[1:]) == 0
    pattern = next(pattern for beginning, pattern in PRINTED.items() if command.startswith(beginning))
    assert re.search(pattern, " ".join(capsys.readouterr().out.split()))


def test_the_command_is_installed(folder):
    done = run([sys.executable, "-m", "ripe_mambaspike", "--version"], folder)
    assert done.returncode == 0
    assert done.stdout.startswith("ripe ")


def test_there_is_something_to_run():
    assert len(PYTHON) >= 2
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("name", ["dvsgesture", "cifar10dvs", "ncaltech101", "dailydvs200", "dailydvs200-lite"])
def test_parameter_table(name):
    counted = count_parameters(model_config(name))
    assert f"{counted.training:,} → {counted.deployed:,}" in RESULTS


def test_operations_in_the_table():
    flops = count_flops(model_config("dvsgesture"))
    assert f"{flops.total / 1e9:.3f} GFLOP ({flops.without_scan / 1e9:.3f} without the scan)" in README
    assert f"{flops.total / 1e9:.3f} GFLOP" in RESULTS


def test_claims_in_the_table():
    """The command itself is compared with the same numbers above."""
    counted = re.fullmatch(r"(\d+) claims: (\d+) hold, (\d+) differ", PRINTED["ripe check"])
    text = "{} tried: {} hold, {} differ".format(*counted.groups())
    assert text in README
    assert text in RESULTS
