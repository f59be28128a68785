"""Your own modules, which register a neuron, a dataset or anything else: the environment variable RIPE_IMPORT.

The command `ripe` imports them before it does anything else, and so does every process that it starts.
"""

import os
import sys
import traceback
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from ripe_mambaspike.errors import ConfigError, short_repr
from ripe_mambaspike.schema import suggest

VARIABLE = "RIPE_IMPORT"


def import_own_modules() -> None:
    """Import what RIPE_IMPORT names: modules, or files that end in .py, separated by commas.

    Modules are also looked for in the working folder. Whatever an import raises becomes one ConfigError.
    """
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        try:
            _import_file(Path(name).resolve()) if name.endswith(".py") else _import(name, Path.cwd())
        except Exception as error:  # any: the module is the user's
            raise ConfigError.expected(VARIABLE, "modules that can be imported", f"{name}: {_reason(error)}") from error


def unknown_name(field: str, name: object, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not registered; it may be the user's own."""
    names = list(known)
    own = f"for a name of your own, import the file that registers it: {VARIABLE}=FILE.py"
    near = suggest(str(name), names).removeprefix("; ")
    hint = f"{near} {own[0].upper()}{own[1:]}" if near else own
    return ConfigError.expected(field, f"one of {', '.join(names)}", short_repr(name), hint=hint)


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    _import(path.stem, path.parent)
    found = getattr(sys.modules[path.stem], "__file__", None)
    if found is None or Path(found).resolve() != path:
        raise ImportError(f"another module has this name ({found or 'built in'}); rename the file")


def _import(name: str, folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that its files hide no installed module
    import_module(name)


def _reason(error: Exception) -> str:
    """The error, and the line of the user's module that raised it."""
    text = f"{type(error).__name__}: {error}"
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    inside = [frame for frame in lines if frame.filename not in (__file__, import_module.__code__.co_filename)]
    return f"{text} ({inside[-1].filename}, line {inside[-1].lineno})" if inside else text
