"""The open sets: fixed splits and checksums, what may be shown together, and what is refused."""

import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
from PIL import Image
from shown import CIFAR, caltech_names, cifar_names, packed, save_tree, split_names

from raising import raises
from ripe_mambaspike import load_dataset, verify_dataset
from ripe_mambaspike.data import known_stores
from ripe_mambaspike.data.cifar_batches import RECORD
from ripe_mambaspike.data.listing import SPLITS
from ripe_mambaspike.data.pictures import find_pictures, picture_checksums, read_pictures
from ripe_mambaspike.data.sets.preparations import PREPARATIONS, read_settings, set_difficulty
from ripe_mambaspike.data.sets.registry import datasets
from ripe_mambaspike.data.sets.simulated import plan_gestures, plan_pictures
from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.data.store import current_key, verify_store
from ripe_mambaspike.errors import ConfigError, DataError
from ripe_mambaspike.events.simulate.difficulty import GestureDifficulty, PictureDifficulty

OPEN = [
    name
    for name, prepared in PREPARATIONS.items()
    if isinstance(prepared.difficulty, PictureDifficulty | GestureDifficulty) and not prepared.motions
]
ALL = dict.fromkeys(SPLITS)
FEW = {"train": 11, "val": 2, "test": 2, "size": 12, "seconds": 0.1}
# Checksums of the names in each split: a clip that changes its split changes all results.
SPLIT_CHECKSUMS = {
    "gestures-hard": "1292a6507dd1fa8df30fa56ac02462a65d80390f11b1b23b4f685327e3d7d65d",
    "gestures-hard-small": "a897811c47d36037bb8a9ddb0890d4e20ba6dfaf1a879dd8d7ce4d0412ab77c8",
    "sim-cifar10": "26e0cb8a9e9bbb7c02a057815c4f67e31b33b1d783676c28993081435f6d5a68",
    "sim-cifar10-small": "3e61627abab34fd917544c5a22f6e8a31cda11d45de6c8455f47594c850bf4ce",
    "sim-caltech101": "dc09385123cb9cdca0aaf3141debd9b2249c74242b373cf76e8cdb60b6285be1",
    "sim-caltech101-small": "98466c740146f8eccdc8c91c909e149c6a46f8718ad422d8772fa34fa6728e04",
}


def save_batches(root, each=20):
    """CIFAR-10's binary batches, each with two pictures a class."""
    root.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        records = draw.integers(0, 256, (each, RECORD)).astype(np.uint8)
        records[:, 0] = np.arange(each) % 10
        (root / name).write_bytes(records.tobytes())
    return root


def plan(name, found, **fields):
    return plan_pictures(name, found, ALL, replace(PictureDifficulty(), **fields))


# Splits


def test_six_open_sets():
    assert sorted(OPEN) == sorted(SPLIT_CHECKSUMS)
    assert {name for name, info in datasets().items() if info.simulated} == set(PREPARATIONS)
    for name in OPEN:
        side = PREPARATIONS[name].side
        assert datasets()[name].sensor == f"{side}×{side}"


@pytest.mark.parametrize("name", ["gestures-hard", "gestures-hard-small"])
def test_the_splits_of_gestures(name):
    (partition,) = plan_gestures(name, ALL).listing.partitions.values()
    assert partition.checksum == SPLIT_CHECKSUMS[name]
    check_sizes(name, partition.sizes())


def check_sizes(name, sizes):
    assert f"{sizes['train'] + sizes['val']}/{sizes['test']}" == datasets()[name].sizes


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OPEN if PREPARATIONS[name].needs_pictures])
def test_the_splits_of_pictures(shared, name):
    folder = {"cifar": "cifar10", "caltech": "caltech101"}[PREPARATIONS[name].shows]
    planned = plan_pictures(name, find_pictures(shared / folder), ALL, PREPARATIONS[name].difficulty)
    (partition,) = planned.listing.partitions.values()
    assert partition.checksum == SPLIT_CHECKSUMS[name]
    check_sizes(name, partition.sizes())
    shown = {part: set() for part in SPLITS}
    for part, pictures in zip(partition.parts, planned.pictures, strict=True):
        assert len({picture.label for picture in pictures}) == 1
        shown[part] |= set(pictures)
    assert not shown["train"] & shown["val"]
    assert not (shown["train"] | shown["val"]) & shown["test"]


