"""What the package raises when it was given something it cannot use.

Every message is one sentence, "field: expected X, got Y". The command line prints it and exits with 2; a program
catches `RipeError` and reads `field` and `path`.
"""

import os

MAX_MESSAGE = 1000  # characters; what a hostile file puts into a message is cut to that


class RipeError(Exception):
    """Base of every error that is the input's fault.

    `field` names the config field, option or entry that was wrong, `path` the file it was read from, where known.
    The message is one printable line of bounded length, whatever it quotes.
    """

    def __init__(
        self, message: object = "", *, field: str | None = None, path: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(one_line(str(message)))
        self.field = field
        self.path = path


def one_line(text: str, most: int = MAX_MESSAGE) -> str:
    """The text without line breaks and control characters, its middle left out where it is longer than `most`."""
    if len(text) > most:
        kept = (most - 3) // 2
        text = f"{text[:kept]} … {text[-kept:]}"
    return "".join(c if c.isprintable() else " " if c.isspace() else c.encode("unicode_escape").decode() for c in text)


class ConfigError(RipeError, ValueError):
    """An unknown model or field, or a value a field cannot take."""


class InputError(RipeError, ValueError):
    """A tensor, file or option the network cannot work on."""


class MemoryNeededError(RipeError):
    """A pass that needs more memory than there is; says how much, and that a smaller one is wanted."""


class WeightsError(RipeError):
    """A weight file that is missing, damaged or made for another network."""


class VerificationError(RipeError):
    """A converted network that does not agree with the one it was made from."""


class ReadError(RipeError):
    """A recording that is missing, damaged or of no known format; names the file, the byte and the reason."""


class DataError(RipeError):
    """A data set, store, split list or download that is missing, incomplete or not what it should be."""
