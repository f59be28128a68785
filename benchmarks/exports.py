"""Exported networks beside PyTorch, on the CPU: time to write, to load and of one clip; accuracy on recordings.

Each row is FORMAT[:WEIGHTS][:static], such as onnx, onnx:int8 or aoti:static. One clip runs alternately in PyTorch
(our C++ kernels, fp32 weights) and in the export, with the same number of threads; the medians and their ratio are
given. RECORDINGS has one folder per class; without it the clip is synthetic and no accuracy is measured. Every
recording is classified by both; int8 weights are calibrated on the first ones of each class, which are then left out.
With --keep the exports are written there, and those that are there already are measured as they are.
Usage: python benchmarks/exports.py onnx onnx:int8 [--network nmnist-simulated] [--recordings RECORDINGS]
       [--threads 1] [--cpu-time] [--repeats 60] [--graphs clip] [--keep FOLDER] [--json FILE]
"""

import argparse
import importlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike import export
from ripe_mambaspike.deploy.export.run import load_exported
from ripe_mambaspike.deploy.export.write import to_deployed
from ripe_mambaspike.inference.classifier import Classifier, load_network, make_clip, read_recording
from ripe_mambaspike.models.base import clip_logits
from ripe_mambaspike.models.synthetic import synthetic_clip

CALIBRATION_PER_CLASS = 6  # recordings
WARM_UP_CALLS = 5
Network = Callable[[Tensor], Tensor]


def open_recordings(classifier: Classifier, folder: Path) -> tuple[list[Path], Tensor, Tensor]:
    """Calibration files, and the clips and labels of all other recordings."""
    assert classifier.model.labels is not None
    calibration, clips, labels = [], [], []
    for label, name in enumerate(classifier.model.labels.classes):
        files = sorted((folder / name).iterdir())
        calibration += files[:CALIBRATION_PER_CLASS]
        for path in files[CALIBRATION_PER_CLASS:]:
            clips.append(make_clip(classifier, read_recording(classifier, path)))
            labels.append(label)
    return calibration, torch.stack(clips), torch.tensor(labels)


def write(
    row: str, network: str, out: Path, calibration: list[Path], graphs: tuple[str, ...]
) -> tuple[float, float] | None:
    """Seconds to write the export of a row, and those of the processor; None if it is there already."""
    if (out / "export.json").exists():
        return None
    to, *rest = row.split(":")
    weights: Any = next((one for one in rest if one != "static"), "fp32")
    began, worked = time.perf_counter(), time.process_time()
    export(
        *(network, out),
        to=to,
        weights=weights,
        static="static" in rest,
        graphs=graphs,
        calibration=calibration if weights == "int8" else (),
    )
    return time.perf_counter() - began, time.process_time() - worked


def set_threads(row: str, threads: int) -> None:
    """ExecuTorch's runtime has its own threads, one per core by default; onnxruntime and AOTInductor use PyTorch's."""
    if row.startswith("executorch"):
        importlib.import_module("executorch.extension.pybindings.portable_lib")._unsafe_reset_threadpool(threads)


@torch.inference_mode()
def in_turns(
    ours: Network, theirs: Network, clip: Tensor, repeats: int, clock: Callable[[], float]
) -> list[list[float]]:
    """Milliseconds of each call, neither always first."""
    spent: list[list[float]] = [[], []]
    for turn in range(WARM_UP_CALLS + repeats):
        for which in (0, 1) if turn % 2 else (1, 0):
            began = clock()
            (ours, theirs)[which](clip)
            if turn >= WARM_UP_CALLS:
                spent[which].append(1e3 * (clock() - began))
    return spent


@torch.inference_mode()
def predicted(network: Network, clips: Tensor) -> Tensor:
    return torch.cat([clip_logits(network(clip)).argmax(-1).flatten() for clip in clips.split(1)])


def measure(given: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.cpu_time else time.perf_counter
    classifier = load_network(given.network)
    model = to_deployed(classifier.model)
    calibration: list[Path] = []
    clips, labels = synthetic_clip(classifier.time_steps, *classifier.grid), None
    if given.recordings:
        calibration, clips, labels = open_recordings(classifier, given.recordings)
    expected = predicted(model, clips)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for row in given.rows:
            out = (given.keep or Path(temporary)) / row.replace(":", "-")
            seconds = write(row, given.network, out, calibration, tuple(given.graphs))
            set_threads(row, given.threads)
            exported = load_exported(out, trust=True)
            for way in exported.ways:
                began = clock()
                run = load_exported(out, trust=True).ready(way)
                loaded = clock() - began
                times = in_turns(model, run, clips[:1], given.repeats, clock)
                found = predicted(run, clips)
                torch_ms, ms = (statistics.median(one) for one in times)
                sizes = {one.kind: (out / one.file).stat().st_size for one in exported.manifest.graphs}
                rows.append(
                    {
                        "row": row,
                        "way": way,
                        "write_s": seconds,
                        "load_s": loaded,
                        "bytes": sum(sizes[kind] for kind in sizes if kind in way),
                        "ms": ms,
                        "torch_ms": torch_ms,
                        "ratio": ms / torch_ms,
                        "fastest_ratio": min(times[1]) / min(times[0]),
                        "agreeing": int((found == expected).sum()),
                        "top1": None if labels is None else float((found == labels).double().mean()),
                    }
                )
    return {
        "network": given.network,
        "clips": len(clips),
        "torch_top1": None if labels is None else float((expected == labels).double().mean()),
        "machine": f"{os.cpu_count()} × {platform.processor() or platform.machine()}",
        "threads": given.threads,
        "torch": torch.__version__,
        "rows": rows,
    }


def table(measured: dict[str, Any]) -> str:
    top1 = measured["torch_top1"]
    lines = [
        f"{measured['network']}, {measured['clips']} clips, {measured['threads']} threads, torch {measured['torch']}"
        + ("" if top1 is None else f", PyTorch {top1:.2%}"),
        "",
        "| export | run by | write, s (CPU) | load, s | bytes | ms (PyTorch) | ratio (fastest) | labels | top-1 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in measured["rows"]:
        cells = [
            *(row["row"], row["way"]),
            "" if row["write_s"] is None else "{:.1f} ({:.1f})".format(*row["write_s"]),
            f"{row['load_s']:.2f}",
            f"{row['bytes']:,}",
            f"{row['ms']:.1f} ({row['torch_ms']:.1f})",
            f"{row['ratio']:.2f} ({row['fastest_ratio']:.2f})",
            f"{row['agreeing']} of {measured['clips']}",
            "" if row["top1"] is None else f"{row['top1']:.2%} ({100 * (row['top1'] - top1):+.2f})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", metavar="FORMAT[:WEIGHTS][:static]")
    parser.add_argument("--network", default="nmnist-simulated")
    parser.add_argument("--recordings", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true", help="time of the processor, for a busy machine; one thread")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--graphs", nargs="*", default=["clip"])
    parser.add_argument("--keep", type=Path, help="folder for the exports")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    given = parser.parse_args()
    measured = measure(given)
    print(table(measured))
    if given.json:
        given.json.write_text(json.dumps(measured, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
