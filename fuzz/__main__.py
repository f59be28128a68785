"""`python -m fuzz`: fuzz every target, or some, for a time or a number of cases; exit code 1 on findings."""

import argparse
import datetime
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuzz.engine import Outcome, fuzz
from fuzz.targets import GROUPS, target_names

KINDS = ("abort", "hang", "memory", "exception", "wrong")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="targets to fuzz; default: all")
    parser.add_argument("--seconds", type=float, default=60.0, help="total time, shared by the targets")
    parser.add_argument("--cases", type=int, default=0, help="number of cases for each target, instead of a time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations")
    parser.add_argument("--jobs", type=int, default=1, help="targets at once")
    parser.add_argument("--group", choices=GROUPS, help="fuzz only the targets of one group")
    parser.add_argument("--guided", action="store_true", help="guided by coverage (needs atheris); SECONDS as above")
    parser.add_argument("--json", type=Path, help="write the results to this JSON file")
    parser.add_argument("--list", action="store_true", help="list the targets")
    options = parser.parse_args()
    names = target_names(options.group)
    if unknown := [name for name in options.targets if name not in names]:
        parser.error(f"target: expected one of {', '.join(names)}, got {unknown[0]}")
    chosen = {name: group for name, group in names.items() if not options.targets or name in options.targets}
    if options.list:
        print("\n".join(f"{name}  ({group})" for name, group in chosen.items()))
        return 0
    seconds = float("1e9") if options.cases else options.jobs * options.seconds / len(chosen)
    if options.guided:
        from fuzz.guided import guide as run
    else:
        run = fuzz
    with ThreadPoolExecutor(options.jobs) as pool:
        begun = [
            pool.submit(run, name, group, cases=options.cases or 1 << 40, seconds=seconds, seed=options.seed)
            for name, group in chosen.items()
        ]
        outcomes = []
        for future in begun:
            outcomes.append(future.result())
            _show(outcomes[-1])
    return _close(outcomes, options.json)


def _show(one: Outcome) -> None:
    found = ", ".join(f"{one.count(kind)} {kind}" for kind in KINDS if one.count(kind)) or "nothing found"
    rate = one.cases / one.seconds if one.seconds else 0.0
    print(f"{one.target:20} {one.cases:>10,} cases  {rate:>7,.0f}/s  +{one.grown_mib:.0f} MiB  {found}", flush=True)
    for finding in one.findings:
        print(f"    {finding['kind']} at {finding['place']}: {finding['what'][:160]}  ({finding['case']})", flush=True)


def _close(outcomes: list[Outcome], path: Path | None) -> int:
    print()
    for group in GROUPS:
        members = [one for one in outcomes if one.group == group]
        if members:
            counted = ", ".join(f"{sum(one.count(kind) for one in members)} {kind}" for kind in KINDS)
            print(f"{group}: {sum(one.cases for one in members):,} cases; {counted}")
    if path is not None:
        document = {"date": datetime.date.today().isoformat(), "command": " ".join(["python -m fuzz", *sys.argv[1:]])}
        rows = [{**vars(one), "findings": one.findings} for one in outcomes]
        path.write_text(json.dumps({**document, "outcomes": rows}, indent=1) + "\n")
    return 1 if any(one.findings for one in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
