"""`python -m torture`: run all trials of all commands and print a table; exit code 1 if there were problems."""

import argparse
import datetime
import errno
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from torture.forks import Forks
from torture.jobs import make_jobs
from torture.sources import changing_sources, killed_workers
from torture.trials import (
    JobTester,
    Trial,
    clock_jumps,
    concurrent_runs,
    failing_disk,
    kill_at_changes,
    kill_at_random,
    power_losses,
    timed,
)

KILLS = {
    "train": 500, "prepare": 500, "export": 100, "sim make": 100, "record": 100, "fuse": 100, "adapt": 100,
    "calibrate": 100, "study": 50,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of all trials to run; 0.02 takes about a minute"
    )
    parser.add_argument("--jobs", nargs="*", choices=KILLS, help="commands to test; default: all")
    parser.add_argument("--trials", nargs="*", help="trials whose name contains one of these words; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="working folder; default: in memory")
    parser.add_argument("--json", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="ripe-torture-", dir=options.folder or (memory if memory.is_dir() else None)))
    forks = Forks()
    trials = []
    try:
        for trial in timed(_trials(forks, base, options)):
            trials.append(trial)
            verdict = f"{len(trial.problems)} PROBLEMS" if trial.problems else "no problems"
            print(
                f"{trial.job:9} {trial.what:36} {trial.tried:5} tried, {trial.ended:5} ends compared, "
                f"{trial.seconds:6.0f} s: {verdict}",
                flush=True,
            )
            for sentence in list(dict.fromkeys(trial.problems))[:5]:
                print(f"    {sentence}", flush=True)
    finally:
        forks.close()
        shutil.rmtree(base, ignore_errors=True)
    if options.json is not None:
        document = {
            "date": datetime.date.today().isoformat(),
            "command": " ".join(["python -m torture", *sys.argv[1:]]),
        }
        options.json.write_text(json.dumps({**document, "trials": [vars(trial) for trial in trials]}, indent=1) + "\n")
    return 1 if any(trial.problems for trial in trials) else 0


def _trials(forks: Forks, base: Path, options: argparse.Namespace) -> Iterator[Trial]:
    random = Random(options.seed)

    def scaled(number: int) -> int:
        return max(1, round(options.share * number))

    def selected(words: str) -> bool:
        return not options.trials or any(word in words for word in options.trials)

    def run(words: list[str]) -> None:
        if (ended := forks.run(words)).code != 0:
            raise RuntimeError(f"ripe {' '.join(words[:3])} failed: {ended.output}")

    for job in make_jobs(base, run).values():
        if options.jobs and job.name not in options.jobs:
            continue
        tester = JobTester(forks, job, base)
        if selected("kill random"):
            yield kill_at_random(tester, scaled(KILLS[job.name]), random)
        if job.only_kills:
            continue
        if selected("kill change"):
            yield kill_at_changes(tester, scaled(150), random)
        if selected("full disk"):
            yield failing_disk(tester, scaled(150), random, error=errno.ENOSPC, what="a full disk at each change")
        if selected("read-only"):
            yield failing_disk(tester, 1, random, error=errno.EROFS, what="a read-only folder")
        if selected("power"):
            yield power_losses(tester, scaled(75), random)
        if selected("together"):
            yield concurrent_runs(tester, 2, scaled(20), random)
            yield concurrent_runs(tester, 4, scaled(10), random)
        if selected("clock"):
            yield clock_jumps(tester, scaled(3))
    if (not options.jobs or "prepare" in options.jobs) and selected("source"):
        yield changing_sources(forks, base, scaled(100), random)
    if (not options.jobs or "prepare" in options.jobs) and selected("worker"):
        yield killed_workers(base, scaled(20), random)


if __name__ == "__main__":
    raise SystemExit(main())
