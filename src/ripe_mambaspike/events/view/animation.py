"""A recording as an animated GIF: frames in whole multiples of the sensor's pixels, the time and a progress line."""

from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.view.frames import (
    GROUND,
    LEVELS,
    PALETTE,
    Counts,
    comfortable_window,
    event_frames,
    robust_scale,
    shade,
    spans,
    window_spans,
)
from ripe_mambaspike.events.view.words import caption, heading, play_factor, speed_text, time_text

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

FRAME_RATE = 30  # frames a second
DEFAULT_FRAMES, MAX_FRAMES = 120, 1000
MIN_DELAY, MAX_DELAY = 2, 0xFFFF  # 1/100 s per frame: the minimum that browsers respect, and the format's maximum
SIDE = 400, 800  # pixels: minimum and maximum of the longer side
MIN_WIDTH = 360  # pixels; room for the text
SAMPLED_FRAMES = 24  # frames used to find the colour scale
LETTER = (226, 230, 238)
GRAYS = 5  # shades of a letter's edge, after the events' colours
TEXT = LEVELS * LEVELS  # the first of them
COLORS = 128


def animation(recording: Recording, frames: int | None, window_us: int | None, title: str | None) -> bytes:
    """The GIF of ordered events."""
    from PIL import Image

    shown = shown_spans(recording, frames, window_us)
    whole = recording.duration_us + 1
    longer = play_factor(recording.duration_us) if window_us is None else 1.0
    # Consecutive frames may extend past the last event; their time is shown unchanged.
    length = int(shown[-1, 1] - shown[0, 0]) if frames is None and window_us is not None else whole
    delays = frame_delays(len(shown), longer * length)
    slower = 1e4 * sum(delays) / length
    shrink = -(-max(recording.sensor_size) // SIDE[1])
    width, height = (-(-side // shrink) for side in recording.sensor_size)
    zoom = -(-SIDE[0] // max(width, height))
    picks = np.unique(np.linspace(0, len(shown) - 1, SAMPLED_FRAMES).astype(int))
    scale = robust_scale(event_frames(recording, shown[picks], shrink))

    canvas = _Canvas(width * zoom, height * zoom)
    about = f"{speed_text(slower)} · {time_text(int(shown[0, 1] - shown[0, 0]))} a frame"
    canvas.write_still(heading(recording, title), caption(recording), about)
    images = []
    for (start, stop), counts in zip(shown.tolist(), event_frames(recording, shown, shrink), strict=True):
        done = min(stop, recording.last_us + 1) - recording.first_us
        picture = shade(counts, scale).repeat(zoom, 0).repeat(zoom, 1)
        made = canvas.with_events(picture, done / whole, _clock(start - recording.first_us, whole))
        image = Image.fromarray(made)
        image.putpalette(_colors())
        images.append(image)
    file = BytesIO()
    images[0].save(
        file,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=[10 * delay for delay in delays],
        loop=0,
        optimize=False,
        disposal=1,
    )
    return file.getvalue()


def shown_spans(recording: Recording, frames: int | None, window_us: int | None) -> Counts:
    """As given; by default as many frames as play at 30 a second, each long enough to be read."""
    if frames is not None or window_us is not None:
        return spans(recording, frames, window_us, MAX_FRAMES)
    whole = recording.duration_us + 1
    count = round(FRAME_RATE * whole / 1e6 * play_factor(recording.duration_us))
    count = max(1, min(count, DEFAULT_FRAMES, whole))
    window = max(comfortable_window(recording), -(-whole // count))
    return window_spans(recording.first_us, recording.last_us, window, count)


def frame_delays(frames: int, play_us: float) -> list[int]:
    """The delay of each frame [N] in 1/100 s; the sum is as close as possible to the playing time."""
    each = min(max(play_us / 1e4 / frames, MIN_DELAY), MAX_DELAY)
    ends = [round(each * index) for index in range(frames + 1)]
    return [after - before for before, after in pairwise(ends)]


def _clock(us: int, whole: int) -> str:
    """The start time of a frame as text of constant width."""
    return f"{us / 1e6:.1f} s" if whole >= 10_000_000 else f"{us / 1e3:.{0 if whole >= 100_000 else 2}f} ms"


def _colors() -> bytes:
    """128 colours: the events' pairs, then letters from faint to full, then the progress line and its rest."""
    part = np.linspace(0, 1, GRAYS + 1)[1:, None]
    grays = np.array(GROUND) + part * (np.array(LETTER) - np.array(GROUND))
    table = np.zeros((COLORS, 3), np.uint8)
    table[:TEXT] = PALETTE
    table[TEXT : TEXT + GRAYS] = grays.round()
    return table.tobytes()


class _Canvas:
    """The canvas as colour indices [H, W]: the static part, and what each frame adds."""

    def __init__(self, width: int, height: int) -> None:
        self.inner = (width, height)
        self.size = (max(width, MIN_WIDTH), height + 72)
        self.still = np.zeros(self.size[::-1], np.uint8)
        self.heavy, self.light = _font("DejaVuSans-Bold.ttf", 13), _font("DejaVuSans.ttf", 12)

    def write_still(self, name: str, about: str, speed: str) -> None:
        width, height = self.inner
        left = (self.size[0] - width) // 2
        if left:  # the sensor's border, where the picture is wider
            self.still[:height, [left - 1, left + width]] = TEXT
        room = self.size[0] - 24
        clock = int(self.heavy.getlength("000.00 ms")) + 12
        self._write(self.still, (12, height + 10), _fitting(name, self.heavy, room - clock), self.heavy)
        self._write(self.still, (12, height + 30), _fitting(about, self.light, room), self.light, faint=True)
        self._write(self.still, (12, height + 49), _fitting(speed, self.light, room), self.light, faint=True)

    def with_events(self, picture: NDArray[np.uint8], done: float, clock: str) -> NDArray[np.uint8]:
        made = self.still.copy()
        height, width = picture.shape
        left = (self.size[0] - width) // 2
        made[:height, left : left + width] = picture
        made[height : height + 3] = TEXT
        made[height : height + 3, : max(1, round(done * self.size[0]))] = TEXT + GRAYS - 1
        at = self.size[0] - 12 - int(self.heavy.getlength(clock))
        self._write(made, (at, height + 10), clock, self.heavy)
        return made

    def _write(
        self, canvas: NDArray[np.uint8], at: tuple[int, int], text: str, font: "FreeTypeFont", faint: bool = False
    ) -> None:
        """Draw anti-aliased text with the available greys."""
        from PIL import Image, ImageDraw

        mask = Image.new("L", (canvas.shape[1] - at[0], 20))
        ImageDraw.Draw(mask).text((0, 0), text, fill=150 if faint else 255, font=font)
        levels = (np.asarray(mask).astype(np.int64) * GRAYS + 127) // 255
        place = canvas[at[1] : at[1] + 20, at[0] :]
        ink = levels[: place.shape[0]]
        place[ink > 0] = (TEXT - 1 + ink[ink > 0]).astype(np.uint8)


def _fitting(text: str, font: Any, room: int) -> str:
    if font.getlength(text) <= room:
        return text
    while text and font.getlength(text + "…") > room:
        text = text[:-1]
    return text + "…"


def _font(name: str, size: int) -> "FreeTypeFont":
    """A font that ships with matplotlib, so that the output is the same everywhere."""
    from pathlib import Path

    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name, size)
