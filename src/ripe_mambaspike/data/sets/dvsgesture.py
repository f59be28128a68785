"""DVS-Gesture, in either of the forms it is passed around in; users 1–23 train, 24–29 test.

* As recorded: `userNN_<light>.aedat` (AEDAT 3.1) with `userNN_<light>_labels.csv`. Every row of the csv is a clip,
  twelve a trial, since arm roll stands there twice: 1176 and 288 clips.
* As `.npy`: `ibmGestureTrain/userNN_<light>/<label>.npy`, columns x, y, p, t in ms; one file a class and trial, one of
  which does not exist: 1077 and 264 clips.

The recordings give the second partition too. The script that its author published for the copy passes over a row of the
class of the row before, so of two arm rolls the first is kept; and the file that the copy lacks is left out.

Validation takes whole users out of the training part, so that no person is in two parts.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ripe_mambaspike.data.listing import (
    NONE,
    TEST,
    TRAIN,
    VALIDATION,
    Clip,
    Listing,
    Partition,
    SourceFile,
    make_partition,
)
from ripe_mambaspike.data.mirrors import Archive, DownloadInfo, figshare_archive
from ripe_mambaspike.data.sets.registry import register_dataset
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.events.formats.aedat3 import LabelSpan, read_label_spans
from ripe_mambaspike.events.gesture_classes import CLASSES

SENSOR = (128, 128)
LAST_TRAINING_USER = 23
VALIDATION_USERS = (21, 22, 23)
MISSING_FILE = "user02_lab/0"  # of the .npy copy, TRIAL/LABEL
RAW, ARRAYS = "1176-288", "1077-264"  # the partitions, by their numbers of training and test clips
RAW_FILE = re.compile(r"(?:.*/)?user(\d+)_([a-z_]+)\.aedat")
ARRAY_FILE = re.compile(r"(?:.*/)?user(\d+)_([a-z_]+)/(\d+)\.npy")
LIGHTS = {"f": "fluorescent", "F": "fluorescent_led", "b": "lab", "l": "led", "n": "natural"}
# The lights of users 1 to 29, as the set's own lists of trials name them; 98 trials train, 24 test.
TRIALS = (
    "fFbln fFbln fFln fFln fFbln fFbln fFbl fFbl fFbln fFbl fFn Fl fFbln fFln fFbln fbln fFbln fFbl fFbln fFl fFbn "
    "fFbln fFbl fFl fl fFbln fFln fFbln fFbln"
)
ZENODO = "https://zenodo.org/records/8060604/files/{}?download=1"
DOWNLOAD = DownloadInfo(
    "DVS-Gesture",
    "CC BY 4.0",
    "A. Amir et al., A Low Power, Fully Event-Based Gesture Recognition System, CVPR 2017",
    "https://research.ibm.com/interactive/dvsgesture/",
    archives=tuple(  # one file a gesture: 1077 for training, 264 for testing
        figshare_archive(f"{name}.tar.gz", number, md5, name, ZENODO.format(f"{name}.tar.gz"))
        for name, number, md5 in (
            ("ibmGestureTrain", 38022171, "3a8f0d4120a166bac7591f77409cb105"),
            ("ibmGestureTest", 38020584, "56070e45dadaa85fff82e0fbfbc06de5"),
        )
    ),
    by_hand=(  # the original recordings, from which 1176 and 288 clips are made
        Archive("DvsGesture.tar.gz", (), None, "md5:8a5c71fb11e24e5ca5b11866ca6c00a1", "DvsGesture"),
    ),
    instructions=(
        "The original recordings (AEDAT 3.1 with label files) are handed out by IBM after a click-through: open "
        "https://ibm.ent.box.com/s/3hiq58ww1pbbjrinh367ykfdf60xsfm8/folder/50167556794, fetch DvsGesture.tar.gz "
        "and put it into the folder of the set."
    ),
)


@register_dataset(
    "dvsgesture", title="DVS-Gesture", partitions=(RAW, ARRAYS), sizes="1176/288 or 1077/264", sensor="128×128",
    files="userNN_LIGHT.aedat + _labels.csv, or userNN_LIGHT/K.npy", download=DOWNLOAD,
)  # fmt: skip
def list_dvsgesture(
    root: Path, files: Sequence[str], labels: Callable[[Path], list[LabelSpan]] = read_label_spans
) -> Listing:
    raw = [(match, path) for path in files if (match := RAW_FILE.fullmatch(path))]
    arrays = [(match, path) for path in files if (match := ARRAY_FILE.fullmatch(path))]
    if raw and arrays:
        raise DataError.expected("files", ".aedat or .npy", "both", path=root)
    if raw:
        return _from_recordings(root, raw, set(files), labels)
    return _from_arrays(root, arrays)


def trials() -> set[str]:
    """The names of the 122 trials that are used."""
    return {f"user{user:02d}_{LIGHTS[light]}" for user, lights in enumerate(TRIALS.split(), 1) for light in lights}


def split_of_user(user: int) -> str:
    if user > LAST_TRAINING_USER:
        return TEST
    return VALIDATION if user in VALIDATION_USERS else TRAIN


def first_of_class(clips: Sequence[Clip]) -> list[bool]:
    """For each clip TRIAL/ROW, whether the `.npy` copy has it: the first of its class in the trial, but for one."""
    seen = {MISSING_FILE}
    kept = []
    for clip in clips:
        file = _file_of(clip)
        kept.append(file not in seen)
        seen.add(file)
    return kept


def _from_recordings(
    root: Path, found: list[tuple[re.Match[str], str]], files: set[str], labels: Callable[[Path], list[LabelSpan]]
) -> Listing:
    sources, users, unlisted = [], [], 0
    known = trials()
    for match, path in sorted(found, key=lambda pair: pair[1]):
        trial = f"user{int(match[1]):02d}_{match[2]}"
        if trial not in known:
            unlisted += 1
            continue
        beside = f"{path.removesuffix('.aedat')}_labels.csv"
        if beside not in files:
            raise DataError.expected("labels", f"{beside}", "none", path=root / path)
        clips = []
        for row, label in enumerate(labels(root / beside)):
            if not 1 <= label.label <= len(CLASSES):
                raise DataError.expected("labels", f"1 to {len(CLASSES)}", label.label, path=root / beside)
            clips.append(Clip(f"{trial}/{row:02d}", label.label - 1, label.start_us, label.stop_us))
        if not clips:
            raise DataError.expected("labels", "rows of class, start and end", "none", path=root / beside)
        sources.append(SourceFile(path, tuple(clips)))
        users += [int(match[1])] * len(clips)
    every = [clip for source in sources for clip in source.clips]
    parts = [split_of_user(user) for user in users]
    kept = first_of_class(every)
    fewer = [split if stays else NONE for split, stays in zip(parts, kept, strict=True)]
    whole = all({clip.label for clip in source.clips} == set(range(len(CLASSES))) for source in sources)
    whole_fewer = {_file_of(clip) for clip, stays in zip(every, kept, strict=True) if stays} == _array_names()
    partitions = [
        _partition(RAW, every, parts, whole and len(sources) == len(known)),
        _partition(ARRAYS, every, fewer, whole_fewer),
    ]
    return _finish(sources, partitions, unlisted)


def _from_arrays(root: Path, found: list[tuple[re.Match[str], str]]) -> Listing:
    sources, users, unlisted = [], [], 0
    known = trials()
    for match, path in sorted(found, key=lambda pair: (pair[0][1], pair[0][2], int(pair[0][3]))):
        if f"user{int(match[1]):02d}_{match[2]}" not in known:
            unlisted += 1
            continue
        if int(match[3]) >= len(CLASSES):
            raise DataError.expected("class", f"0 to {len(CLASSES) - 1}", match[3], path=root / path)
        name = f"user{int(match[1]):02d}_{match[2]}/{match[3]}"
        sources.append(SourceFile(path, (Clip(name, int(match[3])),)))
        users.append(int(match[1]))
    clips = [clip for source in sources for clip in source.clips]
    whole = {clip.name for clip in clips} == _array_names()
    partition = _partition(ARRAYS, clips, [split_of_user(user) for user in users], whole)
    return _finish(sources, [partition], unlisted, "ms")


def _file_of(clip: Clip) -> str:
    """The file of the `.npy` copy that holds a clip TRIAL/ROW, TRIAL/LABEL."""
    return f"{clip.name.rpartition('/')[0]}/{clip.label}"


def _array_names() -> set[str]:
    """All files of the `.npy` copy, TRIAL/LABEL."""
    return {f"{trial}/{label}" for trial in trials() for label in range(len(CLASSES))} - {MISSING_FILE}


def _partition(name: str, clips: Sequence[Clip], parts: Sequence[str], whole: bool) -> Partition:
    """`whole`: every trial that the set's lists name is there, with all its classes."""
    trained, tested = _numbers(parts)
    return make_partition(name, clips, parts, whole and f"{trained}-{tested}" == name)


def _numbers(parts: Sequence[str]) -> tuple[int, int]:
    """Clips of the training part, validation included, and of the test part."""
    return parts.count(TRAIN) + parts.count(VALIDATION), parts.count(TEST)


def _finish(
    sources: Sequence[SourceFile], partitions: Sequence[Partition], unlisted: int, time_unit: str | None = None
) -> Listing:
    notes = [f"recordings that are in none of the set's lists of trials were left out: {unlisted}"] if unlisted else []
    for partition in partitions:
        if not partition.published:
            trained, tested = _numbers(partition.parts)
            there = f"{trained:,} training and {tested:,} test clips are there"
            # Notes are part of a store's key, so their wording stays.
            notes.append(f"{there}; the {partition.name} cut has {partition.name.replace('-', ' and ')}")
    named = {partition.name: partition for partition in partitions}
    return Listing("dvsgesture", CLASSES, tuple(sources), named, SENSOR, time_unit, tuple(notes))
