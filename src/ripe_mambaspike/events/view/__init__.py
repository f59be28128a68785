"""View a recording as a picture (`.png`), an animation (`.gif`) or a page with a player (`.html`)."""

import os
from pathlib import Path

import numpy as np

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Recording, check_inside
from ripe_mambaspike.files import atomic_write

__all__ = ["view"]

SUFFIXES = (".png", ".gif", ".html")


def view(
    recording: Recording,
    path: str | Path,
    *,
    frames: int | None = None,
    window_us: int | None = None,
    title: str | None = None,
) -> Path:
    """Write a picture, an animation or a page, depending on the file's suffix. The file is written atomically.

    `frames` alone divides the recording into equal parts; `window_us` alone makes consecutive frames of that length;
    both together make `frames` frames of that length, evenly spread. A GIF with `window_us` plays at real speed, or as
    close to it as the format allows. A page can show any window at any time; the two set its initial window.
    `title` is shown above the events, usually the name of the file.
    """
    path = Path(os.fspath(path))
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise InputError.expected("path", f"a name that ends in {', '.join(SUFFIXES)}", repr(path.suffix), path=path)
    for name, value in (("frames", frames), ("window_us", window_us)):
        if value is not None and (not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1):
            raise InputError.expected(name, "an int of at least 1", repr(value))
    if not len(recording):
        raise InputError.expected("events", "at least one", "none", path=path)
    check_inside(recording)
    frames, window_us = (None if value is None else int(value) for value in (frames, window_us))
    data = _render(kind, recording.ordered(), frames, window_us, title)
    try:
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise InputError.expected("path", "a file that can be written", error, path=path) from error
    return path


def _render(kind: str, recording: Recording, frames: int | None, window_us: int | None, title: str | None) -> bytes:
    if kind == ".png":
        from ripe_mambaspike.events.view.picture import picture

        return picture(recording, frames, window_us, title)
    if kind == ".gif":
        from ripe_mambaspike.events.view.animation import animation

        return animation(recording, frames, window_us, title)
    from ripe_mambaspike.events.view.page import page

    return page(recording, frames, window_us, title)
