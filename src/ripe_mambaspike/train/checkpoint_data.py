"""The clips that a saved network was made for: its set, split and binning, as the files beside it say."""

from dataclasses import replace
from pathlib import Path

from ripe_mambaspike.errors import WeightsError
from ripe_mambaspike.models.labels import Labels
from ripe_mambaspike.train.clips import Clips, TrainingData, open_data
from ripe_mambaspike.train.recipe import DataSettings, Recipe
from ripe_mambaspike.train.recipes import load_recipe


def settings_of(
    folder: Path,
    labels: Labels,
    *,
    dataset: str | None = None,
    root: str | Path | None = None,
    cut: str | None = None,
) -> DataSettings:
    """The set asked for, binned as the network was trained; where none was asked for, as in the run's recipe."""
    recipe = next((path for path in (folder / "recipe.yaml", folder.parent / "recipe.yaml") if path.exists()), None)
    known = labels.set or dataset
    if known is None:
        raise WeightsError(f"{folder}: --dataset: expected a name, since the network does not say its set; got none")
    settings = DataSettings(set=known, cut=labels.cut)
    if recipe is not None and dataset in (None, labels.set):
        settings = load_recipe(recipe).data
        if cut is not None:
            settings = replace(settings, cut=cut, folds=0, fold=0)
    if dataset is not None and dataset != settings.set:
        settings = DataSettings(set=dataset)
    return replace(
        settings,
        root=settings.root if root is None else str(root),
        cut=cut or settings.cut,
        extra=(),
        first=(),
        cache="off",
        steps=labels.steps,
        grid=labels.grid,
        by=labels.by,
        binary=labels.binary,
    )


def open_for(folder: Path, labels: Labels, settings: DataSettings) -> TrainingData:
    """The set, if it has the network's classes."""
    data = open_data(Recipe(data=settings))
    if data.classes != labels.classes:
        raise WeightsError(
            f"{folder} tells {len(labels.classes)} classes apart ({', '.join(labels.classes[:3])}, …) and "
            f"{settings.set} has {len(data.classes)} ({', '.join(data.classes[:3])}, …); the same ones are wanted"
        )
    return data


def part_of(data: TrainingData, part: str) -> Clips:
    """One part of the set by its name: train, val or test."""
    found = {"train": lambda: data.train, "val": lambda: data.val, "test": lambda: data.test}[part]()
    if found is None:
        raise WeightsError(f"{data.settings.set} has no {part} part; one that is there is wanted")
    return found
