"""Pictures are found by what is there, listed, and read as grey from 0 to 1; what is wrong is named in one line."""

import gzip
import io
import shutil

import numpy as np
import pytest
from PIL import Image
from shown import cifar_names, digits, idx, packed, png, save_mnist, save_tree

from raising import raises
from ripe_mambaspike.data.pictures import find_pictures, picture_checksums, read_idx, read_pictures
from ripe_mambaspike.errors import DataError


@pytest.mark.parametrize("compressed", [True, False])
def test_idx(tmp_path, compressed):
    root = save_mnist(tmp_path / "mnist", 12, 5, packed=compressed)
    found = find_pictures(root)
    assert found.classes == tuple("0123456789")
    assert [(one.part, one.number, one.label) for one in found.listed] == [
        *(("train", number, number % 10) for number in range(12)),
        *(("test", number, number) for number in range(5)),
    ]
    for listed, wanted in ((found.listed[:12], digits(12, 0)), (found.listed[12:], digits(5, 1))):
        read = read_pictures(found.source, listed)
        assert all(picture.dtype == np.float32 for picture in read)
        np.testing.assert_array_equal(np.stack(read), wanted.astype(np.float32) / np.float32(255))


def test_packed_and_not_side_by_side_are_one(tmp_path):
    save_mnist(tmp_path, 12, 5)
    save_mnist(tmp_path, 12, 5, packed=False)
    assert len(find_pictures(tmp_path).listed) == 17
    assert len(find_pictures(tmp_path / "train-images-idx3-ubyte").listed) == 17


