"""A small share of the torture passes; the simulated power loss loses what was not synced and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest
from torture.power import lose_power

ROOT = Path(__file__).parents[2]


def lost(tmp_path, *operations, folders_too):
    """The files left after these operations below /root; sync copies are named by their content."""
    log, copies, before, out = (tmp_path / name for name in ("log", "copies", "before", "out"))
    copies.mkdir()
    (before / "old").mkdir(parents=True)
    (before / "old" / "kept").write_bytes(b"was there")
    for operation in operations:
        if operation[0] == "sync":
            (copies / operation[2]).write_bytes(operation[2].encode())
    log.write_text("".join("\t".join(operation) + "\n" for operation in operations))
    lose_power(before, log, copies, Path("/root"), out, folders_too=folders_too)
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


WRITE = (("open", "/root/.a.tmp"), ("write", "/root/.a.tmp"))
RENAME = ("rename", "/root/.a.tmp", "/root/a")
OLD = {"old/kept": b"was there"}


@pytest.mark.parametrize(
    ("operations", "ordered", "strict"),
    [
        ((*WRITE, RENAME), {"a": b""}, {}),  # a name with nothing behind it: why content is synced first
        ((*WRITE, ("sync", "/root/.a.tmp", "new"), RENAME), {"a": b"new"}, {}),
        ((*WRITE, ("sync", "/root/.a.tmp", "new"), RENAME, ("syncdir", "/root")), {"a": b"new"}, {"a": b"new"}),
        ((("unlink", "/root/old/kept"),), {"old/kept": None}, {}),
        ((("unlink", "/root/old/kept"), ("syncdir", "/root/old")), {"old/kept": None}, {"old/kept": None}),
        ((("mkdir", "/root/new"), ("open", "/root/new/b"), ("sync", "/root/new/b", "x")), {"new/b": b"x"}, {}),
    ],
)
@pytest.mark.parametrize("folders_too", [False, True])
def test_what_a_power_loss_leaves(tmp_path, operations, ordered, strict, folders_too):
    wanted = {**OLD, **(strict if folders_too else ordered)}
    expected = {name: content for name, content in wanted.items() if content is not None}
    assert lost(tmp_path, *operations, folders_too=folders_too) == expected


@pytest.mark.slow
def test_a_small_share_of_all_trials():
    command = [sys.executable, "-m", "torture", "--share", "0.01"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL" in done.stdout
