"""Archives that are sound give their tree; every other kind gives one sentence and nothing on the disk."""

import gzip
import io
import os
import re
import signal
import stat
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from pathlib import Path

import pytest

from raising import raises
from ripe_mambaspike import files
from ripe_mambaspike.data import archives
from ripe_mambaspike.data.archives import MARKER_FILE, extract, extracted_from
from ripe_mambaspike.errors import DataError

TREE = {"Train/0/00002.bin": b"\1\2\3" * 1000, "Train/1/00004.bin": b"", "Train/read me.txt": "größe".encode()}
INSIDE = {name.removeprefix("Train/"): data for name, data in TREE.items()}


def make_zip(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def make_tar(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def tar_of(path: Path, **fields: object) -> Path:
    member = tarfile.TarInfo("good/name")
    for field, value in fields.items():
        setattr(member, field, value)
    with tarfile.open(path, "w") as archive:
        archive.addfile(member)
    return path


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MARKER_FILE)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def refuse(path: Path, reason: str) -> str:
    """The message an archive is refused with, which has the reason (a pattern); nothing is left behind."""
    before = set(path.parent.rglob("*"))
    with raises(DataError, mentions=path.name) as caught:
        extract(path, path.parent / "out")
    assert set(path.parent.rglob("*")) == before
    message = str(caught.value)
    assert re.search(reason, message), message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("set.zip", make_zip),
        ("stored.zip", lambda path, files: make_zip(path, files, zipfile.ZIP_STORED)),
        ("set.tar", lambda path, files: make_tar(path, files, "w")),
        ("set.tar.gz", make_tar),
        ("set.tar.bz2", lambda path, files: make_tar(path, files, "w:bz2")),
        ("no suffix at all", make_zip),
    ],
)
def test_an_intact_archive_is_extracted(tmp_path, name, make):
    path = make(tmp_path / name, TREE)
    assert extract(path, tmp_path / "out") == tmp_path / "out"
    assert tree(tmp_path / "out") == TREE
    assert {p.name for p in tmp_path.iterdir()} == {name, "out"}


def test_a_top_folder_of_the_wanted_name_is_not_doubled(tmp_path):
    path = make_zip(tmp_path / "Train.zip", {**TREE, "__MACOSX/Train/._x": b"litter"})
    assert tree(extract(path, tmp_path / "a" / "Train")) == INSIDE
    bare = make_zip(tmp_path / "bare.zip", INSIDE)
    assert tree(extract(bare, tmp_path / "b" / "Train")) == INSIDE


def test_empty_folders_dots_and_backslashes(tmp_path):
    path = make_zip(tmp_path / "a.zip", {"./x/./y.bin": b"1", "empty/": b"", "x\\z.bin": b"2"})
    out = extract(path, tmp_path / "out")
    assert tree(out) == {"x/y.bin": b"1", "x/z.bin": b"2"}
    assert (out / "empty").is_dir()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_inside_is_unpacked_where_it_lies(tmp_path, kind):
    inner = (make_zip if kind == "zip" else make_tar)(tmp_path / "inner", TREE).read_bytes()
    name = "Train.zip" if kind == "zip" else "Train.tar.gz"
    path = make_tar(tmp_path / "outer.tar", {f"record/{name}": inner, "record/readme": b"hi"}, "w")
    assert tree(extract(path, tmp_path / "record")) == {**TREE, "readme": b"hi"}


def test_a_tar_that_ends_with_a_zip_is_a_tar(tmp_path):
    inner = make_zip(tmp_path / "inner", {"a": b"1"}).read_bytes()
    path = make_tar(tmp_path / "outer.tar", {"data.npz": inner}, "w")
    assert tree(extract(path, tmp_path / "out")) == {"data.npz": inner}


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/etc/evil", "\\evil", "C:\\evil", "C:evil", "..\\evil", ".."]
)
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, make, name):
    message = refuse(make(tmp_path / "archive", {"good": b"1", name: b"2"}), "would leave the folder")
    assert repr(name) in message


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "inside"),
        (tarfile.LNKTYPE, "../outside"),
        (tarfile.CHRTYPE, ""),
        (tarfile.BLKTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind, link):
    refuse(tar_of(tmp_path / "a.tar", type=kind, linkname=link), "link or device")


