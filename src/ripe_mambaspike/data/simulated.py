"""Make a simulated dataset: plan its clips, simulate them with the calibrated camera, store them like recordings.

A clip depends only on the recipe, its own name and its own picture, so a smaller dataset has the same clips.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.data.building import Progress, ShardNote, ShardTask, build_store, locked_folder, write_shard
from ripe_mambaspike.data.known_stores import check_known
from ripe_mambaspike.data.listing import Clip, Listing
from ripe_mambaspike.data.pictures import Picture, find_pictures, pad_to_square, picture_checksums, read_pictures
from ripe_mambaspike.data.sets.preparations import PREPARATIONS, set_difficulty
from ripe_mambaspike.data.sets.registry import STORE
from ripe_mambaspike.data.sets.simulated import SimulationPlan, plan_gestures, plan_pictures, recipe_key
from ripe_mambaspike.data.simulated_checks import check_made, duration_us
from ripe_mambaspike.data.simulation_recipe import SimulationRecipe, describe_simulation
from ripe_mambaspike.data.store import EventStore, make_current, to_stored
from ripe_mambaspike.data.store_index import describe_listing, describe_partitions
from ripe_mambaspike.data.workers import Workers
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.events.recording import Events
from ripe_mambaspike.events.simulate.difficulty import GestureDifficulty, PictureDifficulty, SceneVariety
from ripe_mambaspike.events.simulate.exact.pictures import ShownPicture, simulate_exact_pictures
from ripe_mambaspike.events.simulate.fitted import (
    GESTURE_PIXEL,
    fitted_to,
    load_calibration,
    simulate_pictures,
)
from ripe_mambaspike.events.simulate.gestures import CLASSES, draw_clip, render
from ripe_mambaspike.events.simulate.gestures.camera import load_gesture_camera
from ripe_mambaspike.events.simulate.gestures.hard import draw_hard_clip, simulate_hard_gestures
from ripe_mambaspike.events.simulate.gestures.lifelike import (
    Exposure,
    draw_lifelike_clip,
    simulate_lifelike_gestures,
)
from ripe_mambaspike.events.simulate.gestures.other_motions import with_motion
from ripe_mambaspike.events.simulate.pixel import simulate_events

SHARD_PIXELS = 1 << 18  # of all the sensors of a shard
BATCH_PIXELS = 1 << 16  # of those simulated together
MAX_FRAME_PIXELS = 1 << 26  # pixels of all the frames of a batch, while they are rendered at once
WARM_UP_US = 100_000  # that pixels watch the scene before the clip begins


@dataclass(frozen=True)
class SimulatedShardTask(ShardTask):
    """Clips to simulate."""

    recipe: SimulationRecipe
    clips: tuple[Clip, ...]
    parts: tuple[str, ...]
    source: Path | None  # of the pictures
    pictures: tuple[tuple[Picture, ...], ...]

    @property
    def names(self) -> list[str]:
        return [clip.name for clip in self.clips]


def simulate_dataset(
    name: str,
    out: str | Path,
    *,
    images: str | Path | None = None,
    train: int | None = None,
    val: int | None = None,
    test: int | None = None,
    size: int | None = None,
    seconds: float | None = None,
    variation: float = 1.0,
    seed: int = 0,
    difficulty: Mapping[str, Any] | None = None,
    calibration: str | Path | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> EventStore:
    """The store of a simulated set in `out`, for `load_dataset(name, out, …)`; made if it is not there yet.

    `images` are the pictures to show, which every set but those of gestures needs; `train`, `val` and `test` are how
    many clips to make, the set's own numbers when not given; `size` is the sensor's side, `seconds` how long a gesture
    is watched; `difficulty` changes fields of `PictureDifficulty`, `GestureDifficulty` or `SceneVariety`. A set
    whose checksum ships is compared with it. With more than one worker, a script of yours needs the usual
    `if __name__ == "__main__":`.
    """
    report = progress or (lambda what, done, of: None)
    checked = check_made(name, images, size, seed, variation)
    how = set_difficulty(name, difficulty or {})
    watcher = load_gesture_camera(calibration) if isinstance(how, SceneVariety) else None
    camera = load_calibration(calibration if watcher is None else None)
    if not PREPARATIONS[name].needs_pictures and calibration is None:
        camera = replace(camera, pixel=GESTURE_PIXEL)
    recipe = SimulationRecipe(name, *checked, camera, duration_us(name, seconds), how, watcher)
    counts = {"train": train, "val": val, "test": test}
    if images is None:
        source, planned = None, plan_gestures(name, counts)
    else:
        found = find_pictures(images)
        shown = how if isinstance(how, PictureDifficulty) else None
        source, planned = found.source, plan_pictures(name, found, counts, shown)
    listing = replace(planned.listing, sensor_size=recipe.size)
    # Unusable pictures are found before anything is written.
    every = _once(planned.pictures)
    groups = [every[start : start + 256] for start in range(0, len(every), 256)]
    digest = hashlib.sha256()
    with Workers(workers) as run:
        for done, checksums in enumerate(run.map(partial(picture_checksums, source or Path()), groups), 1):
            digest.update("".join(checksums).encode())
            report("reading the pictures", done, len(groups))
        description = describe_simulation(recipe, digest.hexdigest() if source else None)
        key = recipe_key(
            description,
            listing.classes,
            [(clip.name, clip.label) for clip in listing.clips],
            describe_partitions(listing),
        )
        with locked_folder(Path(out) / STORE, name) as home:
            made = build_store(
                home / key,
                run,
                partial(plan_simulated_shards, recipe, planned, source),
                simulate_shard,
                partial(_index, listing, description),
                partial(report, "simulating"),
            )
            check_known(made)
            return make_current(home / key)


def _index(listing: Listing, recipe: dict[str, Any], notes: list[ShardNote]) -> dict[str, Any]:
    """The index entries of the dataset; its source is the recipe."""
    source: dict[str, Any] = {"sources": {}, "simulated": True, "recipe": recipe}
    return {**describe_listing(listing), "sensor_size": listing.sensor_size, "troubles": [], **source}


def plan_simulated_shards(
    recipe: SimulationRecipe, planned: SimulationPlan, source: Path | None, folder: Path
) -> list[SimulatedShardTask]:
    """Shards of about the same size."""
    clips = planned.listing.clips
    (partition,) = planned.listing.partitions.values()
    each = recipe.group(SHARD_PIXELS)
    tasks = []
    for number, start in enumerate(range(0, len(clips), each)):
        span = slice(start, start + each)
        shown = planned.pictures[span]
        tasks.append(SimulatedShardTask(number, folder, recipe, clips[span], partition.parts[span], source, shown))
    return tasks


def simulate_shard(task: SimulatedShardTask) -> None:
    """Simulate the clips of one shard and write it. On one thread, so that the bytes are the same everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made = [events for batch in _batches(task) for events in batch]
    finally:
        torch.set_num_threads(threads)
    for clip, events in zip(task.clips, made, strict=True):
        if not len(events):
            raise DataError.expected(clip.name, "a picture with contrast, or a pixel with noise", "no events")
    clips = [
        {"name": clip.name, "label": clip.label, "events": len(events), "start_us": 0}
        for clip, events in zip(task.clips, made, strict=True)
    ]
    write_shard(task, [to_stored(events, 0) for events in made], clips)


