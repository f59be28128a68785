"""The data that a saved network was trained on: dataset, split and binning, from the files saved with it."""

from dataclasses import replace
from pathlib import Path

from ripe_mambaspike.data.clips import Clips
from ripe_mambaspike.data.sets.registry import STORE, dataset_info
from ripe_mambaspike.data.settings import DataSettings, read_data_settings, root_of
from ripe_mambaspike.data.store import describe_keys, store_keys
from ripe_mambaspike.data.training_data import TrainingData, open_data, with_nothing_held_out
from ripe_mambaspike.errors import DataError, WeightsError
from ripe_mambaspike.models.labels import Labels

EXPORTS_FOLDER = "export"  # in a run's folder
CURRENT_STORE = "current"  # instead of a key


def data_settings_of(
    folder: Path,
    labels: Labels,
    *,
    dataset: str | None = None,
    root: str | Path | None = None,
    partition: str | None = None,
    store: str | None = None,
) -> DataSettings:
    """The given dataset, binned as for training; without one, as in the run's recipe.

    The preparation is the one with the key `store`, or the `current` one. By default it is the one that the network was
    trained on; under another root, or of another dataset, the current one where that does not exist.
    """
    recipe = run_data_settings(folder)
    known = labels.set or dataset
    if known is None:
        raise WeightsError.expected("--dataset", "a name, since the network does not know its own", "none", path=folder)
    settings = DataSettings(dataset=known, partition=labels.partition)
    if labels.protocol == "paper" and known == labels.set:
        settings = with_nothing_held_out(settings)
    if recipe is not None and dataset in (None, labels.set):
        settings = recipe
        if partition is not None:
            settings = replace(settings, partition=partition, folds=0, fold=0)
    if dataset is not None and dataset != settings.dataset:
        settings = DataSettings(dataset=dataset)
    asked = replace(
        settings,
        root=settings.root if root is None else str(root),
        partition=partition or settings.partition,
        store=store,
        extra=(),
        first=(),
        cache="off",
        time_steps=labels.time_steps,
        grid=labels.grid,
        by=labels.by,
        binary=labels.binary,
    )
    if store is not None:
        return replace(asked, store=None if store == CURRENT_STORE else store)
    trained = trained_store(folder, labels) if asked.dataset == labels.set else None
    home = root_of(asked) / STORE / asked.dataset
    if trained is None or trained in store_keys(home):
        return replace(asked, store=trained)
    elsewhere = root is not None and (recipe is None or root_of(asked).resolve() != root_of(recipe).resolve())
    if elsewhere or not store_keys(home):  # opening it raises where nothing is prepared there
        return asked
    command = "sim make" if dataset_info(asked.dataset).simulated else "data prepare"
    raise DataError.expected(
        "store",
        f"{trained}, which {folder} was trained on",
        describe_keys(home),
        path=home,
        hint=f"make it again by `ripe {command} {asked.dataset}` with the same options, or choose one by --store KEY",
    )


def run_data_settings(folder: Path) -> DataSettings | None:
    """Of the run that a network or an export belongs to; None for one outside a run."""
    inside = folder.absolute()
    homes = (inside, inside.parent, *((inside.parent.parent,) if inside.parent.name == EXPORTS_FOLDER else ()))
    recipe = next((path for home in homes if (path := home / "recipe.yaml").exists()), None)
    return None if recipe is None else read_data_settings(recipe)


def trained_store(folder: Path, labels: Labels) -> str | None:
    """The key of the store that a network was trained on; None if unknown."""
    if labels.store is not None:
        return labels.store
    recipe = run_data_settings(folder)
    return None if recipe is None or recipe.dataset != labels.set else recipe.store


def store_note(trained: str | None, data: TrainingData) -> str | None:
    """A note for results on this data if it is not, or not known to be, what the network was trained on."""
    key = data.store.key
    if trained is None:
        return f"store {key}: whether the network was trained on it is not known, since it has no key"
    if trained != key:
        return f"store {key} differs from {trained}, which the network was trained on"
    return None


def open_data_for(folder: Path, labels: Labels, settings: DataSettings) -> TrainingData:
    """The dataset; an error unless it has the network's classes."""
    data = open_data(settings)
    if data.classes != labels.classes:
        raise WeightsError.expected(
            "classes",
            f"the {len(data.classes)} of {settings.dataset} ({', '.join(data.classes[:3])}, …)",
            f"{len(labels.classes)} ({', '.join(labels.classes[:3])}, …)",
            path=folder,
        )
    return data


def split_of(data: TrainingData, part: str) -> Clips:
    """One split of the dataset by its name: train, val or test."""
    found = {"train": lambda: data.train, "val": lambda: data.val, "test": lambda: data.test}[part]()
    if found is None:
        raise WeightsError.expected("split", f"one with clips in {data.settings.dataset}", repr(part))
    return found
