"""The list of mirrors is well formed. Whether the addresses answer is not asked here: tests do not use the network."""

import re
from collections import Counter

import pytest

from raising import raises
from ripe_mambaspike.data.mirrors import Archive
from ripe_mambaspike.data.sets import datasets
from ripe_mambaspike.errors import DataError

BENCHMARKS = {name: info.download for name, info in datasets().items() if info.download}
ENTRIES = list(BENCHMARKS.values())
ARCHIVES = [archive for entry in ENTRIES for archive in (*entry.archives, *entry.by_hand)]
MD5 = "md5:" + "0" * 32


def test_the_five_sets_are_there():
    assert sorted(BENCHMARKS) == ["cifar10dvs", "dailydvs200", "dvsgesture", "ncaltech101", "nmnist"]


@pytest.mark.parametrize("entry", ENTRIES, ids=list(BENCHMARKS))
def test_a_dataset_has_license_citation_and_source(entry):
    assert re.fullmatch(r"https://\S+", entry.home)
    assert re.search(r"\d{4}$", entry.citation)
    assert entry.license
    assert entry.title
    assert entry.archives or entry.instructions
    assert entry.instructions or not entry.by_hand
    assert all(archive.urls for archive in entry.archives)
    assert not any(archive.urls for archive in entry.by_hand)
    files = (*entry.archives, *entry.by_hand)
    assert len({archive.name for archive in files}) == len({archive.extract_to for archive in files}) == len(files)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_an_archive_is_well_formed(archive):
    assert all(re.fullmatch(r"https://[a-z0-9.-]+/\S+", url) for url in archive.urls)
    assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", archive.checksum)
    assert archive.name.endswith((".zip", ".tar.gz"))
    assert archive.name.startswith(archive.extract_to)
    assert archive.size is None or archive.size > 0


def test_nothing_is_listed_twice():
    for values in ((url for archive in ARCHIVES for url in archive.urls), (archive.checksum for archive in ARCHIVES)):
        assert not [value for value, count in Counter(values).items() if count > 1]


def test_no_address_behind_the_browser_check():
    assert not [url for archive in ARCHIVES for url in archive.urls if "//figshare.com/" in url]


def test_the_ten_classes():
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    assert [archive.extract_to for archive in BENCHMARKS["cifar10dvs"].archives] == names


@pytest.mark.parametrize(
    ("values", "field", "got"),
    [
        (("a/b", (), None, MD5, "x"), "name", "'a/b'"),
        (("..", (), None, MD5, "x"), "name", "'..'"),
        (("", (), None, MD5, "x"), "name", "''"),
        (("a", (), None, MD5, "../x"), "extract_to", "'../x'"),
        (("a", (), None, "md5:123", "x"), "checksum", "'md5:123'"),
        (("a", (), None, MD5.replace("md5", "crc"), "x"), "checksum", "crc"),
        (("a", (), None, MD5.replace("0", "G"), "x"), "checksum", "GGG"),
        (("a", (), -1, MD5, "x"), "size", "-1"),
        (("a", ("ftp://host/a",), None, MD5, "x"), "urls", "'ftp://host/a'"),
    ],
)
def test_a_malformed_archive_is_refused(values, field, got):
    with raises(DataError, field, mentions=got):
        Archive(*values)
