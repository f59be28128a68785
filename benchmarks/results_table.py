"""The results table by one command: every `ripe bench` in turn, what is wanted beside what was measured.

Each command runs in a process of its own and what it gives is written at once, so that one that fails costs its own
rows alone: they say what went wrong. FILE.md is the table, FILE.json holds every document.
Usage: python benchmarks/results_table.py [--device cuda] [--out benchmarks/results/h200] [--only infer train]
"""

import argparse
import datetime
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Document = dict[str, Any]
TIMEOUT = 1200  # seconds a command may take

COMMANDS = {
    "cuda": {
        "infer bfloat16": "infer --precision bfloat16",
        "train dvsgesture": "train --recipe dvsgesture --repeats 10",
        "train nmnist": "train --recipe nmnist --repeats 10",
        "train dailydvs200": "train --recipe dailydvs200 --repeats 5",
        "scan": "scan --repeats 20",
        "infer float32": "infer --precision float32",
        "ops": "ops --repeats 10",
    },
    "cpu": {
        "infer float32": "infer --precision float32 --repeats 15",
        "infer bfloat16": "infer --precision bfloat16 --repeats 15",
        "train": "train",
        "ops": "ops",
        "scan": "scan",
    },
}


class Found(NamedTuple):
    """A number, and whether the result it was measured on agreed with the reference's."""

    value: float
    agrees: bool


class Wanted(NamedTuple):
    """One number of the table: where it comes from and what it should be."""

    job: str
    command: str
    read: Callable[[Document], Found]
    unit: str
    release: str
    must: float
    aim: float | None = None
    more_is_better: bool = False


def inferred(batch: int, key: str) -> Callable[[Document], Found]:
    def read(document: Document) -> Found:
        row = next(row for row in document["rows"] if row["batch"] == batch)
        return Found(row["captured"][key], row["agreement"]["agrees"])

    return read


def stepped(key: str, scale: float = 1.0) -> Callable[[Document], Found]:
    def read(document: Document) -> Found:
        path: Document = document["captured"] if "captured" in document else document["ours"]
        return Found(scale * path[key], document["agreement"]["agrees"])

    return read


def share_of_reference(document: Document) -> Found:
    ours, reference = (document[path]["median_ms"] for path in ("ours", "reference"))
    return Found(100 * ours / reference, document["agreement"]["agrees"])


def fitted(name: str) -> Callable[[Document], Found]:
    return lambda document: Found(document[name]["r2"], document["agreement"]["agrees"])


SAMPLE = "deployed, T 16, 128²"
GESTURE, DAILY = ("dvsgesture", "DVS-Gesture, B 32"), ("dailydvs200", "DailyDVS-200, B 32")
NEVER = "does not run"


def deployed(precision: str, batch: int, what: str, key: str, unit: str, *numbers: Any) -> Wanted:
    return Wanted(f"{SAMPLE}, B {batch}, {precision}{what}", f"infer {precision}", inferred(batch, key), unit, *numbers)


def step(recipe: tuple[str, str], what: str, key: str, unit: str, scale: float, *numbers: Any) -> Wanted:
    return Wanted(f"training step, {recipe[1]}{what}", f"train {recipe[0]}", stepped(key, scale), unit, *numbers)


