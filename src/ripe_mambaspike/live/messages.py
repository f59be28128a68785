"""The messages between the server and a viewer's page: JSON, checked by msgspec.

A viewer sends one small object with `do` and, for most commands, `value`; anything else is refused. Predictions are
encoded once for all viewers. Event frames are binary: see `frames`.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from ripe_mambaspike.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from ripe_mambaspike.inference.streamer import StreamPrediction

MIN_SPEED, MAX_SPEED = 0.05, 8.0
MAX_KEY_LENGTH = 64
MAX_LABEL_CHARS = 200  # as typed; a shorter one is made of it
MIN_CLIP_SECONDS, MAX_CLIP_SECONDS = 0.1, 3600.0


# From a viewer


class Command(Struct, frozen=True, tag_field="do", forbid_unknown_fields=True):
    """What a viewer asks for."""


class Play(Command, frozen=True, tag="play"):
    value: Annotated[int, Meta(ge=0, lt=2**31)]  # number of a listed recording


class PlayUpload(Command, frozen=True, tag="upload"):
    value: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_LENGTH, pattern=r"^[\x20-\x7e]*$")]  # its key


class WatchLive(Command, frozen=True, tag="live"):
    value: None = None


class Pause(Command, frozen=True, tag="pause"):
    value: None = None


class Resume(Command, frozen=True, tag="resume"):
    value: None = None


class Seek(Command, frozen=True, tag="seek"):
    value: Annotated[float, Meta(ge=0, le=1)]  # position in the recording


class SetSpeed(Command, frozen=True, tag="speed"):
    value: Annotated[float, Meta(ge=MIN_SPEED, le=MAX_SPEED)]


class SetLoop(Command, frozen=True, tag="loop"):
    value: bool


class ShowAttention(Command, frozen=True, tag="attention"):
    value: bool


# Of a server that records (--record-to)


class TrimmedClip(Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of a clip, and its label as it was typed."""

    label: Annotated[str, Meta(min_length=1, max_length=MAX_LABEL_CHARS)]
    start: Annotated[float, Meta(ge=0, le=MAX_CLIP_SECONDS)]  # seconds since the first event
    stop: Annotated[float, Meta(ge=0, le=MAX_CLIP_SECONDS)]


class SavedName(Struct, frozen=True, forbid_unknown_fields=True):
    """A recording of the list."""

    label: Annotated[str, Meta(min_length=1, max_length=MAX_LABEL_CHARS)]
    name: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_LENGTH)]


class Record(Command, frozen=True, tag="record"):
    value: Annotated[float, Meta(ge=MIN_CLIP_SECONDS, le=MAX_CLIP_SECONDS)] | None = None  # seconds; None: until stop


class StopRecord(Command, frozen=True, tag="stop"):
    value: None = None


class DiscardClip(Command, frozen=True, tag="discard"):
    value: None = None


class SaveClip(Command, frozen=True, tag="save"):
    value: TrimmedClip


class DeleteRecording(Command, frozen=True, tag="delete"):
    value: SavedName


class StartTraining(Command, frozen=True, tag="train"):
    value: None = None


class CancelTraining(Command, frozen=True, tag="cancel"):
    value: None = None


SessionCommand = Record | StopRecord | DiscardClip | SaveClip | DeleteRecording | StartTraining | CancelTraining
PlayerCommand = Play | PlayUpload | WatchLive | Pause | Resume | Seek | SetSpeed | SetLoop | ShowAttention
ViewerCommand = PlayerCommand | SessionCommand
_COMMANDS = msgspec.json.Decoder(ViewerCommand)


def read_command(text: str) -> ViewerCommand:
    """The command of a message."""
    try:
        return _COMMANDS.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InputError.expected("message", "an object with 'do' and 'value'", str(error)) from None


# To a viewer


def encode(kind: str, **fields: Any) -> str:
    """A message of this kind."""
    return msgspec.json.encode({"kind": kind, **fields}).decode()


def error_message(text: str) -> str:
    """An error to show."""
    return encode("error", message=text)


@dataclass(frozen=True)
class PredictionMessage:
    """One prediction: its time in the recording, and its JSON without and with the attention map."""

    at_us: int  # since the recording's first event
    final: bool
    json: bytes
    json_with_attention: bytes


def prediction_message(prediction: "StreamPrediction", origin_us: int, causal: bool = False) -> PredictionMessage:
    """Encode a prediction, times in seconds since `origin_us`."""
    at = prediction_time_us(prediction, causal) - origin_us
    document: dict[str, Any] = {
        "from": round((prediction.start_us - origin_us) / 1e6, 6),
        "to": round((prediction.stop_us - origin_us) / 1e6, 6),
        "at": round(at / 1e6, 6),
        "step": prediction.step,
        "time_steps": prediction.time_steps,
        "p": [round(share, 5) for share in prediction.probabilities],
        "rates": [round(rate, 5) for rate in prediction.rates],
        "ms": round(1e3 * prediction.seconds, 3),
    }
    if prediction.score is not None:
        document |= {"unknown": prediction.unknown, "score": round(prediction.score, 5)}
    plain = msgspec.json.encode(document)
    attention = None if prediction.attention is None else attention_document(prediction.attention)
    full = plain if attention is None else msgspec.json.encode({**document, "attention": attention})
    return PredictionMessage(at, prediction.final, plain, full)


def prediction_time_us(prediction: "StreamPrediction", causal: bool) -> int:
    """When the bin closed that completed the prediction, in the stream's clock."""
    if causal:
        return prediction.stop_us
    window = prediction.stop_us - prediction.start_us
    return prediction.start_us + -(-prediction.step * window // prediction.time_steps)


def attention_document(attention: "Tensor") -> dict[str, Any] | None:
    """A map [h, w] as bytes from zero to its maximum, and the maximum, so that all maps can share one scale.

    None if it is not finite.
    """
    import torch

    values = attention.detach().to(torch.float32)
    if not bool(values.isfinite().all()):
        return None
    largest = max(float(values.max()), 0.0)
    levels = (values.clamp(min=0) / (largest or 1.0) * 255).round().to(torch.uint8)
    height, width = levels.shape
    data = base64.b64encode(levels.contiguous().numpy().tobytes()).decode()
    return {"width": width, "height": height, "max": largest, "data": data}


def predictions_message(predictions: Iterable[PredictionMessage], round_number: int, attention: bool) -> str:
    """Several predictions in one message."""
    parts = [Raw(one.json_with_attention if attention else one.json) for one in predictions]
    return encode("predictions", round=round_number, predictions=parts)


class PredictionFilter:
    """Which predictions are shown: every final one, and the early ones of one window at a time.

    Windows overlap, and each has early predictions; those of one window, followed until it is full, are enough.
    """

    def __init__(self) -> None:
        self._start = 0
        self._stop: int | None = None

    def accepts(self, prediction: "StreamPrediction") -> bool:
        if prediction.final:
            return True
        if self._stop is None or prediction.start_us >= self._stop:
            self._start, self._stop = prediction.start_us, prediction.stop_us
        return prediction.start_us == self._start