def test_an_idx_file_that_changes_is_read_again(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(idx(digits(2)))
    assert read_idx(path).shape == (2, 28, 28)
    path.write_bytes(idx(digits(3)))
    assert read_idx(path).shape == (3, 28, 28)


def test_a_tree_a_zip_and_a_folder_with_the_zip(tmp_path):
    tree = save_tree(tmp_path / "tree", ["b/image_0010.png", "b/image_0009.png", "a/x.png"])
    (tmp_path / "zipped").mkdir()
    archive = packed(tree, tmp_path / "zipped" / "images.zip")
    around = tmp_path / "around" / "101_Objects"
    shutil.copytree(tree, around)
    marks, read = [], []
    for place in (tree, archive, archive.parent, around.parent):
        found = find_pictures(place)
        assert found.classes == ("a", "b")
        assert [(one.label, one.part, one.number) for one in found.listed] == [(0, "", -1), (1, "", 9), (1, "", 10)]
        marks.append(picture_checksums(found.source, found.listed))
        read.append(np.stack(read_pictures(found.source, found.listed)))
    assert marks.count(marks[0]) == 4
    assert all(np.array_equal(read[0], other) for other in read)
    with Image.open(tree / "b" / "image_0009.png") as image:
        np.testing.assert_array_equal(read[0][1], np.asarray(image.convert("L")).astype(np.float32) / np.float32(255))
    assert read[0].shape == (3, 12, 16)


def test_train_and_test_folders_are_splits(tmp_path):
    found = find_pictures(save_tree(tmp_path, cifar_names(2, 1)))
    assert len(found.classes) == 10
    assert [one.part for one in found.listed] == ["test"] * 10 + ["train"] * 20
    assert [(one.label, one.number) for one in found.listed[10:14]] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_any_size_aspect_and_depth(tmp_path):
    save_tree(tmp_path / "a", ["0.png"], (8, 100))
    grey = np.arange(144, dtype=np.uint8).reshape(12, 12)
    deep = (np.arange(144, dtype=np.uint16) * 400).reshape(12, 12)
    kept = io.BytesIO()
    Image.fromarray(deep).save(kept, "PNG")
    (tmp_path / "a" / "1.png").write_bytes(kept.getvalue())
    Image.fromarray(grey).save(tmp_path / "a" / "2.JPG", "JPEG", quality=100)
    Image.fromarray(grey).convert("P").save(tmp_path / "a" / "3.png")
    found = find_pictures(tmp_path)
    thin, sixteen, lossy, palette = read_pictures(found.source, found.listed)
    assert thin.shape == (100, 8)
    np.testing.assert_allclose(sixteen, deep / 65535, atol=1e-6)
    np.testing.assert_allclose(lossy, grey / 255, atol=0.02)
    np.testing.assert_allclose(palette, grey / 255, atol=1e-6)


def test_paths_without_pictures_are_refused(tmp_path):
    kinds = ("IDX files", "class/picture.jpg or .png", "zip file")
    with raises(DataError, "images", tmp_path / "missing", ("nothing", *kinds)):
        find_pictures(tmp_path / "missing")
    (tmp_path / "notes.md").write_text("none")
    (tmp_path / ".hidden").mkdir()
    save_tree(tmp_path / ".hidden", ["a/1.png"])
    with raises(DataError, "images", tmp_path, ("no pictures", *kinds)):
        find_pictures(tmp_path)
    with raises(DataError, "images", tmp_path / "notes.md", "no zip file"):
        find_pictures(tmp_path / "notes.md")
    save_mnist(tmp_path / "empty", 0, 0)
    with raises(DataError, "images", tmp_path / "empty", "no pictures"):
        find_pictures(tmp_path / "empty")


@pytest.mark.parametrize("names", [["1.png"], ["a/1.png", "b/c/2.png"], ["x/train/a/1.png", "y/train/a/2.png"]])
def test_a_picture_that_is_not_in_its_class(tmp_path, names):
    save_tree(tmp_path, names)
    with raises(DataError, "images", mentions="class/picture or train/class/picture") as caught:
        find_pictures(tmp_path)
    assert caught.value.path in [tmp_path / name for name in names]


LABELS, IMAGES = "train-labels-idx1-ubyte.gz", "train-images-idx3-ubyte.gz"


@pytest.mark.parametrize(
    ("name", "data", "named", "mentions"),
    [
        (LABELS, None, IMAGES, ("train-labels",)),
        (IMAGES, None, LABELS, ("train-images",)),
        (LABELS, gzip.compress(idx(np.zeros(11, np.uint8)), mtime=0), IMAGES, ("11 labels", "12 pictures")),
        (LABELS, gzip.compress(idx(digits(12)), mtime=0), IMAGES, ("3 axes, and 1", "3 and 3")),
        (IMAGES, gzip.compress(idx(digits(12)), mtime=0)[:-20], IMAGES, ("an IDX file",)),
        (IMAGES, gzip.compress(idx(digits(12))[:-1], mtime=0), IMAGES, ("12×28×28 bytes", "9,407")),
        (IMAGES, idx(digits(12)[0]), IMAGES, ("begins with 00000802", "one or three axes")),
        (IMAGES, b"none of it", IMAGES, ("an IDX file",)),
        (IMAGES, b"", IMAGES, ("an IDX file",)),
    ],
)
def test_idx_files_that_do_not_pair_or_are_damaged(tmp_path, name, data, named, mentions):
    save_mnist(tmp_path, 12, 5)
    (tmp_path / name).unlink() if data is None else (tmp_path / name).write_bytes(data)
    with raises(DataError, "images", tmp_path / named, mentions):
        find_pictures(tmp_path)


@pytest.mark.parametrize(
    ("data", "mentions"),
    [
        (png(0, (7, 30)), ("7×30", "from 8 to 4096")),
        (png(0, (4097, 8)), ("4097×8", "from 8 to 4096")),
        (png(0)[:200], ("JPEG or PNG",)),
        (b"text", ("JPEG or PNG",)),
        (b"", ("JPEG or PNG",)),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_odd_and_damaged_pictures(tmp_path, data, mentions, zipped):
    tree = save_tree(tmp_path / "tree", ["a/1.png"])
    (tree / "a" / "1.png").write_bytes(data)
    found = find_pictures(packed(tree, tmp_path / "x.zip") if zipped else tree)
    for call in (read_pictures, picture_checksums):
        with raises(DataError, "picture", found.source / "a" / "1.png", mentions):
            call(found.source, found.listed)


def test_a_damaged_zip(tmp_path):
    tree = save_tree(tmp_path / "tree", ["a/1.png"])
    archive = packed(tree, tmp_path / "x.zip")
    data = bytearray(archive.read_bytes())
    found = find_pictures(archive)
    data[60] ^= 255
    archive.write_bytes(data)
    with raises(DataError, "picture", archive / "a" / "1.png"):
        read_pictures(found.source, found.listed)
    archive.write_bytes(data[:100])
    with raises(DataError, "images", archive, "no zip file"):
        find_pictures(archive)


def test_the_shared_pictures(shared):
    for name, classes, count in (("mnist", 10, 70_000), ("cifar10", 10, 10_000), ("caltech101", 101, 8_677)):
        found = find_pictures(shared / name)
        assert (len(found.classes), len(found.listed)) == (classes, count)
        read = read_pictures(found.source, found.listed[::997])
        assert all(0 <= picture.min() < picture.max() <= 1 for picture in read)
