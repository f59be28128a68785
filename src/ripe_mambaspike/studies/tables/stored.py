"""Stored results: where they are, and benchmarks of the paper's measured tables."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import DataError, InputError
from ripe_mambaspike.files import MAX_JSON_BYTES, read_regular

BENCHMARK = "*-paper.json"  # written by `ripe bench paper --json`
PAPER_SIZES = {"bench": "paper", "time_steps": 16, "in_size": 128, "batch": 4}
STORED = "stored"  # the word for the stored results of this checkout; a folder of that name is ./stored

ResultFolders = tuple[Path, ...]  # where a study, or a device's benchmark, is in several, the last one counts


def result_folders(given: str | Path | Sequence[str | Path] | None = None) -> ResultFolders:
    """The folders of stored results: those given, or benchmarks/results of this checkout, where there is one.

    The word "stored" among those given stands for the latter.
    """
    if given is None:
        return _own_results()
    folders: list[Path] = []
    for one in [given] if isinstance(given, str | Path) else given:
        if str(one) == STORED and not isinstance(one, Path):
            folders += _own_results()
        elif not Path(one).is_dir():
            raise InputError.expected("results", f"existing folders, or {STORED}", str(one))
        else:
            folders.append(Path(one))
    return tuple(dict.fromkeys(folders))


def _own_results() -> ResultFolders:
    folder = Path(__file__).resolve().parents[4] / "benchmarks" / "results"
    return (folder,) if folder.is_dir() else ()


def folder_name(folder: Path) -> str:
    """A folder of results as tables and pages name it."""
    return "/".join(folder.resolve().parts[-2:])


def measured_costs(folders: ResultFolders) -> list[dict[str, Any]]:
    """The newest document of `ripe bench paper` from every device in the last folder that has one, CUDA first."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        found |= _newest_costs(folder)
    return sorted(found.values(), key=lambda document: not document["is_cuda"])


def _newest_costs(folder: Path) -> dict[str, dict[str, Any]]:
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob(BENCHMARK)):
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
            newest[name] = document | {"file": f"{folder_name(folder)}/{path.name}", "is_cuda": kind == "cuda"}
    return newest


def machine_text(document: dict[str, Any]) -> str:
    """On what, when and at which commit a benchmark was taken."""
    machine = document["machine"]
    commit = f", commit {machine['commit'][:7]}" if machine.get("commit") else ""
    threads = f", {machine['threads']} threads" if machine["device"] == "cpu" else ""
    return f"{machine['name']}{threads}, torch {machine['torch']}{commit}, {machine['date']} ({document['file']})"
