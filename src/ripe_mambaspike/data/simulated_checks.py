"""Checks of the options of a simulated dataset."""

from pathlib import Path

from ripe_mambaspike.data.augment.checks import check_number, check_whole
from ripe_mambaspike.data.sets.preparations import PREPARATIONS
from ripe_mambaspike.data.sets.registry import datasets
from ripe_mambaspike.errors import ConfigError

MIN_SENSOR_SIDE, MAX_SENSOR_SIDE = 8, 1024  # of the sensor's side
MIN_SECONDS, MAX_SECONDS = 0.1, 10.0  # seconds of a gesture


def check_made(
    name: str, images: str | Path | None, size: int | None, seed: int, variation: float
) -> tuple[int, int, float]:
    """Side, seed and variation."""
    known = {one.name: one for one in datasets().values() if one.simulated}
    if name not in known:
        raise ConfigError.expected("dataset", f"one of {', '.join(known)}", repr(name))
    prepared = PREPARATIONS[name]
    if images is None and prepared.needs_pictures:
        raise ConfigError.expected("images", f"{known[name].files} for {name}", "none")
    if images is not None and not prepared.needs_pictures:
        raise ConfigError.expected("images", f"no pictures for {name}", str(images))
    side = prepared.side if size is None else size
    check_whole("size", side, MIN_SENSOR_SIDE, MAX_SENSOR_SIDE)
    check_number("variation", variation, 10)
    check_whole("seed", seed, 0, (1 << 63) - 1)
    return side, seed, float(variation)


def duration_us(name: str, seconds: float | None) -> int:
    """Of a gesture's clip, in µs."""
    if seconds is None:
        return PREPARATIONS[name].duration_us
    if PREPARATIONS[name].needs_pictures:
        raise ConfigError.expected("seconds", f"none for {name}, which lasts as long as the camera moves", seconds)
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise ConfigError.expected("seconds", f"a number from {MIN_SECONDS} to {MAX_SECONDS}", seconds)
    return round(seconds * 1e6)
