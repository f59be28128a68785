"""The package is installed with its C++ operators, for machines without a compiler."""

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from ripe_mambaspike.ops.cpp import compiler

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/ripe_mambaspike")
LEVELS = compiler.fitting_levels(set(compiler._processor().split()))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not LEVELS or platform.system() != "Linux" or shutil.which("c++") is None,
        reason="needs Linux, a C++ compiler and a processor with AVX2",
    ),
]
NETWORK = """
import json, os, sys
from unittest.mock import patch
import torch
from ripe_mambaspike import create_model
from ripe_mambaspike.ops.backend import backend, kernels
from ripe_mambaspike.ops.cpp import build

torch.manual_seed(0)
torch.set_num_threads(2)
model = create_model("nmnist", form="deployed").eval()
x = torch.poisson(torch.full((2, model.config.time_steps, 2, 34, 34), 0.2))
with torch.no_grad(), patch.object(build, "compile_library") as compile_library:
    with kernels("off"):
        expected = model(x)
    threads = len(os.listdir("/proc/self/task"))
    given = model(x)
print(json.dumps({
    "backend": backend(x),
    "library": build.library()._name,
    "compiled": compile_library.called,
    "error": float((given - expected).abs().max() / expected.abs().max()),
    "new threads": len(os.listdir("/proc/self/task")) - threads,
    "openmp": len({line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line or "libomp" in line}),
}))
"""


@pytest.fixture
def checkout(tmp_path):
    """A copy of what a package is made from, because a build leaves files behind."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so"))
    return tmp_path


@pytest.fixture
def small_checkout(checkout):
    """The same with operators that compile in a moment."""
    for path in (checkout / PACKAGE / "ops").rglob("*.cpp"):
        path.unlink()
    (checkout / PACKAGE / "ops/cpp/answer.cpp").write_text('extern "C" int ripe_answer() { return 42; }\n')
    shutil.rmtree(checkout / PACKAGE / "weights")
    return checkout


def make(what, folder, prebuilt=None, **environment):
    """Make `wheel` or `sdist` of the checkout; its path, and what was printed."""
    environment = {**os.environ, **environment, **({} if prebuilt is None else {"RIPE_PREBUILT": prebuilt})}
    code = f"from setuptools.build_meta import build_{what} as make; make('dist')"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return next((folder / "dist").iterdir()), ran.stderr


def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def libraries(wheel):
    return [Path(name).name for name in names(wheel) if name.endswith(".so")]


def sources(root):
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.suffix in (".cpp", ".h")}


def test_a_wheel_runs_where_there_is_no_compiler(checkout, tmp_path):
    wheel, _ = make("wheel", checkout, LEVELS[0])
    assert wheel.stem.rpartition("-")[2] in ("manylinux_2_28_x86_64", "linux_x86_64")
    assert sources(checkout / "src") <= set(names(wheel))

    home = tmp_path / "empty"
    venv.create(home)
    python = home / "bin" / "python"
    install = ["pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run([sys.executable, "-m", *map(str, install)], check=True)
    found = next(home.glob("lib/python*/site-packages"))
    (found / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # torch and the others, installed already

    cache = tmp_path / "cache"
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    environment = {**kept, "PATH": str(home / "bin"), "TORCH_EXTENSIONS_DIR": str(cache)}
    ran = subprocess.run(
        [python, "-c", NETWORK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    result = json.loads(ran.stdout)
    assert result["backend"] == "native"
    assert Path(result["library"]).is_relative_to(found)
    assert Path(result["library"]).name == libraries(wheel)[0]
    assert not result["compiled"]
    assert not cache.exists()
    assert result["error"] < 1e-4
    assert result["openmp"] == 1
    assert result["new threads"] == 0  # PyTorch's pool is used
    assert ran.stderr == ""


def test_a_wheel_for_several_levels(small_checkout):
    wheel, _ = make("wheel", small_checkout, "all")
    assert sorted(name.rpartition("-")[0] for name in libraries(wheel)) == sorted(compiler.LEVELS)
    assert not wheel.name.endswith("-any.whl")


def test_an_install_compiles_for_its_processor(small_checkout):
    left = small_checkout / "build/lib/ripe_mambaspike/ops/cpp/prebuilt/native-of-other-sources.so"
    left.parent.mkdir(parents=True)
    left.touch()
    wheel, _ = make("wheel", small_checkout)
    (name,) = libraries(wheel)
    assert name.startswith("native-")
    assert name != left.name
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")


@pytest.mark.parametrize(("prebuilt", "lines"), [("native", 1), ("off", 0)])
def test_without_a_compiler_an_install_has_no_libraries(small_checkout, prebuilt, lines):
    wheel, printed = make("wheel", small_checkout, prebuilt, CXX="no-such-compiler")
    assert libraries(wheel) == []
    assert wheel.name.endswith("-py3-none-any.whl")
    assert sum("no-such-compiler" in line for line in printed.splitlines()) == lines


def test_a_wheel_lacks_no_level_that_was_asked_for(small_checkout):
    with pytest.raises(RuntimeError, match="no-such-compiler"):
        make("wheel", small_checkout, "all", CXX="no-such-compiler")
    with pytest.raises(RuntimeError, match="x86-64-v9"):
        make("wheel", small_checkout, "x86-64-v9")


def test_a_source_distribution_has_all_sources(checkout):
    archive, _ = make("sdist", checkout)
    with tarfile.open(archive) as opened:
        found = {name.partition("/")[2] for name in opened.getnames()}
    assert {"setup.py", *(f"src/{path}" for path in sources(checkout / "src"))} <= found
    assert not any(name.endswith(".so") for name in found)
