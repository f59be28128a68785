"""The C++ example builds without warnings and answers as `ripe stream`, window by window; bad input is one sentence."""

import json
import os
import shutil
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
from ripe_mambaspike.inference.stream.packets import write_packet
from ripe_mambaspike.models.labels import Labels, save_labels
from ripe_mambaspike.ops.mamba_inner import traced_scan

EXAMPLE = Path(__file__).parents[2] / "examples" / "cpp"
HEADERS = ("ripe.h", "ripe_export.h", "ripe_recording.h", "ort.h")
NAMES = ("hand_clapping", 'wave "both"', "größer", "\\")
SENSOR = (43, 37)  # which the grid does not divide
LENGTH_US = 300_000  # of a recording
LABELS = {"sensor_size": SENSOR, "duration_us": 90_000}
NETWORKS = {
    "windows": ({"num_tokens": 3}, LABELS),
    "causal": ({"causal": True}, {**LABELS, "binary": True, "crop": (3, 5, 30, 26)}),
}
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None or not shutil.which("make"), reason="needs a C++ compiler and make"),
    pytest.mark.skipif(not all(map(find_spec, ("onnxruntime", "onnxscript"))), reason="needs the extra export"),
]


def run(*words, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, timeout=300, **options)


def official_header():
    """The folder of onnxruntime_c_api.h: $ORT_INCLUDE, or that of libonnxruntime-dev."""
    folders = (os.environ.get("ORT_INCLUDE"), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime")
    return next((one for one in folders if one and Path(one, "onnxruntime_c_api.h").is_file()), None)


def build(folder, *settings):
    library = next(Path(find_spec("onnxruntime").origin).parent.glob("capi/libonnxruntime.so*"))
    done = run("make", "-C", EXAMPLE, f"OUT={folder}", f"CXX={COMPILER}", f"ORT_LIB={library}", *settings)
    assert done.returncode == 0, done.stderr.decode()
    return folder / "stream"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """With the sanitizers, and with the declarations of the example itself."""
    flags = "CXXFLAGS=-O1 -DRIPE_OWN_ORT -Wconversion"
    return build(tmp_path_factory.mktemp("build"), flags, "SANITIZE=1")


@pytest.fixture(scope="module", params=NETWORKS)
def exported(request, tmp_path_factory):
    """The step graph of a small network, and its tail; the network that it was made from is in net/ beside it."""
    home = tmp_path_factory.mktemp(request.param)
    fields, labels = NETWORKS[request.param]
    small = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": 16}
    model = create_model("nmnist", seed=0, num_classes=4, **small, **fields)
    randomize(model, 0)
    folder = model.save_pretrained(home / "net")
    labels = {"binary": False, **labels}
    save_labels(Labels(NAMES, "folder", None, 4, (16, 20), "time", **labels), folder)
    graphs = ("step",) if "causal" in fields else ("step", "tail")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traced_scan, "CHUNK", 4)  # fewer operations to translate
        return export(folder, home / "out", to="onnx", static=True, graphs=graphs).folder


def make_recording(seed=0, count=3000, pauses=()):
    """Events that drift over the sensor, and stop for a while where a pause is given: (at, how long) in µs."""
    random = np.random.default_rng(seed)
    t = np.sort(random.integers(0, LENGTH_US, count))
    t[[0, -1]] = 0, LENGTH_US - 1
    x = (random.random(count) ** (1 + t / 100_000) * SENSOR[0]).astype(np.int64)
    y = random.integers(0, SENSOR[1], count)
    x[0], y[0] = 20, 18  # in the crop, where a stream begins
    for at, length in pauses:
        t[t >= at] += length
    return Recording(make_events(x, y, t + 8_000_123, random.integers(0, 2, count)), SENSOR)


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def answers_of_stream(exported, path, options, capsys):
    capsys.readouterr()
    words = ["stream", str(exported.parent / "net"), "--source", str(path), "--pace", "fast", "--json"]
    assert main([*words, *options]) == 0
    return [line for line in lines(capsys.readouterr().out) if "summary" not in line]


