"""Prepared sets (their index) and archives of recordings."""

import io
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path

from fuzz.mutate import mutate_json
from fuzz.target import Target, WrongAnswer
from ripe_mambaspike.data.archives import extract
from ripe_mambaspike.data.label_table import read_label_table
from ripe_mambaspike.data.listing import SPLITS
from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.data.store import read_store, verify_store
from ripe_mambaspike.data.store_index import INDEX
from ripe_mambaspike.errors import RipeError


def make(name: str) -> Target:
    makers = {"archive": _archive, "label-table": _label_table, "store": _store}
    return makers[name](name)


def _label_table(name: str) -> Target:
    files = ["a.raw", "b/c.raw", "d.raw"]
    seeds = [b"file,label\na.raw,x\nb/c.raw,y\n", b'file,label,split\r\na.raw,x,train\r\nd.raw,"y, z",test\r\n']

    def run(case: bytes, folder: Path) -> None:
        path = folder / "labels.csv"
        path.write_bytes(case)
        rows = read_label_table(path, files, ["train", "val", "test"])
        if len({row.file for row in rows}) != len(rows) or not all(row.file in files and row.label for row in rows):
            raise WrongAnswer(f"rows {rows}")

    return Target(name, "others", seeds, run, (b'"', b",", b"\r\n", b"\xef\xbb\xbf", b"../", b"split"), (RipeError,))


def _store(name: str) -> Target:
    place = Path(tempfile.mkdtemp(prefix="ripe-fuzz-"))
    store = simulate_dataset("synthgesture", place, train=11, val=11, test=11, size=16)
    seed = (store.folder / INDEX).read_bytes()

    def run(case: bytes, folder: Path) -> None:
        for shard in store.folder.glob("shard-*.npy"):
            if not (folder / shard.name).exists():
                shutil.copyfile(shard, folder / shard.name)
        (folder / INDEX).write_bytes(case)
        opened = read_store(folder)
        problems = []
        for step in (lambda: verify_store(opened), lambda: _use(opened)):
            try:
                step()
            except RipeError as error:
                problems.append(error)
        if problems:
            raise problems[0]

    return Target(name, "others", [seed], run, allowed=(RipeError,), change=mutate_json)


def _use(store) -> None:  # type: ignore[no-untyped-def]
    """What training does with a store."""
    width, height = store.sensor_size
    for partition in store.partitions:
        for split in SPLITS:
            for number in store.members(partition, split)[:4]:
                clip = store.clip(int(number))
                if len(clip) and (clip["x"].max() >= width or clip["y"].max() >= height):
                    raise WrongAnswer(f"clip {number} has events outside the {width}×{height} sensor")
    if len(store.labels) != len(store):
        raise WrongAnswer("there are not as many labels as clips")
    if len(store) and store.labels.max() >= len(store.classes):
        raise WrongAnswer("a label has no class")


def _archive(name: str) -> Target:
    files = {"set/a/one.bin": b"12345" * 20, "set/b/two.bin": b"54321" * 20}
    made_zip, made_tar = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(made_zip, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    with tarfile.open(fileobj=made_tar, mode="w:gz") as packed:
        for path, data in files.items():
            facts = tarfile.TarInfo(path)
            facts.size = len(data)
            packed.addfile(facts, io.BytesIO(data))
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as packed:
        for kind, link in ((tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "../../x"), (tarfile.REGTYPE, "")):
            facts = tarfile.TarInfo(f"set/{kind!r}")
            facts.type, facts.linkname = kind, link
            packed.addfile(facts)

    def run(case: bytes, folder: Path) -> None:
        inner = folder / "inner"
        shutil.rmtree(inner, ignore_errors=True)
        inner.mkdir()
        path = inner / ("a.zip" if case[:2] == b"PK" else "a.tar")
        path.write_bytes(case)
        try:
            extract(path, inner / "out")
        finally:
            if strays := {one.name for one in folder.iterdir()} - {"inner"}:
                raise WrongAnswer(f"{sorted(strays)[0]!r} was written outside its folder")

    words = (b"../../x", b"/tmp/x", b"\0", b"ustar", b"PK\x01\x02")
    seeds = [made_zip.getvalue(), made_tar.getvalue(), plain.getvalue()]
    return Target(name, "others", seeds, run, words, (RipeError,))
