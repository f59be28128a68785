"""The operators that are installed with the package: the right ones for a processor, or none."""

import ctypes
import logging
import platform
import shutil

import pytest

from ripe_mambaspike.ops.cpp import build, compiler

SOURCE = 'extern "C" int ripe_answer() { return %d; }\n'
V3 = "fpu sse2 avx avx2 bmi1 bmi2 cx16 f16c fma lahf_lm abm movbe popcnt sse4_1 sse4_2 ssse3 xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"
LEVELS = ["x86-64-v4-bf16", "x86-64-v4", "x86-64-v3"]
COMPILES = pytest.mark.skipif(
    shutil.which("c++") is None or platform.machine() != "x86_64", reason="no C++ compiler for x86-64"
)


@pytest.fixture
def processor(monkeypatch):
    """From here on, the processor has these flags."""
    return lambda flags: monkeypatch.setattr(compiler, "_processor", lambda: f"x86_64 flags : {flags}")


@pytest.fixture
def package(tmp_path, monkeypatch, processor):
    """An installed package of one source, on a processor of level 3, without a compiler and without a cache."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "answer.cpp").write_text(SOURCE % 42)
    monkeypatch.setattr(compiler, "SOURCES", tmp_path / "src")
    monkeypatch.setattr(compiler, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    processor(V3)
    build._load.cache_clear()
    yield tmp_path
    build._load.cache_clear()


@pytest.fixture
def installed(package):
    """Put libraries into the package: empty files, of which only the names matter."""

    def put(*levels):
        compiler.PREBUILT.mkdir(exist_ok=True)
        for level in levels:
            (compiler.PREBUILT / compiler.prebuilt_name(level)).touch()

    return put


def found():
    path = compiler.prebuilt_path()
    return path and path.name.rpartition("-")[0]


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        (f"{V4} avx512_bf16", LEVELS),
        (V4, LEVELS[1:]),
        (V3, LEVELS[2:]),
        (V3.replace("fma ", ""), []),
        (V4.replace("avx2 ", ""), []),
        ("", []),
    ],
)
def test_levels_are_chosen_by_the_processors_flags(flags, levels):
    assert compiler.fitting_levels(set(flags.split())) == levels


def test_the_best_library_that_runs_here_is_taken(installed, processor):
    installed(*LEVELS)
    assert found() == "x86-64-v3"
    processor(V4)
    assert found() == "x86-64-v4"
    processor(f"{V4} avx512_bf16")
    assert found() == "x86-64-v4-bf16"
    processor("sse2")
    assert found() is None


def test_a_native_library_is_for_the_processor_that_compiled_it(installed, processor):
    installed("native", "x86-64-v3")
    assert found() == "native"
    processor(f"{V3} sha_ni")
    assert found() == "x86-64-v3"


def test_a_library_of_other_sources_or_flags_is_stale(installed, package, monkeypatch):
    installed("native", *LEVELS)
    (package / "src" / "answer.cpp").write_text(SOURCE % 43)
    assert found() is None
    (package / "src" / "answer.cpp").write_text(SOURCE % 42)
    assert found() == "native"
    monkeypatch.setattr(compiler, "FLAGS", ("-O2",))
    assert found() is None


def test_a_package_without_libraries(package):
    assert found() is None


@COMPILES
def test_an_installed_library_needs_no_compiler(package, monkeypatch, caplog):
    compiler.compile_library(compiler.PREBUILT / compiler.prebuilt_name("x86-64-v3"), "x86-64-v3")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.INFO, "ripe_mambaspike"):
        assert build.library().ripe_answer() == 42
    assert caplog.messages == []
    assert not (package / "cache").exists()


@COMPILES
def test_one_compiled_for_this_processor_comes_first(package, installed):
    compiler.compile_library(build.cached_path(), "native")
    installed("native")
    assert build.library()._name == str(build.cached_path())


@COMPILES
def test_a_library_that_cannot_be_loaded_is_named_and_compiled_again(installed, caplog):
    installed("x86-64-v3")
    with caplog.at_level(logging.INFO, "ripe_mambaspike"):
        assert isinstance(build._loaded(), ctypes.CDLL)
    assert "x86-64-v3" in caplog.messages[0]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert build.library()._name == str(build.cached_path())


def test_without_a_fitting_library_and_a_compiler_there_is_a_reason(installed, monkeypatch, caplog):
    installed("x86-64-v4")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.INFO, "ripe_mambaspike"):
        assert build.unavailable_reason() == "no C++ compiler was found (no-such-compiler is not on the PATH)"
    assert caplog.messages == []
