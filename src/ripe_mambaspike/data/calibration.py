"""Fitting the simulated camera to real recordings of known pictures, and comparing it on recordings it has not seen."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ripe_mambaspike.data.listing import TEST
from ripe_mambaspike.data.pictures import Picture, find_pictures, read_pictures
from ripe_mambaspike.data.sets.registry import list_dataset
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.events.reading import read
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.simulate.calibrate import fit_camera
from ripe_mambaspike.events.simulate.compare import compare_recordings, unmet_targets
from ripe_mambaspike.events.simulate.fitted import load_calibration, save_calibration, simulate_pictures
from ripe_mambaspike.events.simulate.report import write_comparison
from ripe_mambaspike.events.simulate.smooth import FitOptions

CALIBRATION_FILE = "calibration.json"
SENSOR = (34, 34)  # of N-MNIST
FIRST_TWIN_SEED = 1_000_000
MAX_ROUNDS = 100_000
Report = Callable[..., None]


class RecordedPictures(NamedTuple):
    """Recordings, the pictures they show, and their labels."""

    events: list[Events]
    pictures: Tensor  # [N, 28, 28], values 0 to 1
    labels: list[int]


def calibrate_camera(
    real: Path, images: Path, out: Path, *, rounds: int = 240, keep: bool = False, progress: Report = lambda *_: None
) -> dict[str, Any]:
    """Fit pixel and saccades on two thirds of 600 N-MNIST recordings, compare on the other third, and report in `out`.

    `real` holds Train/DIGIT/NNNNN.bin, `images` MNIST's IDX files. `keep` fits nothing and compares the parameters that
    ship. Returns the comparison as a JSON document.
    """
    if not 1 <= rounds <= MAX_ROUNDS:
        raise ConfigError.expected("rounds", f"1 to {MAX_ROUNDS}", rounds)
    fitted, held_out = read_recorded_pictures(real, images)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError.expected("out", "a folder that can be made", error, path=out) from error
    if keep:
        camera = load_calibration()
    else:
        camera = fit_camera(fitted.events, fitted.pictures, how=FitOptions(rounds=rounds), report=progress)
    save_calibration(camera, out / CALIBRATION_FILE)
    seeds = [FIRST_TWIN_SEED + index for index in range(len(held_out.events))]
    twins = simulate_pictures(held_out.pictures, camera, seeds)
    compared = compare_recordings(held_out.events, twins, held_out.labels, SENSOR, camera.saccades.duration_us)
    write_comparison(compared, held_out.events, twins, held_out.pictures, held_out.labels, out)
    return {"calibration": str(out / CALIBRATION_FILE), **compared.document(), "missed": unmet_targets(compared)}


def read_recorded_pictures(real: Path, images: Path) -> tuple[RecordedPictures, RecordedPictures]:
    """The recordings to fit, and those to report on."""
    listing = list_dataset("nmnist-600", real)
    partition = next(iter(listing.partitions.values()))
    found = find_pictures(images)
    known = {picture.number: picture for picture in found.listed if picture.part == "train"}
    chosen: dict[bool, list[tuple[Path, Picture]]] = {True: [], False: []}
    for source, part in zip(listing.sources, partition.parts, strict=True):
        clip = source.clips[0]
        picture = known.get(int(clip.name.rsplit("/", 1)[1]) - 1)
        if picture is None or picture.label != clip.label:
            got = "none" if picture is None else f"one of a {picture.label}"
            raise DataError.expected("images", f"its picture in {images}", got, path=real / source.path)
        chosen[part == TEST].append((real / source.path, picture))
    for pairs in chosen.values():
        if len(pairs) < 2:
            raise DataError.expected("real", "2 recordings or more for each split", len(pairs), path=real)
    groups = []
    for pairs in (chosen[False], chosen[True]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            events = [read(path, sensor_size=SENSOR).events for path, _ in pairs]
        shown = [picture for _, picture in pairs]
        pictures = torch.from_numpy(np.stack(read_pictures(found.source, shown)))
        groups.append(RecordedPictures(events, pictures, [picture.label for picture in shown]))
    return groups[0], groups[1]