def test_a_link_in_a_zip_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        member = zipfile.ZipInfo("link")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(member, "/etc/passwd")
    refuse(tmp_path / "a.zip", "link or device")


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize("inside", [False, True])
def test_an_archive_that_unpacks_without_end_is_refused(tmp_path, monkeypatch, make, inside):
    """By its bytes beside its own size, archives inside it counted in."""
    monkeypatch.setattr(archives, "BASE_EXTRACTED_BYTES", 1 << 16)
    bomb = make(tmp_path / "bomb", {f"{number}.bin": bytes(1 << 20) for number in range(4)})
    path = tmp_path / "a.zip"
    data = bomb.read_bytes()
    bomb.unlink()
    path.write_bytes(data)
    if inside:
        make_zip(path, {"in.zip" if make is make_zip else "in.tar.gz": data})
    refuse(path, "far more than it should")


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_too_many_members_are_refused(tmp_path, monkeypatch, make):
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    refuse(make(tmp_path / "a.zip", {f"{number}": b"" for number in range(4)}), "far more than it should")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_long_extended_header_is_refused(tmp_path, kind):
    member = tarfile.TarInfo("note")
    member.type, member.size = kind, (1 << 20) + 1
    with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 21))
    refuse(tmp_path / "a.tar.gz", "1048577 bytes")


def test_a_sparse_member_counts_with_all_it_unpacks_to(tmp_path):
    member = tarfile.TarInfo("sparse")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (0, 512)  # the one piece that is there
    header[483:495] = struct.pack(">BxxxQ", 0x80, 1 << 50)  # and the size that it claims
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(bytes(header) + bytes(512) + bytes(1024))
    refuse(tmp_path / "a.tar", "far more than it should")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_one_name_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x", b"1")
        archive.writestr("x", b"2")
    refuse(tmp_path / "a.zip", "twice")


@pytest.mark.parametrize("keep", [0, 3, 40, 0.5, -1, -30])
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_a_truncated_archive_is_refused(tmp_path, make, keep):
    path = make(tmp_path / "archive", {**TREE, "noise": os.urandom(20_000)})
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    refuse(path, "damage")


def test_a_truncated_plain_tar_is_refused(tmp_path):
    path = make_tar(tmp_path / "a.tar", TREE, "w")
    path.write_bytes(path.read_bytes()[:2000])
    refuse(path, "damage")


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_a_flipped_bit_is_seen(tmp_path, make):
    path = make(tmp_path / "archive", {"noise": os.urandom(20_000)})
    data = bytearray(path.read_bytes())
    data[10_000] ^= 1
    path.write_bytes(data)
    refuse(path, "damage")


def test_the_checksum_at_the_end_of_a_gzip_is_read(tmp_path):
    path = make_tar(tmp_path / "a.tar.gz", TREE)
    data = bytearray(path.read_bytes())
    data[-8] ^= 1  # of the CRC, behind all members
    path.write_bytes(data)
    refuse(path, "damage.*CRC")


@pytest.mark.parametrize("data", [b"", b"<html>not found</html>" * 100, b"PK\3\4 and no more"])
def test_what_is_no_archive_is_refused(tmp_path, data):
    (tmp_path / "a.zip").write_bytes(data)
    refuse(tmp_path / "a.zip", "zip or tar file.*damage")


def test_a_missing_archive_is_named(tmp_path):
    with raises(DataError, "archive", tmp_path / "nowhere.zip"):
        extract(tmp_path / "nowhere.zip", tmp_path / "out")


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
@pytest.mark.parametrize("change", [-1, -900, 1])
@pytest.mark.parametrize("fitting", [True, False])
def test_a_zip_member_of_another_size_than_declared_is_refused(tmp_path, compression, change, fitting):
    """Also when its checksum is made to fit the part that is declared, so that only the size can tell."""
    content = bytes(1000)
    declared = len(content) + change
    path = make_zip(tmp_path / "a.zip", {"x": content}, compression)
    data = bytearray(path.read_bytes())
    record = data.index(b"PK\1\2")
    data[record + 16 : record + 20] = struct.pack("<I", zlib.crc32(content[:declared] if fitting else content))
    data[record + 24 : record + 28] = struct.pack("<I", declared)
    path.write_bytes(data)
    refuse(path, "more than the|damage" if change < 0 else "of the 1001 bytes")


