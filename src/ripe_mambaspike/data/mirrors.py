"""Where datasets are downloaded from; each module of `data/sets/` declares its own.

Only URLs, checksums and sizes from public sources are listed. Every archive is verified by its checksum, so mirrors
need not be trusted. Files that cannot be downloaded by a program are listed under `by_hand`, with their checksum but
without a URL.
"""

import re
from dataclasses import dataclass

from ripe_mambaspike.errors import DataError

CHECKSUM = re.compile(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}")
# Two addresses of one file; figshare.com/ndownloader itself answers programs with an empty 202.
FIGSHARE = ("https://ndownloader.figshare.com/files/{}", "https://api.figshare.com/v2/file/download/{}")
ORCHARD_2015 = (  # the citation of N-MNIST and N-Caltech101
    "G. Orchard et al., Converting Static Image Datasets to Spiking Neuromorphic Datasets Using Saccades, "
    "Front. Neurosci. 9:437, 2015"
)
MENDELEY = "https://data.mendeley.com/public-files/datasets/{}/files/{}/file_downloaded"


@dataclass(frozen=True)
class Archive:
    """One file of a dataset: its name on disk, its mirrors in the order they are tried, and its checksum."""

    name: str
    urls: tuple[str, ...]
    size: int | None  # bytes; None where no source states them exactly
    checksum: str  # md5:… or sha256:…
    extract_to: str  # the folder, inside that of the dataset, for its files

    def __post_init__(self) -> None:
        for field, value in (("name", self.name), ("extract_to", self.extract_to)):
            if not value or value in (".", "..") or re.search(r"[/\\\0]", value):
                raise DataError.expected(field, "a plain name without folders", repr(value))
        if not CHECKSUM.fullmatch(self.checksum):
            raise DataError.expected("checksum", "md5: or sha256: and its digits", repr(self.checksum))
        if self.size is not None and self.size < 0:
            raise DataError.expected("size", "a number of bytes", self.size)
        for url in self.urls:
            if not re.match(r"https?://[^/]", url):
                raise DataError.expected("urls", "addresses of http or https", repr(url))


@dataclass(frozen=True)
class DownloadInfo:
    """Who made a dataset, what it may be used for, and its files."""

    title: str
    license: str
    citation: str
    home: str  # where a person reads about it and gets it
    archives: tuple[Archive, ...] = ()  # what `download` can fetch; together they make the dataset
    by_hand: tuple[Archive, ...] = ()  # what a person fetches, without addresses
    instructions: str = ""  # what a person does where no program can


def figshare_archive(name: str, number: int, md5: str, folder: str, *more: str) -> Archive:
    urls = (*(address.format(number) for address in FIGSHARE), *more)
    return Archive(name, urls, None, f"md5:{md5}", folder)


def mendeley_archive(name: str, record: str, file: str, checksum: str, folder: str) -> Archive:
    return Archive(name, (MENDELEY.format(record, file),), None, checksum, folder)
