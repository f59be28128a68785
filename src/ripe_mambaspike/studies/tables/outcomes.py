"""What tables and figures need of a stored study, read from its results.json."""

from dataclasses import dataclass
from typing import NamedTuple

from ripe_mambaspike.errors import DataError
from ripe_mambaspike.studies.results import RESULTS_FILE, ArmResult, StudyResults, read_results
from ripe_mambaspike.studies.tables.stored import ResultFolders, folder_name


class ArmOutcome(NamedTuple):
    """One arm on one set; accuracies in percent, differences in percentage points."""

    name: str
    title: str
    n: int
    mean: float | None
    sd: float | None
    low: float | None  # the 95 % interval of the mean
    high: float | None
    delta: float | None  # less the reference
    delta_low: float | None
    delta_high: float | None
    p: float | None  # Welch's; None for fewer than two runs
    stars: str | None
    sigmas: float | None
    verdict: str | None  # whether the paper's difference is seen here
    x: float | None  # on the axis of a curve
    parameters: int | None  # deployed
    rate: float | None  # mean firing rate
    rate_sd: float | None  # SR-var
    conditions: dict[str, float]  # mean accuracy with test clips changed

    def numbers(self) -> dict[str, float]:
        """What is known, for a table's cell."""
        known = {"n": self.n, "mean": self.mean, "sd": self.sd, "low": self.low, "high": self.high,
                 "delta": self.delta, "p": self.p}  # fmt: skip
        return {name: float(value) for name, value in known.items() if value is not None}


@dataclass(frozen=True)
class StudyOutcome:
    name: str
    title: str
    by_set: dict[str, list[ArmOutcome]]
    counterparts: dict[str, str | None]  # set → the paper's dataset that it stands for
    source: str  # what was run, on what, when, at which commit
    missing: list[str]

    @property
    def sets(self) -> list[str]:
        return list(self.by_set)

    def arms(self, dataset: str) -> list[ArmOutcome]:
        return self.by_set.get(dataset, [])


def read_outcome(folders: ResultFolders, study: str) -> StudyOutcome | None:
    """The results of a study in the last folder that has them; None if it was not run."""
    found = [folder for folder in folders if (folder / "studies" / study / RESULTS_FILE).exists()]
    if not found:
        return None
    path = found[-1] / "studies" / study / RESULTS_FILE
    results = read_results(path)
    if results.study != study:
        raise DataError.expected("study", f"'{study}', as its folder", f"'{results.study}'", path=path)
    return _outcome(results, folder_name(found[-1]))


def _outcome(results: StudyResults, folder: str) -> StudyOutcome:
    study, ended, planned = results.study, results.ended, results.planned
    devices = ", ".join(results.devices) or "a device that is not recorded"
    commits = ", ".join(commit[:7] for commit in results.trained_at) or "unknown"
    source = (
        f"ripe study {study}: {ended} of {planned} runs, {results.hours:.1f} hours on {devices}, trained at commit "
        f"{commits}, written {results.written} UTC (in {folder})"
    )
    missing = [] if ended == planned else [f"{planned - ended} of {planned} runs of ripe study {study}"]
    return StudyOutcome(
        name=study,
        title=results.title,
        by_set={one.set: [_arm(arm) for arm in one.arms] for one in results.sets},
        counterparts={one.set: one.counterpart for one in results.sets},
        source=source,
        missing=missing,
    )


def _arm(arm: ArmResult) -> ArmOutcome:
    top1, effect = arm.top1, arm.effect
    return ArmOutcome(
        name=arm.arm,
        title=arm.title,
        n=top1.n if top1 else 0,
        mean=top1.mean if top1 else None,
        sd=top1.sd if top1 else None,
        low=top1.low if top1 else None,
        high=top1.high if top1 else None,
        delta=effect.delta if effect else None,
        delta_low=effect.low if effect else None,
        delta_high=effect.high if effect else None,
        p=effect.p if effect else None,
        stars=effect.stars if effect else None,
        sigmas=effect.sigmas if effect else None,
        verdict=arm.paper.verdict if arm.paper else None,
        x=arm.x,
        parameters=arm.parameters.get("deployed"),
        rate=arm.rate.mean if arm.rate else None,
        rate_sd=arm.rate_sd.mean if arm.rate_sd else None,
        conditions={name: found.mean for name, found in arm.conditions.items()},
    )
