"""The page of the Python reference: every public name, in the order and under the headings of docs/api.md."""

import re
from pathlib import Path

import ripe_mambaspike

ROW = re.compile(r"^\| `(\w+)[`(]", re.MULTILINE)
MENTION = re.compile(r"`(\w+)[`(]")


def reference_sections(root: Path) -> str:
    """Headings and directives for mkdocstrings, which reads signatures and docstrings from the source.

    A name belongs to the section with its row, or, without a row, to the first one that mentions it.
    """
    text = (root / "docs" / "api.md").read_text()
    parts, placed, rows = list[str](), set[str](), set(ROW.findall(text))
    for section in text.split("\n## ")[1:]:
        named = ROW.findall(section) + [name for name in MENTION.findall(section) if name not in rows]
        names = [one for one in dict.fromkeys(named) if one in ripe_mambaspike.__all__ and one not in placed]
        placed.update(names)
        parts += [f"## {section.partition(chr(10))[0]}", *map(directive, names)]
    if missing := sorted(set(ripe_mambaspike.__all__) - placed):
        raise ValueError(f"docs/api.md: expected every public name under a heading, got none for {', '.join(missing)}")
    return "\n\n".join(parts) + "\n"


def directive(name: str) -> str:
    return f"[](){{ #{name} }}\n\n::: {defined_at(name)}\n    options: {{heading: {name}, toc_label: {name}}}"


def defined_at(name: str) -> str:
    """The module and name in it: `train` is a package, too, so the top level's own name would not do."""
    module = ripe_mambaspike._HOMES[name]
    return f"ripe_mambaspike.{module}.{name}"


def link_names(markdown: str) -> str:
    """docs/api.md with a link from the first cell of every row to the reference."""

    def link(match: re.Match[str]) -> str:
        name = match[2]
        return f"{match[1]}[`{name}{match[3]}`](reference.md#{name})" if name in ripe_mambaspike.__all__ else match[0]

    return re.sub(r"^(\| )`(\w+)([^`]*)`", link, markdown, flags=re.MULTILINE)
