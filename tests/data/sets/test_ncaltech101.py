"""N-Caltech101: the first nine tenths of each class, rounded up, are the training part."""

import random
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from raising import raises
from ripe_mambaspike.data.sets.ncaltech101 import PUBLISHED, list_ncaltech101
from ripe_mambaspike.errors import DataError

ROOT = Path("root")


def files_of(**counts):
    return [
        f"Caltech101/{name}/image_{number:04d}.bin" for name, count in counts.items() for number in range(1, count + 1)
    ]


def parts_of(found):
    return {clip.name: part for clip, part in zip(found.clips, found.partitions["first-90"].parts, strict=True)}


@pytest.mark.parametrize(("count", "tested"), [(1, 0), (9, 0), (10, 1), (11, 1), (19, 1), (20, 2), (31, 3), (435, 43)])
def test_the_last_tenth_rounded_down_is_tested(count, tested):
    parts = parts_of(list_ncaltech101(ROOT, files_of(ant=count, zebra=10)))
    trained = count - tested
    assert [parts[f"ant/image_{number:04d}"] == "test" for number in range(1, count + 1)] == (
        [False] * trained + [True] * tested
    )
    own = [part for name, part in parts.items() if name.startswith("ant/")]
    assert own.count("val") == min(trained - 1, max(1, round(trained / 10)))


def test_by_number_and_not_by_the_files_order():
    files = [f"x/ant/image_{number}.bin" for number in range(1, 21)]
    random.Random(0).shuffle(files)
    parts = parts_of(list_ncaltech101(ROOT, files))
    assert sorted(name for name, part in parts.items() if part == "test") == ["ant/image_0019", "ant/image_0020"]


def test_the_folders_around_the_dataset_do_not_matter():
    files = files_of(ant=12, bee=31)
    deeper = [f"some/where/{path}" for path in reversed(files)]
    assert (
        list_ncaltech101(ROOT, files).partitions["first-90"].checksum
        == list_ncaltech101(ROOT, deeper).partitions["first-90"].checksum
    )


def test_labels_and_notes():
    found = list_ncaltech101(
        ROOT, [*files_of(bee=2, ant=3, BACKGROUND_Google=1), "Caltech101_annotations/ant/annotation_0001.bin"]
    )
    assert found.classes == ("BACKGROUND_Google", "ant", "bee")
    assert Counter(clip.label for clip in found.clips) == {0: 1, 1: 3, 2: 2}
    assert found.sources[0].path == "Caltech101/BACKGROUND_Google/image_0001.bin"
    assert found.notes == ("6 recordings of 3 classes are there; the whole set has 8,709 of 101",)
    assert not found.partitions["first-90"].published
    assert found.sensor_size == (240, 180)


def test_a_recording_twice():
    files = [*files_of(ant=3), "copy/ant/image_0002.bin"]
    with raises(DataError, "files", ROOT, ("'ant/image_0002' 2 times",)):
        list_ncaltech101(ROOT, files)


def test_the_whole_set(shared):
    """Its names follow from Caltech101's: all objects but the cut-out faces' originals, and the background."""
    with zipfile.ZipFile(shared / "caltech101" / "images.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg") and not name.startswith("Faces/")]
    files = [f"Caltech101/{name.removesuffix('.jpg')}.bin" for name in names] + files_of(BACKGROUND_Google=467)
    assert len(files) == 8_709
    found = list_ncaltech101(ROOT, files)
    partition = found.partitions["first-90"]
    assert partition.sizes() == {"train": 7096, "val": 790, "test": 823}
    assert partition.published
    assert partition.checksum == PUBLISHED
    assert len(found.classes) == 101
    assert found.notes == ()
    counted = Counter(clip.label for clip in found.clips)
    tested = Counter(clip.label for clip, part in zip(found.clips, partition.parts, strict=True) if part == "test")
    assert tested == {label: count // 10 for label, count in counted.items()}
