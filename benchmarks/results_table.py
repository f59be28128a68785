"""Run every `ripe bench` in turn and write one page: targets, a comparison with an earlier page, and all tables.

Each command runs in its own process and its result is written at once, so a command that fails affects its own rows
alone, which then hold its error. FILE.md is the page, FILE.json holds every document.
Usage: python benchmarks/results_table.py [--device cuda] [--out benchmarks/results/h200] [--only infer train]
       [--against benchmarks/results/2026-11-15-h200.json]
"""

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ripe_mambaspike.bench.tables import Table, machine_line, paths_of, tables_of
from ripe_mambaspike.cli.output import format_number

Document = dict[str, Any]
TIMEOUT_SECONDS = 1200  # seconds a command may take

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

QUICK = {"infer": " --no-reference --baseline none", "train": " --no-reference"}


class Reading(NamedTuple):
    """A number, and whether the result it was measured on agreed with the reference's."""

    value: float
    agrees: bool


class Target(NamedTuple):
    """One number of the table: where it is read from, what it must reach and what is aimed for."""

    job: str
    command: str
    read: Callable[[Document], Reading]
    unit: str
    release: str
    must: float
    aim: float | None = None
    more_is_better: bool = False


def inference(batch: int, key: str) -> Callable[[Document], Reading]:
    def read(document: Document) -> Reading:
        row = next(row for row in document["rows"] if row["batch"] == batch)
        return Reading(row["captured"][key], row["agreement"]["agrees"])

    return read


def training(key: str, scale: float = 1.0) -> Callable[[Document], Reading]:
    def read(document: Document) -> Reading:
        path: Document = document["captured"] if "captured" in document else document["ours"]
        return Reading(scale * path[key], document["agreement"]["agrees"])

    return read


def share_of_reference(document: Document) -> Reading:
    ours, reference = (document[path]["median_ms"] for path in ("ours", "reference"))
    return Reading(100 * ours / reference, document["agreement"]["agrees"])


def fitted(name: str) -> Callable[[Document], Reading]:
    return lambda document: Reading(document[name]["r2"], document["agreement"]["agrees"])


SAMPLE = "deployed, T 16, 128²"
GESTURE, DAILY = ("dvsgesture", "DVS-Gesture, B 32"), ("dailydvs200", "DailyDVS-200, B 32")
DOES_NOT_RUN = "does not run"


def deployed(precision: str, batch: int, what: str, key: str, unit: str, *numbers: Any) -> Target:
    job = f"{SAMPLE}, B {batch}, {precision}{what}"
    return Target(job, f"infer {precision}", inference(batch, key), unit, *numbers)


def step(recipe: tuple[str, str], what: str, key: str, unit: str, scale: float, *numbers: Any) -> Target:
    return Target(f"training step, {recipe[1]}{what}", f"train {recipe[0]}", training(key, scale), unit, *numbers)


FIT_ROWS = (
    Target("34² to 224²: linear in pixels·T", "scan", fitted("in_size"), "R²", "–", 0.98, None, True),
    Target("T 4 to 32: linear in pixels·T", "scan", fitted("time_steps"), "R²", "–", 0.98, None, True),
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
        *FIT_ROWS,
    ),
    "cpu": (
        deployed("float32", 1, ", over its FLOPs at the matrix rate", "times_its_flops", "×", DOES_NOT_RUN, 1.5),
        deployed("bfloat16", 1, ", over its FLOPs at the matrix rate", "times_its_flops", "×", DOES_NOT_RUN, 2),
        Target("training step, 34², B 16, of the reference's time", "train", share_of_reference, "%", DOES_NOT_RUN, 40),
        *FIT_ROWS,
    ),
}


