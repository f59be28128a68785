"""The exceptions that the package raises for invalid input.

Every message is one sentence, "field: expected X, got Y". The command line prints it and exits with 2; a program
catches `RipeError` and reads `field` and `path`.
"""

import os
from typing import Any, Self

MAX_MESSAGE_CHARS = 1000  # longer messages, for example with text from a hostile file, are shortened
MAX_VALUE_CHARS = 60  # of a quoted value in a message


class RipeError(Exception):
    """Base of all errors caused by invalid input.

    `field` names the config field, option or entry that was wrong, `path` the file it was read from, where known.
    The message is one printable line of bounded length, whatever it quotes.
    """

    def __init__(
        self, message: object = "", *, field: str | None = None, path: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(one_line(str(message)))
        self.field = field
        self.path = path

    @classmethod
    def expected(
        cls, field: str, expected: str, got: object, *, path: str | os.PathLike[str] | None = None, hint: str = ""
    ) -> Self:
        """The error "field: expected X, got Y", with the file in front where known and the hint at the end.

        `got` is shown as it is where it is a string (a description), an OSError by its reason, all else by its repr.
        """
        reason = (got.strerror or str(got)) if isinstance(got, OSError) else got
        shown = reason if isinstance(reason, str) else short_repr(reason)
        origin = "" if path is None else f"{path}: "
        message = f"{origin}{field}: expected {expected}, got {shown}" + (f"; {hint}" if hint else "")
        return cls(message, field=field, path=path)

    def in_file(self, path: str | os.PathLike[str]) -> Self:
        """This error with the file's name in front, unless it has one already."""
        if self.path is None:
            self.args = (one_line(f"{path}: {self}"),)
            self.path = path
        return self


def short_repr(value: Any, most: int = MAX_VALUE_CHARS) -> str:
    """A value as a message shows it: its repr, one line of at most `most` characters."""
    if isinstance(value, str | bytes) and len(value) > most:
        value = value[:most]
    if isinstance(value, list | tuple | dict) and len(value) > most:
        return f"a {type(value).__name__} of {len(value)}"
    return one_line(repr(value), most)


def one_line(text: str, most: int = MAX_MESSAGE_CHARS) -> str:
    """The text without line breaks and control characters, its middle left out where it is longer than `most`."""
    if len(text) > most:
        kept = (most - 3) // 2
        text = f"{text[:kept]} … {text[-kept:]}"
    return "".join(c if c.isprintable() else " " if c.isspace() else c.encode("unicode_escape").decode() for c in text)


class ConfigError(RipeError, ValueError):
    """An unknown model or field, or an invalid value of a field."""


class InputError(RipeError, ValueError):
    """A tensor, file or option that the network cannot use."""


class MemoryNeededError(RipeError):
    """A forward or backward pass that needs more memory than is available; the message says how much."""


class WeightsError(RipeError):
    """A weight file that is missing, damaged or made for another network."""


class VerificationError(RipeError):
    """A converted network or file that does not agree with its original."""


class ReadError(RipeError):
    """A recording that is missing, damaged or of no known format; names the file, the byte and the reason."""


class DataError(RipeError):
    """A data set, store, split list or download that is missing, incomplete or not what it should be."""
