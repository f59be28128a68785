"""The one thread that runs the network for all recordings being watched, slice by slice, each in its turn.

What is to be done is not a queue but a place in each recording up to which someone watches: it cannot pile up.
"""

import threading
from collections import deque

from ripe_mambaspike.live.watched import WatchedRecording


class PredictionWorker:
    """Runs tracks until it is stopped."""

    def __init__(self) -> None:
        self._tracks: deque[WatchedRecording] = deque()
        self._wake = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No slice is begun any more; waits for the one that is being computed."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def add(self, track: WatchedRecording) -> None:
        with self._wake:
            self._tracks.append(track)

    def remove(self, track: WatchedRecording) -> None:
        with self._wake:
            self._tracks.remove(track)

    def want(self, track: WatchedRecording, until_us: int) -> None:
        """Ask that a track be computed up to a place."""
        if track.want(until_us):
            with self._wake:
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._stopped and (track := self._next()) is None:
                    self._wake.wait()
                if self._stopped or track is None:
                    return
            track.step()

    def _next(self) -> WatchedRecording | None:
        """The next track that has something to do; it goes to the end of the row."""
        for _ in range(len(self._tracks)):
            track = self._tracks[0]
            self._tracks.rotate(-1)
            if track.ready():
                return track
        return None
