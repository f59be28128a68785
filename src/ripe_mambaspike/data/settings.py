"""Which data is used and how recordings become clips: the `data` section of a recipe."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.files import read_regular
from ripe_mambaspike.schema import convert
from ripe_mambaspike.yaml_text import parse_yaml

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
RENAMED_FIELDS = {  # earlier name → today's, in saved recipes
    "set": "dataset",
    "cut": "partition",
    "steps": "time_steps",
    "workers": "num_workers",
}
MAX_RECIPE_BYTES = 64 * 1024  # of a recipe file; a complete one has a tenth of it
GRID_SIDES = (8, 64)  # smallest and largest side of a grid derived from the sensor


@dataclass(frozen=True)
class DataSettings:
    """What is learned from, and how recordings become tensors."""

    dataset: str = "synthgesture"  # name of a dataset (see ripe data sets)
    root: str | None = None  # its folder; data/DATASET when not given
    partition: str | None = None  # how it is split, where there are several ways; the first when not given
    store: str | None = None  # key of one of its preparations (see ripe data list); the current one when not given
    time_steps: Count = 16  # T, time bins of a clip; 0, with model.pretrained: that network's
    grid: tuple[int, int] | None = (64, 64)  # height and width of the bins; null for the sensor's, at most 64 a side
    by: Literal["time", "count"] = "time"  # bins of equal duration, or with equal numbers of events
    binary: bool = False  # whether a bin holds 1 for any number of events instead of their count
    extra: tuple[str, ...] = ()  # more datasets to train on, DATASET=ROOT each: their training splits
    first: tuple[str, ...] = ()  # classes that are learned before the others, in schedule.first_epochs
    folds: Count = 0  # cross-validation over the whole dataset in so many parts; 0 for the dataset's own split
    fold: Count = 0  # the part that is tested, from 0
    validation: bool = True  # whether clips are held out to select the epoch; without, all are trained on
    prepare: bool = False  # prepare a folder by the run itself, and train without a test split where it has none
    cache: Literal["auto", "off", "memory", "device"] = "auto"  # where binned clips are kept after the first epoch
    num_workers: Count = 0  # processes that bin clips; 0 bins them in the main process


def root_of(data: DataSettings) -> Path:
    """The folder of a dataset."""
    return Path("data") / data.dataset if data.root is None else Path(data.root)


def read_data_settings(recipe: Path) -> DataSettings:
    """The `data` section of a run's recipe.yaml, also of one that an earlier version saved."""
    try:
        text = read_regular(recipe, MAX_RECIPE_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{recipe}: expected a recipe in YAML, got {error}", path=recipe) from error
    values = parse_yaml(text, recipe)
    section = values.get("data", {}) if isinstance(values, dict) else values
    return convert(section, DataSettings, origin=recipe, field="data", error=ConfigError, renamed=RENAMED_FIELDS)


def grid_for(sensor_size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) of the bins for a sensor (width, height): its own, or scaled so that the longer side is 64.

    The aspect ratio is kept to the nearest pixel; no side is less than the network can take.
    """
    width, height = sensor_size
    least, most = GRID_SIDES  # a clip of 128×128 takes about four times as long on a CPU as one of 64×64
    scale = min(1.0, most / max(width, height))
    return max(least, round(height * scale)), max(least, round(width * scale))


def with_grid(data: DataSettings, sensor_size: tuple[int, int]) -> DataSettings:
    """The settings with the sensor's grid where they have none."""
    return data if data.grid is not None else replace(data, grid=grid_for(sensor_size))


def resolved_grid(data: DataSettings) -> tuple[int, int]:
    """(height, width) of the bins, of settings that have a grid."""
    if data.grid is None:
        raise ConfigError("data.grid: expected one int or two, got null, and no data was opened", field="data.grid")
    return data.grid


def describe_grid(data: DataSettings, sensor_size: tuple[int, int]) -> str:
    """The chosen grid as a log line."""
    (height, width), (columns, rows) = resolved_grid(data), sensor_size
    return f"data.grid: {height}×{width} bins (height×width), from the {rows}×{columns} sensor"
