"""The C++ operators as one shared library: compiled on first use, cached on disk, loaded once per process.

The sources are plain C++17 (`ops/<operator>/*.cpp`, functions with C linkage over raw pointers).
PyTorch's extension loader compiles them; without ninja the compiler is called directly. The library is stored in
PyTorch's extension folder (TORCH_EXTENSIONS_DIR) under a hash of everything it depends on, so that a stale one or one
for another processor is never loaded. A build runs in its own temporary folder and is moved into place atomically: a
killed build leaves no lock behind.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from threading import Lock

import torch
from torch.utils import cpp_extension

LOG = logging.getLogger("ripe_mambaspike")
SOURCES = Path(__file__).parents[1]  # each operator's folder has its own sources; shared headers are here
HEADERS = Path(__file__).parent
NAME = "ripe_mambaspike_cpu"
BUILD_SECONDS = 20  # typical, on two cores
FLAGS = ["-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]

_lock = Lock()


class _BuildError(Exception):
    """The reason why there is no library, as a clause."""


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
    """The path of the built library."""
    return _folder() / f"{NAME}_{_key()}.so"


def _loaded() -> ctypes.CDLL | str:
    with _lock:
        return _load()


@lru_cache
def _load() -> ctypes.CDLL | str:
    if sys.platform != "linux":
        return f"they are written for Linux, this is {sys.platform}"
    try:
        path = cached_path()
        if not path.exists():
            _build(path)
        return ctypes.CDLL(str(path))
    except (_BuildError, OSError) as error:
        return str(error)


def _folder() -> Path:
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root())


def _key() -> str:
    """A hash of all that the library depends on: sources, flags, compiler, PyTorch and the processor."""
    made_of = hashlib.sha256()
    for path in sorted([*SOURCES.rglob("*.cpp"), *SOURCES.rglob("*.h")]):
        made_of.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for word in (*FLAGS, *_openmp(), cpp_extension.get_cxx_compiler(), torch.__version__, _processor()):
        made_of.update(word.encode() + b"\0")
    return made_of.hexdigest()[:16]


def _processor() -> str:
    """The instruction sets of this processor, which -march=native uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return f"{platform.machine()} {flags}"


def _openmp() -> list[str]:
    """Link with the OpenMP library that PyTorch has loaded: a second one would start a second thread pool."""
    torch_folder = Path(torch.__file__).parent
    shipped = sorted([*(torch_folder / "lib").glob("libgomp*"), *(torch_folder.parent / "torch.libs").glob("libgomp*")])
    return [str(shipped[0])] if shipped else ["-fopenmp"]


def _build(path: Path) -> None:
    """Compile in a fresh folder, then move the library to `path`."""
    compiler = cpp_extension.get_cxx_compiler()
    if shutil.which(compiler) is None:
        raise _BuildError(f"no C++ compiler was found ({compiler} is not on the PATH)")
    path.parent.mkdir(parents=True, exist_ok=True)
    LOG.warning("building the CPU operators (once, about %d seconds)", BUILD_SECONDS)
    work = Path(tempfile.mkdtemp(prefix=f"{NAME}_building_", dir=path.parent))
    try:
        compile_with = _with_ninja if cpp_extension.is_ninja_available() else _without_ninja
        os.replace(compile_with(compiler, work), path)  # noqa: PTH105
    except (RuntimeError, subprocess.CalledProcessError) as error:
        raise _BuildError(_build_failure(error, path)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sources() -> list[str]:
    """Sources of all operators; file names are unique, because the objects share one folder."""
    return [str(source) for source in sorted(SOURCES.rglob("*.cpp"))]


def _with_ninja(compiler: str, work: Path) -> Path:
    cpp_extension.load(
        NAME,
        _sources(),
        FLAGS,
        extra_ldflags=_openmp(),
        extra_include_paths=[str(HEADERS)],
        build_directory=str(work),
        is_python_module=False,
    )
    return next(work.glob("*.so"))


def _without_ninja(compiler: str, work: Path) -> Path:
    out = work / f"{NAME}.so"
    command = [compiler, *FLAGS, f"-I{HEADERS}", "-shared", *_sources(), *_openmp(), "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return out


def _build_failure(error: Exception, path: Path) -> str:
    """The compiler's first error as a clause; its full output goes to a log file beside the library."""
    output = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
    log = path.with_suffix(".log")
    log.write_text(output)
    first = next((line.strip() for line in output.splitlines() if "error" in line.lower()), "the compiler failed")
    return f"their build failed ({first}; full output in {log})"