LINES = (
    Wanted("34² to 224²: linear in pixels·T", "scan", fitted("resolution"), "R²", "–", 0.98, None, True),
    Wanted("T 4 to 32: linear in pixels·T", "scan", fitted("steps"), "R²", "–", 0.98, None, True),
)
TABLE = {
    "cuda": (
        deployed("bfloat16", 1, "", "median_ms", "ms", "30.5", 2, 0.8),
        deployed("float32", 1, "", "median_ms", "ms", "30.5", 2, 0.8),
        deployed("bfloat16", 64, "", "samples_per_second", "samples/s", "1,176", 12_000, 30_000, True),
        deployed("float32", 64, "", "samples_per_second", "samples/s", "1,052", 12_000, 30_000, True),
        deployed("bfloat16", 8, ", activations", "activation_mib", "MiB", "–", 200, 60),
        deployed("float32", 8, ", activations", "activation_mib", "MiB", "931", 200, 60),
        step(GESTURE, ", both passes", "median_ms", "ms", 1, "515", 90, 40),
        step(GESTURE, ", beyond weights", "activation_mib", "GiB", 1 / 1024, "33.3", 10, 5),
        step(("nmnist", "N-MNIST, B 64"), "", "median_ms", "ms", 1, "231", 25, 10),
        step(DAILY, "", "median_ms", "ms", 1, "969", 250, 120),
        step(DAILY, ", beyond weights", "activation_mib", "GiB", 1 / 1024, "96", 32, 20),
        *LINES,
    ),
    "cpu": (
        deployed("float32", 1, ", over its FLOPs at the matrix rate", "times_its_flops", "×", NEVER, 1.5),
        deployed("bfloat16", 1, ", over its FLOPs at the matrix rate", "times_its_flops", "×", NEVER, 2),
        Wanted("training step, 34², B 16, of the reference's time", "train", share_of_reference, "%", NEVER, 40),
        *LINES,
    ),
}


def run(words: str, device: str) -> Document:
    """The document of one command, or {"error": …} with the last thing it said."""
    command = [sys.executable, "-m", "ripe_mambaspike", "bench", *words.split(), "--device", device, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"error": f"it took more than {TIMEOUT} s"}
    try:
        document: Document = json.loads(done.stdout)
    except json.JSONDecodeError:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        return {"error": f"exit code {done.returncode}: {said[-1][:300]}"}
    document["exit_code"] = done.returncode
    return document


def agreement(document: Document) -> str:
    """Whether every result of this command agreed with the reference's."""
    if "error" in document:
        return document["error"].replace("|", "\\|")
    return "agrees with the reference" if document["exit_code"] == 0 else "does not agree with the reference"


def result_row(wanted: Wanted, documents: dict[str, Document], judged: bool) -> str:
    aim = "–" if wanted.aim is None else f"{wanted.aim:,g}"
    start = f"| {wanted.job} | {wanted.release} | {wanted.must:,g} | {aim} |"
    document = documents.get(wanted.command)
    if document is None:
        return f"{start} not run | |"
    if "error" in document:
        return f"{start} {agreement(document)} | |"
    try:
        value, agrees = wanted.read(document)
    except (KeyError, StopIteration, TypeError, ZeroDivisionError) as error:
        return f"{start} not in the document ({type(error).__name__}: {error}) | |"
    shown = f"{start} {value:,.4g} {wanted.unit}"
    reached = verdict(wanted, value) if judged else "not judged"
    return f"{shown} | {reached} |" if agrees else f"{shown}, which does not agree | no |"


def verdict(wanted: Wanted, value: float) -> str:
    def reached(bound: float) -> bool:
        return value >= bound if wanted.more_is_better else value <= bound

    if wanted.aim is not None and reached(wanted.aim):
        return "aim"
    return "must" if reached(wanted.must) else "no"


def beside_rows(documents: dict[str, Document]) -> list[str]:
    """Ours beside the reference path and Mamba-Spike, wherever they were measured."""
    rows = []
    for name, document in documents.items():
        if "error" in document:
            rows.append(f"| {name} | | {agreement(document)} | | | | |")
        elif document["bench"] in ("infer", "train"):
            for row in document.get("rows", [document]):
                rows += path_rows(f"{name}, B {row['batch']}", row)
    return rows


def path_rows(job: str, row: Document) -> list[str]:
    """One line a path; the first one, ours at its best, says how much faster it is than the reference."""
    rows = []
    says = f"{row['speedup'] or math.nan:.2f} ×" if row["agreement"]["agrees"] else row["says"]
    for path, cell in row.items():
        if isinstance(cell, dict) and "error" in cell:
            rows.append(f"| {job} | {path} | {cell['error']} | | | | |")
        elif isinstance(cell, dict) and "median_ms" in cell:
            share = f"{100 * cell['matrix_share']:.1f} %" if "matrix_share" in cell else "–"
            times = f"{cell['median_ms']:.4g} ({cell['p95_ms']:.4g}) | {cell['samples_per_second']:,.5g}"
            rows.append(f"| {job} | {path} | {times} | {cell['activation_mib']:,.5g} | {share} | {says} |")
            says = ""
    return rows