def assert_same(found, wanted):
    """The same windows and labels, and probabilities within 1e-5."""
    exact = ("start_us", "stop_us", "step", "time_steps", "label", "final")
    assert [[one[name] for name in exact] for one in found] == [[one[name] for name in exact] for one in wanted]
    probabilities = [np.array([one["probabilities"] for one in answers]) for answers in (found, wanted)]
    np.testing.assert_allclose(*probabilities, rtol=0, atol=1e-5)
    assert [one["probability"] for one in found] == [max(one["probabilities"]) for one in found]


CASES = {
    "bins-shared": (".bin", (), ()),
    "pauses": (".csv", ((100_000, 400_000), (200_000, 5_000_001)), ("--window", "80.001", "--hop", "40.001")),
    "until-the-last-event": (".txt", (), ("--window", "100", "--hop", "100")),
}
WINDOW_CASES = {  # a causal network predicts when a bin closes, so not for these
    "any-hop": (".csv", ((100_000, 123_456),), ("--window", "50.001", "--hop", "7.3")),
    "gaps-between-windows": (".bin", ((9_000, 700_000),), ("--window", "30", "--hop", "70")),
}


@pytest.mark.parametrize("case", [*CASES, *WINDOW_CASES])
def test_it_answers_as_ripe_stream(case, exported, program, tmp_path, capsys):
    if case in WINDOW_CASES and "causal" in str(exported):
        done = run(program, exported, write(make_recording(), tmp_path / "a.csv"), *WINDOW_CASES[case][2])
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"stream: hop_us: ")
        return
    suffix, pauses, options = {**CASES, **WINDOW_CASES}[case]
    path = write(make_recording(pauses=pauses), tmp_path / f"recording{suffix}")
    done = run(program, exported, path, *options)
    assert (done.returncode, done.stderr) == (0, b"")
    wanted = answers_of_stream(exported, path, options, capsys)
    assert_same(lines(done.stdout), wanted)
    assert len(wanted) > 2
    assert len({one["probability"] for one in wanted}) > 2  # the events matter


def test_packets_on_standard_input(exported, program, tmp_path, capsys):
    recording = make_recording()
    path = write(recording, tmp_path / "recording.csv")
    parts = np.array_split(recording.events, 7)
    packets = write_packet(recording.events[:0], (9, 9)) + b"".join(write_packet(part, SENSOR) for part in parts)
    done = run(program, exported, "-", input=packets)
    assert (done.returncode, done.stderr) == (0, b"")
    assert_same(lines(done.stdout), answers_of_stream(exported, path, (), capsys))
    for damaged in (packets[:-3], packets + b"more than this", b"REVX" + packets, write_packet(parts[0], (99, 99))):
        done = run(program, exported, "-", input=damaged)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1


def test_bad_input_is_one_sentence(exported, program, tmp_path):
    recording = make_recording(count=200)
    good = write(recording, tmp_path / "good.bin")
    cut = tmp_path / "cut.bin"
    cut.write_bytes(good.read_bytes()[:-2])
    cut_line = tmp_path / "cut.csv"
    cut_line.write_bytes(write(recording, tmp_path / "good.csv").read_bytes()[:-4])
    (tmp_path / "empty.csv").touch()
    (tmp_path / "folder.bin").mkdir()
    other = Recording(recording.events, (64, 64))
    outside = make_events(np.array([3, 77]), np.array([3, 3]), np.array([0, 90_000]), np.array([0, 1]))
    words = [
        (exported, tmp_path / "missing.bin"),
        (exported, tmp_path / "folder.bin"),
        (exported, tmp_path / "empty.csv"),
        (exported, cut),
        (exported, cut_line),
        (exported, write(other, tmp_path / "other.csv")),
        (exported, write(Recording(outside, (80, 36)), tmp_path / "outside.bin")),
        (exported, tmp_path / "good.npz"),
        (tmp_path / "missing", good),
        (exported.parent / "net", good),
        (exported, good, "--window", "-5"),
        (exported, good, "--hop"),
        (exported, good, "--hop", "1e-9"),
        (exported,),
    ]
    for one in words:
        done = run(program, *one)
        assert (done.returncode, done.stdout) == (2, b""), one
        assert len(done.stderr.splitlines()) == 1, one
        assert done.stderr.startswith(b"stream: "), one


