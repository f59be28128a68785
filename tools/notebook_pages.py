"""Notebooks of examples/ as pages of the site, with their stored outputs."""

import base64
import json
from pathlib import Path
from typing import Any


def notebook_pages(root: Path) -> dict[str, str]:
    """Page name → Markdown, for every notebook."""
    return {f"notebooks/{path.stem}.md": notebook_page(path) for path in sorted((root / "examples").glob("*.ipynb"))}


def notebook_page(path: Path) -> str:
    cells = json.loads(path.read_text())["cells"]
    first, *rest = [text for cell in cells for text in render_cell(cell)]
    place = f"../repository/examples/{path.name}"
    note = f'This page is a notebook: <a href="{place}" download>download examples/{path.name}</a> to run it.'
    return "\n\n".join([first, note, *rest]) + "\n"


def render_cell(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    language = "bash" if source.startswith("%%bash") else "python"
    return [f"```{language}\n{source}\n```", *(text for output in cell["outputs"] for text in render_output(output))]


def render_output(output: dict[str, Any]) -> list[str]:
    """A picture, or else text; messages on standard error are left out."""
    if output["output_type"] == "stream":
        return [block("".join(output["text"]))] if output["name"] == "stdout" else []
    data = output.get("data", {})
    if "image/png" in data:
        encoded = base64.b64encode(base64.b64decode("".join(data["image/png"]))).decode()
        return [f'<img alt="output of the cell above" src="data:image/png;base64,{encoded}">']
    return [block("".join(data["text/plain"]))] if "text/plain" in data else []


def block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"
