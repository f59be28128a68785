"""What `h200.sh studies` has to run: each study on its own sets, without the runs that earlier results have.

    python -m benchmarks.study_calls --out /tmp/studies components attention:0-4 neuron-mixes@gestures-hard,sim-cifar10

A study is NAME[:SEEDS][@SET,SET…]; its own seeds and sets by default. Prints one line "SET STUDY SEEDS RUNS" for each
pair with runs left, and on standard error how long they take. `--earlier` names results.json files of any study, and
archives with such files: their runs are added to every study that contains the same, in --out/SET, where
`ripe study STUDY --on SET --out OUT/SET` finds them.
"""

import argparse
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from ripe_mambaspike.errors import ConfigError, RipeError
from ripe_mambaspike.studies.estimate import estimate_study
from ripe_mambaspike.studies.plan import StudyPlan, plan_study
from ripe_mambaspike.studies.records import add_runs, id_of
from ripe_mambaspike.studies.results import read_results
from ripe_mambaspike.studies.run import missing_runs
from ripe_mambaspike.studies.study import load_study

STORED = Path(__file__).parent / "results" / "studies"


class StudyCall(NamedTuple):
    """A study on one set, and how many of its runs are left."""

    set: str
    study: str
    seeds: str
    runs: int
    seconds: float | None  # one at a time
    clips: int | None


def parse_word(word: str, only: Sequence[str] = ()) -> tuple[str, str, list[str]]:
    """Name, seeds and sets of a study; `only` leaves other sets out."""
    head, _, sets = word.partition("@")
    name, _, seeds = head.partition(":")
    study = load_study(name)
    chosen = [one for one in sets.split(",") if one] or list(study.sets)
    return name, seeds or study.seeds, [one for one in chosen if not only or one in only]


def unpack(files: Sequence[Path], folder: Path) -> list[Path]:
    """The results.json files, those of archives unpacked into the folder."""
    found = []
    for file in files:
        if not file.is_file():
            raise ConfigError.expected("earlier", "files", f"{str(file)!r}, which is none")
        if not tarfile.is_tarfile(file):
            found.append(file)
            continue
        with tarfile.open(file) as archive:
            archive.extractall(folder, filter="data")
            names = archive.getnames()
        found += [folder / name for name in sorted(names) if name.endswith(".json")]
    return found


def calls(words: Sequence[str], out: Path, earlier: Sequence[Path], only: Sequence[str] = ()) -> Iterator[StudyCall]:
    """The pairs of a study and a set that have runs left, in the order of the studies."""
    ids = {file: {one.id for one in read_results(file).runs} for file in earlier}
    for word in words:
        name, seeds, sets = parse_word(word, only)
        for one in sets:
            plan = plan_study(load_study(name), [one], seeds, out=out / one)
            add_runs(plan, _with_runs_of(plan, ids))
            left = missing_runs(plan)
            if left:
                found = estimate_study(plan, left)
                yield StudyCall(one, name, seeds, len(left), found.seconds, found.clips)


def _with_runs_of(plan: StudyPlan, ids: dict[Path, set[tuple[str, str, int]]]) -> list[Path]:
    wanted = {id_of(run) for run in plan.runs}
    return [file for file, found in ids.items() if found & wanted]


def describe(call: StudyCall) -> str:
    time = "of unknown length" if call.seconds is None else f"about {call.seconds / 60:.0f} minutes one at a time"
    return f"{call.study} on {call.set}: {call.runs} runs left, {time}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--earlier", type=Path, nargs="*", default=[])
    parser.add_argument("--sets", nargs="*", default=[])
    options = parser.parse_args(words)
    files = [*sorted(STORED.glob("*/results.json")), *options.earlier]
    try:
        found = list(calls(options.studies, options.out, unpack(files, options.out / "results"), options.sets))
    except (RipeError, msgspec.MsgspecError) as error:
        print(f"study_calls: {error}", file=sys.stderr)
        return 2
    for call in found:
        print(call.set, call.study, call.seeds, call.runs)
        print(describe(call), file=sys.stderr)
    total = sum(call.seconds or 0 for call in found)
    print(f"{sum(call.runs for call in found)} runs, {total / 60:.0f} minutes of those known", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
