"""How the network is run on what is watched: its windows, and what the page is told about it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import make_events

if TYPE_CHECKING:
    from ripe_mambaspike.deploy.streaming import Streamer
    from ripe_mambaspike.train.predict import Classifier

WINDOW_MS = 1500.0
PARTS = 2  # windows in flight unless a hop is given: each is looked at whenever a bin closes
LONGEST_MS = 3_600_000.0


@dataclass(frozen=True)
class Network:
    """A classifier, fused, with its window and hop."""

    classifier: "Classifier"
    window_us: int
    hop_us: int

    def for_recording(self, sensor_size: tuple[int, int], duration_us: int) -> tuple["Streamer", int]:
        """A streamer, and how long its bins are in µs. A recording shorter than a window is one window, whole."""
        if duration_us > self.window_us:
            return self.for_stream(sensor_size)
        whole = max(duration_us, self.classifier.steps)
        return self._streamer(sensor_size, whole, whole)

    def for_stream(self, sensor_size: tuple[int, int]) -> tuple["Streamer", int]:
        """A streamer for events that never end, and how long its bins are in µs."""
        return self._streamer(sensor_size, self.window_us, self.hop_us)

    def _streamer(self, sensor_size: tuple[int, int], window: int, hop: int) -> tuple["Streamer", int]:
        from ripe_mambaspike.deploy.streaming import Streamer

        made = Streamer(self.classifier, sensor_size, window_us=window, hop_us=hop, early=True, attention=True)
        return made, max(1, window // self.classifier.steps)

    def warm(self) -> None:
        """Run a window of next to nothing, so that the first viewer does not wait for what is made once."""
        height, width = self.classifier.grid
        streamer, _ = self.for_stream((width, height))
        streamer.push(make_events([0], [0], [0], [1]))
        streamer.advance(self.window_us)

    def facts(self) -> dict[str, Any]:
        """What the page says about it."""
        one = self.classifier
        return {
            "name": one.model.name,
            "classes": list(one.names),
            "steps": one.steps,
            "grid": list(one.grid),
            "window": self.window_us / 1e6,
            "hop": self.hop_us / 1e6,
            "causal": causal(one.model.config),
        }


def causal(config: object) -> bool:
    """Whether a network never looks ahead, and so streams without windows: an answer whenever a bin closes."""
    return bool(getattr(config, "causal", False))


def make_network(classifier: "Classifier", window_ms: float = WINDOW_MS, hop_ms: float | None = None) -> Network:
    """The network as it will be run, refused if it cannot stream.

    A hop not given is half a window, of whole bins; a causal network has no windows to look at, and answers every bin.
    """
    from ripe_mambaspike.deploy.streaming import check_stream, deployed

    window = _microseconds("--window", window_ms)
    bins = 1 if causal(classifier.model.config) else max(1, -(-classifier.steps // PARTS))
    hop = -(-window * bins // classifier.steps) if hop_ms is None else _microseconds("--hop", hop_ms)
    height, width = classifier.grid
    check_stream(classifier, (width, height), window, hop)
    return Network(deployed(classifier), window, hop)


def _microseconds(option: str, milliseconds: float) -> int:
    """An option in ms, checked, as µs."""
    if not 0.001 <= milliseconds <= LONGEST_MS:
        raise InputError(f"{option} is {milliseconds:g}; from 0.001 to {LONGEST_MS:,.0f} ms are wanted")
    return round(1e3 * milliseconds)
