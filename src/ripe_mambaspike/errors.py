"""What the package raises when it was given something it cannot use.

Every message is one sentence that names what was given and what is wanted. The command line
prints it and exits with 2; a program catches `RipeError`.
"""


class RipeError(Exception):
    """Base of every error that is the input's fault."""


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
