"""Kernels compiled in other processes, for a stand-in GPU: Triton compiles without one, and nothing is launched."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

PROGRAM = """
import json, logging, sys, threading
import torch
from triton import knobs
from triton.runtime import driver
from ripe_mambaspike import create_model
from ripe_mambaspike.ops import compile_ahead as ahead
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.compile_worker import CompilingDriver

class Device(CompilingDriver):  # has what compiling asks for, and nothing to launch with
    def get_current_stream(self, device):
        return 0

driver.set_active(Device("cuda", 90, 32))
logging.basicConfig(format="%(message)s", stream=sys.stderr)
torch.set_num_threads(1)
network = create_model("nmnist", form="deployed", time_steps=2).eval()
x = torch.zeros(1, 2, 2, 34, 34)

def run():
    with kernels("triton"), torch.inference_mode():
        return network(x)

"""
COMPILE = "print(json.dumps(ahead.compile_ahead(run)))"


@pytest.fixture
def program(tmp_path):
    """Runs PROGRAM and these lines in a process that has kernels of its own; returns its output and its log."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "kernels"), "RIPE_COMPILE_PROCESSES": "2"}

    def run(lines):
        ran = subprocess.run([sys.executable, "-c", PROGRAM + lines], env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout), ran.stderr

    return run


@pytest.mark.slow
def test_another_process_finds_all_of_them(program, tmp_path):
    missing, log = program(COMPILE)
    assert missing > 20
    assert f"compiling {missing} kernels in 2 processes" in log
    assert len(list((tmp_path / "kernels").glob("*/*.cubin"))) == missing
    assert program(COMPILE) == (0, "")


