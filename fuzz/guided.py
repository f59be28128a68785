"""The same targets guided by coverage, with atheris (libFuzzer): inputs that reach new code are kept and built on.

The corpus grows under `.fuzz/corpus/TARGET`. Child: `python -m fuzz.guided TARGET SECONDS SEED FOLDER`.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from fuzz.engine import FINDINGS_FOLDER, MAX_SECONDS, Outcome, _digest, _save_case

CORPUS = Path(".fuzz") / "corpus"
MAX_RSS_MIB = 3000  # of the whole process, its libraries and the instrumentation


def guide(name: str, group: str, *, cases: int, seconds: float, seed: int) -> Outcome:
    """Fuzz one target for a time; libFuzzer stops at its first finding."""
    from fuzz.targets import find_target

    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(find_target(name).seeds):
        (folder / f"seed-{number}").write_bytes(case)
    FINDINGS_FOLDER.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "fuzz.guided", name, str(max(1, int(seconds))), str(seed), str(folder), str(cases)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RIPE_KERNELS": "off"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=seconds + 300)
    output = done.stderr.decode(errors="replace")
    runs = re.findall(r"^#(\d+)", output, re.MULTILINE) + re.findall(r"Done (\d+) runs", output)
    outcome = Outcome(name, group, max(map(int, runs), default=0), time.monotonic() - began)
    if done.returncode != 0:
        kind = "hang" if "timeout" in output[-3000:] else "memory" if "out-of-memory" in output[-3000:] else "exception"
        found = re.search(r"Test unit written to (\S+)", output)
        written = Path(found[1]) if found else folder / "none"
        what = re.search(r"=== Uncaught Python exception: ===\s*(.*)", output)
        kept = _save_case(f"{name}-guided-{_digest(written)}", written)
        trace = output[-4000:]
        outcome.findings.append(
            {"target": name, "kind": kind, "what": what[1] if what else trace[-300:], "place": "?", "case": kept}
        )
    return outcome


def main(words: list[str]) -> None:
    import logging
    import tempfile
    import warnings

    import atheris

    with atheris.instrument_imports(include=["ripe_mambaspike"]):
        from fuzz.targets import find_target

        target = find_target(words[0])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    work = Path(tempfile.mkdtemp(prefix="ripe-fuzz-"))

    def one(case: bytes) -> None:
        with contextlib.suppress(*target.allowed):
            target.run(case, work)

    options = [f"-max_total_time={words[1]}", f"-seed={int(words[2]) + 1}", f"-timeout={int(MAX_SECONDS)}"]
    options += [f"-rss_limit_mb={MAX_RSS_MIB}", f"-artifact_prefix={FINDINGS_FOLDER}/", "-max_len=65536"]
    if int(words[4]) < 1 << 40:
        options.append(f"-runs={words[4]}")
    atheris.Setup([sys.argv[0], *options, words[3]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
