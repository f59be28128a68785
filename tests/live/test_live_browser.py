"""The page in a real browser: play, upload, keys, the attention; nothing said on the console; a picture of it."""

import json
import time
from dataclasses import replace

import pytest
from chromium import BROWSER, open_browser

from ripe_mambaspike.inference.predict import predict
from ripe_mambaspike.live.library import display_name, list_recordings
from ripe_mambaspike.live.network import make_served_network

pytest.importorskip("websockets.sync.client", reason="websockets is not installed (the extra serve)")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")]
LIT = """(() => { const one = document.getElementById('events');
  const data = one.getContext('2d').getImageData(0, 0, one.width, one.height).data;
  let lit = 0;
  for (let i = 0; i < data.length; i += 4) lit += data[i] + data[i + 1] + data[i + 2] > 100;
  return lit; })()"""
UNNAMED = """(() => { const one = document.getElementById('predictions');
  const { data } = one.getContext('2d').getImageData(one.width - 12, 8, 1, one.height - 28);
  const rows = {};
  for (let i = 0; i < data.length; i += 4) {
    const colour = `rgb(${data[i]}, ${data[i + 1]}, ${data[i + 2]})`;
    rows[colour] = (rows[colour] || 0) + 1;
  }
  const named = [...document.querySelectorAll('#legend i')].map(mark => getComputedStyle(mark).backgroundColor);
  const drawn = Object.keys(rows).filter(colour => rows[colour] > 2);  // not the edges between two
  return { drawn: drawn.length, named: named.length, different: new Set(named).size,
    unnamed: drawn.filter(colour => !named.includes(colour)) }; })()"""  # in the last bar of the answers over time
CUT = """[...document.querySelectorAll('#bars li > span')].filter(one => one.scrollWidth > one.clientWidth).length"""
TAKE = "document.body.id='taken';window.taken=1"
HOSTILE = (
    f'<script>{TAKE}</script>', f'<img src=x onerror="{TAKE}">', f'"><svg onload="{TAKE}">', f"'-{TAKE}-'",
    f"`${{{TAKE}}}`", "\u202e<b>turned\u202c", "</select></option><iframe src=javascript:1>", "\u2028\u2029line", "a_b",
    "&lt;",
)  # fmt: skip
MARKUP = "document.querySelectorAll('main :is(img, svg, script, iframe), [onload], [onerror]').length"


@pytest.fixture
def browser(tmp_path):
    with open_browser(tmp_path) as page:
        yield page


def test_the_page_plays_uploads_and_predicts(browser, serve, tmp_path, classifier, clip, packed):
    running = serve()
    browser.do("Page.navigate", url=f"http://127.0.0.1:{running.port}/")
    browser.until("document.querySelectorAll('#recordings option').length === 5")
    assert browser.text("link") == "connected"
    assert browser.value("document.getElementById('play').disabled") is True
    browser.value("document.getElementById('play').textContent = '…'")

    # Play and pause, by the key. Played once and held at its end, the whole recording's answer is predict's.
    browser.choose(1)
    browser.until("document.getElementById('play').textContent === 'Pause'")
    for word in ("Play", "Pause"):
        browser.press(" ", "Space")
        browser.until(f"document.getElementById('play').textContent === '{word}'")
    browser.value("document.getElementById('loop').click()")
    browser.until("document.getElementById('kind').textContent.includes('all 4 steps')")
    wanted = predict(classifier, clip)
    assert browser.text("label") == wanted.label
    assert browser.text("share") == f"{100 * wanted.probability:.1f} %"
    assert browser.until(LIT) > 20
    assert "b_short.npz: 24×20 pixels, 3,000 events, 0.30 s" in browser.text("facts")
    assert browser.value("document.querySelectorAll('#bars li').length") == 10
    assert browser.value(CUT) == 0  # names are shown whole
    legend = browser.value(UNNAMED)
    assert legend["drawn"] >= 1
    assert legend["unnamed"] == []
    assert legend["different"] == legend["named"]
    assert "stage 3:" in browser.text("rates-text")
    assert "median" in browser.text("latency-text")

    # Attention, by its key.
    assert browser.value("document.getElementById('attention').hidden") is True
    browser.press("a", "KeyA")
    browser.until("!document.getElementById('attention').hidden && document.getElementById('attention').width === 2")

    # Upload, under a name that would do harm if it were not shown as text.
    sent = tmp_path / "<img src=x onerror=\"document.body.id='taken'\">.npz"
    sent.write_bytes(packed(clip.events))
    browser.upload(sent)
    browser.until("document.getElementById('facts').textContent.startsWith('<img src=x')")
    browser.until("document.getElementById('kind').textContent.includes('all 4 steps')")
    assert browser.text("label") == wanted.label
    assert browser.value("document.body.id") == ""
    browser.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    browser.do("Emulation.setDeviceMetricsOverride", width=380, height=800, deviceScaleFactor=1, mobile=True)
    assert browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert browser.console == []

    # What is no recording is one sentence; Chromium itself notes the refused request, and the page goes on.
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"nothing like events")
    browser.upload(bad)
    browser.until("document.getElementById('notice').textContent.startsWith('bad.npz: ')")
    assert [line for line in browser.console if "400" not in line] == []
    browser.choose(0)
    browser.until("document.getElementById('facts').textContent.startsWith('a_long.npz')")
    browser.until("document.getElementById('notice').hidden")


