"""The documentation: files, functions and links that it names exist, and its walks are short."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from ripe_mambaspike.cli.main import _parse, main

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ripe_mambaspike"
HOUSE = (ROOT / "docs" / "house.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
STARTING = ("get-started.md", "own-recordings.md")
WALKS = {
    "From a recording to a prediction": 6,
    "One training step": 8,
    "Resuming a run": 7,
    "One export": 6,
    "One streamed window": 5,
}


def definitions(path):
    """Names of functions, classes, methods and constants at the top of a module."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def walk(title):
    section = HOUSE.split(f"### {title}\n")[1].split("\n#")[0]
    return re.findall(r"^\| `([\w/]+\.py)` \| (.*) \|$", section, re.MULTILINE)


@pytest.mark.parametrize(("title", "files"), WALKS.items(), ids=WALKS)
def test_a_walk_is_short_and_its_functions_exist(title, files):
    steps = walk(title)
    assert 2 < len(steps) <= files
    for file, functions in steps:
        known = definitions(PACKAGE / file)
        for name in re.findall(r"`([\w.]+)`", functions):
            assert name in known, f"{file} has no {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_and_files_exist(page):
    text = page.read_text()
    for link in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert (page.parent / link).exists(), link
    known = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    for file in re.findall(r"`((?:[a-z_]+/)+[a-z]\w+\.(?:py|h|cpp|html))`", text):
        places = (file in known, (ROOT / file).exists())
        assert any(places), f"{page.name} names {file}, which does not exist"
    for file, name in re.findall(r"`((?:[a-z_]+/)+[a-z]\w+\.py)`: `([\w.]+)`", text):
        assert name in definitions(PACKAGE / file), f"{file} has no {name}"


def shell_commands(page):
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    lines = [line.split("  #")[0].split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("ripe ")]


@pytest.mark.parametrize("command", [line for page in STARTING for line in shell_commands(page)])
def test_a_command_for_beginners_has_known_options(command):
    parsed = _parse(shlex.split(command)[1:])
    assert type(parsed).__name__.endswith("Command")


@pytest.mark.slow
def test_the_first_prediction_is_as_printed(tmp_path, monkeypatch, capsys):
    """The Python block of the page prints the text block after it, and the command the next one."""
    text = (ROOT / "docs" / "get-started.md").read_text()
    code, printed, shown = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```.*?```text\n(.*?)```", text, re.DOTALL
    ).groups()
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out == printed
    command, _, answer = shown.partition("\n")
    assert main(shlex.split(command.removeprefix("$ "))[1:]) == 0
    assert capsys.readouterr().out.split() == answer.split()
