"""Observe the selected network: on a few held-out clips, its temporal filters, and its cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ripe_mambaspike.account.document import account_clip
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.models.base import Model, clip_logits
from ripe_mambaspike.models.observe import attention_contrast
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.eval_mode import eval_mode

Clip = tuple[Tensor, int, str]  # binned events [T, 2, H, W], label, name
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Sample:
    """One clip and the network's outputs for it."""

    name: str
    label: int
    predicted: int | None  # None where the logits are not finite
    frames: Floats  # event counts [T, 2, H, W], OFF before ON
    attention: Floats | None  # where the last stage attends, `attention_contrast` [T, h, w]
    shares: Floats  # softmax of the logits, step by step [T, classes]; one step for a network with one answer


@dataclass(frozen=True)
class Observed:
    """Observations on a few clips."""

    samples: list[Sample] = field(default_factory=list)
    rates: list[tuple[str, list[float]]] = field(default_factory=list)  # layer → mean rate of each step
    notes: list[str] = field(default_factory=list)


def observe(model: Model, clips: Sequence[Clip]) -> Observed:
    """Run the network over the clips, one by one; a clip that it cannot read leaves a note."""
    samples, notes, rates = [], [], []
    with torch.no_grad(), eval_mode(model):
        for events, label, name in clips:
            x = events.detach().to("cpu", model.dtype)[None]
            try:
                sample, measured = _observe_clip(model, x, int(label), name)
            except (RipeError, RuntimeError) as error:
                notes.append(f"The clip {name} could not be run: {error}.")
                continue
            samples.append(sample)
            rates.append(measured)
    return Observed(samples, _mean_rates(rates), notes)


def layer_names(count: int) -> list[str]:
    """The spiking layers in order: two a stage in RIPE-MambaSpike, one each in the baseline."""
    if count == 6:
        return [f"stage {level}, {which}" for level in (1, 2, 3) for which in ("first", "second")]
    return [f"layer {index}" for index in range(1, count + 1)]


def temporal_filters(model: Model) -> list[tuple[str, Floats]]:
    """λ of every temporal filter, by layer [C]; empty for a network without them."""
    if not isinstance(model, RipeMambaSpike):
        return []
    convs: list[Any] = [conv for stage in model.stages for conv in (stage.first_conv, stage.second_conv)]
    found = []
    for name, conv in zip(layer_names(len(convs)), convs, strict=True):
        if conv.coefficient is not None:
            found.append((name, conv.coefficient.detach().float().cpu().numpy()))
    return found


def cost(model: Model, clips: Sequence[Clip]) -> dict[str, Any]:
    """The document of `account`, measured on the first clip or, without one, on a synthetic clip."""
    config = model.config
    if clips:
        x = clips[0][0].detach().to("cpu", model.dtype)[None]
        return account_clip(model, x, "the first held-out clip shown, weights of this run")
    x = synthetic_clip(config.time_steps, *config.in_size).to(model.dtype)
    return account_clip(model, x, "a synthetic clip (a sweeping bar and noise), weights of this run")


def _observe_clip(model: Model, x: Tensor, label: int, name: str) -> tuple[Sample, list[Floats]]:
    """The network's outputs for a clip, and the mean firing rate of every spiking layer at every step, [T] each."""
    out = model.run(x, observe=("spikes",))
    logits = clip_logits(out.logits)[0]
    predicted = int(logits.argmax()) if bool(logits.isfinite().all()) else None
    attention = None if out.attention is None else attention_contrast(out.attention[0]).numpy()
    shares = out.logits[0].float().softmax(-1).numpy()
    rates = [spikes.float().transpose(0, 1).flatten(1).mean(1).numpy() for spikes in out.observed.values()]
    return Sample(name, label, predicted, x[0].float().numpy(), attention, shares), rates


def _mean_rates(rates: list[list[Floats]]) -> list[tuple[str, list[float]]]:
    """Mean over the clips, as long as all of them have the same steps."""
    shapes = {tuple(len(layer) for layer in clip) for clip in rates}
    if len(shapes) != 1 or shapes == {()}:
        return []
    means = [np.mean(layer, axis=0).tolist() for layer in zip(*rates, strict=True)]
    return list(zip(layer_names(len(means)), means, strict=True))
