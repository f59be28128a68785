"""The process that runs the cases of one target: `python -m fuzz.child TARGET SEED CASES SECONDS FOLDER`.

It stores in a shared file how many cases it has run and when the last one began, so that its parent can detect a hang;
the current case is in FOLDER. Findings that do not kill the process are saved, and it continues.
"""

import hashlib
import json
import logging
import mmap
import resource
import struct
import sys
import time
import traceback
import warnings
from pathlib import Path
from random import Random

from fuzz.target import Target, WrongAnswer

MAX_GROWTH_BYTES = 1 << 30  # beyond the memory in use when the first case begins
STATUS = struct.Struct("<QdQ")  # cases, when the last one began (monotonic; 0 before the first), peak growth in KiB
CASE, STATUS_FILE, FINDINGS = "case.bin", "status", "findings"
NUM_WARM_UP_RUNS = 3  # of every seed before memory is limited, to import modules and build operators


class Session:
    """The state of a child process."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self.folder = target, folder
        self.work = folder / "work"
        self.work.mkdir(exist_ok=True)
        (folder / FINDINGS).mkdir(exist_ok=True)
        with (folder / STATUS_FILE).open("r+b") as file:
            self.status = mmap.mmap(file.fileno(), STATUS.size)
        self.cases = 0
        self.known: set[str] = set()
        self.base = 0

    def limit_memory(self) -> None:
        """Warm up, then limit the process's growth to MAX_GROWTH_BYTES."""
        for seed in self.target.seeds:
            for _ in range(NUM_WARM_UP_RUNS):
                self.run(seed, count=False)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MAX_GROWTH_BYTES, size + MAX_GROWTH_BYTES))
        self.base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def run(self, case: bytes, count: bool = True) -> None:
        (self.folder / CASE).write_bytes(case)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.base if self.base else 0
        self.status[:] = STATUS.pack(self.cases, time.monotonic(), grown)
        try:
            self.target.run(case, self.work)
        except self.target.allowed:
            pass
        except MemoryError as error:
            self.record_finding("memory", error, case)
        except WrongAnswer as error:
            self.record_finding("wrong", error, case)
        except Exception as error:
            self.record_finding("exception", error, case)
        self.cases += count

    def record_finding(self, kind: str, error: BaseException, case: bytes) -> None:
        """Save a finding once per location in the code."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "ripe_mambaspike" in frame.filename] or frames
        place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"
        key = f"{kind} {type(error).__name__} {place}"
        if key in self.known:
            return
        self.known.add(key)
        name = f"{self.target.name}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
        (self.folder / FINDINGS / f"{name}.bin").write_bytes(case)
        finding = {"target": self.target.name, "kind": kind, "what": f"{type(error).__name__}: {str(error)[:300]}"}
        finding |= {"place": place, "trace": "".join(traceback.format_exception(error))[-4000:]}
        (self.folder / FINDINGS / f"{name}.json").write_text(json.dumps(finding, indent=1))


def main(words: list[str]) -> int:
    from fuzz.targets import find_target

    name, seed, cases, seconds, folder = words[0], int(words[1]), int(words[2]), float(words[3]), Path(words[4])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    session = Session(find_target(name), folder)
    session.limit_memory()
    random = Random(f"{name} {seed}")
    end = time.monotonic() + seconds
    while session.cases < cases and time.monotonic() < end:
        session.run(session.target.draw(random))
    session.status[:] = STATUS.pack(session.cases, time.monotonic(), STATUS.unpack(session.status[:])[2])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
