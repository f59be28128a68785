"""Sizes that a recipe leaves to the data: `data.grid: null` is the sensor's, scaled down where it is large."""

from dataclasses import replace

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.config import MIN_SIDE
from ripe_mambaspike.train.recipe import DataSettings, Recipe

MAX_SIDE = 64  # of a grid taken from the data; a clip of 128×128 takes about four times as long on a CPU


def grid_for(sensor_size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) of the bins for a sensor (width, height): its own, or smaller with the longer side at MAX_SIDE.

    The aspect is kept to the nearest pixel; no side is less than the network can take.
    """
    width, height = sensor_size
    scale = min(1.0, MAX_SIDE / max(width, height))
    return max(MIN_SIDE, round(height * scale)), max(MIN_SIDE, round(width * scale))


def with_sizes(data: DataSettings, sensor_size: tuple[int, int]) -> DataSettings:
    """The settings with what they leave to the data filled in."""
    return data if data.grid is not None else replace(data, grid=grid_for(sensor_size))


def with_sizes_of(recipe: Recipe, saved: Recipe) -> Recipe:
    """The recipe with what it leaves to the data as a run of it had saved them: compared, the two are then the same."""
    if recipe.data.grid is not None:
        return recipe
    return replace(recipe, data=replace(recipe.data, grid=saved.data.grid))


def settled_grid(data: DataSettings) -> tuple[int, int]:
    """(height, width) of the bins, of settings that leave nothing to the data."""
    if data.grid is None:
        raise ConfigError("data.grid: expected one int or two, got null, and no data was opened", field="data.grid")
    return data.grid


def describe_grid(data: DataSettings, sensor_size: tuple[int, int]) -> str:
    """What was chosen, as a run says it."""
    (height, width), (across, down) = settled_grid(data), sensor_size
    return f"data.grid: {height}×{width} bins (height×width), taken from the {down}×{across} sensor"
