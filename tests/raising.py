"""`raises`: an error is known by its type, field and file, never by its wording."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ripe_mambaspike.errors import RipeError


@contextmanager
def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...],
    field: str | None = None,
    path: str | Path | None = None,
    mentions: str | Iterable[object] = (),
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """The block raises `kind`; where given, the error's `field` and `path` are these.

    `mentions` are numbers, names and choices that the message contains.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    if field is not None:
        assert getattr(error, "field", None) == field, f"{error!r} names {getattr(error, 'field', None)!r}"
    if path is not None:
        assert isinstance(error, RipeError)
        assert error.path is not None, f"{error!r} names no file"
        assert Path(error.path) == Path(path)
    missing = [one for one in ((mentions,) if isinstance(mentions, str) else mentions) if str(one) not in str(error)]
    assert not missing, f"{error!r} does not mention {missing}"
