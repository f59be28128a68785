"""Compiles the C++ operators into the package; everything else is in pyproject.toml.

RIPE_PREBUILT says for which processors: `native` (the default) for this machine's, if it has a compiler; `all` for
every level of ops/cpp/compiler.py, or some of them with commas, for a wheel that is given to others; `off` for none.
What is not in the package is compiled on first use. `pip install -e .` compiles nothing.
"""

import os
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from shutil import rmtree

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

CPP = Path(__file__).parent / "src/ripe_mambaspike/ops/cpp"
OLDEST = {b"GLIBC": (2, 28), b"GLIBCXX": (3, 4, 24), b"CXXABI": (1, 3, 11)}  # what manylinux_2_28 has, as for PyTorch
SPEC = spec_from_file_location("ripe_compiler", CPP / "compiler.py")
compiler = module_from_spec(SPEC)
SPEC.loader.exec_module(compiler)


def wanted_levels():
    wanted = os.environ.get("RIPE_PREBUILT", "native")
    if sys.platform != "linux" or wanted == "off":
        return []
    levels = list(compiler.LEVELS) if wanted == "all" else wanted.split(",")
    if unknown := set(levels) - {compiler.NATIVE, *compiler.LEVELS}:
        names = ", ".join(("off", "native", "all", *compiler.LEVELS))
        raise SystemExit(f"RIPE_PREBUILT: expected {names}, got {', '.join(sorted(unknown))!r}")
    return levels


def build_libraries(folder):
    """The native library is a convenience; a level that was asked for must be there."""
    rmtree(folder, ignore_errors=True)  # of earlier sources
    for level in wanted_levels():
        try:
            compiler.compile_library(folder / compiler.prebuilt_name(level), level)
        except (compiler.CompileError, OSError) as error:
            if level != compiler.NATIVE:
                raise SystemExit(f"the CPU operators for {level}: {error}") from error
            print(f"The CPU operators will be compiled on first use: {error}", file=sys.stderr)
            rmtree(folder, ignore_errors=True)


def runs_on_manylinux(library):
    """Whether it needs no newer versions of the system's libraries than PyTorch's own wheels."""
    found = re.findall(rb"\b(GLIBC|GLIBCXX|CXXABI)_([\d.]+)\0", library.read_bytes())
    return all(tuple(map(int, version.split(b"."))) <= OLDEST[name] for name, version in found)


class BuildPy(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            build_libraries(prebuilt_folder(self))


class BdistWheel(bdist_wheel):
    def run(self):
        self.run_command("build")
        if self._libraries():
            self.root_is_pure = False
            self.distribution.has_ext_modules = lambda: True
        super().run()

    def get_tag(self):
        if not (libraries := self._libraries()):
            return super().get_tag()
        platform = super().get_tag()[2]
        native = any(path.name.startswith(compiler.NATIVE) for path in libraries)
        if not native and all(map(runs_on_manylinux, libraries)):
            platform = platform.replace("linux_", "manylinux_2_28_", 1)
        return self.python_tag, "none", platform

    def _libraries(self):
        return list(prebuilt_folder(self.get_finalized_command("build_py")).glob("*.so"))


def prebuilt_folder(build):
    return Path(build.build_lib) / "ripe_mambaspike/ops/cpp" / compiler.PREBUILT.name


setup(cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel})
