"""Figures of stored studies: accuracy and firing rate against the weight of the rate loss."""

from typing import Any

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.report.figures.canvas import BASELINE, OURS, new_figure, plain_axes
from ripe_mambaspike.studies.tables.outcomes import read_outcome
from ripe_mambaspike.studies.tables.stored import ResultFolders

PRINTED = "(paper, DVS-Gesture: nearly flat, best at 1e-4)"


def draw_rate_loss(results: ResultFolders) -> Any:
    """One panel for each set: mean accuracy with its 95 % interval, and the mean firing rate."""
    outcome = read_outcome(results, "rate-loss")
    if outcome is None or not outcome.sets:
        raise InputError(
            "results: expected the study rate-loss, got none; run ripe study rate-loss, then add --results stored "
            "--results runs",
            field="results",
        )
    figure = new_figure(5.6 * len(outcome.sets), 3.8)
    for axes, name in zip(figure.subplots(1, len(outcome.sets), squeeze=False)[0], outcome.sets, strict=True):
        arms = sorted((arm for arm in outcome.arms(name) if arm.x and arm.mean is not None), key=lambda arm: arm.x or 0)
        places = [arm.x for arm in arms]
        means = [arm.mean or 0.0 for arm in arms]
        below = [mean - (mean if arm.low is None else arm.low) for arm, mean in zip(arms, means, strict=True)]
        above = [(mean if arm.high is None else arm.high) - mean for arm, mean in zip(arms, means, strict=True)]
        axes.errorbar(places, means, (below, above), fmt="-o", color=OURS, capsize=3)
        axes.set(xscale="log", xlabel=f"λ_L1\n{PRINTED}", title=f"{name}, {arms[0].n if arms else 0} seeds")
        axes.set_ylabel("top-1, % (95 % interval)", color=OURS)
        plain_axes(axes)
        if any(arm.rate is not None for arm in arms):
            other = axes.twinx()
            rated = [(arm.x, arm.rate) for arm in arms if arm.rate is not None]
            other.plot(*zip(*rated, strict=True), "--s", color=BASELINE, markersize=4)
            other.set_ylabel("mean firing rate", color=BASELINE)
            other.set_ylim(0, None)
            other.spines[["top"]].set_visible(False)
    return figure
