"""The one list of where the benchmarks come from.

Only what was found in public sources stands here: an address, a checksum or a size that nobody published is left out.
Every archive is checked against its checksum, so a mirror need not be trusted. What no program may or can fetch is
listed under `by_hand`: no address, but the checksum that tells a person whether the right file arrived.

`extract_to` is the folder, inside that of the set, in which the files of the archive end up:
dvsgesture/ibmGestureTrain/user01_fluorescent/0.npy, cifar10dvs/airplane/cifar10_airplane_0.aedat,
ncaltech101/Caltech101/accordion/image_0001.bin, nmnist/Train/0/00002.bin.
"""

import re
from dataclasses import dataclass

from ripe_mambaspike.errors import DataError

CHECKSUM = re.compile(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}")
# Two doors to one store; figshare.com/ndownloader itself answers programs with an empty 202.
FIGSHARE = ("https://ndownloader.figshare.com/files/{}", "https://api.figshare.com/v2/file/download/{}")
MENDELEY = "https://data.mendeley.com/public-files/datasets/{}/files/{}/file_downloaded"
ZENODO_GESTURE = "https://zenodo.org/records/8060604/files/{}?download=1"


@dataclass(frozen=True)
class Archive:
    """One file of a set: its name on disk, its mirrors in the order they are tried, and what proves it whole."""

    name: str
    urls: tuple[str, ...]
    size: int | None  # bytes; None where no source states them exactly
    checksum: str  # md5:… or sha256:…
    extract_to: str

    def __post_init__(self) -> None:
        for field, value in (("name", self.name), ("extract_to", self.extract_to)):
            if not value or value in (".", "..") or re.search(r"[/\\\0]", value):
                raise DataError(f"an archive has the {field} {value!r}; one plain name without folders is wanted")
        if not CHECKSUM.fullmatch(self.checksum):
            raise DataError(f"{self.name} has the checksum {self.checksum!r}; md5: or sha256: and its digits is wanted")
        if self.size is not None and self.size < 0:
            raise DataError(f"{self.name} has a size of {self.size}; a number of bytes is wanted")
        for url in self.urls:
            if not re.match(r"https?://[^/]", url):
                raise DataError(f"{self.name} has the address {url!r}; one of http or https is wanted")


@dataclass(frozen=True)
class Benchmark:
    """One set: who made it, what it may be used for, and its files."""

    name: str
    title: str
    license: str
    citation: str
    home: str  # where a person reads about it and gets it
    archives: tuple[Archive, ...]  # what `download` can fetch; together they make the set
    by_hand: tuple[Archive, ...]  # what a person fetches, without addresses
    instructions: str  # what a person does where no program can


def benchmark(name: str) -> Benchmark:
    """The set of that name."""
    if name not in BENCHMARKS:
        raise DataError(f"'{name}' is not a known set; one of {', '.join(BENCHMARKS)} is wanted")
    return BENCHMARKS[name]


def _figshare(name: str, number: int, md5: str, folder: str, *more: str) -> Archive:
    urls = (*(door.format(number) for door in FIGSHARE), *more)
    return Archive(name, urls, None, f"md5:{md5}", folder)


def _mendeley(name: str, record: str, file: str, checksum: str, folder: str) -> Archive:
    return Archive(name, (MENDELEY.format(record, file),), None, checksum, folder)


DVSGESTURE = Benchmark(
    name="dvsgesture",
    title="DVS-Gesture",
    license="CC BY 4.0",
    citation="A. Amir et al., A Low Power, Fully Event-Based Gesture Recognition System, CVPR 2017",
    home="https://research.ibm.com/interactive/dvsgesture/",
    archives=(  # the cut of one file a gesture: 1077 for training, 264 for testing
        _figshare(
            "ibmGestureTrain.tar.gz",
            38022171,
            "3a8f0d4120a166bac7591f77409cb105",
            "ibmGestureTrain",
            ZENODO_GESTURE.format("ibmGestureTrain.tar.gz"),
        ),
        _figshare(
            "ibmGestureTest.tar.gz",
            38020584,
            "56070e45dadaa85fff82e0fbfbc06de5",
            "ibmGestureTest",
            ZENODO_GESTURE.format("ibmGestureTest.tar.gz"),
        ),
    ),
    by_hand=(  # the original recordings, from which the cut of 1176 and 288 is made
        Archive("DvsGesture.tar.gz", (), None, "md5:8a5c71fb11e24e5ca5b11866ca6c00a1", "DvsGesture"),
    ),
    instructions=(
        "The original recordings (AEDAT 3.1 with label files) are handed out by IBM after a click-through: open "
        "https://ibm.ent.box.com/s/3hiq58ww1pbbjrinh367ykfdf60xsfm8/folder/50167556794, fetch DvsGesture.tar.gz "
        "and put it into the folder of the set."
    ),
)