def test_an_encrypted_member_is_refused(tmp_path):
    path = make_zip(tmp_path / "a.zip", {"x": b"1"})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    refuse(path, "encrypted")


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_a_disk_without_room_is_seen_before(tmp_path, monkeypatch, make):
    path = make(tmp_path / "archive", {"a": bytes(5000), "b": bytes(6000)})
    usage = archives.shutil._ntuple_diskusage(10**9, 10**9, 5500)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda folder: usage)
    refuse(path, "(11000|6000) free bytes for archive, got 5500")


def test_a_second_call_has_nothing_to_do(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "a.zip", TREE)
    out = extract(path, tmp_path / "out")
    monkeypatch.setattr(archives, "_unpack", None)
    assert extract(path, out) == out


def test_the_marker_names_the_archive(tmp_path):
    path = make_zip(tmp_path / "a.zip", TREE)
    assert extracted_from(tmp_path / "out") is None
    out = extract(path, tmp_path / "out")
    path.unlink()
    assert extracted_from(out) == "a.zip"
    for text in ("[]", "", '{"archive": 3}'):
        (out / MARKER_FILE).write_text(text)
        assert extracted_from(out) is None


def test_a_folder_of_another_origin_is_not_touched(tmp_path):
    path = make_zip(tmp_path / "a.zip", TREE)
    (tmp_path / "out").mkdir()
    extract(path, tmp_path / "out")  # an empty folder may be used
    with raises(DataError, "folder", tmp_path / "out", ("made from a.zip", "b.zip")):
        extract(make_zip(tmp_path / "b.zip", INSIDE), tmp_path / "out")
    assert tree(tmp_path / "out") == TREE
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes").write_text("keep")
    with raises(DataError, "folder", mine, "a.zip"):
        extract(path, mine)
    assert tree(mine) == {"notes": b"keep"}


def test_two_at_once_is_refused(tmp_path):
    path = make_zip(tmp_path / "a.zip", TREE)
    with files.locked(tmp_path / ".out.lock", "held"), raises(DataError, "lock", tmp_path / ".out.lock"):
        extract(path, tmp_path / "out")
    assert tree(extract(path, tmp_path / "out")) == TREE


def test_a_lock_file_removed_by_its_last_holder_is_made_anew(tmp_path, monkeypatch):
    path, flock, calls = tmp_path / "lock", files.fcntl.flock, []

    def after_removal(handle, flags):
        calls.append(handle)
        if len(calls) == 1:
            path.unlink()  # the last holder lets go between the opening and the locking
        flock(handle, flags)

    monkeypatch.setattr(files.fcntl, "flock", after_removal)
    with files.locked(path, "held"):
        assert path.exists()
    assert not path.exists()
    assert len(calls) == 2


def test_a_kill_leaves_no_half_folder(tmp_path):
    path = make_zip(tmp_path / "a.zip", TREE)
    code = (
        "import sys, time; from ripe_mambaspike.data import archives as a; "
        "a._content_folder = lambda *x: time.sleep(60); a.extract(*sys.argv[1:])"
    )
    work = tmp_path / ".out.extracting"
    with subprocess.Popen([sys.executable, "-c", code, str(path), str(tmp_path / "out")]) as other:
        end = time.monotonic() + 20
        while not (work / "Train" / "read me.txt").exists():
            assert time.monotonic() < end
            assert other.poll() is None
            time.sleep(0.005)
        other.send_signal(signal.SIGKILL)
    assert not (tmp_path / "out").exists()
    (work / "Train" / "left over").write_text("")
    assert tree(extract(path, tmp_path / "out")) == TREE
    assert {p.name for p in tmp_path.iterdir()} == {"a.zip", "out"}


def test_checksum_names_its_kind(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert archives.archive_checksum(tmp_path / "a", "md5") == "md5:900150983cd24fb0d6963f7d28e17f72"
    with raises(DataError, "file", tmp_path / "b"):
        archives.archive_checksum(tmp_path / "b", "md5")
