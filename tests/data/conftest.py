"""Where the developers' data is, and a store of a small set."""

import errno
import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from faulty_server import serve
from shown import camera, save_mnist
from trees import save_digits

from ripe_mambaspike import files
from ripe_mambaspike.data import building, transfer
from ripe_mambaspike.data import store as stores
from ripe_mambaspike.data.prepare import prepare
from ripe_mambaspike.data.sets import list_dataset


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data; see its README."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("RIPE_SHARED_DATA", beside))
    if not folder.is_dir():
        pytest.skip("the shared data is not there: RIPE_SHARED_DATA names no folder and ../shared/data is absent")
    return folder


@pytest.fixture
def site(monkeypatch):
    """A server that fails as a test asks, and downloads that do not wait before they try again."""
    monkeypatch.setattr(transfer, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(transfer, "TIMEOUT_SECONDS", 5.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serve() as made:
        yield made


@pytest.fixture
def mnist(tmp_path):
    """Pictures of digits as MNIST's files."""
    return save_mnist(tmp_path / "mnist")


@pytest.fixture
def quick(tmp_path):
    """A camera whose recordings are short."""
    return camera(tmp_path / "camera.json")


@pytest.fixture
def full_disk(monkeypatch):
    """`with full_disk(n)`: the disk is full when the n-th file of a store is written."""

    @contextmanager
    def make(step):
        real, count = files.atomic_write, 0

        def write_some(path):
            nonlocal count
            count += 1
            if count == step:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(path)

        with monkeypatch.context() as patch:
            for module in (building, stores):
                patch.setattr(module, "atomic_write", write_some)
            yield

    return make


@pytest.fixture
def digits(tmp_path):
    """Twelve recordings of nmnist-600."""
    return save_digits(tmp_path / "digits")


@pytest.fixture
def store(digits):
    """Their store."""
    return prepare(list_dataset("nmnist-600", digits), digits, digits / ".ripe")