CIFAR10DVS = Benchmark(
    name="cifar10dvs",
    title="CIFAR10-DVS",
    license="CC BY 4.0 by all accounts; the home page has the final word",
    citation="H. Li et al., CIFAR10-DVS: An Event-Stream Dataset for Object Classification, "
    "Front. Neurosci. 11:309, 2017",
    home="https://figshare.com/articles/dataset/CIFAR10-DVS_New/4724671",
    archives=tuple(
        _figshare(f"{label}.zip", number, md5, label)
        for label, number, md5 in (
            ("airplane", 7712788, "0afd5c4bf9ae06af762a77b180354fdd"),
            ("automobile", 7712791, "8438dfeba3bc970c94962d995b1b9bdd"),
            ("bird", 7712794, "a9c207c91c55b9dc2002dc21c684d785"),
            ("cat", 7712812, "52c63c677c2b15fa5146a8daf4d56687"),
            ("deer", 7712815, "b6bf21f6c04d21ba4e23fc3e36c8a4a3"),
            ("dog", 7712818, "f379ebdf6703d16e0a690782e62639c3"),
            ("frog", 7712842, "cad6ed91214b1c7388a5f6ee56d08803"),
            ("horse", 7712851, "e7cbbf77bec584ffbf913f00e682782a"),
            ("ship", 7712836, "41c7bd7d6b251be82557c6cce9a7d5c9"),
            ("truck", 7712839, "89f3922fd147d9aeff89e76a2b0b70a7"),
        )
    ),
    by_hand=(),
    instructions="Where figshare turns programs away, a browser gets the ten zip files from the home page.",
)

NCALTECH101 = Benchmark(
    name="ncaltech101",
    title="N-Caltech101",
    license="not confirmed; the home page has the final word",
    citation="G. Orchard et al., Converting Static Image Datasets to Spiking Neuromorphic Datasets Using Saccades, "
    "Front. Neurosci. 9:437, 2015",
    home="https://www.garrickorchard.com/datasets/n-caltech101",
    archives=(),  # until its licence is known to allow it
    by_hand=(Archive("Caltech101.zip", (), None, "md5:66201824eabb0239c7ab992480b50ba3", "Caltech101"),),
    instructions=(
        "A browser gets Caltech101.zip from https://data.mendeley.com/datasets/cy6cvx3ryv/1; "
        "put it into the folder of the set."
    ),
)

NMNIST = Benchmark(
    name="nmnist",
    title="N-MNIST",
    license="CC BY-SA 4.0",
    citation=NCALTECH101.citation,  # one paper made both
    home="https://www.garrickorchard.com/datasets/n-mnist",
    archives=(
        _mendeley(
            "Train.zip",
            "468j46mzdv",
            "39c25547-014b-4137-a934-9d29fa53c7a0",
            "md5:20959b8e626244a1b502305a9e6e2031",
            "Train",
        ),
        _mendeley(
            "Test.zip",
            "468j46mzdv",
            "05a4d654-7e03-4c15-bdfa-9bb2bcbea494",
            "md5:69ca8762b2fe404d9b9bad1103e97832",
            "Test",
        ),
    ),
    by_hand=(),
    instructions="Both archives are also to be had with a browser from the home page.",
)

DAILYDVS200 = Benchmark(
    name="dailydvs200",
    title="DailyDVS-200",
    license="MIT",
    citation="Q. Wang et al., DailyDVS-200: A Comprehensive Benchmark Dataset for Event-Based Action Recognition, "
    "ECCV 2024",
    home="https://github.com/QiWang233/DailyDVS-200",
    archives=(),
    by_hand=(),
    instructions=(
        "The recordings lie on a share that only a person can open and have no published checksums: follow the "
        "link on the home page and unpack them so that action_1/…aedat4 to action_200/…aedat4 stand in the folder "
        "of the set."
    ),
)

BENCHMARKS = {entry.name: entry for entry in (DVSGESTURE, CIFAR10DVS, NCALTECH101, NMNIST, DAILYDVS200)}
