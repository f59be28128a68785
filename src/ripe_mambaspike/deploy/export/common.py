"""Helpers shared by the formats: atomic files, trust, and errors."""

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.files import read_regular

MAX_GRAPH_BYTES = 512 << 20  # the shipped networks' graphs have a few MB
HINT = "pass a file written by ripe export"
TRUST_HINT = "--trust (in Python trust=True) loads it anyway and runs any code it carries"


def read_file(path: Path) -> bytes:
    """The content of a graph's file."""
    try:
        return read_regular(path, MAX_GRAPH_BYTES)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected a readable file, got {first_line(error)}; {HINT}", path=path) from error


def require_trust(path: Path, carries: str | None, trust: bool) -> None:
    """Raise for a file that carries code, unless the caller trusts it."""
    if carries and not trust:
        raise InputError.expected("trust", f"true for {carries}", "false", path=path, hint=TRUST_HINT)


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0][:200]


def damaged(path: Path, what: str, error: BaseException | str) -> InputError:
    """The error for a damaged or foreign file."""
    reason = error if isinstance(error, str) else first_line(error)
    return InputError(f"{path}: expected {what}, got a damaged or foreign file ({reason}); {HINT}", path=path)


def failed_run(path: Path, inputs: Sequence[Tensor], error: Exception) -> InputError:
    """The error for a graph that cannot be run on its inputs."""
    shapes = ", ".join(str(tuple(value.shape)) for value in inputs)
    return InputError.expected("inputs", "shapes that the graph takes", f"{shapes} ({first_line(error)})", path=path)


def check_inputs(path: Path, inputs: Sequence[Tensor], expected: Sequence[str]) -> None:
    """Raise unless the inputs are those that a static graph expects, each as `describe_tensor` gives it."""
    given = [describe_tensor(one.dtype, one.shape) for one in inputs]
    if given != list(expected):
        raise InputError.expected("inputs", ", ".join(expected), ", ".join(given), path=path)


def describe_tensor(dtype: object, shape: Iterable[int]) -> str:
    return f"{dtype} {tuple(shape)}"


@contextlib.contextmanager
def silenced(*, stderr: bool = False) -> Iterator[None]:
    """Suppress warnings and logs of PyTorch's exporters; with `stderr` also what libraries print there."""
    disabled = logging.root.manager.disable
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, disabled)
        if stderr:
            with contextlib.suppress(OSError, ValueError):  # stderr may not exist
                sys.stderr.flush()
                saved = os.dup(2)
                stack.callback(os.close, saved)
                silent = os.open(os.devnull, os.O_WRONLY)
                stack.callback(os.close, silent)
                os.dup2(silent, 2)
                stack.callback(os.dup2, saved, 2)
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield
