"""The commit of the code that made a result."""

import os
import subprocess
from functools import cache
from pathlib import Path

VARIABLE = "RIPE_COMMIT"  # the commit where a copy of the code does not know it
GIT_SECONDS = 5.0


def commit(start: Path | None = None) -> str | None:
    """The git commit that is checked out, with "-dirty" where files differ from it; None outside a checkout.

    The environment variable RIPE_COMMIT has precedence, for copies that were made without their history.
    """
    if given := os.environ.get(VARIABLE):
        return given
    for folder in (start or Path(__file__).resolve()).parents:
        git = folder / ".git"
        try:
            if git.is_file():  # a worktree: the file names its folder
                git = folder / git.read_text().removeprefix("gitdir:").strip()
            if git.is_dir():
                head = _head(git)
                return f"{head}-dirty" if head and _is_changed(folder) else head
        except OSError:
            return None
    return None


@cache
def _is_changed(folder: Path) -> bool:
    """Whether tracked files differ from the commit; False where git is not there to say so."""
    words = ["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def _head(git: Path) -> str | None:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    common = git / "commondir"
    git = git / common.read_text().strip() if common.exists() else git
    if (git / name).exists():
        return (git / name).read_text().strip()
    packed = git / "packed-refs"
    lines = packed.read_text().splitlines() if packed.exists() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
