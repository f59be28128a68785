"""The examples of CONTRIBUTING.md as modules. Whatever they register is forgotten after the test."""

import importlib
import re
import sys
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


def code_blocks(heading):
    """The Python code below a heading of the guide."""
    section = GUIDE.split(f"\n### {heading}\n")[1].split("\n### ")[0].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Write the example below a heading into a file (a package where it has several blocks), and import it."""
    folder = tmp_path / "added"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    names = []

    def run(heading, name):
        blocks = code_blocks(heading)
        if len(blocks) == 1:
            (folder / f"{name}.py").write_text(blocks[0])
        else:
            (folder / name).mkdir()
            for file, text in zip(("__init__.py", "reference.py"), blocks, strict=True):
                (folder / name / file).write_text(text)
        names.append(name)
        return importlib.import_module(name)

    yield run
    for name in names:
        for module in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            del sys.modules[module]


@pytest.fixture
def restored():
    """Restore dictionaries that a test adds to."""
    kept = []

    def keep(*registries):
        kept.extend((registry, dict(registry)) for registry in registries)

    yield keep
    for registry, before in kept:
        registry.clear()
        registry.update(before)