def test_pictures_of_a_clip_are_of_its_class_and_split(tmp_path):
    found = find_pictures(save_tree(tmp_path, cifar_names(8, 4)))
    planned = plan("sim-cifar10", found, pictures=3)
    parts = planned.listing.partitions["folders"].parts
    own = plan("sim-cifar10", found).pictures
    assert [pictures[:1] for pictures in planned.pictures] == list(own)
    splits = {pictures[0]: part for pictures, part in zip(own, parts, strict=True)}
    for clip, part, pictures in zip(planned.listing.clips, parts, planned.pictures, strict=True):
        assert {(splits[picture], picture.label) for picture in pictures} == {(part, clip.label)}
        assert len(set(pictures)) == (3 if part != "val" else 1)  # one validation picture a class
    # No clip but its own begins with a picture, and every picture is shown as often as any other.
    shown = [picture for pictures in planned.pictures for picture in pictures]
    assert {shown.count(picture) for picture in own for picture in picture} == {3}


def test_further_recordings_are_for_training_alone(tmp_path):
    found = find_pictures(save_tree(tmp_path, cifar_names(8, 4)))
    once, thrice = (plan("sim-cifar10", found, pictures=3, recordings=count) for count in (1, 3))
    sizes = [planned.listing.partitions["folders"].sizes() for planned in (once, thrice)]
    assert sizes[0] == {"train": 70, "val": 10, "test": 40}
    assert sizes[1] == {"train": 210, "val": 10, "test": 40}
    names = [clip.name for clip in thrice.listing.clips]
    assert len(set(names)) == len(names)
    assert names[:120] == [clip.name for clip in once.listing.clips]
    assert {name.split("~")[0] for name in names[120:]} < set(names[:120])
    own = [
        pictures for clip, pictures in zip(thrice.listing.clips, thrice.pictures, strict=True) if "cat_5" in clip.name
    ]
    assert len({pictures[0] for pictures in own}) == 1
    assert len(set(own)) == 3


def test_a_smaller_set_has_the_same_clips(tmp_path, quick):
    tree = save_tree(tmp_path / "tree", cifar_names(6, 4))
    options = {"images": tree, "calibration": quick, "size": 16}
    whole = simulate_dataset("sim-cifar10", tmp_path / "whole", **options)
    simulate_dataset("sim-cifar10", tmp_path / "some", train=10, test=10, **options)
    every = load_dataset("sim-cifar10", tmp_path / "whole", "test")
    some = load_dataset("sim-cifar10", tmp_path / "some", "test")
    assert len(some) == 10
    for number, name in enumerate(some.names):
        np.testing.assert_array_equal(some[number][0].events, every[every.names.index(name)][0].events)
    assert whole.index.recipe["difficulty"] == asdict(PREPARATIONS["sim-cifar10"].difficulty)


def test_small_sets_leave_small_classes_out(tmp_path, monkeypatch):
    monkeypatch.setitem(
        PREPARATIONS, "sim-caltech101-small", replace(PREPARATIONS["sim-caltech101-small"], counts=ALL, min_pictures=11)
    )
    found = find_pictures(save_tree(tmp_path, caltech_names(zebra=11, ant=20, bat=10)))
    listing = plan_pictures("sim-caltech101-small", found, ALL).listing
    assert listing.classes == ("ant", "zebra")
    assert sorted({clip.name.split("/")[0] for clip in listing.clips}) == ["ant", "zebra"]
    assert {clip.label for clip in listing.clips if clip.name.startswith("zebra")} == {1}


