"""Recordings of event cameras: reading, writing, viewing and binning.

Events are structured arrays with the fields `x`, `y` (pixels, the origin at the top left), `t` (µs) and `p`
(1 brighter, 0 darker), in the order of the file.
"""

from ripe_mambaspike.events.binning import bin_batch, bin_events
from ripe_mambaspike.events.reading import open_recording, read, read_chunks
from ripe_mambaspike.events.recording import EVENT, Recording, RecordingWarning, make_events
from ripe_mambaspike.events.writing import write

__all__ = [
    "EVENT",
    "Recording",
    "RecordingWarning",
    "bin_batch",
    "bin_events",
    "make_events",
    "open_recording",
    "read",
    "read_chunks",
    "write",
]