def test_processes_that_die_leave_the_kernels_to_the_launch(program, tmp_path):
    missing, log = program("ahead.sys.executable = 'false'\n" + COMPILE)
    assert missing > 20
    assert "2 of 2 processes that compile kernels died" in log
    assert not list((tmp_path / "kernels").glob("*/*.cubin"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    ["ahead.sys.executable = '/nowhere'", "ahead.sys.executable = None", "ahead._max_processes = lambda: 1 / 0"],
)
def test_what_fails_costs_time_only(program, broken):
    missing, log = program(f"found = ahead._find(run)\n{broken}\nprint(json.dumps(ahead._compile_missing(found)))")
    assert missing > 20
    assert "kernels are compiled one at a time" in log


@pytest.mark.slow
def test_a_file_system_without_locks(program):
    lines = """
import fcntl

def refuse(*arguments):
    raise OSError(38, "Function not implemented")

fcntl.flock = refuse
compiled = []
ahead._compile = lambda kernels, target, count: compiled.append(len(kernels))
missing = ahead.compile_ahead(run)
print(json.dumps([missing > 20, compiled == [missing]]))
"""
    assert program(lines)[0] == [True, True]


def test_looking_for_kernels_leaves_the_environment_as_it_is(program):
    """Another thread may be compiling with the switch set, or without it."""
    lines = """
import os
found = ahead._find(run)
wanted = {kernel.no_wgmma for kernel in found}
keys = {value: ahead._key_variables(value) for value in wanted}
before, changes = dict(os.environ), []
os.putenv = lambda *pair: changes.append(pair)
os.unsetenv = lambda *name: changes.append(name)
cached = [ahead._is_cached(kernel) for kernel in found]
print(json.dumps([sorted(map(str, wanted)), [keys[None], keys["1"]], any(cached), changes]))
"""
    values, variables, any_cached, changes = program(lines)[0]
    assert values == ["1", "None"]
    assert variables == [{}, {"DISABLE_MMA_V3": "true"}]
    assert not any_cached
    assert changes == []


@pytest.mark.slow
def test_kernels_with_and_without_the_switch_are_found_again(program):
    lines = """
found = ahead._find(run)
ahead._compile_missing(found)
print(json.dumps([[ahead._is_cached(kernel) for kernel in found], sorted({str(kernel.no_wgmma) for kernel in found})]))
"""
    (cached, values), _ = program(lines)
    assert all(cached)
    assert values == ["1", "None"]


def test_names_that_another_triton_may_not_have(program):
    lines = """
import triton.compiler.compiler as compiler
del compiler.get_cache_key
ahead._compile = None
missing = ahead.compile_ahead(run)
print(json.dumps(missing))
"""
    missing, log = program(lines)
    assert missing > 20
    assert log.count("kernels are compiled one at a time") == 1


@pytest.mark.slow
def test_stopping_leaves_no_process_and_no_file(tmp_path):
    """Also not an assembler that a process has started, nor what that writes."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "kernels"), "RIPE_COMPILE_PROCESSES": "2"}
    environment |= {"TMPDIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM + COMPILE], env=environment, stderr=subprocess.PIPE
    ) as running:
        assert running.stderr is not None
        while b"compiling" not in running.stderr.readline():
            assert running.poll() is None
        begun = time.monotonic()
        while not list(folder.glob("*/*.ptx*")) and time.monotonic() < begun + 60:
            time.sleep(0.005)
        assert list(folder.glob("*/*")), "nothing was compiled within a minute"
        running.send_signal(signal.SIGINT)
        running.stderr.read()
    assert running.returncode != 0
    assert list(folder.iterdir()) == []
    mine = str(tmp_path).encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            assert mine not in (process / "environ").read_bytes() or int(process.name) == os.getpid()


def test_a_pass_that_fails_is_not_an_error_here_and_is_undone(program):
    lines = """
def fail():
    run()
    raise RuntimeError("out of memory")

undone = []
ahead._compile = lambda kernels, target, count: undone.append("compiled")
missing = ahead.compile_ahead(fail, lambda: undone.append("undone"))
print(json.dumps([missing > 20, knobs.runtime.jit_cache_hook is None, undone]))
"""
    assert program(lines)[0] == [True, True, ["undone", "compiled"]]


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["RIPE_COMPILE_PROCESSES=0", "RIPE_KERNELS=off"])
def test_it_can_be_turned_off(program, switch):
    name, _, value = switch.partition("=")
    lines = f"""
import os
os.environ["{name}"] = "{value}"
ran = []
print(json.dumps([ahead.compile_ahead(lambda: ran.append(1)), ran]))
"""
    assert program(lines) == ([0, []], "")


@pytest.mark.slow
def test_a_study_s_share_of_the_cores_is_not_that_of_compiling(program):
    lines = """
import os
del os.environ["RIPE_COMPILE_PROCESSES"]
os.environ["OMP_NUM_THREADS"] = "1"
os.sched_getaffinity = lambda process: set(range(6))
counts = []
ahead._compile = lambda kernels, target, count: counts.append(count)
ahead.compile_ahead(run)
print(json.dumps(counts))
"""
    assert program(lines) == ([6], "compiling 31 kernels in 6 processes, once\n")


@pytest.mark.slow
def test_another_number_of_processes_is_refused(program):
    lines = """
import os
from ripe_mambaspike.errors import ConfigError
os.environ["RIPE_COMPILE_PROCESSES"] = "many"
try:
    ahead.compile_ahead(run)
except ConfigError as error:
    print(json.dumps(str(error)))
"""
    assert program(lines)[0] == "RIPE_COMPILE_PROCESSES: expected a number of processes, 0 for none, got 'many'"


def test_backward_runs_without_its_kernels_too(program):
    """In the thread that asked: PyTorch's own may be running another network's."""
    lines = """
network = create_model("nmnist", time_steps=2).train()

def forward():
    with kernels("triton"):
        return network(x).sum()

def run_training():
    with kernels("triton"):
        network(x).sum().backward()

found = {kernel.name for kernel in ahead._find(run_training)} - {kernel.name for kernel in ahead._find(forward)}
print(json.dumps(sorted(name for name in found if "backward" in name)))
"""
    assert len(program(lines)[0]) > 3


def test_a_kernel_of_another_thread_is_launched(program):
    """It is compiled, and then the stand-in lacks what launches it; our own kernels are skipped, and lack nothing."""
    lines = """
raised = []

def elsewhere():
    try:
        run()
    except AttributeError as error:
        raised.append(str(error))

def both():
    run()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()

ahead._compile = lambda kernels, target, count: None
missing = ahead.compile_ahead(both)
print(json.dumps([missing > 20, raised]))
"""
    (enough, raised), _ = program(lines)
    assert enough
    assert len(raised) == 1
    assert "launcher_cls" in raised[0]


@pytest.mark.slow
def test_an_own_hook_of_triton_is_left_alone(program):
    lines = """
seen = []
knobs.runtime.jit_cache_hook = mine = lambda **_: seen.append(1) or True
found = ahead.compile_ahead(run)
print(json.dumps([found, len(seen), knobs.runtime.jit_cache_hook is mine]))
"""
    assert program(lines)[0] == [0, 0, True]


@pytest.mark.slow
def test_few_kernels_are_left_to_the_launch(program):
    lines = "ahead.MIN_KERNELS = 1000\nahead._compile = None\n" + COMPILE
    missing, log = program(lines)
    assert missing > 20
    assert log == ""


STEP = """
import json, os, sys
import torch
from ripe_mambaspike import create_model
from ripe_mambaspike.ops import compile_ahead as ahead
from ripe_mambaspike.train import capture
from ripe_mambaspike.train.objective import LossWeights
from ripe_mambaspike.train.step import StepSettings, make_optimizer

compiled = []
if sys.argv[1] == "ahead":
    capture.compile_ahead = lambda *parts: compiled.append(ahead.compile_ahead(*parts))
else:
    capture.compile_ahead = lambda *parts: None
network = create_model("nmnist", seed=0).cuda().train()
optimizer = make_optimizer(network, torch.tensor(1e-3, device="cuda"), 0.05)
generator = torch.Generator("cuda").manual_seed(0)
x = torch.rand(2, 10, 2, 34, 34, device="cuda", generator=generator)
y = torch.eye(10, device="cuda")[:2]
weights = LossWeights(0.5, 5e-3, 1.0, 1e-4, label_smoothing=0.0)
step = capture.capture_step(network, optimizer, x, y, StepSettings(2.0, weights, 2, True, 1.0))
torch.manual_seed(0)
losses = [float(step().loss) for _ in range(3)]
print(json.dumps([compiled, losses, sum(float(value.double().sum()) for value in network.state_dict().values())]))
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_captured_step_has_the_same_bits_as_without(tmp_path):
    found = []
    for way in ("ahead", "launch"):
        environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / way)}
        ran = subprocess.run([sys.executable, "-c", STEP, way], env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        found.append(json.loads(ran.stdout))
    (compiled, *ahead), (none, *launched) = found
    assert compiled[0] > 100
    assert none == []
    assert ahead == launched
    made = {way: len(list((tmp_path / way).glob("*/*.cubin"))) for way in ("ahead", "launch")}
    assert made["ahead"] == made["launch"] <= 1.05 * compiled[0]  # the launch found what was compiled ahead