def test_the_background_of_caltechs_own_folder_is_left_out(tmp_path):
    tree = save_tree(tmp_path / "101_ObjectCategories", [*caltech_names(ant=11), "BACKGROUND_Google/image_0001.png"])
    listing = plan_pictures("sim-caltech101", find_pictures(tree.parent), ALL).listing
    assert len(listing.classes) == 101
    assert "BACKGROUND_Google" not in listing.classes


# Checksums


def test_gestures_are_made_the_same_again_and_verify(tmp_path):
    store = simulate_dataset("gestures-hard", tmp_path / "one", **FEW)
    assert verify_store(store) == sum(store.index.clips.events)
    again = simulate_dataset("gestures-hard", tmp_path / "two", **FEW)
    assert (again.key, again.index.sha256) == (store.key, store.index.sha256)
    other = simulate_dataset("gestures-hard", tmp_path / "one", difficulty={"noise_hz": 9}, **FEW)
    assert other.key != store.key
    assert sum(other.index.clips.events) > sum(store.index.clips.events)
    named = split_names(tmp_path / "two", "gestures-hard")
    assert {part: len(names) for part, names in named.items()} == {"train": 11, "val": 2, "test": 2}


def test_a_set_with_another_checksum_than_the_one_that_ships_is_refused(tmp_path, monkeypatch):
    store = simulate_dataset("gestures-hard", tmp_path / "one", **FEW)
    monkeypatch.setitem(known_stores.KNOWN_STORES, store.key, store.index.sha256)
    assert known_stores.check_known(store)
    simulate_dataset("gestures-hard", tmp_path / "two", **FEW)
    assert verify_dataset("gestures-hard", tmp_path / "two")[1] == "simulated"
    monkeypatch.setitem(known_stores.KNOWN_STORES, store.key, "0" * 64)
    with raises(DataError, "sha256", mentions=(store.index.sha256, "0" * 64)):
        simulate_dataset("gestures-hard", tmp_path / "three", **FEW)
    assert current_key(tmp_path / "three" / ".ripe" / "gestures-hard") is None
    with raises(DataError, "sha256"):
        verify_dataset("gestures-hard", tmp_path / "two")


def test_every_checksum_that_ships_is_of_an_open_set():
    assert len(known_stores.KNOWN_STORES) == len(OPEN)
    assert all(len(key) == 16 and len(value) == 64 for key, value in known_stores.KNOWN_STORES.items())


def test_a_set_of_pictures_has_the_same_bits_as_everywhere(tmp_path):
    """Key and checksum of a set of 120 pictures by the camera that ships."""
    fields = {"pictures": 2, "recordings": 1, "contrast": 2.0, "noise_hz": 1.0, "shift": 0.1, "mirror": True}
    images = save_batches(tmp_path / "batches")
    made = simulate_dataset("sim-cifar10", tmp_path / "out", images=images, size=10, difficulty=fields)
    assert (made.key, made.index.sha256[:16]) == ("780fd3b2558d3af2", "6ac1186d98a63090")


# CIFAR-10's own files


def test_binary_batches(tmp_path):
    root = save_batches(tmp_path / "cifar-10-batches-bin")
    found = find_pictures(tmp_path)
    assert find_pictures(root / "test_batch.bin").listed == find_pictures(root).listed
    assert found.classes == CIFAR
    assert [sum(one.part == part for one in found.listed) for part in SPLITS] == [100, 0, 20]
    (picture,) = [one for one in found.listed if one.member.endswith("data_batch_2.bin") and one.number == 13]
    assert (picture.label, picture.part) == (3, "train")
    record = np.frombuffer((root / "data_batch_2.bin").read_bytes(), np.uint8).reshape(-1, RECORD)[13]
    colors = Image.fromarray(record[1:].reshape(3, 32, 32).transpose(1, 2, 0).copy())
    (read,) = read_pictures(found.source, [picture])
    np.testing.assert_array_equal(np.rint(255 * read), np.asarray(colors.convert("L")))
    planned = plan_pictures("sim-cifar10", found, ALL)
    assert planned.listing.partitions["folders"].sizes() == {"train": 90, "val": 10, "test": 20}
    assert len(set(picture_checksums(found.source, found.listed))) == 120


