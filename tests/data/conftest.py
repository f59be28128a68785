"""Where the developers' data is, and a store of a small set."""

import os
from pathlib import Path

import pytest
from trees import save_digits

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
def digits(tmp_path):
    """Twelve recordings of nmnist-600."""
    return save_digits(tmp_path / "digits")


@pytest.fixture
def store(digits):
    """Their store."""
    return prepare(list_dataset("nmnist-600", digits), digits, digits / ".ripe")
