"""Every error is one bounded, printable line that names its field and file."""

from pathlib import Path

import pytest

from ripe_mambaspike.errors import MAX_MESSAGE_CHARS, DataError, RipeError, WeightsError
from ripe_mambaspike.files import read_regular


def test_field_and_path_are_attributes():
    error = WeightsError("steps: expected an int, got 'x'", field="steps", path=Path("config.json"))
    assert (str(error), error.field, error.path) == ("steps: expected an int, got 'x'", "steps", Path("config.json"))
    assert isinstance(error, RipeError)


def test_one_form_for_all_messages():
    error = DataError.expected("grid", "one int or two", "48,48", path="a.yaml", hint="try 48")
    assert (str(error), error.field) == ("a.yaml: grid: expected one int or two, got 48,48; try 48", "grid")
    assert str(DataError.expected("grid", "an int", ["x"])) == "grid: expected an int, got ['x']"
    assert len(str(DataError.expected("grid", "an int", ["x"] * 10**6))) < 100
    unplaced = DataError.expected("grid", "an int", 1.5)
    assert (str(unplaced.in_file("b")), unplaced.path) == ("b: grid: expected an int, got 1.5", "b")
    assert str(unplaced.in_file("c")) == "b: grid: expected an int, got 1.5"


@pytest.mark.parametrize("text", ["a\nb", "a\r\n\tb", "a\x1b[31mb\x00", "x" * 300_000, "\n" * 300_000])
def test_a_message_is_one_line_of_bounded_length(text):
    message = str(DataError(f"before {text} after"))
    assert message.isprintable()
    assert len(message) <= 6 * MAX_MESSAGE_CHARS  # an escaped character takes some
    assert message.startswith("before ")
    assert message.endswith(" after")


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
