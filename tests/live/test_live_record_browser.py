"""From a camera to a classifier of one's own, in a real browser: record, trim, label, train, and watch it answer."""

import time
from contextlib import ExitStack
from importlib import resources

import pytest
from chromium import BROWSER, open_browser
from simulated_camera import SimulatedCamera, simulate_gesture

from ripe_mambaspike import load, read
from ripe_mambaspike.live import training_job
from ripe_mambaspike.live.serve import make_service

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")]
SIDE, SECONDS = 64, 1.5
GESTURES = {"clap": "hand_clapping", "wave": "left_hand_wave", "roll": "arm_roll"}
RECORDED, UNSEEN = 4, 3  # clips of each gesture
TRAINING_SECONDS = 900  # that training may take where other work goes on
COUNTS = """Object.fromEntries([...document.querySelectorAll('#classes tr')].map(row =>
  [...row.cells].slice(0, 2).map(cell => cell.textContent)))"""
SLIDE = "{ const one = document.getElementById('%s'); one.value = %d; one.dispatchEvent(new Event('input')); }"


@pytest.fixture
def browser(tmp_path):
    with open_browser(tmp_path) as page:
        yield page


def hidden(place):
    return f"document.getElementById('{place}').hidden"


def save(browser, label):
    """Record what is shown, type the label, and save it with Enter; the page has put the cursor there."""
    before = browser.value(COUNTS).get(label, "0")
    browser.press(" ", "Space")
    browser.until(f"!{hidden('clip')}")
    browser.value("document.getElementById('clip-label').value = ''")
    browser.do("Input.insertText", text=label)
    browser.press("Enter", "Enter")
    browser.until(f"({COUNTS})['{label}'] === '{int(before) + 1}'")


def test_three_gestures_become_a_network_that_answers(browser, serving, tmp_path, monkeypatch):
    pytest.importorskip("starlette", reason="starlette is not installed (the extra serve)")
    shorter = (
        (resources.files("ripe_mambaspike") / "recipes" / "few.yaml").read_text().replace("epochs: 0", "epochs: 24")
    )
    (tmp_path / "few.yaml").write_text(shorter)
    monkeypatch.setattr(training_job, "RECIPE", str(tmp_path / "few.yaml"))
    network = load("gestures-simulated", sensor_size=(SIDE, SIDE), grid=SIDE)
    service = make_service(
        network,
        source="tcp://127.0.0.1:0",
        record_to=tmp_path / "gestures",
        allow_training=True,
        runs=tmp_path / "runs",
    )
    shown = {
        (label, part, number): simulate_gesture(name, number, part, SIDE, 2 * SECONDS)
        for label, name in GESTURES.items()
        for part, count in (("train", RECORDED), ("test", UNSEEN))
        for number in range(count)
    }
    camera = SimulatedCamera(service.live._source.address, SIDE)
    with ExitStack() as stack:
        running = serving(stack, service=service)
        stack.enter_context(camera.running())
        began = time.monotonic()
        browser.do("Page.navigate", url=f"http://127.0.0.1:{running.port}/")
        browser.until("document.getElementById('record').disabled === false")
        assert browser.value(hidden("studio")) is False
        assert browser.value("document.getElementById('train').disabled") is True
        assert "11 classes" in browser.text("network")

        # Record. One clip is discarded, and one is cut to its second half.
        camera.show(shown["clap", "train", 0])
        browser.until("document.getElementById('rate').textContent !== '–'")
        browser.press(" ", "Space")
        browser.until(f"!{hidden('clip')}")
        browser.picture(tmp_path / "clip.png")
        browser.press("Escape", "Escape")
        browser.until(hidden("clip"))
        browser.value("document.activeElement.blur()")
        for number in range(RECORDED):
            for label in GESTURES:
                camera.show(shown[label, "train", number])
                time.sleep(0.3)  # until all that is on its way belongs to this gesture
                save(browser, label)
        assert browser.value(COUNTS) == {label: str(RECORDED) for label in sorted(GESTURES)}
        browser.value("document.getElementById('record').click()")
        browser.until(f"!{hidden('clip')}")
        browser.value(SLIDE % ("trim-start", 500))
        browser.value("document.getElementById('clip-label').value = 'a/../roll! '")
        browser.value("document.getElementById('save').click()")
        browser.until(f"({COUNTS})['a_roll'] === '1'")
        (cut,) = (tmp_path / "gestures" / "a_roll").iterdir()
        assert read(cut).duration_us == pytest.approx(5e5 * SECONDS, rel=0.05)
        assert read(tmp_path / "gestures" / "roll" / "001.raw").duration_us == pytest.approx(1e6 * SECONDS, rel=0.05)
        for _ in range(2):  # asked, and confirmed
            browser.value("document.querySelector('#classes tr button').click()")
        browser.until(f"!('a_roll' in {COUNTS})")
        assert not cut.parent.exists()
        recorded = time.monotonic() - began

        # Train, and see the epochs go by.
        browser.value("document.getElementById('train').click()")
        browser.until("document.getElementById('train-text').textContent.startsWith('Epoch')", seconds=TRAINING_SECONDS)
        browser.picture(tmp_path / "training.png")
        browser.until("document.getElementById('train-text').className !== 'dim'", seconds=TRAINING_SECONDS)
        assert browser.value("document.getElementById('train-text').className") == "good", browser.text("train-text")
        assert "3 classes" in browser.text("network")
        trained = time.monotonic() - began

        # Other people make the gestures: the page's own answer to each.
        right = 0
        for (label, part, _), events in shown.items():
            if part == "test":
                camera.show(events)
                time.sleep(2.2 * SECONDS + 0.5)  # until a whole window belongs to it
                right += browser.text("label") == label
        browser.picture(tmp_path / "answers.png")
        assert browser.console == []
    whole = time.monotonic() - began
    print(f"recorded {recorded:.0f} s, trained after {trained:.0f} s, in all {whole:.0f} s; {right} right")
    assert right >= 7  # of nine; three by chance
    assert set(load(tmp_path / "runs" / "gestures-001").class_names) == set(GESTURES)
