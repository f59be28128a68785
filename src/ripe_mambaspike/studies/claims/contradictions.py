"""Sentences of the paper against its own tables: who is right is not asked, only whether both can be."""

import statistics
from collections.abc import Iterator
from itertools import chain

from ripe_mambaspike.studies.claims.printed import (
    ABLATION,
    DATASETS,
    SEEDS,
    SEQUENCE,
    TOP5,
    TRAINED_ON,
    hyperparameter,
)
from ripe_mambaspike.studies.claims.verdict import Claim, count, fact, number

STEP_MILLISECONDS, STEP_BATCH = 405.8, 4  # Table 16: a training step of the DVS-Gesture network
GESTURE_CLIPS = 264
NOISE = 2.0  # standard deviations that an effect has to reach to count as more than noise


def contradiction_claims() -> Iterator[Claim]:
    return chain(_recipe(), _seeds(), _deltas(), _cost())


def _recipe() -> Iterator[Claim]:
    batch = int(hyperparameter("batch_size", "dvsgesture"))
    decay, default = hyperparameter("weight_decay", "cifar10dvs"), hyperparameter("weight_decay", "dvsgesture")
    auxiliary = [
        name for name in DATASETS if hyperparameter("consistency", name) > 0 or hyperparameter("rates", name) > 0
    ]
    elsewhere = [f"{name}: {place}" for name, place in TRAINED_ON.items()]
    yield count("text.batch", batch)
    yield fact("text.weight-decay", f"{default} becomes {decay}", decay > default)
    yield fact("text.auxiliary", ", ".join(auxiliary), auxiliary == ["dvsgesture", "nmnist"])
    yield fact("text.machine", "; ".join(elsewhere), not elsewhere)


def _seeds() -> Iterator[Claim]:
    cells = [cell for arm in SEQUENCE.values() for cell in arm]
    others = sum(len(arm) for name, arm in SEQUENCE.items() if name != "mamba")
    spread = sum(deviation is not None for _, deviation in cells)
    yield fact("text.five-seeds", f"{others} other cells of Table 3 have five seeds", others == 0)
    yield count("text.deviations", spread, paper=len(cells))
    yield fact("text.top5", f"top-5 of {', '.join(TOP5)} alone", "TSM" in TOP5)


def _deltas() -> Iterator[Claim]:
    """Differences on DVS-Gesture, which are said to be taken from the mean of five seeds."""
    mean, clip = statistics.mean(SEEDS["dvsgesture"]), 100 / GESTURE_CLIPS
    effects = [effects[0] for effects, _ in ABLATION.values()]
    low, high = min(effects) / clip, max(effects) / clip
    deviation = statistics.stdev(SEEDS["dvsgesture"])
    unresolved = sum(effect < NOISE * deviation for effect in effects)
    yield number("text.delta.tokens", 97.73 - mean)
    yield number("text.delta.steps", mean - 96.59)
    yield fact("text.delta.clips", f"{low:.1f} to {high:.1f} clips", round(low) == 1 and round(high) == 2)
    yield count("text.resolved", unresolved, largest=max(effects) / deviation)


def _cost() -> Iterator[Claim]:
    yield number("text.throughput", 1000 * STEP_BATCH / STEP_MILLISECONDS)
