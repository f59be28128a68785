"""Checkpoints: what is kept, what is read when one is damaged, and a disk without room."""

import errno
import hashlib
import json
import os
import shutil
from contextlib import contextmanager

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ripe_mambaspike.errors import DataError, RipeError
from ripe_mambaspike.train import checkpoint as room
from ripe_mambaspike.train import history, recipes, run
from ripe_mambaspike.train.checkpoint import Checkpoint, last_checkpoint, save_checkpoint


def some(value):
    return Checkpoint({"x": torch.full((3,), float(value))}, {"place": {"epoch": value}, "rows": []})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def three(tmp_path):
    """A folder after three saves."""
    for moves, epoch in ((4, 0), (8, 0), (8, 1)):
        save_checkpoint(tmp_path, (moves, epoch), some(10 * moves + epoch))
    return tmp_path


def test_the_last_two_are_kept(three):
    assert names(three) == ["move-000000008-000000000.safetensors", "move-000000008-000000001.safetensors"]
    found = last_checkpoint(three)
    assert found.tensors["x"].tolist() == [81.0] * 3
    assert found.document == {"format": "ripe-checkpoint", "version": 2, "place": {"epoch": 81}, "rows": []}


def test_other_files_are_left_alone(three):
    (three / "move-notes.safetensors").write_text("mine")
    (three / "move-000000009-000000001.safetensors.bak").write_text("mine")
    save_checkpoint(three, (12, 1), some(7))
    assert names(three) == [
        "move-000000008-000000001.safetensors",
        "move-000000009-000000001.safetensors.bak",
        "move-000000012-000000001.safetensors",
        "move-notes.safetensors",
    ]
    assert last_checkpoint(three).document["place"] == {"epoch": 7}


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
    save_file({"x": torch.zeros(1)}, path, {"ripe": json.dumps({"format": "ripe-checkpoint", "version": 3})})


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


def one_bit_of_the_place_changed(path):
    exchanged(path, b'\\"epoch\\": 81', b'\\"epoch\\": 80')


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
    cut_short,
    half,
    emptied,
    zeroed,
    of_another,
    without_json,
    of_another_version,
    of_another_format,
    pickled,
    of_a_list,
    one_byte_changed,
    one_bit_of_the_place_changed,
    another_type,
    another_name,
    another_shape,
    a_pipe,
    a_folder,
    huge,
    a_device,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_passed_over(three, caplog, damage):
    newest = three / "move-000000008-000000001.safetensors"
    damage(newest)
    with caplog.at_level("WARNING", "ripe_mambaspike"):
        found = last_checkpoint(three)
    assert found.tensors["x"].tolist() == [80.0] * 3
    (line,) = caplog.messages
    assert str(newest) in line
    assert "the checkpoint before it is tried" in line
    assert "\n" not in line


def test_all_of_them_damaged(three):
    for path in three.iterdir():
        cut_short(path)
    with pytest.raises(DataError) as caught:
        last_checkpoint(three)
    assert caught.value.path == three
    assert len(names(three)) == 2


def test_every_bit_of_the_document_is_covered(tmp_path):
    """Each bit of the header and of the tensors by itself: what is read is what was written, or nothing is."""
    path = save_checkpoint(tmp_path, (1, 0), some(7))
    data, written = path.read_bytes(), last_checkpoint(tmp_path)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        try:
            found = last_checkpoint(tmp_path)
        except DataError:
            continue
        assert found.document == written.document, bit
        assert found.tensors["x"].tolist() == written.tensors["x"].tolist(), bit


def test_one_that_does_not_fit_is_passed_over(three, caplog):
    def check(checkpoint):
        if checkpoint.document["place"]["epoch"] == 81:
            raise ValueError("place.epoch: expected 80, got 81")

    assert last_checkpoint(three, check).document["place"]["epoch"] == 80
    assert "place.epoch" in caplog.text


def test_larger_ones_than_a_run_can_write_are_not_read(three):
    with pytest.raises(DataError):
        last_checkpoint(three, most=100)


def test_those_that_were_passed_over_go_when_the_next_is_written(three):
    """Else two damaged ones of a later place would have every new one removed."""
    for name in ("move-000000020-000000001.safetensors", "move-000000030-000000001.safetensors"):
        (three / name).write_text("damaged")
    save_checkpoint(three, (12, 1), some(7))
    assert names(three) == ["move-000000008-000000001.safetensors", "move-000000012-000000001.safetensors"]


