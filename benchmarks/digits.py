"""How well real N-MNIST digits are classified after training on simulated ones, on both, or on few real ones.

Three ways, each with several seeds, of recipes that nothing was tuned in on a tested recording:

    simulated   sim-nmnist: no real recording is trained on; the 200 test recordings and all 600 are tested
    tuned       nmnist-600-tuned from each of these networks: on 400 real recordings, the 200 others tested; and in
                five folds, so that each of the 600 is tested by a network that was trained on 480 others
    real        nmnist-600: the same folds from fresh weights

The simulated recordings show all of MNIST's training images, those of the 600 among them: a network has seen these
digits through another camera, not the recordings. --out keeps all runs; what has ended is not run again. `report` alone
trains nothing. results.json and the table have the seeds whose runs have all ended.

Usage: python benchmarks/digits.py simulated tuned real --real DIR --images MNIST --out DIR [--seeds 0-4] [--jobs N]
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from ripe_mambaspike import evaluate, prepare_dataset, simulate_dataset, train_seeds
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.files import write_file
from ripe_mambaspike.ops.cores import available_cores
from ripe_mambaspike.train.jobs import RunOutcome
from ripe_mambaspike.train.recipes import load_recipe, save_recipe, with_settings
from ripe_mambaspike.train.seeds import parse_seeds

FOLDS = 5
PARTS = ("simulated", "tuned", "real")


def show(outcome: RunOutcome) -> None:
    top1 = "failed" if outcome.result is None else f"{100 * (outcome.result.top1 or 0):.2f} %"
    print(f"{outcome.run.folder.parent.name}/{outcome.run.name}: {top1}", flush=True)


class Digits:
    """The runs of all parts, in folders of `out`."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.out, self.seeds = given, given.out, parse_seeds(given.seeds)
        self.real, self.simulated = given.out / "data" / "nmnist-600", given.out / "data" / "sim-nmnist"

    def prepare(self) -> None:
        """Both datasets; what is there stays."""
        self.real.mkdir(parents=True, exist_ok=True)
        if not (link := self.real / "Train").exists():
            link.symlink_to((self.given.real / "Train").absolute())
        prepare_dataset("nmnist-600", self.real)
        counts = {"train": self.given.train, "test": self.given.test}
        simulate_dataset("sim-nmnist", self.simulated, images=self.given.images, workers=available_cores(), **counts)

    def run(self, part: str) -> None:
        if part == "simulated":
            self._train("sim-nmnist", "simulated", self.seeds, [f"data.root={self.simulated}"], None)
        elif part == "real":
            self._train("nmnist-600", "real", self.seeds, [f"data.root={self.real}"], FOLDS)
        else:
            split = self.out / "split.yaml"  # the recipe without its folds
            save_recipe(with_settings(load_recipe("nmnist-600-tuned"), ["data.folds=0"]), split)
            for seed in self.seeds:
                start = self.out / "simulated" / f"seed-{seed}"
                settings = [f"data.root={self.real}", f"model.pretrained={start}"]
                self._train("nmnist-600-tuned", f"tuned-{seed}", [seed], settings, FOLDS)
                self._train(str(split), f"split-{seed}", [seed], settings, None)

    def _train(self, recipe: str, name: str, seeds: list[int], settings: list[str], folds: int | None) -> None:
        settings = [*settings, *self.given.set]
        how = {"folds": folds, "settings": settings, "num_jobs": self.given.jobs, "report": show}
        summary = train_seeds(recipe, seeds, out=self.out / name, **how)
        for failed in summary.failed:
            print(f"{name}/{failed.run}: {failed.error} ({failed.log})", flush=True)

    def results(self) -> dict[str, list[float]]:
        """Top-1 of every seed, in percent, by what was measured; seeds whose runs have not all ended are left out."""
        found: dict[str, list[float]] = {}
        for seed in self.seeds:
            for name, top1 in self._of_seed(seed).items():
                found.setdefault(name, []).append(top1)
        return found

    def _of_seed(self, seed: int) -> dict[str, float]:
        found = {}
        if (run := self.out / "simulated" / f"seed-{seed}").joinpath("result.json").exists():
            right = {split: self._right(run, split) for split in ("train", "val", "test")}
            found["simulated alone, 200"] = 100 * right["test"][0] / right["test"][1]
            found["simulated alone, 600"] = 100 * sum(a for a, _ in right.values()) / sum(n for _, n in right.values())
        folders = {
            "simulated and 400 real, 200": [self.out / f"split-{seed}" / f"seed-{seed}"],
            "simulated and 480 real, five folds of 600": self._folds(f"tuned-{seed}", seed),
            "480 real alone, five folds of 600": self._folds("real", seed),
        }
        for name, runs in folders.items():
            if all((run / "result.json").exists() for run in runs):
                results = [json.loads((run / "result.json").read_text()) for run in runs]
                found[name] = 100 * sum(one["top1"] * one["n"] for one in results) / sum(one["n"] for one in results)
        return found

    def _folds(self, name: str, seed: int) -> list[Path]:
        return [self.out / name / f"seed-{seed}-fold-{fold}" for fold in range(FOLDS)]

    def _right(self, run: Path, split: Any) -> tuple[int, int]:
        """(correct, all) of the real recordings of a split."""
        scores = evaluate(run, dataset="nmnist-600", root=self.real, split=split).scores
        return round(scores.top1 * scores.n), scores.n


def table(found: dict[str, list[float]]) -> str:
    rows = ["| trained on, tested on | top-1, mean | s.d. | seeds |", "|---|---|---|---|"]
    for name, values in found.items():
        deviation = f"{statistics.stdev(values):.2f}" if len(values) > 1 else "–"
        each = ", ".join(f"{value:.2f}" for value in values)
        rows.append(f"| {name} | {statistics.mean(values):.2f} % | {deviation} | {each} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=(*PARTS, "report"))
    parser.add_argument("--real", type=Path, required=True, help="the folder of Train/DIGIT/NNNNN.bin")
    parser.add_argument("--images", type=Path, required=True, help="MNIST's IDX files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--train", type=int, help="simulated training recordings; all 60,000 by default")
    parser.add_argument(
        "--test", type=int, default=500, help="simulated test recordings; none of them decides anything"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="fields of every recipe")
    given = parser.parse_args()
    try:
        digits = Digits(given)
        digits.prepare()
        for part in given.parts:
            if part != "report":
                digits.run(part)
        found = digits.results()
    except RipeError as error:
        parser.error(str(error))
    write_file(given.out / "results.json", json.dumps(found, indent=1).encode() + b"\n")
    print(table(found))


if __name__ == "__main__":
    main()
