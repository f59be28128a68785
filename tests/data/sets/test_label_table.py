"""Labels from a table, for recordings that are not in class folders."""

import json

import pytest
from trees import make_recording, save

from raising import raises
from ripe_mambaspike import load_dataset, prepare_dataset, verify_dataset
from ripe_mambaspike.data.label_table import read_label_table
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.errors import ConfigError, DataError

FILES = ["a.bin", "b.bin", "deep/c.bin", "deep/er/d.bin"]


@pytest.fixture
def root(tmp_path):
    for number, name in enumerate(FILES):
        save(tmp_path / "set" / name, make_recording(number))
    return tmp_path / "set"


@pytest.fixture
def table(tmp_path):
    def write(text, name="labels.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


WHOLE = "file,label\na.bin,wave\nb.bin,clap\ndeep/c.bin,wave\ndeep/er/d.bin,clap\n"


def test_classes_and_labels(root, table):
    listing = list_dataset("folder", root, labels=table(WHOLE))
    assert listing.classes == ("clap", "wave")
    assert {clip.name: listing.classes[clip.label] for clip in listing.clips} == {
        "a.bin": "wave", "b.bin": "clap", "deep/c.bin": "wave", "deep/er/d.bin": "clap",
    }  # fmt: skip
    assert list(listing.partitions) == ["unsplit"]
    shared = list_dataset("folder", root, labels=table(WHOLE), test_share=0.5)
    assert shared.partitions["share-0.5"].sizes() == {"train": 2, "val": 0, "test": 2}


def test_splits_of_a_table_in_the_root(root, table, monkeypatch, tmp_path):
    """As spreadsheets write it: a mark at the start, other columns' order, CRLF, an empty line, quotes."""
    text = '\ufeffSplit,File,Label\r\ntrain,./a.bin,"wave, right"\r\n\r\nTest,b.bin,clap\r\nval,deep/c.bin,clap\r\n'
    (root / "labels.csv").write_bytes((text + "train,deep/er/d.bin, clap \r\n").encode())
    monkeypatch.chdir(tmp_path)
    made, passed = prepare_dataset("folder", root, labels="labels.csv", workers=1)
    assert passed == ()
    assert made.partitions == ("labels",)
    assert made.classes == ("clap", "wave, right")
    names = {split: load_dataset("folder", root, split).names for split in ("train", "val", "test")}
    assert names == {"train": ["a.bin", "deep/er/d.bin"], "val": ["deep/c.bin"], "test": ["b.bin"]}
    assert load_dataset("folder", root, "train").targets == [1, 0]
    assert verify_dataset("folder", root)[1] == "unchanged"
    changed = (
        (root / "labels.csv").read_text().replace("Test,b.bin", "train,b.bin").replace("val,deep/c", "test,deep/c")
    )
    (root / "labels.csv").write_text(changed)
    with raises(DataError, "source"):
        verify_dataset("folder", root)
    with raises(DataError, "test_share"):
        prepare_dataset("folder", root, labels="labels.csv", test_share=0.5)


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("", ("columns",)),
        ("a.bin,wave\n", ("columns",)),
        ("file,label,file\n", ("columns",)),
        ("file,label\n", ("row",)),
        (WHOLE + "e.bin,wave\n", ("row 6", "e.bin")),
        (WHOLE + "../set/a.bin,wave\n", ("row 6",)),
        (WHOLE + ",wave\n", ("row 6",)),
        (WHOLE + "./a.bin,wave\n", ("row 6", "row 2", "a.bin")),
        (WHOLE.replace("b.bin,clap", "b.bin,"), ("row 3", "b.bin")),
        (WHOLE.replace("b.bin,clap", "b.bin"), ("row 3",)),
        (WHOLE.replace("b.bin,clap", "b.bin,clap,x"), ("row 3",)),
        (WHOLE.replace("b.bin,clap\n", ""), ("b.bin",)),
        ("file,label,split\na.bin,wave,train\nb.bin,wave,\n", ("row 3",)),
        ("file,label,split\na.bin,wave,later\n", ("row 2", "later")),
        (b"file,label\n\xff\xfe,x\n", ("UTF-8",)),
        ('file,label\n"a.bin,wave\n', ("CSV",)),
    ],
)
def test_what_is_wrong_is_named_with_its_row(root, table, text, mentions):
    path = table(text)
    with raises(DataError, "labels", path, mentions):
        list_dataset("folder", root, labels=path)


def test_a_table_that_is_missing(root, tmp_path):
    with raises(DataError, "labels", tmp_path / "none.csv"):
        list_dataset("folder", root, labels=tmp_path / "none.csv")
    with raises(ConfigError, "labels"):
        list_dataset("nmnist", root, labels=tmp_path / "none.csv")


def test_rows_know_their_lines(table):
    rows = read_label_table(table('file,label\n"a\nb",x\n\nc,y\n'), ["a\nb", "c"], ["train"])
    assert [(row.file, row.row) for row in rows] == [("a\nb", 3), ("c", 5)]


def test_the_command(root, table, tmp_path, capsys):
    from ripe_mambaspike.cli.main import main

    words = ["data", "prepare", "folder", "--root", str(root), "--labels", str(table(WHOLE)), "--workers", "1"]
    assert main([*words, "--test-share", "0.5", "--format", "atis", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["classes"], found["clips"]) == (2, 4)
    assert main([*words[:6], str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
    assert main([*words, "--format", "bin"]) == 2
    assert "atis" in capsys.readouterr().err
