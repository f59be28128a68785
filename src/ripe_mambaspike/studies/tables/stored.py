"""Stored results: where they are, and benchmarks of the paper's measured tables."""

import json
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import DataError, InputError
from ripe_mambaspike.files import MAX_JSON_BYTES, read_regular

BENCHMARK = "*-paper.json"  # written by `ripe bench paper --json`
PAPER_SIZES = {"bench": "paper", "time_steps": 16, "in_size": 128, "batch": 4}


def results_folder(given: str | Path | None = None) -> Path | None:
    """The folder of stored results: the one given, or benchmarks/results of this checkout; None where there is none."""
    if given is not None:
        if not Path(given).is_dir():
            raise InputError.expected("results", "an existing folder", str(given))
        return Path(given)
    folder = Path(__file__).resolve().parents[4] / "benchmarks" / "results"
    return folder if folder.is_dir() else None


def measured_costs(folder: Path | None) -> list[dict[str, Any]]:
    """The newest document of `ripe bench paper` from every device, CUDA devices first."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob(BENCHMARK)) if folder else ():
        try:
            document = json.loads(read_regular(path, MAX_JSON_BYTES))
            machine = document["machine"]
            name, date, kind = str(machine["name"]), str(machine["date"]), str(machine["device"])
            sizes = {name: document[name] for name in PAPER_SIZES}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: expected a document of ripe bench paper, got another file", path=path) from error
        if sizes != PAPER_SIZES:
            raise DataError.expected("sizes", f"those of the paper, {PAPER_SIZES}", str(sizes), path=path)
        if name not in newest or newest[name]["machine"]["date"] < date:
            newest[name] = document | {"file": path.name, "is_cuda": kind == "cuda"}
    return sorted(newest.values(), key=lambda document: not document["is_cuda"])


def machine_text(document: dict[str, Any]) -> str:
    """On what, when and at which commit a benchmark was taken."""
    machine = document["machine"]
    commit = f", commit {machine['commit'][:7]}" if machine.get("commit") else ""
    threads = f", {machine['threads']} threads" if machine["device"] == "cpu" else ""
    return f"{machine['name']}{threads}, torch {machine['torch']}{commit}, {machine['date']} ({document['file']})"