def operator_rows(documents: dict[str, Document]) -> list[str]:
    rows = []
    for document in documents.values():
        swept = document["scan"]["rows"] if document.get("bench") == "scan" else []
        for row in swept + (document["rows"] if document.get("bench") == "ops" else []):
            name = f"| {row['operator']}, {row['setting']} | {row.get('precision', document.get('precision'))} |"
            if "unavailable" in row:
                rows.append(f"{name} not measured | | | {row['unavailable']} |")
            for part, label in (("forward", "forward"), ("backward", "+ backward")):
                if part in row:
                    times = (row[part][path].get("median_ms", math.nan) for path in ("ours", "reference"))
                    gain = f"{row[part]['speedup'] or math.nan:.2f} ×" if row["agreement"]["agrees"] else row["says"]
                    rows.append(f"{name} {label} | {' | '.join(f'{t:.4g}' for t in times)} | {gain} |")
    return rows


def render(documents: dict[str, Document], device: str, commit: str | None, more: str = "") -> str:
    machine = next((d["machine"] for d in documents.values() if "machine" in d), None)
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    about = "no command has given a result yet"
    if machine is not None:
        threads = f", {machine['threads']} threads" if device == "cpu" else ""
        commit = commit or machine["commit"] or "unknown"
        about = f"{machine['name']}{threads}, torch {machine['torch']}, commit {commit}"
    words = f" --more='{more}'" if more else ""  # which may change the sizes: nothing is judged then
    rates = [
        f"{p} products {rate / 1e12:.4g} TFLOP/s, memory {d['machine']['memory_bytes_per_second'] / 1e12:.4g} TB/s"
        for d in documents.values()
        for p, rate in d.get("machine", {}).get("matrix_flops_per_second", {}).items()
    ]
    lines = [
        f"# Measured on {about}, {today}", "",
        f"Made by `python benchmarks/results_table.py --device {device}{words}`. " + "; ".join(rates), "",
        "| job | release | must | aim | measured | reached |", "|---|---|---|---|---|---|",
        *(result_row(wanted, documents, judged=not more) for wanted in TABLE[device]), "",
        "| job | path | median (p95), ms | samples/s | beyond weights and input, MiB | of matrix rate | speed-up |",
        "|---|---|---|---|---|---|---|", *beside_rows(documents), "",
        "| operator | precision | | ours, ms | reference, ms | speed-up |", "|---|---|---|---|---|---|",
        *operator_rows(documents), "",
        "| command | result |", "|---|---|",
        *(f"| `{document['command']}` | {agreement(document)} |" for document in documents.values()),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="the two files without their endings; benchmarks/results/DEVICE")
    parser.add_argument("--only", nargs="*", default=[], help="commands whose name starts with one of these words")
    parser.add_argument("--onto", type=Path, help="FILE.json of an earlier run: what is not run now stays as it was")
    parser.add_argument("--commit", help="where the checkout does not say")
    parser.add_argument("--more", default="", help="more words for every command, for example '--repeats 3'")
    arguments = parser.parse_args()
    out = arguments.out or Path(__file__).parent / "results" / arguments.device
    out.parent.mkdir(parents=True, exist_ok=True)
    earlier: dict[str, Document] = json.loads(arguments.onto.read_text()) if arguments.onto else {}
    documents = {name: earlier[name] for name in COMMANDS[arguments.device] if name in earlier}
    for name, words in COMMANDS[arguments.device].items():
        if arguments.only and not name.startswith(tuple(arguments.only)):
            continue
        print(f"ripe bench {words} …", file=sys.stderr, flush=True)
        documents[name] = run(f"{words} {arguments.more}", arguments.device)
        documents[name]["command"] = f"ripe bench {words} {arguments.more}".strip() + f" --device {arguments.device}"
        print(f"  {agreement(documents[name])}", file=sys.stderr, flush=True)
        out.with_suffix(".json").write_text(json.dumps(documents, indent=1, ensure_ascii=False) + "\n")
        out.with_suffix(".md").write_text(render(documents, arguments.device, arguments.commit, arguments.more))


if __name__ == "__main__":
    main()