def clip_seed(seed: int, name: str) -> int:
    """A clip's own seed; its name contains its split and number."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode("utf-8", "surrogateescape")).digest()[:8]) >> 1


def _batches(task: SimulatedShardTask) -> Iterator[list[Events]]:
    each = task.recipe.group(BATCH_PIXELS)
    for start in range(0, len(task.clips), each):
        span = slice(start, start + each)
        seeds = [clip_seed(task.recipe.seed, clip.name) for clip in task.clips[span]]
        if task.source is None:
            yield _gestures(task.recipe, task.clips[span], task.parts[span], seeds)
            continue
        shown = task.pictures[span]
        own = _once(shown)
        read = dict(zip(own, read_pictures(task.source, own), strict=True))
        yield _saccades(task.recipe, [[read[picture] for picture in pictures] for pictures in shown], seeds)


def _once(shown: Sequence[Sequence[Picture]]) -> list[Picture]:
    """The pictures of some clips, each once, in order."""
    return list(dict.fromkeys(picture for pictures in shown for picture in pictures))


def _gestures(
    recipe: SimulationRecipe, clips: Sequence[Clip], parts: Sequence[str], seeds: Sequence[int]
) -> list[Events]:
    prepared = PREPARATIONS[recipe.name]
    unseen = [None if prepared.motions is None else prepared.gestures[clip.label] for clip in clips]
    labels = [clip.label if motion is None else len(CLASSES) - 1 for clip, motion in zip(clips, unseen, strict=True)]
    if isinstance(how := recipe.difficulty, GestureDifficulty):
        hard = [
            draw_hard_clip(label, seed, part, recipe.duration_us, how)
            for label, seed, part in zip(labels, seeds, parts, strict=True)
        ]
        hard = [
            one if motion is None else replace(one, clip=with_motion(one.clip, motion))
            for one, motion in zip(hard, unseen, strict=True)
        ]
        return simulate_hard_gestures(
            hard, recipe.calibration, recipe.size, recipe.step_us, WARM_UP_US, seeds, how.noise_hz, recipe.variation
        )
    duration = recipe.duration_us
    if isinstance(how, SceneVariety) and recipe.camera is not None:
        lifelike = [
            draw_lifelike_clip(label, seed, part, duration, how)
            for label, seed, part in zip(labels, seeds, parts, strict=True)
        ]
        lifelike = [
            one if motion is None else with_motion(one, motion) for one, motion in zip(lifelike, unseen, strict=True)
        ]
        seen = Exposure(recipe.size, duration, recipe.step_us, WARM_UP_US)
        return simulate_lifelike_gestures(lifelike, recipe.camera, seen, seeds, recipe.variation)
    drawn = [
        replace(draw_clip(clip.label, seed, part), duration_us=duration)
        for clip, seed, part in zip(clips, seeds, parts, strict=True)
    ]
    first = -(WARM_UP_US // recipe.step_us) * recipe.step_us
    times = torch.arange(first, duration + recipe.step_us, recipe.step_us).clamp(max=duration).double()
    whole = len(times) * len(drawn) * recipe.side**2 <= MAX_FRAME_PIXELS
    frames = render(drawn, times, recipe.size) if whole else None

    def scene(at: Tensor) -> Tensor:
        """Light at some of the times; rendered together where memory allows, which is quicker."""
        return render(drawn, at, recipe.size) if frames is None else frames[:, torch.searchsorted(times, at)]

    common: dict[str, Any] = {"step_us": recipe.step_us, "factors": _factors(recipe, seeds), "warm_us": WARM_UP_US}
    return simulate_events(scene, recipe.calibration.pixel, recipe.size, duration, seeds, **common)


def _factors(recipe: SimulationRecipe, seeds: Sequence[int]) -> Tensor:
    """Of the thresholds of each clip, ON and OFF [B, 2], varying as the calibration says."""
    by = recipe.calibration.variation
    drawn = [torch.randn(2, generator=torch.Generator().manual_seed(seed ^ 0x6E57)) for seed in seeds]
    common, tilt = (torch.stack(drawn).clamp(-3, 3) * recipe.variation).unbind(1)
    common, tilt = by.threshold * common, by.balance / 2 * tilt
    return torch.stack([common + tilt, common - tilt], 1).exp()


def _saccades(
    recipe: SimulationRecipe, shown: Sequence[Sequence[NDArray[np.float32]]], seeds: Sequence[int]
) -> list[Events]:
    """Clips of one or more pictures each, in order; without a difficulty of one, in batches of the same size."""
    if isinstance(how := recipe.difficulty, PictureDifficulty):
        clips = [[_shown_picture(picture) for picture in pictures] for pictures in shown]
        return simulate_exact_pictures(clips, recipe.calibration, how, recipe.side, seeds, recipe.variation)
    pictures = [own for own, *_ in shown]
    made: dict[int, Events] = {}
    alike: dict[tuple[int, int], list[int]] = {}
    squares = [pad_to_square(picture) for picture in pictures]
    for index, (picture, square) in enumerate(zip(pictures, squares, strict=True)):
        alike.setdefault((max(picture.shape), len(square)), []).append(index)
    for (cells, _), members in alike.items():
        batch = torch.from_numpy(np.stack([squares[index] for index in members]))
        calibration = replace(recipe.calibration, saccades=fitted_to(recipe.calibration.saccades, recipe.side, cells))
        chosen = [seeds[index] for index in members]
        events = simulate_pictures(batch, calibration, chosen, size=recipe.size, variation=recipe.variation)
        made |= dict(zip(members, events, strict=True))
    return [made[index] for index in range(len(pictures))]


def _shown_picture(picture: NDArray[np.float32]) -> ShownPicture:
    return ShownPicture(np.rint(255 * pad_to_square(picture)).astype(np.uint8), max(picture.shape))
