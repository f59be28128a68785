"""The simulated datasets: their clips and splits. Their recordings are made by `ripe sim make`.

A stand-in has the names and the split of the original dataset as far as the pictures allow, but none of its splits
counts as published.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ripe_mambaspike.data.listing import (
    SPLITS,
    TEST,
    TRAIN,
    Clip,
    Listing,
    hash_rank,
    hold_out_validation,
    make_listing,
)
from ripe_mambaspike.data.pictures import Picture, Pictures
from ripe_mambaspike.data.sets import cifar10dvs, nmnist
from ripe_mambaspike.data.sets.preparations import PREPARATIONS
from ripe_mambaspike.data.sets.registry import register_simulated
from ripe_mambaspike.data.store_index import key_of
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.events.simulate.difficulty import PictureDifficulty

register_simulated(
    "synthgesture", title="simulated gestures (default)", partitions=("people",), sizes="1320/440", sensor="64×64",
    files="no pictures",
)  # fmt: skip
register_simulated(
    "sim-dvsgesture", title="simulated gestures as a DVS128 sees them", partitions=("people",), sizes="2530/660",
    sensor="128×128", files="no pictures",
)  # fmt: skip
register_simulated(
    "sim-dvsgesture-unseen", title="simulated motions that sim-dvsgesture never shows", partitions=("people",),
    sizes="180/320", sensor="128×128", files="no pictures",
)  # fmt: skip
register_simulated(
    "sim-nmnist", title="simulated stand-in of N-MNIST", partitions=("folders",), sizes="60000/10000", sensor="34×34",
    files="MNIST's IDX files",
)  # fmt: skip
CIFAR_FILES = "CIFAR-10's binary batches, or train/CLASS/N.jpg and test/CLASS/N.jpg"
register_simulated(
    "sim-cifar10", title="simulated, CIFAR-10's pictures", partitions=("first-100",), sizes="9000/1000",
    sensor="34×34", files=CIFAR_FILES,
)  # fmt: skip
register_simulated(
    "sim-cifar10-small", title="simulated, CIFAR-10's pictures, for a CPU", partitions=("first-100",), sizes="2500/500",
    sensor="24×24", files=CIFAR_FILES,
)  # fmt: skip
register_simulated(
    "sim-caltech101", title="simulated, Caltech101's pictures", partitions=("first-90",), sizes="7857/820",
    sensor="34×34", files="CLASS/image_NNNN.jpg",
)  # fmt: skip
register_simulated(
    "sim-caltech101-small", title="simulated, 26 classes of Caltech101, for a CPU", partitions=("first-90",),
    sizes="1742/208", sensor="24×24", files="CLASS/image_NNNN.jpg",
)  # fmt: skip
register_simulated(
    "gestures-hard", title="simulated gestures in hard scenes", partitions=("people",), sizes="2860/1100",
    sensor="48×48", files="no pictures",
)  # fmt: skip
register_simulated(
    "gestures-hard-unseen", title="simulated motions that gestures-hard never shows", partitions=("people",),
    sizes="180/320", sensor="48×48", files="no pictures",
)  # fmt: skip
register_simulated(
    "gestures-hard-small", title="simulated gestures in hard scenes, for a CPU", partitions=("people",),
    sizes="1760/440", sensor="32×32", files="no pictures",
)  # fmt: skip
VERSION = 1  # increased when the same recipe gives different recordings
DIGITS = nmnist.CLASSES
FOLDERS = {TRAIN: "Train", TEST: "Test"}
CALTECH_CLASSES = 101
BACKGROUND = "BACKGROUND_Google"  # of Caltech101's own folder; no kind of thing
MAX_CLIPS = 10_000_000  # clips of a part


@dataclass(frozen=True)
class SimulationPlan:
    """A dataset to simulate: its clips in order, and the picture that each shows, if any."""

    listing: Listing
    pictures: tuple[tuple[Picture, ...], ...]  # of each clip; none for gestures


Rows = list[tuple[Clip, str, Picture]]  # clip, part, what it shows
ClipRows = list[tuple[Clip, str, tuple[Picture, ...]]]  # with all pictures of the clip


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
    found = _with_classes(found, [name for name in found.classes if name != BACKGROUND])
    if len(found.classes) != CALTECH_CLASSES:
        got = f"{len(found.classes)} classes"
        raise DataError.expected("images", f"Caltech101's {CALTECH_CLASSES} classes", got, path=found.source)
    clips, parts = [], []
    for label, name in enumerate(found.classes):
        own = [picture for picture in found.listed if picture.label == label]
        trained = -(-9 * len(own) // 10)
        parts += [TRAIN] * trained + [TEST] * (len(own) - trained)
        for picture in own:
            stem = picture.member.rsplit("/", 1)[-1].rsplit(".", 1)[0]
            clips.append(Clip(f"{name}/{stem if picture.number < 0 else f'image_{picture.number:04d}'}", label))
    return found.classes, "first-90", _with_validation("ncaltech101", clips, parts, found.listed)


PLANS = {"digits": plan_digits, "cifar": plan_cifar, "caltech": plan_caltech}
FULL_SIZES = {"digits": 70_000, "cifar": 10_000, "caltech": 8_677}


def plan_pictures(
    name: str, found: Pictures, counts: Mapping[str, int | None], how: PictureDifficulty | None = None
) -> SimulationPlan:
    """The clips of a dataset of pictures; `counts` limits the clips of each split, alternating between classes."""
    prepared = PREPARATIONS[name]
    classes, partition_name, rows = PLANS[prepared.shows](found)
    whole = FULL_SIZES[prepared.shows]
    notes = [f"{len(rows):,} pictures are there; the whole set has {whole:,}"] if len(rows) != whole else []
    if prepared.min_pictures:
        classes, rows = _large_classes(classes, rows, prepared.min_pictures)
        notes.append(f"{len(classes)} classes have at least {prepared.min_pictures} pictures; the others are left out")
    every = _show_together(rows, how or PictureDifficulty())
    there = {part: sum(1 for row in every if row[1] == part) for part in SPLITS}
    limits: dict[str, int | None] = {}
    for part in SPLITS:
        wanted, default = counts.get(part), prepared.counts[part]
        limits[part] = default if wanted is None else wanted
        if wanted is not None:
            _check_count(part, wanted, there[part])
            if wanted < there[part]:
                notes.append(f"{wanted:,} of the {there[part]:,} {part} clips were made")
        elif default is not None and default > there[part]:
            expected = f"pictures for {default:,} {part} clips of {name}"
            raise DataError.expected("images", expected, f"{there[part]:,}", path=found.source)
    kept = _keep(every, limits)
    listing = _listing(name, classes, partition_name, [(clip, part) for clip, part, _ in kept], notes)
    _check_names(listing, str(found.source))
    return SimulationPlan(listing, tuple(pictures for _, _, pictures in kept))


def plan_gestures(name: str, counts: Mapping[str, int | None]) -> SimulationPlan:
    """A gesture dataset; classes alternate in every split."""
    classes, motions, rows = PREPARATIONS[name].gestures, PREPARATIONS[name].motions, []
    for part in SPLITS:
        wanted = counts.get(part)
        number = (PREPARATIONS[name].counts[part] or 0) if wanted is None else wanted
        _check_count(part, number, MAX_CLIPS)
        shown = classes if motions is None else motions[part]
        each = [shown[n % len(shown)] for n in range(number)]
        rows += [(Clip(f"{part}/{n:05d}_{one}", classes.index(one)), part) for n, one in enumerate(each)]
    return SimulationPlan(_listing(name, tuple(classes), "people", rows, []), ())


def _with_classes(found: Pictures, classes: Sequence[str]) -> Pictures:
    """The pictures of these classes alone."""
    labels = {found.classes.index(name): label for label, name in enumerate(classes)}
    listed = (replace(one, label=labels[one.label]) for one in found.listed if one.label in labels)
    return Pictures(found.source, tuple(classes), tuple(listed))


def _large_classes(classes: tuple[str, ...], rows: Rows, least: int) -> tuple[tuple[str, ...], Rows]:
    """The classes with at least so many pictures."""
    sizes = [sum(1 for clip, _, _ in rows if clip.label == label) for label in range(len(classes))]
    kept = [label for label, size in enumerate(sizes) if size >= least]
    chosen = [(replace(row[0], label=kept.index(row[0].label)), *row[1:]) for row in rows if row[0].label in kept]
    return tuple(classes[label] for label in kept), chosen


def _show_together(rows: Rows, how: PictureDifficulty) -> ClipRows:
    """Each clip with its own picture and the next ones of its class and split, in the order of their names' hashes.

    A training picture has as many clips as `recordings` says, which differ in the other pictures and in the seed.
    """
    groups: dict[tuple[str, int], list[int]] = {}
    for index in sorted(range(len(rows)), key=lambda index: hash_rank("shown together", rows[index][0].name)):
        groups.setdefault((rows[index][1], rows[index][0].label), []).append(index)
    places = {index: place for group in groups.values() for place, index in enumerate(group)}
    made: ClipRows = []
    for recording in range(how.recordings):
        for index, (clip, part, picture) in enumerate(rows):
            if recording and part != TRAIN:
                continue
            group, shown = groups[part, clip.label], [picture]
            for number in range(how.pictures - 1):
                ahead = 1 + (recording * (how.pictures - 1) + number) % max(1, len(group) - 1)
                shown.append(rows[group[(places[index] + ahead) % len(group)]][2])
            name = f"{clip.name}~{recording + 1}" if recording else clip.name
            made.append((replace(clip, name=name), part, tuple(shown)))
    return made


def _with_validation(salt: str, clips: Sequence[Clip], parts: Sequence[str], shown: Sequence[Picture]) -> Rows:
    """Hold out validation clips as the original dataset does, unless the pictures have their own validation split."""
    own = [picture.part for picture in shown]
    if "val" in own:
        parts = [kept if kept == "val" and part == TRAIN else part for kept, part in zip(own, parts, strict=True)]
    else:
        parts = hold_out_validation(salt, clips, parts)
    return list(zip(clips, parts, shown, strict=True))


def _keep(rows: ClipRows, counts: Mapping[str, int | None]) -> ClipRows:
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
