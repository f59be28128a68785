"""A reader sees the old file or the new one, never half of one, wherever the writer was killed."""

import errno
import fcntl
import hashlib
import os
import signal
import stat
import subprocess
import sys

import pytest

from ripe_mambaspike import files, folders
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.files import (
    atomic_write,
    earlier_versions,
    locked,
    remove_leftovers,
    write_together,
)
from ripe_mambaspike.folders import atomic_folder

# Kills itself before its n-th change of the disk: a rename, a second name, a removal, a sync.
KILLED = """
import os, signal, sys
from pathlib import Path
from ripe_mambaspike import files, folders

what, folder, last, exchange = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "True"
count = 0

def armed(real):
    def call(*args, **kwargs):
        global count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call

for name in ("replace", "rename", "link", "unlink", "rmdir", "fsync"):
    setattr(os, name, armed(getattr(os, name)))
folders._exchange = armed(folders._exchange) if exchange else lambda *_: False
if what == "folder":
    with folders.atomic_folder(folder / "made") as made:
        (made / "a").write_text("new")
        (made / "b").write_text("new")
else:
    files.write_together(folder, {"beside": b"new", "a": b"new", "b": b"new"})
"""


def killed(what, folder, change, exchange=True):
    """The exit code of a writer that is killed before its n-th change of the disk."""
    command = [sys.executable, "-c", KILLED, what, str(folder), str(change), str(exchange)]
    return subprocess.run(command, check=False).returncode


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
def test_a_block_that_fails_leaves_nothing(tmp_path, error, old):
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


