"""The runs of a study: which recipe each has, where its folder is, whether it has ended, and how long the rest takes.

A run is known by its recipe, not by its study: its folder is OUT/runs/SET/HASH-seed-N, and the hash leaves out what
does not change the result. So studies that contain the same run share it, and a run that has ended is never repeated.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ripe_mambaspike.data.settings import resolved_grid
from ripe_mambaspike.data.training_data import open_data
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.models.accuracy import TrainingResult
from ripe_mambaspike.models.config import MambaSpikeConfig, RipeConfig
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.studies.study import Arm, Study
from ripe_mambaspike.train.jobs import SeedRun
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.recipes import leaf_values, load_recipe, with_settings
from ripe_mambaspike.train.seeds import IGNORED_FIELDS, finished_result, parse_seeds, pinned_store

HASH_CHARS = 12
# set by --seeds and --root, by the data itself, and by the network that a run starts from
CHOSEN_FIELDS = ("run.seed", "data.root", "data.store", "model.pretrained_checksum")


@dataclass(frozen=True)
class StudyRun:
    """One training: a set, an arm and a seed."""

    set: str
    arm: str
    seed: int
    recipe: Recipe
    folder: Path

    @property
    def key(self) -> str:
        """What the runs of one arm on one set share."""
        return self.folder.name.removesuffix(f"-seed-{self.seed}")

    @property
    def job(self) -> SeedRun:
        return SeedRun(self.seed, None, self.folder)

    @property
    def error_file(self) -> Path:
        """Why the run failed when it was last tried; gone when it has ended."""
        return self.job.log.with_suffix(".error")

    def __str__(self) -> str:
        return f"{self.set} {self.arm} seed {self.seed}"


@dataclass(frozen=True)
class LeftOut:
    """An arm that a set cannot be run with."""

    set: str
    arm: str
    reason: str


@dataclass(frozen=True)
class StudyPlan:
    """All runs of a study, in the order in which they run: the first seed of every arm, then the next."""

    study: Study
    sets: tuple[str, ...]
    seeds: tuple[int, ...]
    arms: tuple[str, ...]
    out: Path
    runs: tuple[StudyRun, ...]
    left_out: tuple[LeftOut, ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return self.out / self.study.name

    @cached_property
    def distinct(self) -> tuple[StudyRun, ...]:
        """One of the runs in each folder: two arms may be the same run, as with 8 of 8 tokens and all."""
        return tuple({run.folder: run for run in self.runs}.values())

    def finished(self) -> dict[Path, TrainingResult]:
        """The results of runs that have ended, by folder; raises if one is of other data."""
        found = {run.folder: finished_result(run.job, run.recipe) for run in self.distinct}
        return {folder: result for folder, result in found.items() if result is not None}

    def to_dict(self, left: Collection[Path]) -> dict[str, Any]:
        """For a JSON document; `left` are the folders of the runs that are still to do."""
        return {
            "study": self.study.name,
            "sets": list(self.sets),
            "seeds": list(self.seeds),
            "arms": list(self.arms),
            "runs": [
                {"set": run.set, "arm": run.arm, "seed": run.seed, "folder": str(run.folder),
                 "ended": run.folder not in left}
                for run in self.runs
            ],
            "left_out": [{"set": one.set, "arm": one.arm, "reason": one.reason} for one in self.left_out],
        }  # fmt: skip


def plan_study(
    study: Study,
    sets: Sequence[str] = (),
    seeds: str | Sequence[int] | None = None,
    *,
    out: Path,
    root: Path | None = None,
    settings: Sequence[str] = (),
    arms: Sequence[str] = (),
    every_arm: bool = False,
) -> StudyPlan:
    """The runs of a study; nothing is started and no data is needed.

    sets: recipes by name or file; the study's own by default
    root: the folder of the datasets, each in a folder of its name; `data/` by default
    settings: fields of every recipe, applied before those of the arms
    arms: these and the reference alone; `every_arm` adds the extra ones
    """
    seeds = study.seeds if seeds is None else seeds
    numbers = parse_seeds(seeds) if isinstance(seeds, str) else list(seeds)
    for setting in settings:
        if (name := setting.partition("=")[0].strip()) in CHOSEN_FIELDS:
            raise ConfigError.expected(name, "no setting, since the study sets it", repr(setting))
    chosen = study.chosen_arms(arms, every_arm)
    recipes: dict[tuple[str, str], Recipe] = {}
    left_out: list[LeftOut] = []
    names: list[str] = []
    for one in sets or study.sets:
        base = with_settings(load_recipe(one), settings)
        if base.name in names:
            raise ConfigError.expected("on", "each set once", repr(one))
        names.append(base.name)
        for arm in chosen:
            try:
                recipes[base.name, arm.name] = arm_recipe(base, arm, root)
            except ConfigError as error:
                if arm.name == study.reference:
                    raise
                left_out.append(LeftOut(base.name, arm.name, str(error)))
    runs = [
        make_run(out, name, arm.name, recipes[name, arm.name], seed)
        for seed in numbers
        for name in names
        for arm in chosen
        if (name, arm.name) in recipes
    ]
    return StudyPlan(
        study, tuple(names), tuple(numbers), tuple(arm.name for arm in chosen), out, tuple(runs), tuple(left_out),
        tuple(settings),
    )  # fmt: skip


def arm_recipe(base: Recipe, arm: Arm, root: Path | None = None) -> Recipe:
    """The recipe of an arm on a set, with the prepared data that is there now."""
    recipe = with_settings(base, arm.settings)
    recipe = with_settings(recipe, [_share_setting(recipe, what, share) for what, share in arm.shares.items()])
    if root is not None:
        recipe = replace(recipe, data=replace(recipe.data, root=str(root / recipe.data.dataset)))
    recipe = canonical_recipe(recipe)
    return with_settings(recipe, pinned_store(recipe))


def make_run(out: Path, set_name: str, arm: str, recipe: Recipe, seed: int) -> StudyRun:
    recipe = replace(recipe, run=replace(recipe.run, seed=seed))
    return StudyRun(set_name, arm, seed, recipe, out / "runs" / set_name / f"{recipe_hash(recipe)}-seed-{seed}")


def recipe_hash(recipe: Recipe) -> str:
    """A hash of what decides the result, but for the seed and the preparation of the data.

    Only fields that differ from their default count, so that a field of a later version changes no hash.
    """
    defaults, ignored = leaf_values(Recipe()), {*IGNORED_FIELDS, *CHOSEN_FIELDS}
    values = leaf_values(recipe)
    decisive = {
        name: value for name, value in values.items() if name not in ignored and value != defaults.get(name, ...)
    }
    text = json.dumps(decisive, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARS]


def canonical_recipe(recipe: Recipe) -> Recipe:
    """The recipe without fields of the network that are as its name has them anyway, so that equal ones hash alike."""
    sizes: dict[str, Any] = {"time_steps": recipe.data.time_steps}
    if recipe.data.grid is not None:
        sizes["in_size"] = recipe.data.grid
    default = model_config(recipe.model.name, **sizes).to_dict()
    given = model_config(recipe.model.name, **recipe.model.fields, **sizes).to_dict()
    own = {name: given[name] for name in sorted(recipe.model.fields) if given[name] != default[name]}
    return replace(recipe, model=replace(recipe.model, fields=own))


def _share_setting(recipe: Recipe, what: str, share: float) -> str:
    """A setting that depends on the size of a set's clips."""
    fields = {**recipe.model.fields, "time_steps": recipe.data.time_steps, "in_size": resolved_grid(recipe.data)}
    config = model_config(recipe.model.name, **fields)
    if what == "tokens" and isinstance(config, RipeConfig):
        height, width = config.grids(*config.in_size)[-1]
        return f"model.fields.num_tokens={max(1, round(share * height * width))}"
    if what == "pool" and isinstance(config, MambaSpikeConfig):
        return f"model.fields.pool_size={max(1, round(share * min(config.grid())))}"
    raise ConfigError.expected("shares", f"no share of {what} for '{recipe.model.name}'", f"{share:g}")


def check_data(plan: StudyPlan) -> None:
    """Raise unless the data of every set is there, with the command that makes it."""
    for problem in missing_data(plan):
        raise problem


def missing_data(plan: StudyPlan) -> list[DataError]:
    """For every set without its data, the error that says how it is made."""
    found = []
    for data in {(run.recipe.data.root, run.recipe.data.dataset): run.recipe.data for run in plan.runs}.values():
        try:
            open_data(data)
        except DataError as error:
            found.append(error)
    return found


def training_clips(run: StudyRun) -> int | None:
    """Clips that a run trains on, over all epochs; None where its data is not there."""
    try:
        return int(open_data(run.recipe.data).describe()["train"]) * run.recipe.schedule.epochs
    except DataError:
        return None