def test_a_service_that_ends_is_noticed(browser, serve):
    running = serve()
    browser.do("Page.navigate", url=f"http://127.0.0.1:{running.port}/")
    browser.until("document.getElementById('link').textContent === 'connected'")
    running.server.should_exit = True
    running.thread.join(30)
    browser.until("document.getElementById('link').textContent.startsWith('connection lost')")
    assert browser.value("document.getElementById('recordings').disabled") is True


def test_hostile_names_cannot_script_the_page(browser, serve, classifier, clip, packed, tmp_path):
    """Names of classes, of files, of uploads and in errors: text, never markup; a script of no file does not run."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    for number, name in enumerate(HOSTILE):
        path = folder / f"{number}{name.replace('/', '|')}.npz"
        path.write_bytes(packed(clip.events) if number else b"no recording")
    network = make_served_network(replace(classifier, class_names=HOSTILE), window_ms=400, hop_ms=100)
    running = serve(network=network, listed=list_recordings(folder, 100)[0])
    browser.do("Page.navigate", url=f"http://127.0.0.1:{running.port}/")
    browser.until(f"document.querySelectorAll('#recordings option').length === {len(HOSTILE) + 1}")
    browser.choose(0)  # is refused, in a sentence with its name
    browser.until("document.getElementById('notice').textContent.includes('<script>')")
    for number in (1, 2, 5):
        browser.choose(number)
        browser.until(f"document.getElementById('facts').textContent.startsWith('{number}')")
        browser.until("document.getElementById('kind').textContent.includes('all 4 steps')")
    bars = browser.value("[...document.querySelectorAll('#bars li > span:first-child')].map(one => one.textContent)")
    assert bars == [display_name(name) for name in HOSTILE]
    sent = tmp_path / f"{HOSTILE[1].replace('/', '|')}.npz"
    for data, place in ((packed(clip.events), "facts"), (b"no recording", "notice")):
        sent.write_bytes(data)
        browser.upload(sent)
        browser.until(f"document.getElementById('{place}').textContent.startsWith('<img')")
    assert browser.value(MARKUP) == 0
    assert browser.value("document.body.innerText.match(/[\\u202a-\\u202e\\u2066-\\u2069]/)") is None
    assert browser.value("document.body.id + (window.taken || '')") == ""

    # And if one of them had become a script after all: the page's own policy keeps it from running.
    refused = len(browser.console)
    made = f"Object.assign(document.createElement('script'), {{ textContent: {json.dumps(TAKE)} }})"
    browser.value(f"document.body.append({made})")
    browser.value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.taken=1\">')")
    time.sleep(0.2)
    assert browser.value("document.body.id + (window.taken || '')") == ""
    assert any("Content Security Policy" in line for line in browser.console[refused:])