def test_damaged_exports_and_recordings_are_refused_or_run(exported, program, tmp_path):
    """No input makes it crash: the sanitizers would end the program with another exit code."""
    folder = shutil.copytree(exported, tmp_path / "damaged")
    text, random = (exported / "export.json").read_bytes(), np.random.default_rng(0)
    recording = make_recording(count=150)
    file = write(recording, tmp_path / "recording.bin")
    refused = 0
    changes = [b"", b'"', b"{", b"[[[[[[[[[[" * 50, b"-1", b"99999999999999999999", b"null", b"\0", b'"B"', b"3"]
    for number in range(30):
        at, change = int(random.integers(0, len(text))), changes[number % len(changes)]
        (folder / "export.json").write_bytes(text[:at] + change + text[at + int(random.integers(0, 3)) :])
        done = run(program, folder, file)
        assert done.returncode in (0, 2), (number, done.stderr)
        refused += done.returncode == 2
    assert refused > 10
    whole = json.loads(text)
    changed = [
        whole | {"grid": [16, 16]},
        whole | {"config": whole["config"] | {"num_classes": 5}},
        whole | {"graphs": []},
    ]
    for document in changed:
        (folder / "export.json").write_text(json.dumps(document))
        done = run(program, folder, file)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, b"", 1)
    (folder / "export.json").write_bytes(text)
    (folder / "step.onnx").write_bytes(b"no graph")
    done = run(program, folder, file)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, b"", 1)


def test_the_headers_are_plain_c(tmp_path):
    source = tmp_path / "all.c"
    source.write_text("".join(f'#include "{name}"\n' for name in HEADERS) + "int main(void) { return 0; }\n")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    flags = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror", f"-I{EXAMPLE}")
    done = run(compiler, *flags, "-DRIPE_OWN_ORT", source, "-o", tmp_path / "all", "-lm")
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.skipif(official_header() is None, reason="needs onnxruntime_c_api.h: libonnxruntime-dev or ORT_INCLUDE")
def test_it_works_with_the_official_header(exported, tmp_path, capsys):
    include = official_header()
    functions = set((EXAMPLE / "ort.h").read_text().split("(*")[1:])
    names = [text.split(")")[0] for text in sorted(functions)]
    table = [name for name in names if name not in ("GetApi", "GetVersionString")]
    source = tmp_path / "places.c"
    shown = "".join(f'printf("%s %zu\\n", "{name}", offsetof(OrtApi, {name}));' for name in table)
    source.write_text(
        f'#include <stdio.h>\n#include <stddef.h>\n#include "ort.h"\nint main(void) {{ {shown} return 0; }}\n'
    )
    places = []
    for flags in ((f"-isystem{include}",), ("-DRIPE_OWN_ORT",)):
        assert (
            run(COMPILER, "-x", "c", "-std=c11", f"-I{EXAMPLE}", *flags, source, "-o", tmp_path / "places").returncode
            == 0
        )
        places.append(run(tmp_path / "places").stdout)
    assert places[0] == places[1]
    assert len(table) == len(places[0].splitlines()) == 18
    program = build(tmp_path / "official", f"ORT_INCLUDE={include}")
    path = write(make_recording(), tmp_path / "recording.bin")
    done = run(program, exported, path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert_same(lines(done.stdout), answers_of_stream(exported, path, (), capsys))


def test_make_finds_the_library_of_the_python_package(tmp_path):
    done = run("make", "-n", "-C", EXAMPLE, f"OUT={tmp_path}", f"PYTHON={sys.executable}", "PACKAGED=no")
    assert done.returncode == 0, done.stderr.decode()
    assert b"capi/libonnxruntime.so" in done.stdout
