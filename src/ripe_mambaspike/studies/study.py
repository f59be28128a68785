"""A study is a question of the paper as data: its arms, the sets and seeds it runs on, and what is measured.

`catalog/NAME.yaml` has the fields below; the paper's printed values stand beside the arms that they belong to.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ripe_mambaspike.errors import ConfigError, short_repr
from ripe_mambaspike.files import read_regular
from ripe_mambaspike.schema import Document, convert, suggest
from ripe_mambaspike.studies.conditions import parse_condition
from ripe_mambaspike.yaml_text import parse_yaml

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.+-]{0,59}$")]
Text = Annotated[str, Meta(min_length=1)]
PaperSet = Literal["dvsgesture", "cifar10dvs", "ncaltech101", "nmnist", "dailydvs200"]
Measure = Literal["cost", "rates", "speed"]
GridShare = Literal["tokens", "pool"]
MAX_STUDY_BYTES = 256 * 1024  # of a file
COUNTERPARTS: dict[str, PaperSet] = {  # of our datasets, among the paper's
    "gestures-hard": "dvsgesture",
    "gestures-hard-small": "dvsgesture",
    "synthgesture": "dvsgesture",
    "sim-cifar10": "cifar10dvs",
    "sim-cifar10-small": "cifar10dvs",
    "sim-caltech101": "ncaltech101",
    "sim-caltech101-small": "ncaltech101",
    "sim-nmnist": "nmnist",
    "dvsgesture": "dvsgesture",
    "cifar10dvs": "cifar10dvs",
    "ncaltech101": "ncaltech101",
    "nmnist": "nmnist",
    "dailydvs200": "dailydvs200",
}


class PaperValue(Document, frozen=True):
    """What the paper prints for an arm on one of its datasets, in percent and percentage points."""

    top1: Annotated[float, Meta(ge=0, le=100)] | None = None
    delta: float | None = None  # against the reference
    sd: Annotated[float, Meta(ge=0)] | None = None
    significant: bool | None = None  # whether the paper claims a difference; None where it does not say
    rate_sd: Annotated[float, Meta(ge=0)] | None = None  # SR-var of Table 12


class Arm(Document, frozen=True):
    """One variant of a study."""

    name: Name
    title: Text
    settings: tuple[str, ...] = ()  # of the recipe, "model.fields.tdm=false"
    # settings that depend on a set's grid
    shares: dict[GridShare, Annotated[float, Meta(gt=0, le=1)]] = msgspec.field(default_factory=dict)
    x: float | None = None  # where the arm is on the horizontal axis of a curve
    paper: dict[PaperSet, PaperValue] = msgspec.field(default_factory=dict)
    extra: bool = False  # only run with --all


class Study(Document, frozen=True):
    """One study of the catalog."""

    name: Name
    title: Text
    question: Text
    answers: tuple[Annotated[str, Meta(pattern=r"^(table-\d+|figure-[a-z-]+|none)$")], ...]  # in the paper
    reference: Name  # the arm that the others are compared with
    arms: Annotated[tuple[Arm, ...], Meta(min_length=1)]
    sets: Annotated[tuple[str, ...], Meta(min_length=1)]
    seeds: Text
    measures: tuple[Measure, ...] = ()
    conditions: tuple[str, ...] = ()  # "noise=0.5": how test clips are changed, see conditions.py
    axis: Text | None = None  # what x of the arms is
    log_axis: bool = False

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ConfigError.expected("arms", "each name once", ", ".join(names))
        if self.reference not in names:
            raise ConfigError.expected("reference", f"one of {', '.join(names)}", self.reference)
        if self.axis is not None and any(arm.x is None for arm in self.arms):
            raise ConfigError.expected("axis", "x for every arm", "an arm without")
        for condition in self.conditions:
            parse_condition(condition)

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def chosen_arms(self, names: Sequence[str] = (), every: bool = False) -> list[Arm]:
        """The arms to run: those named and the reference, all, or by default all that are not extra."""
        known = [arm.name for arm in self.arms]
        for name in names:
            if name not in known:
                raise ConfigError.expected("arms", f"some of {', '.join(known)}", f"{name!r}{suggest(name, known)}")
        if names:
            return [arm for arm in self.arms if arm.name in (self.reference, *names)]
        return [arm for arm in self.arms if every or not arm.extra]


def list_studies() -> list[Study]:
    """Every study of the catalog, in the order of the paper's tables."""
    return sorted(map(load_study, _names()), key=lambda study: (_table(study), study.name))


def load_study(name: str | Path) -> Study:
    """A study of the catalog by its name, or one from a .yaml file, whose name it has."""
    if isinstance(name, Path) or name.endswith((".yaml", ".yml")):
        return _read_study(Path(name))
    known = _names()
    if name not in known:
        expected = f"one of {', '.join(known)}, or a .yaml file"
        raise ConfigError.expected("name", expected, f"{name!r}{suggest(name, known)}")
    origin = f"study '{name}'"
    text = (resources.files(__package__) / "catalog" / f"{name}.yaml").read_text("utf-8")
    return _study_of(name, text, origin)


def _read_study(path: Path) -> Study:
    try:
        text = read_regular(path, MAX_STUDY_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError.expected("name", "a study in YAML", error, path=path) from error
    return _study_of(path.stem, text, path)


def _study_of(name: str, text: str, origin: str | Path) -> Study:
    values = parse_yaml(text, origin)
    if not isinstance(values, dict):
        raise ConfigError.expected("study", "fields and their values", short_repr(values), path=origin)
    return convert({"name": name, **values}, Study, origin=origin, error=ConfigError)


def _names() -> list[str]:
    folder = resources.files(__package__) / "catalog"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def _table(study: Study) -> int:
    """The first table that a study answers; those of figures, or of nothing in the paper, come last."""
    numbers = [int(word.removeprefix("table-")) for word in study.answers if word.startswith("table-")]
    return min(numbers, default=100)
