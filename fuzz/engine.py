"""The parent process: starts a child for a target, watches it, and records aborts and hangs."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.child import CASE, FINDINGS, STATUS, STATUS_FILE

MAX_SECONDS = 10.0  # of one case
MAX_START_SECONDS = 120.0  # of a child: imports, and building the operators on a new machine
FINDINGS_FOLDER = Path(".fuzz") / FINDINGS
SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Outcome:
    """The result of fuzzing one target."""

    target: str
    group: str
    cases: int = 0
    seconds: float = 0.0
    grown_mib: float = 0.0  # largest growth of a child
    findings: list[dict[str, Any]] = field(default_factory=list)

    def count(self, kind: str) -> int:
        return sum(finding["kind"] == kind for finding in self.findings)


def fuzz(name: str, group: str, *, cases: int, seconds: float, seed: int, most_findings: int = 20) -> Outcome:
    """Run `cases` cases of a target, or until the time is over; a child that died is replaced by another."""
    outcome = Outcome(name, group)
    began = time.monotonic()
    places: set[str] = set()
    while outcome.cases < cases and len(outcome.findings) < most_findings:
        left = seconds - (time.monotonic() - began)
        if left <= 0:
            break
        base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        folder = Path(tempfile.mkdtemp(prefix="ripe-fuzz-", dir=base))
        try:
            done, grown, died = _run_child(name, seed, cases - outcome.cases, left, folder)
            outcome.cases += done
            outcome.grown_mib = max(outcome.grown_mib, grown / 1024)
            for path in sorted((folder / FINDINGS).glob("*.json")):
                finding = json.loads(path.read_text())
                key = f"{finding['kind']} {finding['place']}"
                if key not in places:
                    places.add(key)
                    outcome.findings.append(finding | {"case": _save_case(path.stem, path.with_suffix(".bin"))})
            if died is not None:
                case = folder / CASE
                stem = f"{name}-{died['kind']}-{_digest(case)}"
                outcome.findings.append({"target": name, **died, "case": _save_case(stem, case)})
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        seed += 1
    outcome.seconds = time.monotonic() - began
    return outcome


def _run_child(
    name: str, seed: int, cases: int, seconds: float, folder: Path
) -> tuple[int, int, dict[str, Any] | None]:
    """(cases run, growth in KiB, how the child died or None)."""
    status = folder / STATUS_FILE
    status.write_bytes(bytes(STATUS.size))
    (folder / FINDINGS).mkdir()
    command = [sys.executable, "-m", "fuzz.child", name, str(seed), str(cases), str(seconds), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RIPE_KERNELS": os.environ.get("RIPE_KERNELS", "off")}
    with (folder / "stderr").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        started = time.monotonic()
        died: dict[str, Any] | None = None
        try:
            while process.poll() is None:
                time.sleep(0.05)
                _, began, _ = STATUS.unpack(status.read_bytes())
                now = time.monotonic()
                if (began and now - began > MAX_SECONDS) or (not began and now - started > MAX_START_SECONDS):
                    died = {"kind": "hang", "what": f"a case took more than {MAX_SECONDS:g} s", "place": "?"}
                    break
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    done, _, grown = STATUS.unpack(status.read_bytes())
    if died is None and code != 0:
        output = (folder / "stderr").read_bytes()[-2000:].decode(errors="replace")
        died = {"kind": "abort", "what": f"the process ended with {code}", "place": "?", "trace": output}
    return done, grown, died


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()[:10]


def _save_case(stem: str, case: Path) -> str:
    FINDINGS_FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FINDINGS_FOLDER / f"{stem}.bin"
    if case.exists():
        shutil.copyfile(case, kept)
    return str(kept)
