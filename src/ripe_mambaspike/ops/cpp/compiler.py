"""From the C++ sources to one shared library: processor levels, compiler flags, and the hash in its name.

Without PyTorch and the rest of the package: setup.py runs this file where neither is installed.

The OpenMP functions stay undefined in a library. The loader loads PyTorch's OpenMP library first: a second one
would start a second thread pool.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HEADERS = Path(__file__).parent
SOURCES = HEADERS.parent  # each operator's folder has its own sources; shared headers are here
PREBUILT = HEADERS / "prebuilt"  # the libraries of an installed package
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")

_V3 = "avx avx2 bmi1 bmi2 cx16 f16c fma lahf_lm abm movbe popcnt sse4_1 sse4_2 ssse3 xsave"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
NATIVE = "native"
LEVELS = {  # best first: the compiler's flags, and what /proc/cpuinfo lists on such a processor
    "x86-64-v4-bf16": (("-march=x86-64-v4", "-mavx512bf16"), f"{_V4} avx512_bf16"),
    "x86-64-v4": (("-march=x86-64-v4",), _V4),
    "x86-64-v3": (("-march=x86-64-v3", "-mtune=haswell"), _V3),
}


class CompileError(Exception):
    """The reason why there is no library, as a clause; `output` is what the compiler printed."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.output = output


def library_key(level: str, compiler: str = "") -> str:
    """A hash of all that a level's library depends on: sources, flags and, for `native`, the processor."""
    made_of = hashlib.sha256()
    for path in sorted([*SOURCES.rglob("*.cpp"), *SOURCES.rglob("*.h")]):
        made_of.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for word in (*level_flags(level), compiler, _processor() if level == NATIVE else ""):
        made_of.update(word.encode() + b"\0")
    return made_of.hexdigest()[:16]


def level_flags(level: str) -> tuple[str, ...]:
    return (*FLAGS, *(("-march=native",) if level == NATIVE else LEVELS[level][0]))


def fitting_levels(flags: Set[str]) -> list[str]:
    """The levels that a processor with these flags can run, best first."""
    return [level for level, (_, needed) in LEVELS.items() if flags >= set(needed.split())]


def prebuilt_name(level: str) -> str:
    return f"{level}-{library_key(level)}.so"


def prebuilt_path() -> Path | None:
    """The best library in the package that was made from these sources and runs on this processor."""
    if not PREBUILT.is_dir():
        return None
    paths = (PREBUILT / prebuilt_name(level) for level in (NATIVE, *fitting_levels(set(_processor().split()))))
    return next((path for path in paths if path.exists()), None)


def cxx_compiler() -> str:
    """The command of the C++ compiler, CXX as for PyTorch's extensions."""
    return os.environ.get("CXX") or "c++"


def require_compiler() -> list[str]:
    """The words of the compiler's command. Raises CompileError if there is none."""
    words = shlex.split(cxx_compiler())
    if shutil.which(words[0]) is None:
        raise CompileError(f"no C++ compiler was found ({words[0]} is not on the PATH)")
    return words


def compile_library(path: Path, level: str) -> None:
    """Compile all sources in a fresh folder, then move the library to `path`: a killed build leaves no lock behind."""
    compiler = require_compiler()
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{path.stem}_building_", dir=path.parent))
    try:
        _compile(compiler, level, work, work / path.name)
        os.replace(work / path.name, path)  # noqa: PTH105
    except subprocess.CalledProcessError as error:
        lines = error.stderr.splitlines()
        first = next((line.strip() for line in lines if "error" in line.lower()), "the compiler failed")
        raise CompileError(f"their build failed ({first})", error.stderr) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compile(compiler: list[str], level: str, work: Path, out: Path) -> None:
    """One process for each core; file names are unique, because the objects share one folder."""

    def compiled(source: Path) -> str:
        made = str(work / f"{source.stem}.o")
        _run([*compiler, *level_flags(level), f"-I{HEADERS}", "-c", str(source), "-o", made])
        return made

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compiled, sorted(SOURCES.rglob("*.cpp"))))
    # Without -fopenmp, so that no OpenMP library is named; Clang has its own, which PyTorch does not load.
    openmp = ["-fopenmp"] if "clang" in _run([*compiler, "--version"]) else []
    _run([*compiler, "-shared", *objects, *openmp, "-o", str(out)])


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _processor() -> str:
    """The instruction sets of this processor, which -march=native uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return f"{platform.machine()} {flags}"
