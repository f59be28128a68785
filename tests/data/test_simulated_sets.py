"""The simulated datasets: their splits are those of the originals, gestures of any length, pictures of any size."""

import numpy as np
import pytest
from PIL import Image
from shown import CIFAR, caltech_names, cifar_names, digits, packed, save_tree, split_names
from trees import contents

from raising import raises
from ripe_mambaspike import load_dataset
from ripe_mambaspike.data import simulated
from ripe_mambaspike.data.checking import source_state
from ripe_mambaspike.data.listing import SPLITS
from ripe_mambaspike.data.loading import BinnedDataset
from ripe_mambaspike.data.pictures import find_pictures
from ripe_mambaspike.data.sets.cifar10dvs import PUBLISHED as CIFAR_LISTS
from ripe_mambaspike.data.sets.nmnist import PUBLISHED as NMNIST_LIST
from ripe_mambaspike.data.sets.registry import datasets
from ripe_mambaspike.data.sets.simulated import plan_pictures
from ripe_mambaspike.data.simulated import fitted_to, pad_to_square, simulate_dataset
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.events.simulate.gestures import CLASSES
from ripe_mambaspike.events.simulate.saccades import Saccades

ALL = {"train": None, "val": None, "test": None}
SIMULATED = {name: info for name, info in datasets().items() if info.simulated}


def test_cifar_is_split_as_the_original(tmp_path, quick):
    """Its own test pictures get the first numbers."""
    tree = save_tree(tmp_path / "tree", cifar_names(3, 2))
    root = tmp_path / "out"
    options = {"calibration": quick, "size": 24}
    store = simulate_dataset("sim-cifar10", root, images=packed(tree, tmp_path / "x.zip"), **options)
    assert simulate_dataset("sim-cifar10", root, images=tree, **options).folder == store.folder
    assert store.sensor_size == (24, 24)
    assert store.classes == CIFAR
    assert store.partitions == ("folders",)
    named = split_names(root, "sim-cifar10")
    assert set(named["test"]) == {f"cifar10_{name}_{number}" for name in CIFAR for number in (0, 1)}
    assert {name.rsplit("_", 1)[0] for name in named["val"]} == {f"cifar10_{name}" for name in CIFAR}
    assert (len(named["train"]), len(named["val"])) == (20, 10)


def test_cifar_without_parts(tmp_path):
    tree = save_tree(tmp_path, [name.removeprefix("train/") for name in cifar_names(12, 0)])
    planned = plan_pictures("sim-cifar10", find_pictures(tree), ALL)
    (partition,) = planned.listing.partitions.values()
    assert (partition.name, partition.sizes()) == ("first-tenth", {"train": 90, "val": 10, "test": 20})
    tested = [clip.name for clip, part in zip(planned.listing.clips, partition.parts, strict=True) if part == "test"]
    assert tested == [f"cifar10_{name}_{number}" for name in CIFAR for number in (0, 1)]


def test_caltech_is_split_as_the_original(tmp_path, quick):
    """The first nine tenths by number, rounded up; pictures of any aspect."""
    tree = save_tree(tmp_path / "tree", caltech_names(ant=11, cup=20), (20, 12))
    save_tree(tree, ["ant/image_0001.png"], (9, 33))
    root = tmp_path / "out"
    store = simulate_dataset("sim-caltech101", root, images=tree, calibration=quick, size=24)
    assert store.partitions == ("first-90",)
    named = split_names(root, "sim-caltech101")
    assert named["test"] == ["ant/image_0011", "cup/image_0019", "cup/image_0020"]
    assert (len(named["train"]), len(named["val"])) == (25 + 99, 3)
    assert not set(named["train"]) & set(named["val"])
    assert min(store.index.clips.events) > 50


