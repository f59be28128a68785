"""Pictures to show a simulated camera, and a camera that is quick."""

import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from ripe_mambaspike.data.listing import SPLITS
from ripe_mambaspike.data.loading import load_dataset
from ripe_mambaspike.events.simulate.fitted import CameraCalibration, Variation, save_calibration
from ripe_mambaspike.events.simulate.pixel import Pixel
from ripe_mambaspike.events.simulate.saccades import Saccades

CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def camera(path: Path, **pixel: float) -> Path:
    """A calibration of one quick saccade."""
    saccades = Saccades(((-2.0, 0.0), (2.0, 1.0), (0.0, -1.0)), 10_000, 20_000)
    values = {"threshold_on": 0.12, "threshold_off": 0.12, "leak_hz": 5.0, **pixel}
    return save_calibration(
        CameraCalibration(Pixel(**values), saccades, Variation(threshold=0.1, balance=0.05, shift=0.3, stretch=0.03)),
        path,
    )


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def digits(count: int, seed: int = 0, side: int = 28) -> np.ndarray:
    """A bright square somewhere."""
    draw = np.random.default_rng(seed)
    made = np.zeros((count, side, side), np.uint8)
    for picture in made:
        y, x = draw.integers(0, side // 2, 2)
        picture[y : y + side // 2, x : x + side // 2] = draw.integers(128, 256)
    return made


def save_mnist(root: Path, train: int = 40, test: int = 20, packed: bool = True) -> Path:
    """IDX files as MNIST has them, the digits by turns."""
    root.mkdir(parents=True, exist_ok=True)
    for seed, (stem, count) in enumerate((("train", train), ("t10k", test))):
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, array in ((f"{stem}-images-idx3-ubyte", digits(count, seed)), (f"{stem}-labels-idx1-ubyte", labels)):
            data = gzip.compress(idx(array), mtime=0) if packed else idx(array)
            (root / (f"{name}.gz" if packed else name)).write_bytes(data)
    return root


def png(seed: int, size: tuple[int, int] = (16, 12), mode: str = "RGB") -> bytes:
    """(width, height) of noise."""
    draw = np.random.default_rng(seed)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    kept = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, shape).astype(np.uint8), mode).save(kept, "PNG")
    return kept.getvalue()


def save_tree(root: Path, names: list[str], size: tuple[int, int] = (16, 12)) -> Path:
    for seed, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(seed, size))
    return root


def cifar_names(train: int, test: int) -> list[str]:
    parts = (("train", train), ("test", test))
    return [f"{part}/{name}/{number:04d}.png" for part, count in parts for name in CIFAR for number in range(count)]


def caltech_names(**counts: int) -> list[str]:
    """So many pictures of the named classes, and one of each other class up to Caltech101's 101."""
    filled = {f"other_{number:03d}": 1 for number in range(101 - len(counts))}
    return [
        f"{name}/image_{number:04d}.png"
        for name, count in {**counts, **filled}.items()
        for number in range(1, count + 1)
    ]


def packed(root: Path, path: Path) -> Path:
    """The same as a zip file."""
    with zipfile.ZipFile(path, "w") as archive:
        for each in sorted(root.rglob("*.*")):
            archive.write(each, each.relative_to(root).as_posix())
    return path


def split_names(root, name):
    """The clips' names in each split of a prepared dataset."""
    return {part: load_dataset(name, root, part).names for part in SPLITS}
