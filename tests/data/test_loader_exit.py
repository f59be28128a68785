"""Workers end with the clips they serve, with the process, and with a process that is killed; not by Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ripe_mambaspike.data.prepare import prepare
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.events import Recording, make_events, write

CLIPS = 16
SECONDS = 8.0  # a worker needs about one to end; what is waited for in vain takes PyTorch ten
ABORTED = "terminate called without an active exception"  # PyTorch's worker on a busy machine, now and then
SCRIPT = """
import gc, os, signal, sys, time
import torch
from ripe_mambaspike.data.clips import EvalBatches
from ripe_mambaspike.data.settings import DataSettings
from ripe_mambaspike.data.training_data import open_data


def leave(clips, half_way):
    batches = iter(EvalBatches(clips, 1, torch.device("cpu")))
    next(batches)
    served = 1 if half_way else 1 + len(list(batches))
    cycle = [clips, batches]
    cycle.append(cycle)
    return served


if __name__ == "__main__":
    how = sys.argv[2]
    data = DataSettings(dataset="folder", root=sys.argv[1], time_steps=1, grid=(8, 8), cache="off", num_workers=1)
    clips = open_data(data).train
    gc.disable()  # it is collected where the test says
    served = leave(clips, how.endswith("half-way"))
    (worker,) = torch.multiprocessing.active_children()
    if how == "stopped":
        os.kill(worker.pid, signal.SIGSTOP)
    if how == "signalled":
        for kind in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker.pid, kind)
        served += sum(len(labels) for _, labels in EvalBatches(clips, 1, torch.device("cpu")))
        assert torch.multiprocessing.active_children() == [worker]
    print(served, worker.pid, flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    del clips
    if how.startswith("collected"):
        gc.collect()
        print("alive" if worker.is_alive() else "ended", flush=True)
    print(time.time(), flush=True)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("set")
    for number in range(CLIPS + 4):
        part = "train" if number < CLIPS + 2 else "test"
        path = folder / part / "ab"[number % 2] / f"{number}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        x, y = np.random.default_rng(number).integers(0, 12, (2, 400))
        write(Recording(make_events(x, y, np.arange(400), x % 2), (12, 12)), path)
    prepare(list_dataset("folder", folder), folder, folder / ".ripe")
    return folder


@pytest.fixture
def leave(root, tmp_path):
    """Leave clips with a worker in a cycle: the script's exit status and lines, the worker, and when it all ended."""
    script = tmp_path / "leave.py"
    script.write_text(SCRIPT)
    workers: list[int] = []

    def run(how: str) -> tuple[int, list[str], int, float]:
        # Files and no pipes: a worker would keep those open. What a worker says while it ends is not the script's.
        with (tmp_path / "out").open("w+") as out, (tmp_path / "errors").open("w+") as errors:
            done = subprocess.Popen([sys.executable, script, root, how], stdout=out, stderr=errors)
            try:
                status = done.wait(60)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                ended = time.time()
                lines = (tmp_path / "out").read_text().splitlines()
                workers.extend(int(words[1]) for words in map(str.split, lines) if len(words) == 2)
                done.kill()
                done.wait()
        said = (tmp_path / "errors").read_text()
        assert status is not None, f"the process hangs at exit: {lines} {said}"
        assert set(said.splitlines()) <= {ABORTED}, said
        return status, lines, workers[-1], ended

    yield run
    for worker in filter(running, workers):
        os.kill(worker, signal.SIGKILL)


def running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


pytestmark = [
    pytest.mark.slow,  # a process and its worker import PyTorch
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]


@pytest.mark.parametrize("how", ["collected", "collected half-way", "left", "left half-way"])
def test_workers_end_with_clips_in_a_cycle(leave, how):
    began = time.time()
    status, lines, worker, ended = leave(how)
    assert status == 0, lines
    assert lines[0].split()[0] == ("1" if how.endswith("half-way") else str(CLIPS))
    if how.startswith("collected"):
        assert lines[1] == "ended"
    assert began < float(lines[-1]) <= ended < float(lines[-1]) + SECONDS
    assert not running(worker)


def test_a_stopped_worker_is_killed_at_exit(leave):
    status, lines, worker, _ = leave("stopped")
    assert status == 0, lines
    assert not running(worker)


def test_workers_ignore_signals_that_are_meant_for_their_parent(leave):
    status, lines, worker, _ = leave("signalled")
    assert status == 0, lines
    assert lines[0].split()[0] == str(2 * CLIPS)
    assert not running(worker)


def test_workers_end_when_their_parent_is_killed(leave):
    status, lines, worker, ended = leave("killed")
    assert status == -signal.SIGKILL, lines
    while running(worker) and time.time() < ended + 20:  # it looks every five seconds
        time.sleep(0.1)
    assert not running(worker)