@pytest.mark.slow
def test_the_lists_of_the_originals(shared):
    """From the whole sets of pictures follow the names and the parts of the real sets."""
    for name, folder, wanted in (
        ("sim-nmnist", "mnist", NMNIST_LIST),
        ("sim-cifar10", "cifar10", CIFAR_LISTS["first-100"]),
    ):
        (partition,) = plan_pictures(name, find_pictures(shared / folder), ALL).listing.partitions.values()
        assert (partition.checksum, partition.published) == (wanted, False)
        assert partition.name in SIMULATED[name].partitions
    planned = plan_pictures("sim-caltech101", find_pictures(shared / "caltech101"), ALL)
    sizes = planned.listing.partitions["first-90"].sizes()
    assert f"{sizes['train'] + sizes['val']}/{sizes['test']}" == SIMULATED["sim-caltech101"].sizes
    assert planned.listing.notes == ("every recording of this set is simulated",)


@pytest.mark.slow
def test_gestures(tmp_path, quick, monkeypatch):
    """The embedded set, small: no pictures, other people in every part, the same bytes with two workers."""
    monkeypatch.setattr(simulated, "SHARD_PIXELS", 16 * 16 * 16)
    counts = {"train": 33, "val": 11, "test": 22, "size": 16, "calibration": quick}
    store = simulate_dataset("synthgesture", tmp_path / "one", **counts)
    simulate_dataset("synthgesture", tmp_path / "two", workers=2, **counts)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert store.classes == CLASSES
    assert source_state(store, tmp_path) == "simulated"
    drawn = []
    real = simulated.draw_clip
    monkeypatch.setattr(simulated, "draw_clip", lambda *arguments: drawn.append(real(*arguments)) or drawn[-1])
    other = simulate_dataset("synthgesture", tmp_path / "other", seed=1, **counts)
    assert {path.name for path in other.folder.iterdir()} == {path.name for path in store.folder.iterdir()}
    assert other.index.shards[0].sha256 != store.index.shards[0].sha256
    people = {part: {clip.person for clip in drawn if clip.part == part} for part in SPLITS}
    assert not people["train"] & people["test"]
    assert not people["val"] & (people["train"] | people["test"])
    assert len({clip.stream for clip in drawn}) == 66
    for part, each in (("train", 3), ("val", 1), ("test", 2)):
        loaded = load_dataset("synthgesture", tmp_path / "one", part)
        assert np.bincount(loaded.labels).tolist() == [each] * 11
        assert all(name.startswith(f"{part}/") for name in loaded.names)
        recording, _ = loaded[0]
        assert 1_000_000 < recording.last_us < 1_500_000
        assert BinnedDataset(loaded, 10)[0][0].sum() == len(recording)


def test_shorter_gestures_are_the_beginning_of_the_longer_ones(tmp_path, quick):
    """But for those played backwards, whose scene begins where the clip ends."""
    counts = {"train": 11, "val": 1, "test": 1, "size": 16, "calibration": quick}
    whole = simulate_dataset("synthgesture", tmp_path / "whole", **counts)
    short = simulate_dataset("synthgesture", tmp_path / "short", seconds=0.4, **counts)
    assert (whole.index.recipe["duration_us"], short.index.recipe["duration_us"]) == (1_500_000, 400_000)
    assert whole.folder.name != short.folder.name
    for label, ((long, _), (brief, _)) in enumerate(
        zip(parts_of(tmp_path / "whole"), parts_of(tmp_path / "short"), strict=True)
    ):
        assert brief.last_us < 400_000
        if label not in (4, 6):
            begun = {tuple(event) for event in long.events[long.events["t"] < 300_000].tolist()}
            here = {tuple(event) for event in brief.events[brief.events["t"] < 300_000].tolist()}
            assert len(begun & here) > 0.95 * len(begun)  # noise is drawn for the whole clip


def parts_of(root):
    return load_dataset("synthgesture", root, "train")


@pytest.mark.parametrize(
    ("name", "seconds", "wanted"),
    [
        ("synthgesture", 0.05, "0.1 to 10.0"),
        ("synthgesture", float("nan"), "0.1 to 10.0"),
        ("sim-nmnist", 1.0, "none for sim-nmnist"),
    ],
)
def test_seconds_out_of_range_are_refused(name, seconds, wanted, tmp_path):
    images = None if name == "synthgesture" else tmp_path
    with raises(ConfigError, "seconds", mentions=(wanted, seconds)):
        simulate_dataset(name, tmp_path / "out", images=images, seconds=seconds)


