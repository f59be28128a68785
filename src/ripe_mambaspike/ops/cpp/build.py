"""The C++ operators as one shared library: found or compiled on first use, and loaded once per process.

The sources are plain C++17 (`ops/<operator>/*.cpp`, functions with C linkage over raw pointers). The library is, in
this order, the one compiled earlier for this processor, the one that was installed with the package, or compiled now
and stored in PyTorch's extension folder (TORCH_EXTENSIONS_DIR). Its name has a hash of everything that it depends on,
so that a stale one or one for another processor is never loaded.
"""

import ctypes
import logging
import os
import sys
from functools import lru_cache
from pathlib import Path
from threading import Lock

import torch
from torch.utils import cpp_extension

from ripe_mambaspike.ops.cpp.compiler import (
    NATIVE,
    CompileError,
    compile_library,
    cxx_compiler,
    library_key,
    prebuilt_path,
    require_compiler,
)

LOG = logging.getLogger("ripe_mambaspike")
NAME = "ripe_mambaspike_cpu"
BUILD_SECONDS = 20  # typical, on two cores

_lock = Lock()


def library() -> ctypes.CDLL:
    """The loaded operators. Raises RuntimeError where `unavailable_reason` has a reason."""
    found = _loaded()
    if isinstance(found, str):
        raise RuntimeError(f"the CPU operators cannot be used: {found}")
    return found


def unavailable_reason() -> str | None:
    """Why the C++ operators cannot be used here, None if they can; builds them if needed."""
    found = _loaded()
    return found if isinstance(found, str) else None


def cached_path() -> Path:
    """The path of the library that is compiled on first use."""
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root())
    return folder / f"{NAME}_{library_key(NATIVE, cxx_compiler())}.so"


def _loaded() -> ctypes.CDLL | str:
    with _lock:
        return _load()


@lru_cache
def _load() -> ctypes.CDLL | str:
    if sys.platform != "linux":
        return f"they are written for Linux, this is {sys.platform}"
    try:
        cached = cached_path()
        if not cached.exists():
            if (prebuilt := prebuilt_path()) and (found := _opened_prebuilt(prebuilt)):
                return found
            _build(cached)
        return _opened(cached)
    except (CompileError, OSError) as error:
        return str(error)


def _opened_prebuilt(path: Path) -> ctypes.CDLL | None:
    """The installed library; None, with one line in the log, on a system too old for it."""
    try:
        return _opened(path)
    except OSError as error:
        LOG.warning("the CPU operators that were installed cannot be loaded (%s)", error)
        return None


def _opened(path: Path) -> ctypes.CDLL:
    """Loaded after PyTorch's OpenMP library, in which it finds the functions that it does not define."""
    ctypes.CDLL(_openmp(), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def _openmp() -> str:
    """The OpenMP library that PyTorch ships and has loaded; the system's for a PyTorch that was built with it."""
    folder = Path(torch.__file__).parent
    shipped = sorted([*(folder / "lib").glob("libgomp*"), *(folder.parent / "torch.libs").glob("libgomp*")])
    return str(shipped[0]) if shipped else "libgomp.so.1"


def _build(path: Path) -> None:
    """Compile to `path`; the compiler's output goes to a log file beside it if it fails."""
    require_compiler()
    LOG.warning("building the CPU operators (once, about %d seconds)", BUILD_SECONDS)
    try:
        compile_library(path, NATIVE)
    except CompileError as error:
        if not error.output:
            raise
        log = path.with_suffix(".log")
        log.write_text(error.output)
        raise CompileError(f"{error}; full output in {log}") from error
