"""The C++ operators are built once, safely, and say why where they cannot be built."""

import ctypes
import logging
import os
import subprocess
import sys

import pytest

from ripe_mambaspike.ops.cpp import build, compiler
from ripe_mambaspike.ops.cpp.build import library, unavailable_reason

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the operators are written for Linux")
COMPILES = pytest.mark.skipif(unavailable_reason() is not None, reason=f"no C++ operators: {unavailable_reason()}")
SOURCE = 'extern "C" int ripe_answer() { return %d; }\n'


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A source of one line and a cache of its own; loads afresh each time it is called."""
    sources, cache = tmp_path / "src", tmp_path / "cache"
    sources.mkdir()
    (sources / "answer.cpp").write_text(SOURCE % 42)
    monkeypatch.setattr(compiler, "SOURCES", sources)
    monkeypatch.setattr(compiler, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(cache))

    def load():
        build._load.cache_clear()
        return build._loaded()

    yield load
    build._load.cache_clear()


@pytest.fixture
def refused(monkeypatch):
    """From here on, building anything fails the test."""

    def start():
        monkeypatch.setattr(build, "_build", lambda path: pytest.fail(f"{path} was built again"))

    return start


@COMPILES
def test_the_library_holds_the_operators():
    for name in ("norm_fire", "norm_fire_backward", "step_moments", "attend", "attend_backward", "pooled_rates"):
        assert hasattr(library(), f"ripe_{name}")
    assert library() is library()


@COMPILES
def test_builds_once_and_finds_it_again(small, refused, caplog):
    with caplog.at_level(logging.INFO, "ripe_mambaspike"):
        assert small().ripe_answer() == 42
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "building" in caplog.messages[0]
    assert [path.name for path in build.cached_path().parent.iterdir()] == [build.cached_path().name]
    refused()
    assert isinstance(small(), ctypes.CDLL)


@COMPILES
def test_other_sources_processors_and_compilers_have_their_own_library(small, monkeypatch):
    first = build.cached_path()
    (compiler.SOURCES / "answer.cpp").write_text(SOURCE % 43)
    second = build.cached_path()
    assert small().ripe_answer() == 43
    monkeypatch.setattr(compiler, "_processor", lambda: "another")
    third = build.cached_path()
    monkeypatch.setenv("CXX", "another")
    assert len({first, second, third, build.cached_path()}) == 4


@COMPILES
def test_what_a_killed_build_left_is_not_waited_for(small):
    left = build.cached_path().parent / f"{build.cached_path().stem}_building_killed"
    left.mkdir(parents=True)
    (left / "answer.o").write_bytes(b"half")
    assert small().ripe_answer() == 42


@COMPILES
def test_a_failed_build_names_the_error_and_the_log(small):
    (compiler.SOURCES / "answer.cpp").write_text("int broken( {")
    reason = small()
    assert isinstance(reason, str)
    assert reason.startswith("their build failed (")
    log = build.cached_path().with_suffix(".log")
    assert str(log) in reason
    assert "broken" in log.read_text()
    assert not build.cached_path().exists()
    with pytest.raises(RuntimeError, match="their build failed"):
        library()


@pytest.mark.slow
@LINUX
def test_no_compiler_is_a_reason_and_no_error(tmp_path):
    code = "from ripe_mambaspike.ops.cpp.build import unavailable_reason; print(unavailable_reason())"
    environment = {**os.environ, "CXX": "no-such-compiler", "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "no C++ compiler was found (no-such-compiler is not on the PATH)"


@LINUX
def test_a_folder_that_cannot_be_made_is_a_reason(small, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file" / "cache"))
    reason = small()
    assert isinstance(reason, str)
    assert str(tmp_path / "file") in reason


def test_another_system_is_a_reason(small, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert small() == "they are written for Linux, this is win32"


@pytest.mark.slow
@COMPILES
def test_two_processes_may_build_at_once(tmp_path):
    """Each builds in a folder of its own; the last one replaces the library by the same."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "answer.cpp").write_text(SOURCE % 42)
    code = (
        "import pathlib; from ripe_mambaspike.ops.cpp import build, compiler; "
        f"compiler.SOURCES = pathlib.Path({str(tmp_path / 'src')!r}); print(build.library().ripe_answer())"
    )
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}
    options = {"env": environment, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([sys.executable, "-c", code], **options) for _ in range(2)]
    assert [process.communicate(timeout=300)[0].strip() for process in running] == ["42", "42"]
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.slow
@COMPILES
def test_one_openmp_library_is_loaded():
    code = (
        "import torch; from ripe_mambaspike.ops.cpp.build import library; library(); "
        "print(len({line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line or 'libomp' in line}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "1"