def old_version(path, document, tensors):
    """As the version before wrote it: a checksum of the names and numbers, within the document."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    facts = {"format": "ripe-checkpoint", "version": 1, "sha256": digest.hexdigest()}
    save_file(tensors, path, {"ripe": json.dumps(facts | document)})


def test_one_of_the_version_before_is_used_with_a_warning(three, caplog):
    path = three / "move-000000008-000000001.safetensors"
    old_version(path, {"place": {"epoch": 5}}, {"x": torch.ones(3)})
    assert last_checkpoint(three).document["place"] == {"epoch": 5}
    (line,) = caplog.messages
    assert str(path) in line
    one_byte_changed(path)
    assert last_checkpoint(three).document["place"] == {"epoch": 80}


def test_a_run_goes_on_from_the_version_before(finished, tiny, go, outcome, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        with safe_open(path, "pt") as file:
            document = json.loads(file.metadata()["ripe"])
        del document["threads"], document["format"], document["version"]
        old_version(path, document, load_file(path))
    go(tiny(), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(finished)


def test_a_run_goes_on_from_the_one_before(finished, tiny, go, outcome, caplog, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    cut_short(max((tmp_path / "run" / "checkpoints").iterdir()))
    go(tiny(), tmp_path / "run", resume=True)
    assert "the checkpoint before it is tried" in caplog.text
    assert outcome(tmp_path / "run") == outcome(finished)


def test_a_run_without_a_whole_one_is_refused(finished, tiny, go, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        cut_short(path)
    with pytest.raises(DataError, match="none of the checkpoints"):
        go(tiny(), tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / "result.json").exists()


def test_it_opens_with_safetensors_alone(finished):
    """No pickle: a header in JSON, and its metadata is one JSON document."""
    path = max((finished / "checkpoints").iterdir())
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    document = json.loads(header["__metadata__"]["ripe"])
    assert (document["format"], document["version"]) == ("ripe-checkpoint", 2)
    assert document["threads"] == torch.get_num_threads()
    assert document["place"] == {"epoch": 2, "batch": 0, "moves": 6, "clips": 0, "seconds": 0.0}
    assert [row["epoch"] for row in document["rows"]] == [1, 2]
    assert document["best"]["epoch"] == json.loads((finished / "result.json").read_text())["epoch"]
    assert document["seconds"] > 0
    assert b"torch._utils" not in data
    with safe_open(path, "np") as file:
        kinds = {name.split(".")[0] for name in file.keys()}  # noqa: SIM118
    assert kinds == {"model", "optimizer", "sums"}


def test_the_average_is_in_it(tiny, go, tmp_path):
    go(tiny("run.ema_decay=0.5", "schedule.batch_size=11", "schedule.epochs=1"), tmp_path / "run")
    tensors = load_file(max((tmp_path / "run" / "checkpoints").iterdir()))
    averages = [name for name in tensors if name.startswith("average.")]
    weights = [name for name in tensors if name.startswith("model.") and "running" not in name]
    assert len(averages) == len(weights)


@contextmanager
def full(path):
    raise OSError(errno.ENOSPC, "No space left on device", str(path))
    yield


def test_a_full_disk(three, monkeypatch):
    monkeypatch.setattr(room, "atomic_write", full)
    before = {path: path.read_bytes() for path in three.iterdir()}
    with pytest.raises(DataError) as caught:
        save_checkpoint(three, (12, 1), some(0))
    assert str(caught.value) == (
        f"{three / 'move-000000012-000000001.safetensors'} cannot be written (No space left on device); the "
        "checkpoints before it are whole, and a disk with room is wanted"
    )
    assert {path: path.read_bytes() for path in three.iterdir()} == before


def test_a_disk_that_fills_up_while_it_is_written(three, monkeypatch):
    """What was half written goes, and what was there stays."""
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    before = names(three)
    with pytest.raises(DataError, match="No space left on device"):
        save_checkpoint(three, (12, 1), some(0))
    assert names(three) == before
    assert last_checkpoint(three).document["place"] == {"epoch": 81}


def test_a_run_on_a_disk_that_fills_up_goes_on_when_there_is_room(tiny, finished, go, outcome, monkeypatch, tmp_path):
    real, calls = room.atomic_write, []

    def filling(path):
        calls.append(path)
        return real(path) if len(calls) < 3 else full(path)

    monkeypatch.setattr(room, "atomic_write", filling)
    with pytest.raises(DataError, match=r"move-000000003-000000000.safetensors cannot be written \(No space left"):
        go(tiny("run.checkpoint_minutes=0"), tmp_path / "run")
    assert names(tmp_path / "run" / "checkpoints") == [
        "move-000000001-000000000.safetensors",
        "move-000000002-000000000.safetensors",
    ]
    monkeypatch.undo()
    go(tiny(), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(finished)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (recipes, "recipe.yaml"),
        (history, "log.csv"),
        (run, "result.json"),
    ],
    ids=["recipe", "log", "result"],
)
def test_a_full_disk_for_the_other_files(tiny, go, monkeypatch, tmp_path, owner, name):
    monkeypatch.setattr(owner, "atomic_write", full)
    with pytest.raises(RipeError, match=f"{name} cannot be written"):
        go(tiny("schedule.batch_size=11", "schedule.epochs=1", "loss.passes=1"), tmp_path / "run")