def test_frames_that_do_not_fit_in_memory_are_rendered_piece_by_piece(tmp_path, quick, monkeypatch):
    counts = {"train": 2, "val": 1, "test": 1, "size": 16, "seconds": 0.4, "calibration": quick}
    simulate_dataset("synthgesture", tmp_path / "at once", **counts)
    monkeypatch.setattr(simulated, "MAX_FRAME_PIXELS", 0)
    simulate_dataset("synthgesture", tmp_path / "pieces", **counts)
    assert contents(tmp_path / "at once") == contents(tmp_path / "pieces")


def test_a_picture_fills_the_same_share_of_any_sensor():
    saccades = Saccades(((-2.0, 0.0), (2.0, 1.0)), 10_000, 20_000, (1.0, 1.1), 0.4)
    assert fitted_to(saccades, 34, 28) == saccades
    for cells in (32, 160):
        fitted = fitted_to(saccades, 128, cells)
        assert cells * fitted.scale[0] / 128 == pytest.approx(28 / 34)
        assert fitted.path[0] == pytest.approx((-2 * 128 / 34, 0))
        # In picture cells while these are coarse; where they are fine, as many sensor pixels as before.
        mean = sum(fitted.scale) / 2
        assert fitted.blur == pytest.approx(max(0.4, 0.4 * 1.05 / mean))


def test_a_picture_is_padded_with_its_border():
    """A digit stays on black, and as it is; a photo lies on the grey of its edge, without a step."""
    digit = digits(1)[0].astype(np.float32) / 255
    np.testing.assert_array_equal(pad_to_square(digit), digit)
    photo = np.full((10, 16), 0.5, np.float32)
    photo[3:6, 3:6] = 1
    square = pad_to_square(photo)
    assert square.shape == (32, 32)
    np.testing.assert_array_equal(square[11:21, 8:24], photo)
    assert (square == 0.5).sum() == 32 * 32 - 9


def test_an_even_photo_gives_little_but_noise(tmp_path, quick):
    for number, name in enumerate(caltech_names(a=11)):
        save_tree(tmp_path / "noise", [name])
        (tmp_path / "even" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 12), 120 + number).save(tmp_path / "even" / name)
    made = [
        simulate_dataset(
            "sim-caltech101",
            tmp_path / "out",
            images=tmp_path / kind,
            calibration=quick,
            size=24,
            difficulty={"noise_hz": 0},
        )
        for kind in ("even", "noise")
    ]
    even, noise = (np.mean(store.index.clips.events) for store in made)
    assert even < 0.2 * noise


@pytest.mark.parametrize("name", ["sim-dvsgesture", "gestures-hard"])
def test_a_set_of_motions_that_are_never_shown(name, tmp_path):
    """Its own classes; those of the test split are not those of the others. The recipe names the motions."""
    few = {"train": 2, "val": 3, "test": 4, "size": 16, "seconds": 0.3}
    store = simulate_dataset(f"{name}-unseen", tmp_path, **few)
    assert store.classes == ("flap", "point", "salute", "swim")
    assert not set(store.classes) & set(CLASSES)
    shown = {part: load_dataset(f"{name}-unseen", tmp_path, part) for part in SPLITS}
    assert [[one.classes[label] for label in one.labels] for one in shown.values()] == [
        ["flap", "point"], ["flap", "point", "flap"], ["salute", "swim", "salute", "swim"],
    ]  # fmt: skip
    assert all(len(shown["test"][number][0]) > 5 for number in range(4))
    assert store.index.recipe["motions"]["test"] == ["salute", "swim"]
    assert not np.array_equal(shown["test"][0][0].events, shown["test"][2][0].events)


def test_the_recipe_of_a_set_names_the_other_motions_that_it_shows(tmp_path):
    few = {"train": 1, "val": 1, "test": 1, "size": 8, "seconds": 0.1}
    motions = simulate_dataset("sim-dvsgesture", tmp_path, **few).index.recipe["motions"]
    assert len(motions) == 8
    assert not {"flap", "point", "salute", "swim"} & set(motions)
