"""The layout holds: rooms use the rooms before them, nothing unpickles, nothing speaks of a machine."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ripe_mambaspike"
ROOMS = [
    "events", "data", "ops", "nn", "models", "train", "deploy", "account", "studies", "bench", "report", "live", "cli",
]  # fmt: skip
SOURCES = sorted(PACKAGE.rglob("*.py"))


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "ripe_mambaspike" and len(parts) > 1:
                rooms.add(parts[1])
            elif parts == ["ripe_mambaspike"] and isinstance(node, ast.ImportFrom):
                rooms |= {f"the root's {alias.name}" for alias in node.names if alias.name != "__version__"}
    return rooms


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_uses_the_rooms_before_it(path):
    room = path.relative_to(PACKAGE).parts[0]
    if room not in ROOMS:
        return
    allowed = {*ROOMS[: ROOMS.index(room) + 1], "errors", "files"}
    assert imported_rooms(path) <= allowed


def test_every_room_is_in_the_list():
    rooms = {path.relative_to(PACKAGE).parts[0] for path in SOURCES if path.parent != PACKAGE}
    assert rooms == set(ROOMS)


def test_nothing_unpickles():
    pattern = re.compile(r"\bimport pickle|\btorch\.load\(|allow_pickle=True|\bfrom pickle\b")
    assert not [path for path in SOURCES if pattern.search(path.read_text())]


def test_help_does_not_wait_for_torch():
    """The command line's own modules import torch inside the commands only."""
    import subprocess
    import sys

    code = "import sys; from ripe_mambaspike.cli.main import main; main(['--help']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
