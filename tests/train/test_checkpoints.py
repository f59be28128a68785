"""Checkpoints: which are kept, which is read when one is damaged, and full disks."""

import errno
import json
import os
import shutil
from contextlib import contextmanager

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from raising import raises
from ripe_mambaspike import files
from ripe_mambaspike.errors import DataError, RipeError
from ripe_mambaspike.train import checkpoint as room
from ripe_mambaspike.train.checkpoint import Checkpoint, CheckpointDocument, last_checkpoint, save_checkpoint
from ripe_mambaspike.train.trainer import TrainState


def some(value, global_step=1, epoch=0):
    document = CheckpointDocument(
        state=TrainState(epoch, 0, global_step, value, 0.0), rows=[], best=None, seconds=1.0, processes=1, store="key",
        extra_stores=[], threads=1,
    )  # fmt: skip
    return Checkpoint({"x": torch.full((3,), float(value))}, document)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def three(tmp_path):
    """A folder after three saves."""
    for step, epoch in ((4, 0), (8, 0), (8, 1)):
        save_checkpoint(tmp_path, some(10 * step + epoch, step, epoch))
    return tmp_path


def test_the_last_two_are_kept(three):
    assert names(three) == ["step-000000008-000000000.safetensors", "step-000000008-000000001.safetensors"]
    found = last_checkpoint(three)
    assert found.tensors["x"].tolist() == [81.0] * 3
    assert found.document == some(81, 8, 1).document


def test_other_files_are_left_alone(three):
    (three / "step-notes.safetensors").write_text("mine")
    (three / "step-000000009-000000001.safetensors.bak").write_text("mine")
    save_checkpoint(three, some(7, 12, 1))
    assert names(three) == [
        "step-000000008-000000001.safetensors",
        "step-000000009-000000001.safetensors.bak",
        "step-000000012-000000001.safetensors",
        "step-notes.safetensors",
    ]
    assert last_checkpoint(three).document.state.clips == 7


def test_no_folder_and_no_file(tmp_path):
    assert last_checkpoint(tmp_path / "none") is None
    assert last_checkpoint(tmp_path) is None


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-5])


def half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path):
    path.write_bytes(b"")


def zeroed(path):
    path.write_bytes(bytes(path.stat().st_size))


def of_another(path):
    save_file({"x": torch.zeros(1)}, path)


def without_json(path):
    save_file({"x": torch.zeros(1)}, path, {"ripe": "{"})


def of_another_version(path):
    save_file({"x": torch.zeros(1)}, path, {"ripe": json.dumps({"format": "ripe-checkpoint", "version": 4})})


def of_another_format(path):
    save_file({"x": torch.zeros(1)}, path, {"ripe": json.dumps({"format": "ripe-labels", "version": 1})})


def of_a_list(path):
    save_file({"x": torch.zeros(1)}, path, {"ripe": "[]"})


def pickled(path):
    torch.save({"x": torch.zeros(1)}, path)


def one_byte_changed(path):
    data = bytearray(path.read_bytes())
    data[-2] ^= 0x40  # in the tensors
    path.write_bytes(bytes(data))


def exchanged(path, old, new):
    data = path.read_bytes()
    assert data.count(old) == 1
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))


def one_bit_of_the_state_changed(path):
    exchanged(path, b'\\"clips\\": 81', b'\\"clips\\": 80')


def another_type(path):
    exchanged(path, b'"dtype":"F32"', b'"dtype":"I32"')


def another_name(path):
    exchanged(path, b'"x":{', b'"y":{')


def another_shape(path):
    exchanged(path, b'"shape":[3]', b'"shape":[ ]')


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def a_folder(path):
    path.unlink()
    path.mkdir()


def huge(path):
    os.truncate(path, 1 << 42)  # which takes no room on the disk


