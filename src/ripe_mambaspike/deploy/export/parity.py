"""Compares an exported network with PyTorch. Both run the same clips alternately and are timed.

Runtimes sum in different orders, so a potential within rounding of its threshold may fire in one and not in the other;
from then on the logits of that clip differ by more than rounding. Such clips are counted, never excluded.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ripe_mambaspike.errors import VerificationError
from ripe_mambaspike.models.base import clip_logits

MAX_DIFFERENCE = 1e-4  # of a clip's largest logit
TIMED_CALLS = 20  # calls of each
WARM_UP_CALLS = 2  # before those


class ParityResult(NamedTuple):
    """Comparison of one way to run an exported network with PyTorch."""

    clips: int
    difference: float  # the largest, of logits, relative to the clip's largest logit
    median: float  # of the clips' differences
    beyond: int  # clips that differ by more than the bound
    labels: int  # clips with the same predicted label
    load_seconds: float  # to load its files
    first_seconds: float  # from there to the first prediction
    latency_ms: float  # of one clip, the median
    torch_ms: float  # PyTorch's, in the same run

    @property
    def agrees(self) -> bool:
        """Whether all labels are equal and the logits of most clips differ only by rounding."""
        return self.labels == self.clips and self.median <= MAX_DIFFERENCE and math.isfinite(self.difference)

    def to_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "bound": MAX_DIFFERENCE, "agrees": self.agrees}


@torch.inference_mode()
def compare_outputs(
    load: Callable[[], Callable[[Tensor], Tensor]], model: Callable[[Tensor], Tensor], clips: Tensor
) -> ParityResult:
    """`load` gives the exported network, clips [B, T, 2, H, W] → logits; `model` is PyTorch's with the same weights."""
    began = time.perf_counter()
    run = load()
    loaded = time.perf_counter()
    run(clips[:1])
    first = time.perf_counter()
    ours = torch.cat([model(clip) for clip in clips.split(1)])
    theirs = torch.cat([run(clip) for clip in clips.split(1)])
    largest = ours.abs().amax((1, 2)).clamp(min=torch.finfo(ours.dtype).tiny)
    apart = ((theirs - ours).abs().amax((1, 2)) / largest).double()
    apart = torch.where(apart.isnan(), torch.inf, apart)
    same = clip_logits(ours).argmax(-1) == clip_logits(theirs).argmax(-1)
    latency, reference = _median_ms(run, model, clips[:1])
    return ParityResult(
        len(clips),
        float(apart.max()),
        float(apart.median()),
        int((apart > MAX_DIFFERENCE).sum()),
        int(same.sum()),
        loaded - began,
        first - loaded,
        latency,
        reference,
    )


def require_parity(parity: ParityResult, what: str) -> None:
    """Raise if an export does not agree with the network."""
    if not parity.agrees:
        raise VerificationError(
            f"{what}: expected all labels of the network and a median difference of at most {MAX_DIFFERENCE:.0e}, got "
            f"{parity.labels} of {parity.clips} labels and {parity.median:.1e}"
        )


def _median_ms(run: Callable[[Tensor], Tensor], model: Callable[[Tensor], Tensor], clip: Tensor) -> tuple[float, float]:
    """Time both alternately, so that other load on the machine affects both."""
    spent: tuple[list[float], list[float]] = ([], [])
    for turn in range(WARM_UP_CALLS + TIMED_CALLS):
        for call, seconds in zip((run, model), spent, strict=True):
            began = time.perf_counter()
            call(clip)
            if turn >= WARM_UP_CALLS:
                seconds.append(time.perf_counter() - began)
    ours, theirs = (sorted(seconds)[TIMED_CALLS // 2] * 1e3 for seconds in spent)
    return ours, theirs
