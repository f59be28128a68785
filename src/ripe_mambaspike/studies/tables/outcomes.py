"""What tables and figures need of a stored study, read from its results.json."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ripe_mambaspike.errors import DataError
from ripe_mambaspike.files import MAX_JSON_BYTES, read_regular

RESULTS_FILE = "results.json"


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


def read_outcome(folder: Path | None, study: str) -> StudyOutcome | None:
    """The stored results of a study below `folder`; None if it was not run."""
    path = None if folder is None else folder / "studies" / study / RESULTS_FILE
    if path is None or not path.exists():
        return None
    try:
        return _outcome(study, json.loads(read_regular(path, MAX_JSON_BYTES)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: expected the results of ripe study {study}, got another document", path=path
        ) from error


def _outcome(study: str, document: dict[str, Any]) -> StudyOutcome:
    """The one place that knows the format."""
    if (document["format"], document["version"], document["study"]) != ("ripe-study", 1, study):
        raise KeyError("format")
    devices = ", ".join(document["devices"]) or "a device that is not recorded"
    commits = ", ".join(commit[:7] for commit in document["trained_at"]) or "unknown"
    ended, planned = document["ended"], document["planned"]
    source = (
        f"ripe study {study}: {ended} of {planned} runs, {document['hours']:.1f} hours on {devices}, trained at commit "
        f"{commits}, written {document['written']} UTC"
    )
    missing = [] if ended == planned else [f"{planned - ended} of {planned} runs of ripe study {study}"]
    return StudyOutcome(
        name=study,
        title=document["title"],
        by_set={one["set"]: [_arm(arm) for arm in one["arms"]] for one in document["sets"]},
        counterparts={one["set"]: one["counterpart"] for one in document["sets"]},
        source=source,
        missing=missing,
    )


def _arm(arm: dict[str, Any]) -> ArmOutcome:
    top1, effect, paper = arm["top1"] or {}, arm["effect"] or {}, arm["paper"] or {}
    return ArmOutcome(
        name=arm["arm"],
        title=arm["title"],
        n=top1.get("n", 0),
        mean=top1.get("mean"),
        sd=top1.get("sd"),
        low=top1.get("low"),
        high=top1.get("high"),
        delta=effect.get("delta"),
        delta_low=effect.get("low"),
        delta_high=effect.get("high"),
        p=effect.get("p"),
        stars=effect.get("stars"),
        sigmas=effect.get("sigmas"),
        verdict=paper.get("verdict"),
        x=arm["x"],
        parameters=arm["parameters"].get("deployed"),
        rate=(arm["rate"] or {}).get("mean"),
        rate_sd=(arm["rate_sd"] or {}).get("mean"),
        conditions={name: float(found["mean"]) for name, found in arm["conditions"].items()},
    )
