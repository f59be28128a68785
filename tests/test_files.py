"""A reader sees the old file or the new one, never half of one."""

import os
import stat

import pytest

from ripe_mambaspike import files
from ripe_mambaspike.files import atomic_folder, atomic_write


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "a.bin"
    with atomic_write(path) as file:
        file.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    with atomic_write(path) as file:
        file.write(b"two")
        file.flush()
        assert path.read_bytes() == b"one"
    assert path.read_bytes() == b"two"
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("no")])
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_block_that_ends_badly_leaves_no_trace(tmp_path, error, old):
    path = tmp_path / "a.bin"
    if old:
        path.write_bytes(old)

    def begin():
        with atomic_write(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        begin()
    assert names(tmp_path) == (["a.bin"] if old else [])
    assert not old or path.read_bytes() == old


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_fails_at_the_end(tmp_path, monkeypatch, step):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def fail(*args):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files.os if step == "fsync" else files.Path, step, fail)
    with pytest.raises(OSError, match="Input/output"), atomic_write(path) as file:
        file.write(b"new")
    assert names(tmp_path) == ["a.bin"]
    assert path.read_bytes() == b"old"


def test_all_of_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    seen = []

    def sync(descriptor):
        seen.append((os.fstat(descriptor).st_size, path.exists()))

    monkeypatch.setattr(files.os, "fsync", sync)
    with atomic_write(path) as file:
        file.write(b"x" * 1000)
    assert seen == [(1000, False)]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_the_file_may_be_read_by_whom_the_system_allows(tmp_path, mask):
    before = os.umask(mask)
    try:
        with atomic_write(tmp_path / "a.bin") as file:
            file.write(b"")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.bin").stat().st_mode) == 0o666 & ~mask


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "none" / "a.bin"):
        pass


def fill(path, word):
    with atomic_folder(path) as folder:
        (folder / word).write_text(word)


def test_a_folder_appears_whole_and_takes_the_old_ones_place(tmp_path):
    path = tmp_path / "deep" / "made"
    with atomic_folder(path) as folder:
        (folder / "one").write_text("1")
        assert not path.exists()
    assert names(path) == ["one"]
    fill(path, "two")
    assert names(path) == ["two"]
    assert names(path.parent) == ["made"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o777 & ~current_mask()


def current_mask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("no")])
def test_a_folder_that_ends_badly_leaves_the_old_one(tmp_path, error):
    path = tmp_path / "made"

    def begin():
        with atomic_folder(path) as folder:
            (folder / "half").write_text("")
            raise error

    for kept in ([], ["made"]):
        with pytest.raises(type(error)):
            begin()
        assert names(tmp_path) == kept
        fill(path, "whole")
    assert names(path) == ["whole"]


def test_a_folder_that_ends_badly_takes_the_folders_made_for_it_along(tmp_path):
    def begin():
        with atomic_folder(tmp_path / "a" / "b" / "made"):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        begin()
    assert names(tmp_path) == []


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    fill(tmp_path / "link", "one")
    assert names(tmp_path) == ["link", "there"]
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "there") == ["one"]


def test_a_folder_that_cannot_be_moved_in_gives_the_place_back(tmp_path, monkeypatch):
    path = tmp_path / "made"
    fill(path, "old")
    real = files.Path.replace

    def fail(self, target):
        if target == path and not self.name.endswith(".old"):
            raise OSError(5, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(files.Path, "replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        fill(path, "new")
    assert names(path) == ["old"]
    assert names(tmp_path) == ["made"]
