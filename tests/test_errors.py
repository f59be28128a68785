"""Every error is one bounded, printable line that names its field and file."""

from pathlib import Path

import pytest

from ripe_mambaspike.errors import MAX_MESSAGE, DataError, RipeError, WeightsError
from ripe_mambaspike.files import read_regular


def test_field_and_path_are_attributes():
    error = WeightsError("steps: expected an int, got 'x'", field="steps", path=Path("config.json"))
    assert (str(error), error.field, error.path) == ("steps: expected an int, got 'x'", "steps", Path("config.json"))
    assert isinstance(error, RipeError)


@pytest.mark.parametrize("text", ["a\nb", "a\r\n\tb", "a\x1b[31mb\x00", "x" * 300_000, "\n" * 300_000])
def test_a_message_is_one_line_of_bounded_length(text):
    said = str(DataError(f"before {text} after"))
    assert said.isprintable()
    assert len(said) <= 6 * MAX_MESSAGE  # an escaped character takes some
    assert said.startswith("before ")
    assert said.endswith(" after")


def test_only_regular_files_of_bounded_size_are_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="at most 4"):
        read_regular(path, 4)
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(OSError, match="at most"):
        read_regular(path, 1 << 30)
    for other in (Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError):  # noqa: PT011
            read_regular(other, 10)
