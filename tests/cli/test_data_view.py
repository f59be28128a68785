"""`ripe data view`: a picture, an animation or a page of a recording."""

import pytest

from ripe_mambaspike.events import Recording, make_events, write

EVENTS = make_events([i % 40 for i in range(200)], [i % 30 for i in range(200)], range(0, 20_000, 100), [0, 1] * 100)
BEGINS = {".png": b"\x89PNG\r\n\x1a\n", ".gif": b"GIF8", ".html": b"<!doctype html"}


@pytest.fixture
def clip(tmp_path):
    return write(Recording(EVENTS, (40, 30)), tmp_path / "clip.npz")


@pytest.mark.parametrize("suffix", BEGINS)
@pytest.mark.parametrize("words", [("--frames", "3"), ("--window-ms", "10"), ("--frames", "2", "--window-ms", "5")])
def test_every_kind_of_view_is_written(ripe, clip, tmp_path, suffix, words):
    out = tmp_path / f"out{suffix}"
    result = ripe("data", "view", clip, "--out", out, *words)
    assert (result.code, result.out, result.err) == (0, f"{out}: 200 events\n", "")
    assert out.read_bytes()[:14].lower().startswith(BEGINS[suffix].lower())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["clip.npz", out.name])


@pytest.mark.parametrize("suffix", BEGINS)
def test_a_file_name_is_shown_as_plain_text(ripe, clip, tmp_path, suffix):
    path = clip.rename(tmp_path / "$x^$ <b> \udcff.npz")
    result = ripe("data", "view", path, "--out", tmp_path / f"out{suffix}", "--frames", "1")
    assert (result.code, result.err) == (0, "")
    assert suffix != ".html" or b"<b>" not in (tmp_path / "out.html").read_bytes()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--out", "out.mp4"), ["out.mp4"]),
        (("--out", "out"), ["out"]),
        (("--out", "nowhere/out.png"), ["nowhere"]),
        (("--out", "out.png", "--frames", "0"), ["frames", "0"]),
        (("--out", "out.png", "--window-ms", "0"), ["--window-ms", "0.0"]),
        (("--out", "out.png", "--window-ms", "nan"), ["--window-ms", "nan"]),
        (("--out", "out.png", "--sensor-size", "0", "0"), ["--sensor-size", "(0, 0)"]),
        ((), ["--out"]),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_invalid_options_are_refused(refused, clip, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    refused(("data", "view", clip, *words), *named)
    assert [path.name for path in tmp_path.iterdir()] == ["clip.npz"]


def test_an_invalid_recording_is_refused(refused, tmp_path):
    refused(("data", "view", tmp_path / "none.bin", "--out", tmp_path / "out.png"), tmp_path / "none.bin")
    write(Recording(EVENTS[::-1], (40, 30)), tmp_path / "back.npz")
    refused(("data", "view", tmp_path / "back.npz", "--out", tmp_path / "out.png", "--strict"), "backwards")
    assert not (tmp_path / "out.png").exists()
