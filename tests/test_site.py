"""The site of the documentation: it builds without a warning, its links exist, nothing comes from another host."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tools.cli_page import commands
from tools.linked_files import follow_links, site_links

import ripe_mambaspike

pytest.importorskip("mkdocs", reason="mkdocs is not installed (the extra docs)")
ROOT = Path(__file__).parents[1]
BROWSER = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)
LOADING = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}


class Page(HTMLParser):
    """The ids, links and loaded files of a page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids.update(values[name] for name in ("id", "name") if values.get(name))
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        self.loads += [values[name] for one, name in LOADING if one == tag and values.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(["src", *sys.path[1:]])}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


@pytest.mark.slow
def test_every_link_and_anchor_exists(site, pages):
    checked = 0
    for path, page in pages.items():
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            assert target.is_file(), f"{path.relative_to(site)} links to {link}"
            if parts.fragment and target in pages and parts.fragment != "__skip":
                found = {*pages[target].ids, "__comments"}
                assert unquote(parts.fragment) in found, f"{path.relative_to(site)} links to {link}"
            checked += 1
    assert checked > 1000


@pytest.mark.slow
def test_nothing_is_loaded_from_another_host(site, pages):
    for path in (*pages, site / "404.html"):
        for load in Page(path).loads:
            assert urlsplit(load).scheme in ("", "data"), f"{path.relative_to(site)} loads {load}"
            assert not load.startswith("//")
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet


@pytest.mark.slow
def test_every_command_and_public_name_has_an_entry(site, pages):
    headings = pages[site / "cli.html"].ids
    for words in commands():
        assert f"ripe-{'-'.join(words)}" in headings, words
    text = (site / "cli.html").read_text()
    assert text.count("usage: ripe") == 1 + len(list(commands()))
    assert set(ripe_mambaspike.__all__) <= pages[site / "reference.html"].ids


@pytest.mark.slow
def test_every_notebook_and_page_is_in_the_navigation(site, pages):
    linked = {unquote(urlsplit(link).path) for link in pages[site / "index.html"].links}
    for source in (ROOT / "docs").glob("*.md"):
        assert f"{source.stem}.html" in linked, source.name
    for source in (ROOT / "examples").glob("*.ipynb"):
        assert f"notebooks/{source.stem}.html" in linked, source.name


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_a_page_opens_from_its_folder_with_search(site, tmp_path):
    """From file://: no message on the console, and a search for a name finds its entry."""
    text = (site / "index.html").read_text()
    probe = """<script>addEventListener("load", () => { const box = document.querySelector("input[name=query]");
      box.focus(); box.value = "bin_events"; box.dispatchEvent(new KeyboardEvent("keyup"));
      box.dispatchEvent(new Event("input")); });</script></body>"""
    (site / "probe.html").write_text(text.replace("</body>", probe))
    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr", "--v=0", "--virtual-time-budget=8000", "--dump-dom", (site / "probe.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (site / "probe.html").unlink()
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    assert re.search(r'class="md-search-result__link"', done.stdout)


def test_links_of_other_folders_are_followed_and_replaced(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        (tmp_path / name).write_text("# A page\n")
    (tmp_path / "CONTRIBUTING.md").write_text("[one](results/a.md#part) `[code](x.md)` [data](results/b.json)")
    (tmp_path / "results" / "a.md").write_text("[back](../docs/index.md)")
    (tmp_path / "results" / "b.json").write_text("{}")
    found = follow_links(tmp_path, {"docs/index.md": "[all](../results) [it](../CONTRIBUTING.md)"})
    assert set(found) == {
        "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "results/a.md", "results/b.json", "results/index.md",
    }  # fmt: skip
    assert site_links(tmp_path, "index.md", "[all](../results)") == "[all](repository/results/index.md)"
    assert site_links(tmp_path, "repository/results/a.md", found["results/a.md"]) == "[back](../../index.md)"
    text = site_links(tmp_path, "repository/CONTRIBUTING.md", found["CONTRIBUTING.md"])
    assert text == "[one](results/a.md#part) `[code](x.md)` [data](results/b.json)"
