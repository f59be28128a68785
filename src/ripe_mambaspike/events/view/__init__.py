"""View a recording as a picture (`.png`), an animation (`.gif`) or a page with a player (`.html`)."""

import os
from importlib import import_module
from pathlib import Path

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Recording, check_inside, check_int
from ripe_mambaspike.files import write_file

__all__ = ["view"]

RENDERERS = {".png": "picture", ".gif": "animation", ".html": "page"}  # module and its function, imported when needed


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
    if kind not in RENDERERS:
        raise InputError.expected("path", f"a name that ends in {', '.join(RENDERERS)}", repr(path.suffix), path=path)
    frames = None if frames is None else check_int("frames", frames, 1)
    window_us = None if window_us is None else check_int("window_us", window_us, 1)
    if not len(recording):
        raise InputError.expected("events", "at least one", "none", path=path)
    check_inside(recording)
    render = getattr(import_module(f"{__name__}.{RENDERERS[kind]}"), RENDERERS[kind])
    return write_file(path, render(recording.ordered(), frames, window_us, title))