def test_damaged_batches_are_refused(tmp_path):
    root = save_batches(tmp_path)
    batch = root / "data_batch_3.bin"
    whole = batch.read_bytes()
    for data, mentions in ((whole[:-1], ("3,073",)), (b"", ("0 bytes",)), (b"\x0a" + whole[1:], ("0 to 9", "10"))):
        batch.write_bytes(data)
        with raises(DataError, "images", batch, mentions):
            find_pictures(root)


def test_pickled_batches_are_never_opened(tmp_path):
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch /tmp/no'\ntR.")
    with raises(DataError, "images", tmp_path, ("pickled", "binary")):
        find_pictures(tmp_path)


# What is refused


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("gestures-hard", {"clutter": 11}, "clutter"),
        ("gestures-hard", {"clutter": 1.5}, "clutter"),
        ("gestures-hard", {"contrast": 1.0}, "contrast"),
        ("gestures-hard", {"noise_hz": float("nan")}, "noise_hz"),
        ("sim-cifar10", {"pictures": 0}, "pictures"),
        ("sim-cifar10", {"contrast": 0}, "contrast"),
        ("sim-cifar10", {"mirror": "yes"}, "mirror"),
        ("synthgesture", {"clutter": 1}, "clutter"),
    ],
)
def test_a_difficulty_that_cannot_be_is_refused(name, fields, field):
    with raises(ConfigError, field):
        set_difficulty(name, fields)


def test_settings_are_read_as_in_a_recipe():
    assert read_settings(["noise_hz=2", "mirror = true"]) == {"noise_hz": 2, "mirror": True}
    for settings, field in ((["noise_hz"], "set"), (["=2"], "set"), (["a=1", "a=2"], "a")):
        with raises(ConfigError, field):
            read_settings(settings)


def test_other_classes_are_refused(tmp_path, quick):
    few = save_tree(tmp_path / "few", [name for name in cifar_names(2, 1) if "/frog/" not in name])
    hundred = save_tree(tmp_path / "hundred", caltech_names()[:100])
    for name, images, mentions in (
        ("sim-cifar10", few, ("ten classes", "9 classes", "frog")),
        ("sim-caltech101", hundred, ("101 classes", "100 classes")),
    ):
        with raises(DataError, "images", images, mentions):
            simulate_dataset(name, tmp_path / "out", images=images, calibration=quick)
    assert not (tmp_path / "out").exists()


def test_too_few_pictures_for_a_set_are_refused(tmp_path):
    tree = save_tree(tmp_path / "tree", cifar_names(3, 2))
    with raises(DataError, "images", tree, ("2,000 train clips", "20")):
        simulate_dataset("sim-cifar10-small", tmp_path / "out", images=tree)


def test_missing_and_damaged_archives_are_refused(tmp_path, quick):
    tree = save_tree(tmp_path / "tree", cifar_names(2, 1))
    archive = packed(tree, tmp_path / "images.zip")
    whole = archive.read_bytes()

    def refused(path, field="images"):
        with raises(DataError, field):
            simulate_dataset("sim-cifar10", tmp_path / "out", images=path, calibration=quick)
        assert not (tmp_path / "out").exists()

    refused(tmp_path / "nothing.zip")
    shutil.copy(tree / "train" / "cat" / "0000.png", tmp_path / "one.zip")
    refused(tmp_path / "one.zip")
    archive.write_bytes(whole[: len(whole) // 2])
    refused(archive)
    at = whole.index(b"IDAT") + 40
    archive.write_bytes(whole[:at] + bytes(byte ^ 255 for byte in whole[at : at + 8]) + whole[at + 8 :])
    refused(archive, "picture")
