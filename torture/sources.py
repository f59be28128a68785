"""Sources that change or vanish while they are prepared, and workers that are killed alone."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from torture.forks import Forks
from torture.jobs import make_sources, prepare_words, store_state
from torture.trials import Trial

WORKERS = 2
STARTUP_SECONDS = 1.5  # seconds that workers take to start and to work, about


def changing_sources(forks: Forks, base: Path, times: int, random: Random) -> Trial:
    """A file changes, grows, shrinks or vanishes while its dataset is prepared: an error, or a new store."""
    trial = Trial("prepare", "a source that changes or vanishes")
    for number in range(times):
        folder = base / f"changing-{number}"
        root, out = make_sources(folder / "root"), folder / "store"
        files = sorted(root.rglob("*.bin"))
        words = prepare_words(root, out)
        process = forks.start(words)
        time.sleep(random.uniform(0, 0.15))
        _disturb(random.choice(files), random)
        result = forks.wait(process)
        trial.tried += 1
        if result.code not in (0, 2) or "Traceback" in result.output:
            trial.problem("it ended badly", result)
        elif result.code == 0:
            # Verified against its source, a store either says that the source changed or is what a fresh one would be.
            verified = forks.run(["data", "verify", "folder", "--root", str(root), "--store", str(out)])
            if verified.code == 0:
                new_folder = folder / "fresh"
                again = forks.run(prepare_words(root, new_folder))
                trial.ended += 1
                if again.code == 0 and store_state(new_folder) != store_state(out):
                    trial.problem("a store was taken for its source's although it holds something else")
            elif "Traceback" in verified.output:
                trial.problem("verifying ended badly", verified)
        shutil.rmtree(folder)
    return trial


def _disturb(path: Path, random: Random) -> None:
    data = path.read_bytes()
    what = random.randrange(4)
    if what == 0:
        path.unlink()
    elif what == 1:
        path.write_bytes(data[: random.randrange(0, len(data), 5)])
    elif what == 2:
        path.write_bytes(data + data[:5])
    else:
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


def killed_workers(base: Path, times: int, random: Random) -> Trial:
    """One of several worker processes is killed: the command reports it and exits with 2, or succeeds."""
    trial = Trial("prepare", "a worker killed alone")
    root = make_sources(base / "for-workers", each=200)  # more than one shard holds
    reference: dict[str, str] | None = None
    for number in range(times):
        out = base / f"workers-{number}"
        command = [sys.executable, "-m", "ripe_mambaspike", *prepare_words(root, out, WORKERS)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        workers: list[int] = []
        while process.poll() is None and len(workers) < WORKERS:
            workers = _children(process.pid)
        time.sleep(random.uniform(0, STARTUP_SECONDS))
        workers = _children(process.pid)
        if workers:
            os.kill(random.choice(workers), signal.SIGKILL)
            trial.tried += 1
        output = process.communicate(timeout=120)[0].decode(errors="replace")
        if process.returncode not in (0, 2) or "Traceback" in output:
            trial.problem(f"it ended badly (exit {process.returncode}: {output[-500:]})")
        again = subprocess.run(command, capture_output=True, env=environment)
        if again.returncode != 0:
            trial.problem(f"it did not go on ({again.stderr[-300:]!r})")
        state = store_state(out)
        reference = reference or state
        trial.ended += 1
        if state != reference:
            trial.problem("it ended otherwise")
        shutil.rmtree(out)
    return trial


def _children(process: int) -> list[int]:
    """The worker processes, without Python's resource tracker."""
    return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and _is_worker(one, process)]


def _is_worker(place: Path, parent: int) -> bool:
    try:
        status, command = (place / "status").read_text(), (place / "cmdline").read_bytes()
    except OSError:  # it has just ended
        return False
    return f"\nPPid:\t{parent}\n" in status and b"spawn_main" in command
