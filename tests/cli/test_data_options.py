"""`ripe data` itself: its commands, their help, and that none of it waits for torch."""

import json
import subprocess
import sys

import pytest

from ripe_mambaspike.events import Recording, make_events, write

EVENTS = make_events([1, 2, 3, 30], [1, 2, 3, 29], [50, 60, 70, 90], [1, 0, 1, 1])
COMMANDS = ("info", "view", "convert", "sets", "download", "prepare", "list", "verify")


@pytest.mark.parametrize("words", [(), ("inform",), ("",), ("account",), ("--json",)], ids=" ".join)
def test_no_command(refused, words):
    refused(("data", *words), *words, *(() if words == ("--json",) else COMMANDS))


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(ripe, words, flag):
    result = ripe("data", *words, flag)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(" ".join(["usage: ripe data", *words]))
    for name in COMMANDS if not words else ():
        assert name in result.out


def test_ripe_data_does_not_import_torch(tmp_path):
    """Looking at, converting and preparing recordings is done without."""
    (tmp_path / "tree" / "a").mkdir(parents=True)
    clip = write(Recording(EVENTS, (40, 30)), tmp_path / "tree" / "a" / "clip.npz")
    words = [["--help"], *([name, "--help"] for name in COMMANDS), ["sets"], ["info", str(clip)]]
    words += [["info", str(clip), "--json"], ["convert", str(clip), str(tmp_path / "out.bin")]]
    root = ["folder", "--root", str(tmp_path / "tree")]
    words += [["prepare", *root, "--workers", "1"], ["verify", *root], ["info", "nowhere"]]
    code = (
        "import json, sys\n"
        "from ripe_mambaspike.cli.main import main\n"
        "codes = [main(['data', *words]) for words in json.loads(sys.argv[1])]\n"
        "assert 'torch' not in sys.modules\n"
        "assert codes == [0] * (len(codes) - 1) + [2], codes\n"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_json_output_is_one_document(tmp_path):
    """As a program sees it: standard output is JSON from its first byte to its last."""
    path = write(Recording(EVENTS[::-1], (40, 30)), tmp_path / "clip.npz")
    done = subprocess.run(
        [sys.executable, "-m", "ripe_mambaspike", "data", "info", path, "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["events"] == 4
    assert done.stdout.startswith("{")
    assert done.stdout.endswith("}\n")
    assert done.stderr == f"ripe: warning: {path}: times run backwards at 3 events\n"


def test_a_closed_output_ends_quietly(tmp_path):
    path = write(Recording(EVENTS, (40, 30)), tmp_path / "clip.npz")
    command = f"{sys.executable} -m ripe_mambaspike data info {path} --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 141)
    assert done.stderr == ""


def test_an_incomplete_pair_is_refused(refused, tmp_path):
    refused(["data", "info", tmp_path, "--sensor-size", "5"], "--sensor-size", "INT INT")