def a_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGES = [
    cut_short, half, emptied, zeroed, of_another, without_json, of_another_version, of_another_format, pickled,
    of_a_list, one_byte_changed, one_bit_of_the_state_changed, another_type, another_name, another_shape, a_pipe,
    a_folder, huge, a_device,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped(three, caplog, damage):
    newest = three / "step-000000008-000000001.safetensors"
    damage(newest)
    with caplog.at_level("WARNING", "ripe_mambaspike"):
        found = last_checkpoint(three)
    assert found.tensors["x"].tolist() == [80.0] * 3
    (line,) = caplog.messages
    assert str(newest) in line
    assert "\n" not in line


def test_all_checkpoints_damaged(three):
    for path in three.iterdir():
        cut_short(path)
    with raises(DataError, path=three):
        last_checkpoint(three)
    assert len(names(three)) == 2


@pytest.mark.parametrize("apart", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_every_bit_of_the_document_is_covered(tmp_path, apart):
    """Each bit of the header and of the tensors by itself (or every ninth, so one of each byte or two): what is read is
    what was written, or nothing is."""
    path = save_checkpoint(tmp_path, some(7))
    data, written = path.read_bytes(), last_checkpoint(tmp_path)
    for bit in range(0, 8 * len(data), apart):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        try:
            found = last_checkpoint(tmp_path)
        except DataError:
            continue
        assert found.document == written.document, bit
        assert found.tensors["x"].tolist() == written.tensors["x"].tolist(), bit


def test_a_checkpoint_that_fails_its_check_is_skipped(three, caplog):
    def check(checkpoint):
        if checkpoint.document.state.clips == 81:
            raise ValueError("state.clips: expected 80, got 81")

    assert last_checkpoint(three, check).document.state.clips == 80
    assert "state.clips" in caplog.text


def test_checkpoints_above_max_bytes_are_not_read(three):
    with pytest.raises(DataError):
        last_checkpoint(three, max_bytes=100)


def test_skipped_checkpoints_are_removed_by_the_next_save(three):
    """Else two damaged ones of a later place would have every new one removed."""
    for name in ("step-000000020-000000001.safetensors", "step-000000030-000000001.safetensors"):
        (three / name).write_text("damaged")
    save_checkpoint(three, some(7, 12, 1))
    assert names(three) == ["step-000000008-000000001.safetensors", "step-000000012-000000001.safetensors"]


def test_checkpoints_of_earlier_versions_are_refused(three):
    for path in three.iterdir():
        path.rename(three / path.name.replace("step", "move"))
    with raises(DataError, path=three / "move-000000008-000000001.safetensors"):
        last_checkpoint(three)


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(finished, tiny, go, outcome, caplog, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    cut_short(max((tmp_path / "run" / "checkpoints").iterdir()))
    go(tiny(), tmp_path / "run", resume=True)
    assert "cannot be used" in caplog.text
    assert outcome(tmp_path / "run") == outcome(finished)


def test_a_run_without_an_intact_checkpoint_is_refused(finished, tiny, go, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        cut_short(path)
    with raises(DataError, path=tmp_path / "run" / "checkpoints"):
        go(tiny(), tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_checkpoint_opens_with_safetensors_alone(finished):
    """No pickle: a header in JSON, and its metadata is one JSON document."""
    path = max((finished / "checkpoints").iterdir())
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    document = json.loads(header["__metadata__"]["ripe"])
    assert (document["format"], document["version"]) == ("ripe-checkpoint", 3)
    assert document["threads"] == torch.get_num_threads()
    assert document["state"] == {"epoch": 2, "batch": 0, "global_step": 6, "clips": 0, "seconds": 0.0}
    assert [row["epoch"] for row in document["rows"]] == [1, 2]
    assert document["best"]["epoch"] == json.loads((finished / "result.json").read_text())["epoch"]
    assert document["seconds"] > 0
    assert b"torch._utils" not in data
    with safe_open(path, "np") as file:
        kinds = {name.split(".")[0] for name in file.keys()}  # noqa: SIM118
    assert kinds == {"model", "optimizer", "sums"}


@contextmanager
def full(path):
    raise OSError(errno.ENOSPC, "No space left on device", str(path))
    yield


def test_a_full_disk(three, monkeypatch):
    monkeypatch.setattr(room, "atomic_write", full)
    before = {path: path.read_bytes() for path in three.iterdir()}
    with raises(
        DataError,
        path=three / "step-000000012-000000001.safetensors",
        mentions=("No space left on device", "earlier checkpoints are intact"),
    ):
        save_checkpoint(three, some(0, 12, 1))
    assert {path: path.read_bytes() for path in three.iterdir()} == before


def test_a_disk_that_fills_up_during_a_save(three, monkeypatch):
    """What was half written goes, and what was there stays."""
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    before = names(three)
    with raises(DataError, path=three / "step-000000012-000000001.safetensors", mentions="No space left on device"):
        save_checkpoint(three, some(0, 12, 1))
    assert names(three) == before
    assert last_checkpoint(three).document.state.clips == 81


def test_a_run_on_a_full_disk_resumes_when_there_is_space(tiny, finished, go, outcome, monkeypatch, tmp_path):
    real, calls = room.atomic_write, []

    def filling(path):
        calls.append(path)
        return real(path) if len(calls) < 3 else full(path)

    monkeypatch.setattr(room, "atomic_write", filling)
    unwritten = tmp_path / "run" / "checkpoints" / "step-000000003-000000000.safetensors"
    with raises(DataError, path=unwritten, mentions="No space left"):
        go(tiny("run.checkpoint_minutes=0"), tmp_path / "run")
    assert names(tmp_path / "run" / "checkpoints") == [
        "step-000000001-000000000.safetensors",
        "step-000000002-000000000.safetensors",
    ]
    monkeypatch.undo()
    go(tiny(), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(finished)


@pytest.mark.parametrize("name", ["recipe.yaml", "log.csv", "result.json"])
def test_a_full_disk_for_the_other_files(tiny, go, monkeypatch, tmp_path, name):
    real = files.atomic_write
    monkeypatch.setattr(files, "atomic_write", lambda path: (full if path.name == name else real)(path))
    with raises(RipeError, path=tmp_path / "run" / name, mentions="No space left"):
        go(tiny("schedule.batch_size=11", "schedule.epochs=1", "loss.passes=1"), tmp_path / "run")
