"""The hook of mkdocs.yml: pages that are generated, and links to files outside docs/.

Generated are the sections of the command line (`cli.md`) and of the Python reference (`reference.md`), and the pages of
the notebooks. A file of the repository that a page links to becomes part of the site, under repository/, so that no
link leaves it.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from tools.cli_page import cli_sections
from tools.linked_files import follow_links, repository_path, site_links
from tools.notebook_pages import notebook_pages
from tools.reference_page import link_names, reference_sections

ROOT = Path(__file__).parents[1]
THEIR_SCRIPT = "https://unpkg.com/iframe-worker/shim"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the notebooks of the navigation, and watch what pages are made of with `mkdocs serve`."""
    for entry in config.nav or []:
        if "Notebooks" in entry:
            entry["Notebooks"] = sorted(notebook_pages(ROOT))
    config.watch.extend(str(ROOT / name) for name in ("src", "examples", "tools", "README.md", "CONTRIBUTING.md"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, content in notebook_pages(ROOT).items():
        files.append(File.generated(config, name, content=content))
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        files.append(File.generated(config, f"repository/examples/{path.name}", abs_src_path=str(path)))
    pages = {repository_path(file.src_uri): file.content_string for file in files.documentation_pages()}
    for name, linked in follow_links(ROOT, pages).items():
        files.append(File.generated(config, f"repository/{name}", content=linked))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    match page.file.src_uri:
        case "api.md":
            markdown = link_names(markdown)
        case "cli.md":
            markdown += f"\n{cli_sections()}"
        case "reference.md":
            markdown += f"\n{reference_sections(ROOT)}"
    return site_links(ROOT, page.file.src_uri, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Search that works from a folder needs a script, which the theme loads from another host; take our own."""
    return output.replace(THEIR_SCRIPT, get_relative_url("frame-worker.js", page.url))


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    return output.replace(THEIR_SCRIPT, "/frame-worker.js")  # 404.html is only shown by a server
