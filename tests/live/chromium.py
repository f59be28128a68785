"""Chromium without a window, driven over the DevTools protocol."""

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
PATIENCE = 60  # s
SPOKEN = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
CHOOSE = """{ const list = document.getElementById('recordings');
  list.value = '%s';
  list.dispatchEvent(new Event('change')); }"""


class Browser:
    """One page, driven over the DevTools protocol."""

    def __init__(self, link):
        self.link, self.console, self._numbers = link, [], itertools.count(1)
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.do(f"{domain}.enable")

    def do(self, method, **words):
        number = next(self._numbers)
        self.link.send(json.dumps({"id": number, "method": method, "params": words}))
        while True:
            said = json.loads(self.link.recv(PATIENCE))
            if said.get("method") in SPOKEN:
                self.console.append(json.dumps(said["params"]))
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]

    def value(self, script):
        said = self.do("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def until(self, script, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while not (value := self.value(f"(() => {{ try {{ return {script}; }} catch {{ return false; }} }})()")):
            notice = self.value("document.getElementById('notice')?.textContent")
            assert time.monotonic() < end, f"{script} did not become true; the notice is {notice!r}"
            time.sleep(0.02)
        return value

    def text(self, place):
        return self.value(f"document.getElementById('{place}').textContent")

    def choose(self, number):
        self.value(CHOOSE % number)

    def upload(self, path):
        root = self.do("DOM.getDocument")["root"]["nodeId"]
        node = self.do("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        self.do("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            self.do("Input.dispatchKeyEvent", type=kind, key=key, code=code)

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.do("Page.captureScreenshot", captureBeyondViewport=True)["data"]))


@contextmanager
def open_browser(tmp_path):
    from websockets.sync.client import connect

    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-extensions", "--no-first-run",
        "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--remote-debugging-port=0", "--window-size=1200,1100",
        "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        said = tmp_path / "profile" / "DevToolsActivePort"
        end = time.monotonic() + PATIENCE
        while not (said.exists() and len(said.read_text().split()) == 2):
            assert process.poll() is None, "Chromium did not start"
            assert time.monotonic() < end, "Chromium did not say where it listens"
            time.sleep(0.02)
        with urllib.request.urlopen(f"http://127.0.0.1:{said.read_text().split()[0]}/json", timeout=PATIENCE) as answer:
            page = next(one for one in json.load(answer) if one["type"] == "page")
        with connect(page["webSocketDebuggerUrl"], max_size=None) as link:
            yield Browser(link)
    finally:
        process.terminate()
        process.wait(30)
