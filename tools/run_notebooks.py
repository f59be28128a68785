"""Run the notebooks of examples/, each in an empty folder, and store their outputs in them.

Stored are text and pictures, without times, paths and messages on standard error. Usage: make notebooks, or
python -m tools.run_notebooks examples/NAME.ipynb …
"""

import base64
import io
import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_output
from PIL import Image

ROOT = Path(__file__).parents[1]
ANSI = re.compile(r"\x1b\[[0-9;]*m")
SECONDS = 300  # that a cell may take
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def run_notebook(path: Path, folder: Path) -> Any:
    """The notebook with new outputs, run in the folder on one thread; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    binaries = str(Path(sys.executable).parent)  # so that a cell finds the command `ripe`
    settings = {"OMP_NUM_THREADS": "1", "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}
    with patch.dict(os.environ, settings):
        resources = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, timeout=SECONDS, resources=resources, record_timing=False).execute()
    return clean(notebook)


def clean(notebook: Any) -> Any:
    """Keep what is the same on every machine."""
    notebook.metadata = METADATA
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = clean_outputs(cell.outputs)
    return notebook


def clean_outputs(outputs: list[Any]) -> list[Any]:
    """Text of standard output in one piece and without colors, and the other outputs after it."""
    text = "".join(output.text for output in outputs if output.get("name") == "stdout")
    shown = [clean_data(output) for output in outputs if "data" in output]
    return [new_output("stream", name="stdout", text=ANSI.sub("", text))] * bool(text) + shown


def clean_data(output: Any) -> Any:
    """A picture with 64 colors, which is smaller, or else text."""
    if "image/png" not in output.data:
        return new_output("display_data", data={"text/plain": output.data["text/plain"]})
    buffer = io.BytesIO()
    picture = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"])))
    picture.convert("RGB").quantize(64).save(buffer, "png", optimize=True)
    return new_output("display_data", data={"image/png": base64.b64encode(buffer.getvalue()).decode()})


def main(paths: list[str]) -> None:
    for path in map(Path, paths) if paths else sorted((ROOT / "examples").glob("*.ipynb")):
        with TemporaryDirectory() as folder:
            notebook = run_notebook(path, Path(folder))
        nbformat.write(notebook, path)
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
