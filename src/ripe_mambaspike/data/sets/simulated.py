"""The simulated datasets: their clips and splits. Their recordings are made by `ripe sim make`.

A stand-in has the names and the split of the original dataset as far as the pictures allow, but none of its splits
counts as published.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ripe_mambaspike.data.listing import (
    SPLITS,
    TEST,
    TRAIN,
    Clip,
    Listing,
    hold_out_validation,
    make_listing,
)
from ripe_mambaspike.data.pictures import Picture, Pictures
from ripe_mambaspike.data.sets import cifar10dvs, nmnist
from ripe_mambaspike.data.sets.registry import register_simulated
from ripe_mambaspike.data.store_index import key_of
from ripe_mambaspike.errors import ConfigError, DataError

register_simulated(
    "synthgesture", title="simulated gestures (default)", partitions=("people",), sizes="1320/440", sensor="64×64",
    files="no pictures",
)  # fmt: skip
register_simulated(
    "sim-nmnist", title="simulated stand-in of N-MNIST", partitions=("folders",), sizes="60000/10000", sensor="34×34",
    files="MNIST's IDX files",
)  # fmt: skip
register_simulated(
    "sim-cifar10", title="simulated stand-in of CIFAR10-DVS", partitions=("first-100",), sizes="9000/1000",
    sensor="128×128", files="train/CLASS/N.jpg, test/CLASS/N.jpg",
)  # fmt: skip
register_simulated(
    "sim-caltech101", title="simulated stand-in of N-Caltech101", partitions=("first-90",), sizes="7857/820",
    sensor="128×128", files="CLASS/image_NNNN.jpg",
)  # fmt: skip
VERSION = 1  # increased when the same recipe gives different recordings
DIGITS = nmnist.CLASSES
FOLDERS = {TRAIN: "Train", TEST: "Test"}
GESTURES = "synthgesture"
GESTURE_COUNTS = {"train": 1100, "val": 220, "test": 440}
MAX_CLIPS = 10_000_000  # clips of a part


@dataclass(frozen=True)
class SimulationPlan:
    """A dataset to simulate: its clips in order, and the picture that each shows, if any."""

    listing: Listing
    pictures: tuple[Picture, ...]


Rows = list[tuple[Clip, str, Picture]]  # clip, part, what it shows


def plan_digits(found: Pictures) -> tuple[tuple[str, ...], str, Rows]:
    """N-MNIST's clips: recording NNNNN is picture NNNNN − 1; the test split is MNIST's."""
    if not set(found.classes) <= set(DIGITS):
        raise DataError.expected("images", "classes 0 to 9", repr(found.classes[-1]), path=found.source)
    if {picture.part for picture in found.listed} != {TRAIN, TEST}:
        raise DataError.expected("images", "MNIST's train and test parts", "others", path=found.source)
    clips, parts, seen = [], [], {TRAIN: 0, TEST: 0}
    for picture in found.listed:
        seen[picture.part] += 1
        digit = found.classes[picture.label]
        clips.append(Clip(f"{FOLDERS[picture.part]}/{digit}/{seen[picture.part]:05d}", int(digit)))
        parts.append(picture.part)
    return DIGITS, "folders", _with_validation("nmnist", clips, parts, found.listed)


def plan_cifar(found: Pictures) -> tuple[tuple[str, ...], str, Rows]:
    """CIFAR10-DVS's clips: 1000 per class, of which the first 100 are tested. If the pictures have a test split, it is
    numbered first, so that it becomes the test split."""
    if found.classes != cifar10dvs.CLASSES:
        missing = [name for name in cifar10dvs.CLASSES if name not in found.classes] or sorted(
            set(found.classes) - set(cifar10dvs.CLASSES)
        )
        got = f"{len(found.classes)} classes ({missing[0]} is different)"
        raise DataError.expected("images", "CIFAR-10's ten classes", got, path=found.source)
    split = any(picture.part for picture in found.listed)
    tested, trained = cifar10dvs.TEST_CLIPS_PER_CLASS, cifar10dvs.CLIPS_PER_CLASS - cifar10dvs.TEST_CLIPS_PER_CLASS
    clips, parts, shown = [], [], []
    whole = True
    for label, name in enumerate(found.classes):
        own = [picture for picture in found.listed if picture.label == label]
        if split:
            first = [picture for picture in own if picture.part == TEST][:tested]
            rest = [picture for picture in own if picture.part != TEST][:trained]
        else:
            own = own[: cifar10dvs.CLIPS_PER_CLASS]
            tenth = -(-len(own) // 10)
            first, rest = own[:tenth], own[tenth:]
        whole = whole and (len(first), len(rest)) == (tested, trained)
        for number, picture in enumerate([*first, *rest]):
            clips.append(Clip(f"cifar10_{name}_{number}", label))
            parts.append(TEST if number < len(first) else TRAIN)
            shown.append(picture)
    partition_name = "first-100" if whole else "folders" if split else "first-tenth"
    return found.classes, partition_name, _with_validation("cifar10dvs", clips, parts, shown)


def plan_caltech(found: Pictures) -> tuple[tuple[str, ...], str, Rows]:
    """N-Caltech101's clips: the first ⌈0.9 n⌉ of each class by number are the training split."""
    if any(picture.part for picture in found.listed):
        raise DataError.expected("images", "class/picture without a split", "train and test folders", path=found.source)
    clips, parts = [], []
    for label, name in enumerate(found.classes):
        own = [picture for picture in found.listed if picture.label == label]
        trained = -(-9 * len(own) // 10)
        parts += [TRAIN] * trained + [TEST] * (len(own) - trained)
        for picture in own:
            stem = picture.member.rsplit("/", 1)[-1].rsplit(".", 1)[0]
            clips.append(Clip(f"{name}/{stem if picture.number < 0 else f'image_{picture.number:04d}'}", label))
    return found.classes, "first-90", _with_validation("ncaltech101", clips, parts, found.listed)


PLANS = {"sim-nmnist": plan_digits, "sim-cifar10": plan_cifar, "sim-caltech101": plan_caltech}
FULL_SIZES = {"sim-nmnist": 70_000, "sim-cifar10": 10_000, "sim-caltech101": 8_677}


def plan_pictures(name: str, found: Pictures, counts: Mapping[str, int | None]) -> SimulationPlan:
    """The clips of a dataset of pictures; `counts` limits the clips of each split, alternating between classes."""
    classes, partition_name, rows = PLANS[name](found)
    notes = (
        [f"{len(rows):,} pictures are there; the whole set has {FULL_SIZES[name]:,}"]
        if len(rows) != FULL_SIZES[name]
        else []
    )
    there = {part: sum(1 for row in rows if row[1] == part) for part in SPLITS}
    for part, wanted in counts.items():
        if wanted is not None:
            _check_count(part, wanted, there[part])
            if wanted < there[part]:
                notes.append(f"{wanted:,} of the {there[part]:,} {part} clips were made")
    kept = _keep(rows, counts)
    listing = _listing(name, classes, partition_name, [(clip, part) for clip, part, _ in kept], notes)
    _check_names(listing, str(found.source))
    return SimulationPlan(listing, tuple(picture for _, _, picture in kept))


def plan_gestures(classes: Sequence[str], counts: Mapping[str, int | None]) -> SimulationPlan:
    """The gesture dataset; classes alternate in every split."""
    rows = []
    for part in SPLITS:
        wanted = counts.get(part)
        number = GESTURE_COUNTS[part] if wanted is None else wanted
        _check_count(part, number, MAX_CLIPS)
        rows += [(Clip(f"{part}/{n:05d}_{classes[n % len(classes)]}", n % len(classes)), part) for n in range(number)]
    return SimulationPlan(_listing(GESTURES, tuple(classes), "people", rows, []), ())


def _with_validation(salt: str, clips: Sequence[Clip], parts: Sequence[str], shown: Sequence[Picture]) -> Rows:
    """Hold out validation clips as the original dataset does, unless the pictures have their own validation split."""
    own = [picture.part for picture in shown]
    if "val" in own:
        parts = [kept if kept == "val" and part == TRAIN else part for kept, part in zip(own, parts, strict=True)]
    else:
        parts = hold_out_validation(salt, clips, parts)
    return list(zip(clips, parts, shown, strict=True))


def _keep(rows: Rows, counts: Mapping[str, int | None]) -> Rows:
    """Limit the clips of each split, keeping their order."""
    turns: dict[tuple[str, int], int] = {}
    order = []
    for index, (clip, part, _) in enumerate(rows):
        turn = turns[part, clip.label] = turns.get((part, clip.label), 0) + 1
        order.append((turn, clip.label, index))
    kept: list[int] = []
    for part in SPLITS:
        members = sorted(each for each in order if rows[each[2]][1] == part)
        kept += [index for _, _, index in members[: counts.get(part)]]
    return [rows[index] for index in sorted(kept)]


def _listing(
    name: str, classes: tuple[str, ...], partition_name: str, rows: Sequence[tuple[Clip, str]], notes: Sequence[str]
) -> Listing:
    if missing := [part for part in SPLITS if part not in {part for _, part in rows}]:
        raise DataError.expected("images", f"pictures for {missing[0]} clips of {name}", "too few")
    named = ((clip.name, clip.name, clip.label, part) for clip, part in rows)
    return make_listing(
        name, classes, named, partition_name, notes=("every recording of this set is simulated", *notes)
    )


def _check_names(listing: Listing, source: str) -> None:
    seen: set[str] = set()
    for clip in listing.clips:
        if clip.name in seen:
            raise DataError.expected("images", "a number once in a class", f"'{clip.name}' twice", path=source)
        seen.add(clip.name)


def _check_count(part: str, wanted: int, there: int) -> None:
    if not 1 <= wanted <= there:
        raise ConfigError.expected(part, f"an int from 1 to {there}", wanted)


def recipe_key(
    recipe: Mapping[str, Any],
    classes: Sequence[str],
    clips: Sequence[tuple[str, int]],
    partitions: Mapping[str, Sequence[Any]],
) -> str:
    """The key of a recipe's store, a hash of values that are all in the store's index."""
    return key_of({"recipe": recipe, "classes": list(classes), "clips": clips, "cuts": partitions})
