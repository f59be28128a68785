"""How the network runs on recordings and live sources: its windows, and its description for the page."""

from dataclasses import dataclass, replace
from typing import Any

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.classifier import MAX_DURATION_RATIO, Classifier, duration_warning
from ripe_mambaspike.inference.streamer import (
    Streamer,
    check_stream,
    default_window,
    runs_by_steps,
    without_crop,
)

DEFAULT_OVERLAP = 2  # windows open at any time unless a hop is given: each has a prediction whenever a bin closes
MAX_WINDOW_MS = 3_600_000.0


@dataclass(frozen=True)
class ServedNetwork:
    """A classifier with its window and hop, and the longest recording that is classified as one window."""

    classifier: Classifier
    window_us: int
    hop_us: int
    max_single_us: int

    def fit(self, recording: Recording) -> Recording:
        """The recording as it is binned: of the network's sensor, cropped; what may be wrong is in its `warnings`."""
        fitted = self.classifier.region.fit(recording)
        warning = duration_warning(self.classifier, fitted) if fitted.duration_us < self.max_single_us else None
        return replace(fitted, warnings=(*fitted.warnings, warning)) if warning else fitted

    @property
    def given_size(self) -> tuple[int, int] | None:
        """The sensor size that was given for all recordings, whatever they say; None if none was."""
        return self.classifier.sensor_size if self.classifier.sensor_given else None

    def for_recording(self, sensor_size: tuple[int, int], duration_us: int) -> tuple[Streamer, int]:
        """A streamer for a recording that has been fitted, and the length of its bins in µs."""
        fitted = without_crop(self.classifier)
        if duration_us > self.max_single_us:
            return self._streamer(fitted, sensor_size, self.window_us, self.hop_us)
        single = max(duration_us, self.classifier.time_steps)
        return self._streamer(fitted, sensor_size, single, single)

    def for_stream(self, sensor_size: tuple[int, int]) -> tuple[Streamer, int]:
        """A streamer for endless events of the whole sensor, and the length of its bins in µs."""
        return self._streamer(self.classifier, sensor_size, self.window_us, self.hop_us)

    def _streamer(
        self, classifier: Classifier, sensor_size: tuple[int, int], window: int, hop: int
    ) -> tuple[Streamer, int]:
        early = runs_by_steps(classifier.model)
        streamer = Streamer(classifier, sensor_size, window_us=window, hop_us=hop, early=early, attention=True)
        return streamer, max(1, window // self.classifier.time_steps)

    def warm_up(self) -> None:
        """Run one nearly empty window, so that the first viewer does not wait for one-time initialization."""
        fitted = without_crop(self.classifier)
        streamer, _ = self._streamer(fitted, fitted.sensor_size or fitted.grid[::-1], self.window_us, self.hop_us)
        streamer.push(make_events([0], [0], [0], [1]))
        streamer.advance(self.window_us)

    def describe(self) -> dict[str, Any]:
        """What the page shows about it."""
        classifier = self.classifier
        return {
            "name": classifier.model.name,
            "classes": list(classifier.class_names),
            "time_steps": classifier.time_steps,
            "grid": list(classifier.grid),
            "window": self.window_us / 1e6,
            "hop": self.hop_us / 1e6,
            "causal": is_causal(classifier.model.config),
            "sensor": None if classifier.sensor_size is None else list(classifier.sensor_size),
            "crop": None if classifier.crop is None else list(classifier.crop),
        }


def is_causal(config: object) -> bool:
    """Whether each step sees only earlier ones, so that the network streams without windows."""
    return bool(getattr(config, "causal", False))


def make_served_network(
    classifier: Classifier, window_ms: float | None = None, hop_ms: float | None = None
) -> ServedNetwork:
    """The network as it will be run; an error if it cannot stream.

    By default a window is as long as the training clips, and a recording that `ripe predict` would not call too long is
    classified as one window. The default hop is half a window, in whole bins; a causal network has no windows, and
    predicts at every bin.
    """
    window = default_window(classifier) if window_ms is None else _microseconds("window", window_ms)
    known = window_ms is None and classifier.duration_us is not None
    bins = 1 if is_causal(classifier.model.config) else max(1, -(-classifier.time_steps // DEFAULT_OVERLAP))
    hop = -(-window * bins // classifier.time_steps) if hop_ms is None else _microseconds("hop", hop_ms)
    fitted = without_crop(classifier)
    check_stream(fitted, fitted.sensor_size or fitted.grid[::-1], window, hop)
    return ServedNetwork(classifier, window, hop, MAX_DURATION_RATIO * window if known else window)


def _microseconds(field: str, milliseconds: float) -> int:
    """An option in ms, checked, as µs."""
    if not 0.001 <= milliseconds <= MAX_WINDOW_MS:
        raise InputError(f"{field}: expected 0.001 to {MAX_WINDOW_MS:,.0f} ms, got {milliseconds:g}", field=field)
    return round(1e3 * milliseconds)
