"""Files of the repository that pages link to: they become part of the site, under repository/."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"(```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def follow_links(root: Path, pages: Mapping[str, str]) -> dict[str, str | bytes]:
    """Content of every file outside docs/ that the pages, and the pages found this way, link to, by its path.

    `pages` are texts by their path in the repository. A folder becomes a page that lists its files.
    """
    found: dict[str, str | bytes] = {}
    waiting = list(pages.items()) + [
        (name, (root / name).read_text()) for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
    ]
    while waiting:
        path, text = waiting.pop()
        if path not in pages:
            found[path] = text
        for target in linked_paths(path, text):
            name = page_name(root, target)
            if not site_path(name).startswith("repository/") or name in found or not (root / target).exists():
                continue  # mkdocs itself warns of what does not exist
            if name.endswith(".md"):
                content = (root / target).read_text() if (root / target).is_file() else list_folder(root, target)
                found[name] = content
                waiting.append((name, content))
            else:
                found[name] = (root / target).read_bytes()
    return found


def linked_paths(path: str, text: str) -> set[str]:
    """Paths in the repository that the page at `path` links to; code is left out."""
    parts = CODE.split(text)[::2]
    return {normpath((PurePosixPath(path).parent / match[1]).as_posix()) for p in parts for match in LINK.finditer(p)}


def page_name(root: Path, path: str) -> str:
    return f"{path}/index.md" if (root / path).is_dir() else path


def list_folder(root: Path, folder: str) -> str:
    """A page with the Markdown files of a folder."""
    names = sorted(path.name for path in (root / folder).glob("*.md"))
    return f"# {folder}\n\n" + "\n".join(f"- [{name}]({name})" for name in names) + "\n"


def site_links(root: Path, page: str, text: str) -> str:
    """The page's text, with links to files of the repository replaced by links to their places in the site."""
    own = repository_path(page)

    def replace(match: re.Match[str]) -> str:
        target = normpath((PurePosixPath(own).parent / match[1]).as_posix())
        place = site_path(page_name(root, target))
        return relpath(place, PurePosixPath(page).parent.as_posix() or ".") + (match[2] or "")

    parts = CODE.split(text)
    return "".join(part if n % 2 else LINK.sub(replace, part) for n, part in enumerate(parts))


def repository_path(page: str) -> str:
    """Where the text of a page comes from."""
    if page.startswith("notebooks/"):
        return f"examples/{PurePosixPath(page).stem}.ipynb"
    return page.removeprefix("repository/") if page.startswith("repository/") else f"docs/{page}"


def site_path(path: str) -> str:
    """Where a file of the repository is in the site; a notebook is a page."""
    if path.startswith("examples/") and path.endswith(".ipynb"):
        return f"notebooks/{PurePosixPath(path).stem}.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
