"""The network's answers as a viewer is told them: JSON text, made once for all who watch."""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ripe_mambaspike.inference.streamer import StreamPrediction


@dataclass(frozen=True)
class PredictionMessage:
    """One answer: when in the recording it was due, and its JSON without and with the attention."""

    at_us: int  # since the recording's first event
    final: bool
    seconds: float
    text: str
    attention: str | None

    def json(self, attention: bool) -> str:
        return f'{self.text[:-1]},"attention":{self.attention}}}' if attention and self.attention else self.text


def prediction_time_us(answer: "StreamPrediction", causal: bool) -> int:
    """When the bin closed that completed the answer, in the stream's clock. A causal network's ends with that bin."""
    if causal:
        return answer.stop_us
    return answer.start_us + -(-answer.step * (answer.stop_us - answer.start_us) // answer.time_steps)


def tell(answer: "StreamPrediction", origin_us: int, causal: bool = False) -> PredictionMessage:
    """An answer as text, times in seconds since `origin_us`."""
    at = prediction_time_us(answer, causal) - origin_us
    document: dict[str, Any] = {
        "from": round((answer.start_us - origin_us) / 1e6, 6),
        "to": round((answer.stop_us - origin_us) / 1e6, 6),
        "at": round(at / 1e6, 6),
        "step": answer.step,
        "steps": answer.time_steps,
        "p": [round(share, 5) for share in answer.probabilities],
        "rates": [round(rate, 5) for rate in answer.rates],
        "ms": round(1e3 * answer.seconds, 3),
    }
    attention = None if answer.attention is None else attention_json(answer.attention)
    return PredictionMessage(at, answer.final, answer.seconds, json.dumps(document, separators=(",", ":")), attention)


def attention_json(attention: Any) -> str | None:
    """A map [h, w] as bytes from zero to its most, and that number, so that all maps can be drawn on one scale.

    None where it is not finite.
    """
    import torch

    wide = attention.detach().to(torch.float32)
    if not bool(wide.isfinite().all()):
        return None
    most = max(float(wide.max()), 0.0)
    levels = (wide.clamp(min=0) / (most or 1.0) * 255).round().to(torch.uint8)
    height, width = levels.shape
    data = base64.b64encode(levels.contiguous().numpy().tobytes()).decode()
    return json.dumps({"width": width, "height": height, "most": most, "data": data}, separators=(",", ":"))


def answers_message(answers: Iterable[PredictionMessage], turn: int, attention: bool) -> str:
    inner = ",".join(told.json(attention) for told in answers)
    return f'{{"kind":"answers","round":{turn},"answers":[{inner}]}}'


class PredictionFilter:
    """Which answers are worth telling: every final one, and the early ones of one window at a time.

    Windows overlap, and each gives early answers; those of the window that is followed until it is full are enough.
    """

    def __init__(self) -> None:
        self._start, self._stop = 0, None  # type: int, int | None

    def wants(self, answer: "StreamPrediction") -> bool:
        if answer.final:
            return True
        if self._stop is None or answer.start_us >= self._stop:
            self._start, self._stop = answer.start_us, answer.stop_us
        return answer.start_us == self._start
