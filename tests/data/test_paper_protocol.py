"""By the paper protocol nothing is held out: the benchmarks' numbers of clips, from the names of their files."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from trees import save_index

from ripe_mambaspike.data.listing import SPLITS
from ripe_mambaspike.data.sets.cifar10dvs import CLASSES, list_cifar10dvs
from ripe_mambaspike.data.sets.dailydvs200 import list_dailydvs200
from ripe_mambaspike.data.sets.dvsgesture import list_dvsgesture, trials
from ripe_mambaspike.data.sets.ncaltech101 import list_ncaltech101
from ripe_mambaspike.data.sets.nmnist import list_nmnist, list_nmnist_600
from ripe_mambaspike.data.sets.registry import datasets
from ripe_mambaspike.data.settings import DataSettings
from ripe_mambaspike.data.training_data import open_data, with_nothing_held_out
from ripe_mambaspike.events.formats.aedat3 import LabelSpan
from ripe_mambaspike.train.recipes import load_recipe, with_settings
from ripe_mambaspike.train.run_folder import with_protocol

ROOT = Path("root")
SPANS = [LabelSpan(label, 1000 * row, 1000 * row + 900) for row, label in enumerate((*range(1, 9), *range(8, 12)))]


def cifar(_):
    return list_cifar10dvs(
        ROOT, [f"{name}/cifar10_{name}_{number}.aedat" for name in CLASSES for number in range(1000)]
    )


def recorded_gestures(_):
    files = [f"{trial}{end}" for trial in trials() for end in (".aedat", "_labels.csv")]
    return list_dvsgesture(ROOT, files, labels=lambda path: SPANS)


def copied_gestures(_):
    files = [f"{trial}/{label}.npy" for trial in trials() for label in range(11)]
    return list_dvsgesture(ROOT, [path for path in files if path != "user02_lab/0.npy"])


def caltech(shared):
    with zipfile.ZipFile(shared / "caltech101" / "images.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg") and not name.startswith("Faces/")]
    names += [f"BACKGROUND_Google/image_{number:04d}.jpg" for number in range(1, 468)]
    return list_ncaltech101(ROOT, [f"Caltech101/{name.removesuffix('.jpg')}.bin" for name in names])


def digits(_):
    files = [f"Train/{number % 10}/{number:05d}.bin" for number in range(1, 60_001)]
    return list_nmnist(ROOT, files + [f"Test/{number % 10}/{number:05d}.bin" for number in range(1, 10_001)])


def first_digits(_):
    return list_nmnist_600(ROOT, [f"Train/{number % 10}/{number:05d}.bin" for number in range(1, 601)])


def daily(shared):
    lists = shared / "dailydvs200"
    files = {path for part in SPLITS for path in (lists / f"{part}.txt").read_text().split()[::2]}
    return list_dailydvs200(ROOT, sorted(files), lists=lists)


@pytest.mark.parametrize(
    ("recipe", "make", "partition", "validation", "paper"),
    [
        ("cifar10dvs", cifar, "first-100", (8100, 900, 1000), (9000, 0, 1000)),
        ("cifar10dvs", cifar, "last-100", (8100, 900, 1000), (9000, 0, 1000)),
        ("cifar10dvs", cifar, "random-100", (8100, 900, 1000), (9000, 0, 1000)),
        ("dvsgesture", recorded_gestures, "1176-288", (1020, 156, 288), (1176, 0, 288)),
        ("dvsgesture", recorded_gestures, "1077-264", (934, 143, 264), (1077, 0, 264)),
        ("dvsgesture", copied_gestures, "1077-264", (934, 143, 264), (1077, 0, 264)),
        ("ncaltech101", caltech, "first-90", (7096, 790, 823), (7886, 0, 823)),
        pytest.param("nmnist", digits, "folders", (54_000, 6000, 10_000), (60_000, 0, 10_000), marks=pytest.mark.slow),
        ("nmnist-600", first_digits, "thirds", (360, 40, 200), (400, 0, 200)),
        ("dailydvs200", daily, "official", (14_773, 3180, 4093), (14_773, 3180, 4093)),
        ("dailydvs200-lite", daily, "official", (14_773, 3180, 4093), (14_773, 3180, 4093)),
    ],
)
def test_the_clips_of_both_protocols(request, tmp_path, recipe, make, partition, validation, paper):
    shared = request.getfixturevalue("shared") if make in (caltech, daily) else None
    save_index(tmp_path, make(shared))
    words = [f"data.root={tmp_path}", f"data.partition={partition}", "data.folds=0", "data.validation=true"]
    given = with_settings(load_recipe(recipe), words)
    for protocol, wanted in (("validation", validation), ("paper", paper)):
        data = open_data(with_protocol(with_settings(given, [f"run.protocol={protocol}"])).data)
        assert tuple(len(data.members[split]) for split in SPLITS) == wanted
        assert tuple(data.describe()[split] for split in SPLITS) == wanted
        used = [member for split in SPLITS for member in data.members[split].tolist()]
        assert len(set(used)) == sum(wanted)  # no clip twice
        assert (data.val is None) == (wanted[1] == 0)
        assert data.train.labels.size == wanted[0]


def test_users_that_validation_takes_are_trained_on(tmp_path):
    save_index(tmp_path, recorded_gestures(None))
    settings = DataSettings("dvsgesture", str(tmp_path), grid=(128, 128))
    data = open_data(with_nothing_held_out(settings))
    assert {int(name[4:6]) for name in data.train.names} == set(range(1, 24))
    assert {int(name[4:6]) for name in data.test.names} == set(range(24, 30))


def test_validation_that_a_fold_takes_is_trained_on_in_every_dataset(tmp_path, shared):
    """Folds divide all clips anew: there is no official validation part in them."""
    save_index(tmp_path, daily(shared))
    settings = DataSettings("dailydvs200", str(tmp_path), grid=(224, 224), folds=5)
    held, none = open_data(settings).members, open_data(with_nothing_held_out(settings)).members
    assert len(held["val"]) > 1500
    assert len(none["val"]) == 0
    assert len(none["train"]) == len(held["train"]) + len(held["val"])
    assert none["test"].tolist() == held["test"].tolist()


def test_official_validation_parts():
    assert {name for name, info in datasets().items() if info.official_validation} == {"dailydvs200"}


def test_without_validation_every_part_is_trained_on_but_test(tmp_path, shared):
    """`data.validation=false` is not the protocol: it takes an official validation part too."""
    save_index(tmp_path, daily(shared))
    settings = DataSettings("dailydvs200", str(tmp_path), grid=(224, 224))
    data = open_data(replace(settings, validation=False))
    assert [len(data.members[split]) for split in SPLITS] == [17_953, 0, 4093]
