"""A prepare that is killed goes on where it was, and ends with the bytes of one that was not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trees import contents, save_digits

from raising import raises
from ripe_mambaspike.data import prepare as module
from ripe_mambaspike.data.prepare import prepare
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.store import open_store, verify_store
from ripe_mambaspike.errors import DataError

# `ripe data prepare` with small shards. It is killed at a file that it is writing, before or after it has its name.
DRIVER = """
import os, signal, stat, sys, time
from pathlib import Path
from ripe_mambaspike import files
from ripe_mambaspike.data import prepare
from ripe_mambaspike.cli.main import main

prepare.SHARD_FILES = 2
root, workers, at, when = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
count = 0

def counted(real, name):
    def call(*args):
        global count
        count += when == name and (name == "named" or stat.S_ISREG(os.fstat(args[0]).st_mode))  # folders are synced too
        done = real(*args) if name == "named" else None
        if when == name and count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return done if name == "named" else real(*args)
    return call

if when == "slow":
    real = prepare.read
    def read(*args, **options):
        time.sleep(0.1)
        return real(*args, **options)
    prepare.read = read
files.os.fsync = counted(os.fsync, "written")
files.Path.replace = counted(Path.replace, "named")
if __name__ == "__main__":
    sys.exit(main(["data", "prepare", "nmnist-600", "--root", root, "--workers", workers]))
"""


@pytest.fixture
def driver(tmp_path):
    path = tmp_path / "driver.py"
    path.write_text(DRIVER)
    return path


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(module, "SHARD_FILES", 2)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Every file of a store that was made in one go."""
    root = save_digits(tmp_path_factory.mktemp("whole"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHARD_FILES", 2)
        prepare(list_dataset("nmnist-600", root), root, root / ".ripe")
    return contents(root / ".ripe")


def shards(home):
    """{name: (inode, time of writing)} of the shards that have a note."""
    found = [path.with_suffix(".npy") for path in home.glob("*.part/shard-*.json")]
    status = {path.name: path.stat() for path in found if path.exists()}
    return {name: (facts.st_ino, facts.st_mtime_ns) for name, facts in status.items()}


def go_on(digits, uninterrupted, kept):
    """The same command again; what was finished is kept as it was, and the whole is as if nothing had happened."""
    store = prepare(list_dataset("nmnist-600", digits), digits, digits / ".ripe")
    assert verify_store(store) == 720
    assert contents(digits / ".ripe") == uninterrupted
    for name, facts in kept.items():
        status = (store.folder / name).stat()
        assert (status.st_ino, status.st_mtime_ns) == facts


@pytest.mark.parametrize(
    ("at", "when", "noted"),
    [  # six shards, each with its note; the index; `current`
        (1, "written", 0),  # the first shard, before it has its name
        (1, "named", 0),  # and after: without its note it does not count
        (2, "written", 0),
        (2, "named", 1),
        (7, "written", 3),
        (12, "named", 6),
        (13, "written", 6),  # the index
        (13, "named", 6),
        (14, "named", 0),  # the store got its name
        (14, "written", 0),  # `current`
    ],
)
def test_killed(digits, driver, uninterrupted, at, when, noted):
    command = [sys.executable, str(driver), str(digits), "1", str(at), when]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done
    home = digits / ".ripe" / "nmnist-600"
    assert not (home / "current").exists()
    with raises(DataError, "store", digits / ".ripe" / "nmnist-600"):
        open_store(digits / ".ripe", "nmnist-600")
    kept = shards(home)
    assert len(kept) == noted
    go_on(digits, uninterrupted, kept)


def test_killed_again_and_again(digits, driver, uninterrupted):
    """Every run is killed two files further on than the last; each goes on where that one was."""
    home, kept = digits / ".ripe" / "nmnist-600", {}
    for run in range(3):
        command = [sys.executable, str(driver), str(digits), "1", "4", "named"]
        assert subprocess.run(command, capture_output=True, timeout=60).returncode == -signal.SIGKILL
        assert len(shards(home)) == 2 * (run + 1)
        assert kept.items() <= shards(home).items()
        kept = shards(home)
    go_on(digits, uninterrupted, kept)


def test_killed_from_outside_with_workers(digits, driver, uninterrupted):
    """The workers end with their parent, and what they finished is kept."""
    command = [sys.executable, str(driver), str(digits), "2", "0", "slow"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    home = digits / ".ripe" / "nmnist-600"
    try:
        wait_for(lambda: len(shards(home)) >= 2)
        with raises(DataError, "lock", digits / ".ripe" / "nmnist-600" / "lock", "another one that prepares"):
            prepare(list_dataset("nmnist-600", digits), digits, digits / ".ripe")
        assert not (home / "current").exists()
        os.kill(running.pid, signal.SIGKILL)
        running.wait(20)
        wait_for(lambda: not group(running.pid))
    finally:
        if left := group(running.pid):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait(20)
    assert not left
    kept = shards(home)
    assert len(kept) >= 2
    go_on(digits, uninterrupted, kept)


def test_interrupted_by_hand(digits, driver, uninterrupted):
    command = [sys.executable, str(driver), str(digits), "1", "0", "slow"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    home = digits / ".ripe" / "nmnist-600"
    wait_for(lambda: len(shards(home)) >= 1)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=20)
    assert (running.returncode, out, err) == (130, "", "")
    assert not (home / "lock").exists()
    go_on(digits, uninterrupted, shards(home))


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def group(number):
    """The processes of a group that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == number and fields[0] != "Z":
            found.append(path.parent.name)
    return found


@pytest.mark.parametrize("damage", ["byte", "short", "gone", "note", "other note", "other shard"])
def test_a_damaged_leftover_is_made_again(digits, monkeypatch, uninterrupted, damage):
    real, count = module.make_file_shard, 0

    def make_some(task):
        nonlocal count
        count += 1
        if count > 4:
            raise KeyboardInterrupt
        real(task)

    monkeypatch.setattr(module, "make_file_shard", make_some)
    with pytest.raises(KeyboardInterrupt):
        prepare(list_dataset("nmnist-600", digits), digits, digits / ".ripe")
    monkeypatch.setattr(module, "make_file_shard", real)
    home = digits / ".ripe" / "nmnist-600"
    shard, note = next(home.glob("*.part/shard-00002.npy")), next(home.glob("*.part/shard-00002.json"))
    data = shard.read_bytes()
    if damage == "byte":
        shard.write_bytes(data[:200] + bytes([data[200] ^ 4]) + data[201:])
    elif damage == "short":
        shard.write_bytes(data[:-8])
    elif damage == "gone":
        shard.unlink()
    elif damage == "note":
        note.write_text(note.read_text()[:-20])
    else:
        if damage == "other shard":
            shard.write_bytes(shard.with_name("shard-00001.npy").read_bytes())
        note.write_bytes(note.with_name("shard-00001.json").read_bytes())
    kept = shards(home)
    assert len(kept) in (3, 4)
    kept.pop(shard.name, None)
    assert len(kept) == 3
    go_on(digits, uninterrupted, kept)


def test_leftovers_of_another_source_are_not_used(digits, driver, uninterrupted):
    path = digits / "Train" / "1" / "00001.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    command = [sys.executable, str(driver), str(digits), "1", "7", "written"]
    subprocess.run(command, capture_output=True, timeout=60)
    path.write_bytes(whole)
    store = prepare(list_dataset("nmnist-600", digits), digits, digits / ".ripe")
    made = {f"nmnist-600/{store.folder.name}/{name}": data for name, data in contents(store.folder).items()}
    assert made.items() <= uninterrupted.items()
    assert len(made) == 7
