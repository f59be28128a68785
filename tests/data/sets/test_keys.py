"""The key of a store depends on names, splits and notes: stores that runs and networks refer to keep theirs."""

import hashlib
import random
from pathlib import Path

import pytest

from ripe_mambaspike.data.prepare import make_key
from ripe_mambaspike.data.sets.cifar10dvs import CLASSES as CIFAR
from ripe_mambaspike.data.sets.registry import datasets


def daily(label, person):
    return f"action_{label + 1}/C{label}P{person}M0S1_20231111_15_47_00.aedat4"


LISTS = {
    "train": [(label, 1) for label in range(50)],
    "val": [(label, 4) for label in range(9)],
    "test": [*((label, 4) for label in range(3)), *((label, 9) for label in range(9))],
}
TRIALS = [f"user{user:02d}_{light}" for user in (1, 2, 5, 21, 24, 29) for light in ("led", "lab", "fluorescent")]
FILES = {
    "nmnist": [
        *(f"x/Train/{number % 10}/{number:05d}.bin" for number in range(1, 400)),
        *(f"x/Test/{number % 10}/{number:05d}.bin" for number in range(1, 100)),
    ],
    "nmnist-600": [f"Train/{number % 10}/{number:05d}.bin" for number in range(1, 650)],
    "cifar10dvs": [f"{name}/cifar10_{name}_{number}.aedat" for name in CIFAR for number in range(0, 1000, 3)],
    "ncaltech101": [f"C/{name}/image_{number:04d}.bin" for name in CIFAR for number in range(1, 37)],
    "dvsgesture": [f"t/{trial}/{label}.npy" for trial in TRIALS for label in range(11)],
    "folder": [*(f"{name}/{number}.npz" for name in CIFAR for number in range(13)), "a.md"],
    "dailydvs200": sorted({daily(*pair) for pairs in LISTS.values() for pair in pairs}),
}


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("nmnist", {}, "2e01fa2babaf80b4"),
        ("nmnist-600", {}, "bc57576ba61ec924"),
        ("cifar10dvs", {"partial": True}, "05eb536a81313df3"),
        ("ncaltech101", {}, "5f62fab7824ef052"),
        ("dvsgesture", {}, "23f2dd80573d39d3"),
        ("folder", {"test_share": 0.3}, "83d725f847c5322c"),
        ("dailydvs200", {"lists": True}, "4931dfedd2e4eef4"),
    ],
)
def test_the_key_of_a_store_stays(tmp_path, name, options, key):
    if "lists" in options:
        for part, pairs in LISTS.items():
            (tmp_path / f"{part}.txt").write_text("".join(f"{daily(*pair)} {pair[0]}\n" for pair in pairs))
        options = {"lists": tmp_path}
    files = random.Random(0).sample(FILES[name], len(FILES[name]))
    listing = datasets()[name].list_files(Path("root"), files, **options)
    assert make_key(listing, [hashlib.md5(source.path.encode()).hexdigest() for source in listing.sources]) == key
