"""Commands run in forks of one process that has imported everything: a start takes milliseconds instead of seconds.

`Forks` starts `python -m torture.forks` under the interposing library and asks it for forks over a pipe.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("interpose.c")
COUNT, KILL, FAIL_FROM = 1, 2, 3


@dataclass(frozen=True)
class CommandResult:
    """How a command ended: its exit code (negative: the signal), its output, the changes it made, how long it took."""

    code: int
    output: str
    changes: int
    seconds: float


class Forks:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ripe-torture-"))
        library = self.folder / "interpose.so"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "OMP_NUM_THREADS": "1",
            "TORTURE_LIBRARY": str(library),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torture.forks"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._ask({})  # wait until everything is imported

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()

    def start(self, words: list[str], **how: Any) -> int:
        """Start a command and return its pid. `how`: root, what, which, error (see interpose.c), log, copies, jump."""
        return int(self._ask({"words": words, "output": str(self.folder / "output"), **how})["process"])

    def wait(self, process: int) -> CommandResult:
        reply = self._ask({"wait": process})
        output = self.folder / f"output.{process}"
        text = output.read_text(errors="replace") if output.exists() else ""
        changes = self.folder / f"output.{process}.changes"
        counted = int(changes.read_text()) if changes.exists() else 0
        for path in (output, changes):
            path.unlink(missing_ok=True)
        return CommandResult(reply["code"], text, counted, reply["seconds"])

    def run(self, words: list[str], *, kill_after: float | None = None, **how: Any) -> CommandResult:
        """Run a command to its end, or kill it after `kill_after` seconds."""
        process = self.start(words, **how)
        if kill_after is not None:
            self._ask({"kill": process, "after": kill_after})
        return self.wait(process)

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that forks has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


def serve() -> None:
    """Fork for every line on standard input. Nothing is computed here, so no threads are ever running at a fork."""
    import torch

    import ripe_mambaspike.cli.main
    import ripe_mambaspike.data.prepare
    import ripe_mambaspike.data.simulated
    import ripe_mambaspike.deploy.export.write
    import ripe_mambaspike.report
    import ripe_mambaspike.train.run  # noqa: F401

    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    began: dict[int, float] = {}

    def answer(**reply: Any) -> None:
        out.write(json.dumps(reply).encode() + b"\n")
        out.flush()

    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "words" in request:
            process = os.fork()
            if process == 0:
                _run_command(request)
            began[process] = time.monotonic()
            answer(process=process)
        elif "kill" in request:
            end = began[request["kill"]] + request["after"]
            while (
                time.monotonic() < end
                and os.waitid(os.P_PID, request["kill"], os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            ):
                time.sleep(0.0005)
            os.kill(request["kill"], signal.SIGKILL)
            answer()
        elif "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            answer(code=os.waitstatus_to_exitcode(status), seconds=time.monotonic() - began.pop(request["wait"]))
        else:
            answer()


def _run_command(request: dict[str, Any]) -> None:
    """In a fork: run the command and end with its code."""
    output = f"{request['output']}.{os.getpid()}"
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    library = ctypes.CDLL(os.environ["TORTURE_LIBRARY"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if request.get("log") else -1
    if request.get("jump"):
        library.torture_jump(ctypes.c_long(request["jump"]))
    if request.get("root"):
        library.torture_arm(
            request["root"].encode(), request.get("what", COUNT), ctypes.c_long(request.get("which", 0)),
            request.get("error", 0), log, request.get("copies", "").encode(),
        )  # fmt: skip
    code = 70
    try:
        from ripe_mambaspike.cli.main import main

        code = main(request["words"])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    library.torture_count.restype = ctypes.c_long
    counted = library.torture_count()
    library.torture_arm(b"/nowhere", 0, 0, 0, -1, b"")
    sys.stdout.flush()
    Path(f"{output}.changes").write_text(str(counted))
    os._exit(code)


if __name__ == "__main__":
    serve()
