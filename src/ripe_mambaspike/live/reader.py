"""The process that reads one recording: `python -m ripe_mambaspike.live.reader FILE OUT EVENTS SECONDS [WIDTH HEIGHT]`.

It writes the events to OUT and one line of JSON to standard output: what the recording is, or one sentence about why
it cannot be read.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ripe_mambaspike.errors import ReadError, RipeError
from ripe_mambaspike.events.reading import open_recording
from ripe_mambaspike.events.recording import Events, Recording
from ripe_mambaspike.live.reading import limit_memory


def read_bounded(
    path: Path, most_events: int, most_seconds: int, sensor_size: tuple[int, int] | None = None
) -> Recording:
    """The recording by order of time, refused as soon as it is known to be larger or longer than allowed."""
    opened = open_recording(path, sensor_size=sensor_size)
    pieces: list[Events] = []
    count = 0
    for piece in opened.pieces():
        pieces.append(piece.copy())
        count += len(piece)
        if count > most_events:
            raise ReadError(f"{path} has more than {most_events:,} events; at most so many are wanted")
    recording = opened.recording(np.concatenate(pieces)).ordered()
    if recording.duration_us > most_seconds * 1_000_000:
        lasts = recording.duration_us / 1e6
        raise ReadError(f"{path} lasts {lasts:,.0f} s; at most {most_seconds:,} s are wanted")
    return recording


def main(words: list[str]) -> int:
    path, out = Path(words[0]), Path(words[1])
    warnings.simplefilter("ignore")  # they are handed over
    limit_memory()
    try:
        size = (int(words[4]), int(words[5])) if len(words) > 4 else None
        recording = read_bounded(path, int(words[2]), int(words[3]), size)
        recording.events.tofile(out)
    except RipeError as error:
        return _say({"error": str(error)})
    except MemoryError:
        return _say({"error": f"{path} needs more memory than a recording may; a smaller one is wanted"})
    except Exception as error:  # a decoder that stumbled over damage it did not foresee
        return _say({"error": f"{path} cannot be read ({type(error).__name__}); a whole recording is wanted"})
    return _say(
        {
            "sensor_size": list(recording.sensor_size),
            "sensor_size_from": recording.metadata["sensor_size_from"],
            "format": recording.format,
            "warnings": list(recording.warnings),
        }
    )


def _say(document: dict[str, Any]) -> int:
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