def test_files_are_synced_before_they_are_renamed(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    seen = []

    def sync(descriptor):
        facts = os.fstat(descriptor)
        seen.append(("folder" if stat.S_ISDIR(facts.st_mode) else facts.st_size, path.exists()))

    monkeypatch.setattr(files.os, "fsync", sync)
    with atomic_write(path) as file:
        file.write(b"x" * 1000)
    assert seen == [(1000, False), ("folder", True)]  # and its name before the function returns


def test_a_folder_that_cannot_be_synced(tmp_path, monkeypatch):
    real = os.fsync

    def sync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", sync)
    with atomic_write(tmp_path / "a.bin") as file:
        file.write(b"one")
    assert (tmp_path / "a.bin").read_bytes() == b"one"


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_the_mode_of_a_file_follows_the_umask(tmp_path, mask):
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
def test_a_block_that_fails_keeps_the_old_folder(tmp_path, error):
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


def test_a_block_that_fails_removes_new_parent_folders(tmp_path):
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


def test_a_failed_rename_restores_the_old_folder(tmp_path, monkeypatch):
    path = tmp_path / "made"
    fill(path, "old")
    monkeypatch.setattr(folders, "_exchange", lambda *_: False)
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


@pytest.mark.slow  # a process for every kill
@pytest.mark.parametrize("exchange", [True, False], ids=["in one step", "in two renames"])
def test_a_folder_killed_anywhere_is_whole(tmp_path, exchange):
    """In one step there is always a folder; in two, the next call finds the old one again."""
    change = 0
    code = None
    while code != 0:
        change += 1
        home = tmp_path / str(change)
        (home / "made").mkdir(parents=True)
        for name in "ab":
            (home / "made" / name).write_text("old")
        code = killed("folder", home, change, exchange)
        assert code in (0, -signal.SIGKILL)
        if not exchange and not (home / "made").exists():
            folders._recover(home / "made")
        assert {(home / "made" / name).read_text() for name in "ab"} in ({"old"}, {"new"})
        fill(home / "made", "later")
        assert names(home) == ["made"]  # and nothing is left of the killed one
        assert names(home / "made") == ["later"]
    assert change > 5


def test_a_folder_killed_between_two_renames_comes_back(tmp_path):
    """Also where the new one is never made: the call that puts it right may fail itself."""
    old, new = tmp_path / ".made.abcd1234.old", tmp_path / ".made.abcd1234"
    old.mkdir()
    new.mkdir()
    (old / "kept").write_text("")

    def begin():
        with atomic_folder(tmp_path / "made"):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        begin()
    assert names(tmp_path) == ["made"]
    assert names(tmp_path / "made") == ["kept"]


def vouch(folder):
    """What `b` vouches for, and whether it is there."""
    wanted = hashlib.sha256((folder / "b").read_bytes()).digest()
    return any(
        hashlib.sha256(path.read_bytes()).digest() == wanted for path in (folder / "a", *earlier_versions(folder / "a"))
    )


@pytest.mark.slow  # a process for every kill
def test_files_killed_anywhere_are_of_one_save(tmp_path):
    change = 0
    code = None
    while code != 0:
        change += 1
        home = tmp_path / str(change)
        home.mkdir()
        write_together(home, {"a": b"old", "b": b"old"})
        code = killed("together", home, change)
        assert code in (0, -signal.SIGKILL)
        assert vouch(home)
        write_together(home, {"beside": b"later", "a": b"later", "b": b"later"})
        assert {(home / name).read_bytes() for name in ("a", "b", "beside")} == {b"later"}
        remove_leftovers(home, "a|b|beside")
        assert names(home) == ["a", "b", "beside"]
    assert change > 8


def test_files_of_which_one_fails_to_move_stay_as_they_were(tmp_path, monkeypatch):
    write_together(tmp_path, {"a": b"old", "b": b"old"})
    real = files.Path.replace

    def fail(self, target):
        if target.name == "b":
            raise OSError(5, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(files.Path, "replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_together(tmp_path, {"a": b"new", "b": b"new"})
    assert {(tmp_path / name).read_bytes() for name in "ab"} == {b"old"}
    assert names(tmp_path) == ["a", "b"]


def test_only_what_a_killed_writer_left_is_removed(tmp_path):
    left = [".a.bin.abcd1234", ".a.bin.abcd1234.old", ".a.bin.4321.tmp", ".b.bin.0000zz_9"]
    others = ["a.bin", ".a.bin", ".a.bin.abcd12345", ".c.bin.abcd1234", ".a.bin.ABCD1234", ".a.bin.abcd1234.mine"]
    for name in left + others:
        (tmp_path / name).write_text("")
    (tmp_path / ".a.bin.aaaa0000").symlink_to(tmp_path / "a.bin")
    with atomic_write(tmp_path / "a.bin") as file:
        file.write(b"under way")
        removed = remove_leftovers(tmp_path, r"[ab]\.bin")
    assert sorted(path.name for path in removed) == sorted(left)
    assert names(tmp_path) == sorted([*others, ".a.bin.aaaa0000"])
    assert (tmp_path / "a.bin").read_bytes() == b"under way"


def test_a_folder_that_is_being_made_is_no_leftover(tmp_path):
    with atomic_folder(tmp_path / "made") as one:
        (one / "one").write_text("")
        with atomic_folder(tmp_path / "made") as two:
            (two / "two").write_text("")
        assert names(tmp_path / "made") == ["two"]
    assert names(tmp_path / "made") == ["one"]
    assert names(tmp_path) == ["made"]


def test_nothing_is_removed_where_locks_do_not_work(tmp_path, monkeypatch):
    (tmp_path / ".a.bin.abcd1234").write_text("")

    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert remove_leftovers(tmp_path, r"a\.bin") == []
    with atomic_write(tmp_path / "a.bin") as file:
        file.write(b"one")
    assert names(tmp_path) == [".a.bin.abcd1234", "a.bin"]


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, caplog):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with locked(tmp_path / "lock", "held"):
        (line,) = caplog.messages
    assert str(tmp_path / "lock") in line


def test_one_lock_at_a_time(tmp_path):
    path = tmp_path / "lock"

    def second():
        with locked(path, "held"):
            pass

    with locked(path, "held"), pytest.raises(DataError) as caught:
        second()
    assert caught.value.path == path
    second()
    assert names(tmp_path) == []
