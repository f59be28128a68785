"""`POST /predict`: one recording in, its class as JSON out. Nothing of the request is kept.

The body is received and read as an upload is: to a private file with a random name, by a process of its own with
bounded memory and time. The answer is that of `ripe predict`.
"""

import asyncio
import mmap
import os
from collections.abc import AsyncIterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import InputError, ReadError, RipeError
from ripe_mambaspike.events.binning import step_bounds
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.inference.classifier import duration_warning
from ripe_mambaspike.inference.predict import Prediction, predict_fitted, step_edges
from ripe_mambaspike.live.forms import find_file_part, form_boundary
from ripe_mambaspike.live.library import UploadError, display_name, private_path, receive_upload
from ripe_mambaspike.live.limits import ServerLimits
from ripe_mambaspike.live.network import ServedNetwork
from ripe_mambaspike.live.reading import RecordingTooLargeError, read_in_subprocess

RAW, FORM = "application/octet-stream", "multipart/form-data"
COPY_BYTES = 1 << 20


class PredictionRequests:
    """Answers requests, `limits.predictions` of them at once and one at a time in the network."""

    def __init__(self, network: ServedNetwork, folder: Path, limits: ServerLimits) -> None:
        self.active = 0
        self.network, self._folder, self._limits = network, folder, limits
        self._computing = asyncio.Lock()

    async def answer(
        self, body: AsyncIterator[bytes], content_type: str, encoding: str | None, name: str
    ) -> dict[str, Any]:
        """The answer to a body. What cannot be answered raises UploadError with the HTTP status."""
        check_content_type(content_type, encoding)
        if self.active >= self._limits.predictions:
            most = self._limits.predictions
            raise UploadError(503, f"predictions: expected at most {most} at once, got one more; try again soon")
        self.active += 1
        try:
            return await self._answer(body, content_type, name)
        except RipeError as error:
            raise UploadError(status_of(error), str(error)) from error
        except OSError as error:
            raise UploadError(507, f"upload: it cannot be written here ({error.strerror or error})") from error
        finally:
            self.active -= 1

    async def _answer(self, body: AsyncIterator[bytes], content_type: str, name: str) -> dict[str, Any]:
        path = private_path(self._folder, name)
        made = [path]
        try:
            boundary = form_boundary(content_type) if is_form(content_type) else None
            await receive_upload(body, path, self._limits.upload_bytes, self._limits.upload_seconds)
            if boundary is not None:
                name, path = await asyncio.to_thread(self._take_file, path, boundary, made)
            shown = display_name(name)
            recording = await read_in_subprocess(path, shown, self._folder, self._limits, self.network.given_size)
        finally:
            for one in made:
                one.unlink(missing_ok=True)
        async with self._computing:
            return await asyncio.to_thread(classify_received, self.network, recording, shown)

    def _take_file(self, form: Path, boundary: bytes, made: list[Path]) -> tuple[str, Path]:
        """The file of a form, by its name and where it was written; the path is noted before anything is written."""
        with form.open("rb") as file, closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as data:
            part = find_file_part(data, boundary, self._limits.form_parts)
            if part.start == part.stop:
                raise InputError.expected("form", "a recording", "an empty file")
            path = private_path(self._folder, part.name)
            made.append(path)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                for start in range(part.start, part.stop, COPY_BYTES):
                    out.write(data[start : min(start + COPY_BYTES, part.stop)])
        return part.name, path


def is_form(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == FORM


def check_content_type(content_type: str, encoding: str | None) -> None:
    """Refuse a body that is neither a form nor plain bytes."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in ("", RAW, FORM):
        # What curl --data-binary sends by default.
        hint = f"; curl needs -H 'content-type: {RAW}'" if kind == "application/x-www-form-urlencoded" else ""
        reason = f"content-type: expected {RAW} or {FORM}, got {display_name(kind)}{hint}"
        raise UploadError(415, reason)
    if encoding not in (None, "", "identity"):
        raise UploadError(415, f"content-encoding: expected none, got {display_name(encoding)}")


def status_of(error: RipeError) -> int:
    """The HTTP status: 413 beyond a limit, 400 for what was sent, 500 for what is wrong with the network."""
    if isinstance(error, RecordingTooLargeError):
        return 413
    return 400 if isinstance(error, InputError | ReadError) else 500


def classify_received(network: ServedNetwork, recording: Recording, name: str) -> dict[str, Any]:
    """The answer for a recording that has been read; errors name it."""
    classifier = network.classifier
    try:
        fitted = classifier.region.fit(recording)
        prediction = predict_fitted(classifier, fitted)
    except InputError as error:
        raise InputError(f"{name}: {error}", field=error.field) from error
    sentences = [*fitted.warnings, duration_warning(classifier, fitted)]
    return {
        "name": name,
        "network": classifier.model.name,
        "label": prediction.label,
        "probability": prediction.probability,
        "probabilities": prediction.probabilities,
        "unknown": prediction.unknown,
        "score": prediction.score,
        "format": recording.format,
        "binning": describe_bins(network, recording, fitted, prediction),
        "warnings": [sentence for sentence in sentences if sentence],
    }


def describe_bins(
    network: ServedNetwork, recording: Recording, fitted: Recording, prediction: Prediction
) -> dict[str, Any]:
    """What became of the events: the sensor, the part of it, the edges of the bins, and the events in each."""
    classifier = network.classifier
    bounds = step_bounds(fitted.ordered(), classifier.time_steps, classifier.bin_by, None, None, None)
    return {
        "time_steps": classifier.time_steps,
        "grid": list(classifier.grid),
        "bin_by": classifier.bin_by,
        "binary": classifier.binary,
        "sensor_size": list(fitted.metadata.get("whole_size") or fitted.sensor_size),
        "sensor_size_from": fitted.metadata.get("sensor_size_from"),
        "crop": None if classifier.crop is None else list(classifier.crop),
        "edges_us": step_edges(fitted, classifier.time_steps, classifier.bin_by),
        "events": [stop - start for start, stop in pairwise(bounds)],
        "left_out": len(recording) - len(fitted),
        "leading": [step.label for step in prediction.timeline],
    }
