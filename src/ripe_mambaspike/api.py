"""Functions that span several packages, for the top level of the package."""

from pathlib import Path

from ripe_mambaspike.deploy.export.run import is_export, load_export
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.region import Crop, Size
from ripe_mambaspike.inference.classifier import Classifier, load_network


def load(
    path: str | Path,
    *,
    time_steps: int | None = None,
    grid: int | None = None,
    sensor_size: Size | None = None,
    crop: Crop | None = None,
    device: str | None = None,
    trust: bool = False,
) -> Classifier:
    """A trained network with its class names and its binning, for `predict` and `Streamer`.

    `path` is the folder of a run (its best network is taken), of a saved network in any form, or of an export. The
    binning is that of training unless `time_steps`, `grid`, `sensor_size` (width, height) or `crop` (x, y, width,
    height) say otherwise. `device` is "cpu" (the default), "cuda" or "auto". `trust` opens an export that carries code,
    and runs that code.
    """
    if not is_export(Path(path)):
        return load_network(path, time_steps=time_steps, grid=grid, sensor_size=sensor_size, crop=crop, device=device)
    if device is not None:
        raise InputError(f"device: expected none for the export in {path}, got {device}", field="device")
    return load_export(path, time_steps=time_steps, grid=grid, sensor_size=sensor_size, crop=crop, trust=trust)
