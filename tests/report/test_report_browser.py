"""The page in a real browser: no error, no refused resource, the headings, and values under the pointer."""

import re
import shutil
import subprocess

import pytest

from ripe_mambaspike.report import write_report

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")


@pytest.fixture
def browse(tmp_path):
    """The DOM after loading, and the console's lines."""

    def run(path, *options):
        command = [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-extensions", "--no-first-run",
            f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--v=0", *options, "--dump-dom",
            path.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    return run


def test_a_console_error_would_be_seen(browse, tmp_path):
    page = tmp_path / "control.html"
    page.write_text("<!doctype html><script>console.error('seen')</script>")
    assert any("seen" in line for line in browse(page)[1])


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_page_loads_without_an_error(browse, make_run, clips, epochs):
    dom, console = browse(write_report(make_run(epochs=epochs), clips=clips()))
    assert console == []
    assert re.findall(r"<h2>(.*?)</h2>", dom) == [
        "Curves", "Firing rates", "Temporal filters", "Confusion", "Classes", "Samples", "Cost", "Recipe", "Log",
    ]  # fmt: skip


def test_a_hostile_class_name_runs_no_script(browse, make_run, clips):
    hostile = "<img src=x onerror=\"document.body.id='taken'\"><script>document.body.id='taken'</script>"
    dom, console = browse(write_report(make_run(names=[hostile, "b", "c"]), clips=clips()))
    assert console == []
    assert 'id="taken"' not in dom


PROBE = """<script>
const chart = document.querySelector('svg[data-chart]'), box = chart.getBoundingClientRect();
chart.dispatchEvent(new PointerEvent('pointermove', {clientX: box.right - 2, clientY: box.top + 20}));
document.body.dataset.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
document.body.dataset.drawn = [...document.images].every(image => image.complete && image.naturalWidth > 0);
</script></body>"""


@pytest.mark.parametrize("width", [1200, 500])
def test_values_are_shown_under_the_pointer(browse, make_run, clips, tmp_path, width):
    text = write_report(make_run(), clips=clips()).read_text()
    probed = tmp_path / "probed.html"  # the same page, let run one more script
    probed.write_text(re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", PROBE))
    dom, console = browse(probed, f"--window-size={width},900")
    assert console == []
    tip = re.search(r'<div id="tip"[^>]*>(.*?)</div>', dom)[1]
    assert "<b>epoch 3</b><span>training: 1.758</span><span>hard pass: 1.562</span>" in tip
    assert 'data-wide="0"' in dom  # nothing wider than the window
    assert 'data-drawn="true"' in dom
