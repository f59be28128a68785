"""What may be asked of a simulated set."""

from pathlib import Path

from ripe_mambaspike.data.sets.registry import SIMULATED
from ripe_mambaspike.data.sets.simulated import GESTURES
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.events.simulate.gestures import DURATION_US

SENSOR_SIDES = {"sim-nmnist": 34, "sim-cifar10": 128, "sim-caltech101": 128, GESTURES: 64}
MIN_SENSOR_SIDE, MAX_SENSOR_SIDE = 8, 1024  # of the sensor's side
MIN_SECONDS, MAX_SECONDS = 0.1, 10.0  # seconds of a gesture


def check_made(
    name: str, images: str | Path | None, size: int | None, seed: int, variation: float
) -> tuple[int, int, float]:
    """Side, seed and variation."""
    if name not in SIMULATED:
        raise ConfigError(f"there is no simulated set '{name}'; one of {', '.join(SIMULATED)} is wanted")
    if images is None and name != GESTURES:
        raise ConfigError(f"{name} shows pictures and none were given; --images with {SIMULATED[name].files} is wanted")
    if images is not None and name == GESTURES:
        raise ConfigError(f"--images is {images}; {name} shows none, so leave it out")
    side = SENSOR_SIDES[name] if size is None else size
    if not MIN_SENSOR_SIDE <= side <= MAX_SENSOR_SIDE:
        raise ConfigError(f"--size is {side}; a whole number from {MIN_SENSOR_SIDE} to {MAX_SENSOR_SIDE} is wanted")
    if not 0 <= variation <= 10:
        raise ConfigError(f"--variation is {variation}; a number from 0 to 10 is wanted")
    if not 0 <= seed < 1 << 63:
        raise ConfigError(f"--seed is {seed}; a whole number from 0 to 2⁶³ − 1 is wanted")
    return side, seed, float(variation)


def duration_us(name: str, seconds: float | None) -> int:
    """Of a gesture's clip, in µs."""
    if seconds is None:
        return DURATION_US
    if name != GESTURES:
        raise ConfigError(f"--seconds is {seconds}; the recordings of {name} last as long as the camera's movement")
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise ConfigError(f"--seconds is {seconds}; a number from {MIN_SECONDS} to {MAX_SECONDS} is wanted")
    return round(seconds * 1e6)
