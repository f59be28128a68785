"""The notebooks of examples/: each runs from start to end in an empty folder, and holds small outputs and no paths."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
MAX_BYTES = 150_000


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    """Its cells assert what they show; what it prints is compared with what is stored, but for numbers."""
    pytest.importorskip("nbclient", reason="nbclient is not installed (the extra dev)")
    from tools.run_notebooks import run_notebook

    ran = run_notebook(path, tmp_path)
    stored = json.loads(path.read_text())["cells"]
    assert [kinds(cell) for cell in ran.cells] == [kinds(cell) for cell in stored]
    words = [re.findall(r"[a-z_]{4,}", text(cell)) for cell in ran.cells]
    assert sum(map(len, words)) > 5
    assert words[1] == re.findall(r"[a-z_]{4,}", text(stored[1]))


def kinds(cell):
    return [output["output_type"] for output in cell.get("outputs", [])]


def text(cell):
    return "".join("".join(output.get("text", "")) for output in cell.get("outputs", []))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_small_and_has_no_paths(path):
    notebook = json.loads(path.read_text())
    assert path.stat().st_size < MAX_BYTES
    pictures = [
        output
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) <= 2
    for cell in notebook["cells"]:
        shown = "".join(cell["source"]) + text(cell)
        assert not re.search(r"/(tmp|work|home|root|usr)/|\x1b", shown)
        assert cell.get("execution_count") is None
        assert not any(output.get("output_type") == "error" for output in cell.get("outputs", []))


def test_the_neuron_is_that_of_contributing():
    recipe = (ROOT / "CONTRIBUTING.md").read_text().split("### Add a neuron")[1]
    code = re.search(r"```python\n(.*?)```", recipe, re.DOTALL)[1].strip()
    cells = json.loads((ROOT / "examples" / "add_neuron.ipynb").read_text())["cells"]
    assert f"%%writefile my_neurons.py\n{code}" in ["".join(cell["source"]) for cell in cells]