def run(words: str, device: str) -> Document:
    """The document of one command, or {"error": …} with its last line."""
    command = [sys.executable, "-m", "ripe_mambaspike", "bench", *words.split(), "--device", device, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {TIMEOUT_SECONDS} s"}
    try:
        document: Document = json.loads(done.stdout)
    except json.JSONDecodeError:
        printed = done.stderr.strip().splitlines() or ["no output"]
        return {"error": f"exit code {done.returncode}: {printed[-1][:300]}"}
    document["exit_code"] = done.returncode
    return document


def agreement(document: Document) -> str:
    """Whether every result of this command agreed with the reference's."""
    if "error" in document:
        return document["error"].replace("|", "\\|")
    return "agrees with the reference" if document["exit_code"] == 0 else "does not agree with the reference"


def target_row(target: Target, documents: dict[str, Document], judged: bool) -> list[str]:
    aim = "–" if target.aim is None else f"{target.aim:,g}"
    start = [target.job, target.release, f"{target.must:,g}", aim]
    document = documents.get(target.command)
    if document is None:
        return [*start, "not run", ""]
    if "error" in document:
        return [*start, agreement(document), ""]
    try:
        value, agrees = target.read(document)
    except (KeyError, StopIteration, TypeError, ZeroDivisionError) as error:
        return [*start, f"not in the document ({type(error).__name__}: {error})", ""]
    shown = f"{value:,.4g} {target.unit}"
    if not agrees:
        return [*start, f"{shown}, which does not agree", "no"]
    return [*start, shown, reached(target, value) if judged else "not judged"]


def reached(target: Target, value: float) -> str:
    def meets(bound: float) -> bool:
        return value >= bound if target.more_is_better else value <= bound

    if target.aim is not None and meets(target.aim):
        return "aim"
    return "must" if meets(target.must) else "no"


def timings(documents: dict[str, Document]) -> Iterator[tuple[str, float]]:
    """(name, milliseconds or MiB) of everything that the documents hold, under the same names in every page."""
    for command, document in documents.items():
        rows = document.get("rows", [document]) if document.get("bench") in ("infer", "train") else []
        for row in rows:
            for path, cell in paths_of(row).items():
                if path in ("captured", "ours") and "median_ms" in cell:
                    yield f"{command}, B {row['batch']}, {path}, ms", cell["median_ms"]
                    yield f"{command}, B {row['batch']}, {path}, activations MiB", cell["activation_mib"]
        operators = document["scan"]["rows"] if document.get("bench") == "scan" else []
        for row in operators + (document["rows"] if document.get("bench") == "ops" else []):
            for part in ("forward", "backward"):
                if "median_ms" in row.get(part, {}).get("ours", {}):
                    precision = row.get("precision", document.get("precision"))
                    name = f"{command}, {row['operator']}, {row['setting']}, {precision}, {part}, ms"
                    yield name, row[part]["ours"]["median_ms"]


def comparison(documents: dict[str, Document], earlier: dict[str, Document], source: str) -> list[str]:
    """What both pages hold: before, now and the ratio; above 1 is slower or more memory."""
    before = dict(timings(earlier))
    rows = [
        [name, format_number(before[name]), format_number(now), f"{now / before[name]:.3f}"]
        for name, now in timings(documents)
        if before.get(name)
    ]
    if not rows:
        return []
    return [f"## Compared with {source}", "", *markdown(("", "before", "now", "now / before"), rows), ""]


def markdown(columns: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    lines = [columns, ("---",) * len(columns), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]


def page_of(table: Table) -> list[str]:
    rows = [[cell if isinstance(cell, str) else format_number(cell) for cell in row] for row in table.rows]
    return [f"## {table.title}", "", *markdown(tuple(table.columns), rows), "", *(f"- {n}" for n in table.notes), ""]


def render(documents: dict[str, Document], device: str, commit: str | None, more: str = "", page: str = "") -> str:
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    machines = {d["machine"]["name"]: None for d in documents.values() if "machine" in d}
    about = ", ".join(machines) or "no machine yet"
    options = f" --more='{more}'" if more else ""  # may change the sizes: nothing is judged then
    commands = [[f"`{d['command']}`", agreement(d)] for d in documents.values()]
    targets = [target_row(target, documents, judged=not more) for target in TABLE[device]]
    lines = [
        f"# Measured on {about}, {today}", "",
        f"Made by `python benchmarks/results_table.py --device {device}{options}`"
        + (f" at commit {commit}." if commit else "."), "",
        *markdown(("job", "release", "must", "aim", "measured", "reached"), targets), "",
        *([page] if page else []),
        *markdown(("command", "result"), commands), "",
    ]  # fmt: skip
    for document in documents.values():
        if "error" not in document and "machine" in document:
            lines += [line for table in tables_of(document) for line in page_of(table)]
            lines += [machine_line(document["machine"]), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="the two files without their endings; benchmarks/results/DEVICE")
    parser.add_argument("--only", nargs="*", default=[], help="commands whose name starts with one of these words")
    parser.add_argument("--onto", type=Path, help="FILE.json of an earlier run: what is not run now is kept")
    parser.add_argument("--against", type=Path, help="FILE.json of an earlier run to compare with, number by number")
    parser.add_argument("--commit", help="the commit, where the checkout does not know it")
    parser.add_argument("--quick", action="store_true", help="do not time the reference path and the baseline")
    parser.add_argument("--more", default="", help="more options for every command, for example '--repeats 3'")
    arguments = parser.parse_args()
    out = arguments.out or Path(__file__).parent / "results" / arguments.device
    out.parent.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Document] = json.loads(arguments.onto.read_text()) if arguments.onto else {}
    earlier: dict[str, Document] = json.loads(arguments.against.read_text()) if arguments.against else {}
    documents = {name: kept[name] for name in COMMANDS[arguments.device] if name in kept}
    page = ""
    for name, options in COMMANDS[arguments.device].items():
        if arguments.only and not name.startswith(tuple(arguments.only)):
            continue
        if arguments.quick:
            options += QUICK.get(options.split()[0], "")
        print(f"ripe bench {options} …", file=sys.stderr, flush=True)
        documents[name] = run(f"{options} {arguments.more}", arguments.device)
        documents[name]["command"] = f"ripe bench {options} {arguments.more}".strip() + f" --device {arguments.device}"
        print(f"  {agreement(documents[name])}", file=sys.stderr, flush=True)
        page = "\n".join(comparison(documents, earlier, arguments.against.stem)) if earlier else ""
        text = render(documents, arguments.device, arguments.commit, arguments.more, page)
        out.with_suffix(".json").write_text(json.dumps(documents, indent=1, ensure_ascii=False) + "\n")
        out.with_suffix(".md").write_text(text)
    print(page)


if __name__ == "__main__":
    main()
