"""How the network is run on what is watched: its windows, and what the page is told about it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import make_events

if TYPE_CHECKING:
    from ripe_mambaspike.events.recording import Recording
    from ripe_mambaspike.inference.classifier import Classifier
    from ripe_mambaspike.inference.streamer import Streamer

DEFAULT_OVERLAP = 2  # windows in flight unless a hop is given: each is looked at whenever a bin closes
MAX_WINDOW_MS = 3_600_000.0


@dataclass(frozen=True)
class ServedNetwork:
    """A classifier, fused, with its window and hop, and up to which duration a recording is one window, whole."""

    classifier: "Classifier"
    window_us: int
    hop_us: int
    whole_us: int

    def fit(self, recording: "Recording") -> "Recording":
        """The recording as it is binned: of the network's sensor, cropped; what may be wrong is in its `warnings`."""
        from ripe_mambaspike.inference.classifier import duration_warning

        fitted = self.classifier.region.fit(recording)
        sentence = duration_warning(self.classifier, fitted) if fitted.duration_us < self.whole_us else None
        return replace(fitted, warnings=(*fitted.warnings, sentence)) if sentence else fitted

    @property
    def asked_size(self) -> tuple[int, int] | None:
        """The sensor that recordings are read as, whatever they say; None where that was not asked for."""
        return self.classifier.sensor_size if self.classifier.sensor_given else None

    def for_recording(self, sensor_size: tuple[int, int], duration_us: int) -> tuple["Streamer", int]:
        """A streamer for a recording that has been fitted, and how long its bins are in µs."""
        from ripe_mambaspike.inference.streamer import without_crop

        fitted = without_crop(self.classifier)
        if duration_us > self.whole_us:
            return self._streamer(fitted, sensor_size, self.window_us, self.hop_us)
        whole = max(duration_us, self.classifier.time_steps)
        return self._streamer(fitted, sensor_size, whole, whole)

    def for_stream(self, sensor_size: tuple[int, int]) -> tuple["Streamer", int]:
        """A streamer for events of the whole sensor that never end, and how long its bins are in µs."""
        return self._streamer(self.classifier, sensor_size, self.window_us, self.hop_us)

    def _streamer(
        self, classifier: "Classifier", sensor_size: tuple[int, int], window: int, hop: int
    ) -> tuple["Streamer", int]:
        from ripe_mambaspike.inference.streamer import Streamer

        made = Streamer(classifier, sensor_size, window_us=window, hop_us=hop, early=True, attention=True)
        return made, max(1, window // self.classifier.time_steps)

    def warm(self) -> None:
        """Run a window of next to nothing, so that the first viewer does not wait for what is made once."""
        from ripe_mambaspike.inference.streamer import without_crop

        fitted = without_crop(self.classifier)
        streamer, _ = self._streamer(fitted, fitted.sensor_size or fitted.grid[::-1], self.window_us, self.hop_us)
        streamer.push(make_events([0], [0], [0], [1]))
        streamer.advance(self.window_us)

    def facts(self) -> dict[str, Any]:
        """What the page says about it."""
        one = self.classifier
        return {
            "name": one.model.name,
            "classes": list(one.class_names),
            "steps": one.time_steps,
            "grid": list(one.grid),
            "window": self.window_us / 1e6,
            "hop": self.hop_us / 1e6,
            "causal": causal(one.model.config),
            "sensor": None if one.sensor_size is None else list(one.sensor_size),
            "crop": None if one.crop is None else list(one.crop),
        }


def causal(config: object) -> bool:
    """Whether a network never looks ahead, and so streams without windows: an answer whenever a bin closes."""
    return bool(getattr(config, "causal", False))


def make_served_network(
    classifier: "Classifier", window_ms: float | None = None, hop_ms: float | None = None
) -> ServedNetwork:
    """The network as it will be run, refused if it cannot stream.

    A window not given is as long as the training clips, and a recording that `ripe predict` would not call too long is
    looked at whole. A hop not given is half a window, of whole bins; a causal network has no windows to look at, and
    answers every bin.
    """
    from ripe_mambaspike.inference.classifier import MAX_DURATION_RATIO
    from ripe_mambaspike.inference.streamer import check_stream, default_window, without_crop

    window = default_window(classifier) if window_ms is None else _microseconds("--window", window_ms)
    known = window_ms is None and classifier.duration_us is not None
    bins = 1 if causal(classifier.model.config) else max(1, -(-classifier.time_steps // DEFAULT_OVERLAP))
    hop = -(-window * bins // classifier.time_steps) if hop_ms is None else _microseconds("--hop", hop_ms)
    fitted = without_crop(classifier)
    check_stream(fitted, fitted.sensor_size or fitted.grid[::-1], window, hop)
    return ServedNetwork(classifier, window, hop, MAX_DURATION_RATIO * window if known else window)


def _microseconds(option: str, milliseconds: float) -> int:
    """An option in ms, checked, as µs."""
    if not 0.001 <= milliseconds <= MAX_WINDOW_MS:
        raise InputError(f"{option} is {milliseconds:g}; from 0.001 to {MAX_WINDOW_MS:,.0f} ms are wanted")
    return round(1e3 * milliseconds)
