"""Learning people's faces from one or few recordings: a stand-in for a user's own set of a task that no start knows.

Caltech101's pictures `Faces_easy` show about twenty people, eighteen or more pictures of each in a row, in other
places and light. Pictures of seven people are shown to the simulated camera under three saccades, on a sensor of 48×48.
In each draw, some recordings of every person are trained on by `ripe train few`, and all others are tested; beside it
stands what needs no training, the person of the most similar recording by counts of events. There are two groups of
seven people: settings are tried on `tried` alone, and results are given of `reported`.

Usage: python benchmarks/few_faces.py --pictures DIR-or-ZIP --out DIR [--group reported] [--counts 1 5] [--draws 3]
       [--set FIELD=VALUE …]
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ripe_mambaspike import load_recipe, train
from ripe_mambaspike.data.pictures import find_pictures, read_pictures
from ripe_mambaspike.errors import DataError, RipeError
from ripe_mambaspike.events.recording import Events, Recording
from ripe_mambaspike.events.simulate.fitted import load_calibration, simulate_pictures
from ripe_mambaspike.events.simulate.saccades import scale_saccades
from ripe_mambaspike.events.writing import write
from ripe_mambaspike.files import write_file
from ripe_mambaspike.train.callback import SilentCallback
from ripe_mambaspike.train.recipes import with_settings

CLASS = "Faces_easy"
SENSOR = 48
SHOWN = 1.25  # side of a picture over that of the sensor, so that its border is not seen
PEOPLE = {  # first and last number of each person's pictures
    "tried": ((47, 68), (69, 89), (90, 112), (113, 132), (138, 158), (174, 193), (194, 214)),
    "reported": ((22, 41), (215, 239), (240, 261), (267, 285), (286, 305), (326, 345), (346, 365)),
}


def recordings_of(source: Path, group: str) -> list[list[Events]]:
    """The simulated recordings of every person."""
    found = find_pictures(source)
    if CLASS not in found.classes:
        raise DataError.expected("pictures", f"Caltech101 with the class {CLASS}", "others", path=source)
    label = found.classes.index(CLASS)
    listed = {one.number: one for one in found.listed if one.label == label}
    made = []
    for first, last in PEOPLE[group]:
        numbers = range(first, last + 1)
        pictures = read_pictures(found.source, [listed[number] for number in numbers])
        made.append([events for number, one in zip(numbers, pictures, strict=True) for events in shown(one, number)])
    return made


def shown(picture: NDArray[np.float32], seed: int) -> list[Events]:
    """One recording of a picture, under the saccades of N-MNIST."""
    camera = load_calibration()
    side = min(picture.shape)
    square = torch.from_numpy(picture[:side, :side].copy())
    scale = SHOWN * SENSOR / side
    saccades = replace(scale_saccades(camera.saccades, SENSOR / 34), scale=(scale, scale), blur=0.5 / scale)
    return simulate_pictures(square[None], replace(camera, saccades=saccades), [seed], size=(SENSOR, SENSOR))


class Shown(NamedTuple):
    """One recording of a draw."""

    person: int
    number: int
    trained: bool  # or tested
    events: Events


def drawn(people: Sequence[Sequence[Events]], count: int, draw: int) -> list[Shown]:
    """All recordings, `count` of every person for training."""
    found = []
    for person, events in enumerate(people):
        order = np.random.default_rng([draw, person]).permutation(len(events)).tolist()
        found += [Shown(person, number, place < count, events[number]) for place, number in enumerate(order)]
    return found


def save(recordings: Sequence[Shown], folder: Path) -> None:
    """train/PERSON and test/PERSON."""
    for one in recordings:
        path = folder / ("train" if one.trained else "test") / f"person-{one.person}" / f"{one.number:02d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(Recording(one.events, (SENSOR, SENSOR)), path)


def nearest_neighbor(recordings: Sequence[Shown]) -> float:
    """Top-1 in percent of the person of the training recording whose counts of events correlate most."""
    counts = np.stack([event_counts(one.events) for one in recordings])
    trained, people = (np.array([getattr(one, name) for one in recordings]) for name in ("trained", "person"))
    answers = people[trained][(counts[~trained] @ counts[trained].T).argmax(1)]
    return 100 * float((answers == people[~trained]).mean())


def event_counts(events: Events) -> NDArray[np.float64]:
    """Events of each pixel, with mean 0 and norm 1."""
    counts = np.bincount(events["y"].astype(np.int64) * SENSOR + events["x"], minlength=SENSOR**2).astype(np.float64)
    counts -= counts.mean()
    return counts / max(float(np.linalg.norm(counts)), 1e-12)


def measure(people: Sequence[Sequence[Events]], count: int, draw: int, given: argparse.Namespace) -> float:
    """Top-1 in percent of one draw; what has ended is not run again."""
    name = f"{given.group}-{count}-{draw}"
    data, run = given.out / "data" / name, given.out / "runs" / name
    recordings = drawn(people, count, draw)
    if not data.exists():
        save(recordings, data)
    settings = [f"data.root={data}", f"run.seed={draw}", *given.set]
    result = train(with_settings(load_recipe(given.recipe), settings), run, resume=True, callback=SilentCallback())
    top1, nearest = 100 * (result.top1 or 0), nearest_neighbor(recordings)
    print(f"{name}: {top1:.1f} % of {result.n}, {result.seconds:.0f} s; nearest neighbor {nearest:.1f} %", flush=True)
    return top1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, required=True, help="Caltech101, a folder or a zip file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--group", choices=list(PEOPLE), default="tried")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 5], help="training recordings of each person")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--recipe", default="few")
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="fields of the recipe")
    given = parser.parse_args()
    try:
        people = recordings_of(given.pictures, given.group)
        found = {n: [measure(people, n, draw, given) for draw in range(given.draws)] for n in given.counts}
    except RipeError as error:
        parser.error(str(error))
    write_file(given.out / f"{given.group}.json", json.dumps(found, indent=1).encode() + b"\n")
    for count, values in found.items():
        each = ", ".join(f"{value:.1f}" for value in values)
        print(f"{count} of each person: {statistics.mean(values):.1f} % ({each})")


if __name__ == "__main__":
    main()
