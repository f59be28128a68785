"""Figures of a run or a network: firing rates by epoch, temporal filters, attention over events, accuracy by class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.simulate.fitted import GESTURE_PIXEL
from ripe_mambaspike.events.simulate.gestures import CLASSES, draw_clip, render
from ripe_mambaspike.events.simulate.pixel import simulate_events
from ripe_mambaspike.inference.classifier import Classifier, load_network, make_clip, read_recording
from ripe_mambaspike.models.base import clip_logits
from ripe_mambaspike.models.observe import attention_contrast
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.eval_mode import eval_mode
from ripe_mambaspike.report.curves import response
from ripe_mambaspike.report.figures.canvas import BASELINE, OURS, PAPER, STAGES, new_figure, plain_axes
from ripe_mambaspike.report.formatting import wilson_interval
from ripe_mambaspike.report.images import event_images
from ripe_mambaspike.report.observe import layer_names, temporal_filters
from ripe_mambaspike.report.run_data import RunData, read_run

OPERATING_RATES = (0.015, 0.19)  # §4.5 of the paper
PRINTED_FILTERS = {"stage 1": 0.72, "stage 3": 0.0}  # §4.2: λ of the first and of the deepest stage
SIMULATED_SIDE, SIMULATED_STEP_US, SIMULATED_SEED, WARM_UP_US = 128, 2000, 7, 100_000


def draw_firing_rates(run_folder: Path) -> Any:
    """The rate of every spiking layer by epoch, with the range that the paper names."""
    run = read_run(run_folder)
    columns = run.numbered("rate")
    if not columns:
        raise InputError.expected("run", "a log with the rates of spiking layers", f"none in {run_folder}")
    names = layer_names(max(number for number, _ in columns))
    figure = new_figure(7.2, 4)
    axes = figure.subplots()
    epochs = range(1, run.epochs + 1)
    axes.axhspan(*OPERATING_RATES, color=PAPER, alpha=0.1, linewidth=0)
    axes.annotate(
        "the paper's range, 0.015 to 0.19", (0.99, OPERATING_RATES[1]), (0, 3), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", fontsize=7.5, color=PAPER,
    )  # fmt: skip
    for number, column in columns:
        name = names[number - 1]
        color = STAGES[(number - 1) // 2 % 3] if len(names) == 6 else None
        values = [np.nan if value is None else value for value in column]
        style = "--" if name.endswith("first") else "-"
        axes.plot(epochs, values, style, color=color, label=name, marker="o" if len(values) < 3 else None)
    axes.set(xlabel="epoch", ylabel="spikes a neuron and step", title=_title(run), ylim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    plain_axes(axes)
    return figure


def draw_filters(network: Path) -> Any:
    """λ of every temporal filter by depth, and the gain of each channel's filter over frequency."""
    found = temporal_filters(load_network(network).model)
    if not found:
        raise InputError.expected("network", "a network with temporal filters", str(network))
    figure = new_figure(11, 6.4)
    grid = figure.add_gridspec(2, len(found), height_ratios=(1.15, 1))
    top = figure.add_subplot(grid[0, :])
    random = np.random.default_rng(0)
    for place, (_, values) in enumerate(found):
        color = STAGES[place // 2 % 3]
        spread = random.uniform(-0.28, 0.28, len(values)) if len(values) > 1 else [0.0]
        top.plot(place + np.asarray(spread), values, "o", color=color, alpha=0.45, markersize=3.5)
        top.plot([place - 0.34, place + 0.34], [values.mean()] * 2, color=color, linewidth=2)
        top.annotate(f"{values.mean():+.2f}", (place + 0.36, values.mean()), fontsize=8, va="center", color=color)
    printed = [("stage 1", -0.45, 1.45), ("stage 3", 3.55, 5.45)] if len(found) == 6 else []
    for name, left, right in printed:
        level = PRINTED_FILTERS[name]
        top.plot([left, right], [level] * 2, "--", color=PAPER, linewidth=1)
        top.annotate(
            f"paper ≈ {level:g}", (right + 0.02, level), (0, 0 if level else -2), textcoords="offset points",
            fontsize=7.5, color=PAPER, va="bottom" if level else "top",
        )  # fmt: skip
    top.axhline(0, color="black", linewidth=0.6)
    top.set_xticks(range(len(found)), [name.replace(", ", "\n") for name, _ in found])
    top.set(ylabel="λ, one point a channel", title=f"Temporal filters of {network.resolve().name}")
    cycles = np.linspace(0, 0.5, 65)
    highest = 0.0
    lower: list[Any] = []
    for place, (_, values) in enumerate(found):
        axes = figure.add_subplot(grid[1, place], sharey=lower[0] if lower else None)
        lower.append(axes)
        gains = np.array([response(float(value), cycles) for value in values])
        axes.plot(cycles, gains.T, color=STAGES[place // 2 % 3], alpha=0.18, linewidth=0.8)
        axes.plot(cycles, gains.mean(0), color=STAGES[place // 2 % 3], linewidth=2)
        axes.axhline(1, color="black", linewidth=0.6)
        axes.set_xlabel("cycles a step")
        axes.tick_params(labelleft=place == 0)
        highest = max(highest, float(np.nanmax(gains)))
    lower[0].set(ylabel="|H|, gain", ylim=(0, 1.05 * highest))
    plain_axes(top, *lower)
    return figure


def simulated_gesture(label: str = "hand_clapping") -> Recording:
    """A gesture of the simulated camera, the same every time: for figures where no recording is given."""
    clip = draw_clip(CLASSES.index(label), SIMULATED_SEED, "test")
    size = (SIMULATED_SIDE, SIMULATED_SIDE)
    (events,) = simulate_events(
        lambda at: render([clip], at, size), GESTURE_PIXEL, size, clip.duration_us, [SIMULATED_SEED],
        step_us=SIMULATED_STEP_US, warm_us=WARM_UP_US,
    )  # fmt: skip
    return Recording(events, size, metadata={"name": f"simulated {label}"})


def draw_attention(network: Path, recording: Path | None, steps: Sequence[int]) -> Any:
    """Events, the last stage's attention over them, and where it departs from the step's median; each on one scale.

    `steps` are counted from 1.
    """
    classifier = load_network(network)
    clip = make_clip(classifier, simulated_gesture() if recording is None else read_recording(classifier, recording))
    if not steps or not all(1 <= step <= len(clip) for step in steps):
        raise ConfigError.expected("steps", f"steps from 1 to {len(clip)}", list(steps))
    maps, answer = last_attention(classifier, clip)
    indices = [step - 1 for step in steps]
    frames = [event_images(clip.numpy())[index] for index in indices]
    means, contrast = maps.mean(1)[indices].numpy(), attention_contrast(maps)[indices].numpy()
    figure = new_figure(2.6 * len(steps) + 0.9, 8.2)
    rows = figure.subplots(3, len(steps), squeeze=False)
    for axes, step, image in zip(rows[0], steps, frames, strict=True):
        axes.imshow(image)
        axes.set_title(f"t = {step}", fontsize=9)
    _heat_row(figure, rows[1], frames, means, "A of stage 3, mean over channels")
    _heat_row(figure, rows[2], frames, contrast, "|A − median of the step|, mean")
    for axes in rows.ravel():
        axes.set_xticks([])
        axes.set_yticks([])
    low, high = float(maps.min()), float(maps.max())
    source = "a simulated hand clap" if recording is None else recording.name
    figure.suptitle(
        f"{network.resolve().name} on {source}: answers {answer}. Single values of A: {low:.2f} to {high:.2f}",
        fontsize=9,
    )
    return figure


def _heat_row(figure: Any, row: Any, frames: Sequence[Any], maps: np.ndarray, label: str) -> None:
    """Maps [S, h, w] over the frames in grey, on one scale, with their own ranges."""
    low, high = min(float(maps.min()), 0.0), max(float(maps.max()), 1e-12)
    shown = None
    for axes, image, heat in zip(row, frames, maps, strict=True):
        axes.imshow(image.mean(-1), cmap="gray", vmin=0, vmax=255)
        side = (-0.5, image.shape[1] - 0.5, image.shape[0] - 0.5, -0.5)
        shown = axes.imshow(heat, cmap="inferno", alpha=0.72, vmin=low, vmax=high, extent=side)
        axes.set_title(f"{float(heat.min()):.3f} … {float(heat.max()):.3f}", fontsize=7.5, color=PAPER)
    figure.colorbar(shown, ax=list(row), shrink=0.85, label=label)


def last_attention(classifier: Classifier, clip: torch.Tensor) -> tuple[torch.Tensor, str]:
    """A of the last stage for a clip [T, 2, H, W]: [T, C, h, w]; and the network's answer."""
    model = classifier.model
    if not isinstance(model, RipeMambaSpike):
        raise InputError.expected("network", "a RIPE-MambaSpike, which has attention maps", model.name)
    with torch.no_grad(), eval_mode(model):
        out = model.run(clip[None].to(model.dtype))
    assert out.attention is not None
    return out.attention[0].float(), classifier.class_names[int(clip_logits(out.logits)[0].argmax())]


def draw_classes(run_folder: Path) -> Any:
    """Accuracy of every class with its 95 % interval."""
    run = read_run(run_folder)
    if not run.scores:
        raise InputError.expected("run", "a result with the accuracy of every class", f"none in {run_folder}")
    scores = sorted(run.scores, key=lambda score: -score.correct / max(score.n, 1))
    figure = new_figure(7.2, max(2.4, 0.26 * len(scores) + 1.2))
    axes = figure.subplots()
    for place, score in enumerate(scores):
        share = score.correct / max(score.n, 1)
        low, high = wilson_interval(share, score.n)
        axes.barh(place, 100 * share, color=OURS if score.correct == score.n else BASELINE, height=0.7, alpha=0.85)
        axes.plot([100 * low, 100 * high], [place, place], color="black", linewidth=0.9)
        fits = share > 0.1  # in the bar; otherwise behind the interval
        at, color = (1, "white") if fits else (100 * high + 1, PAPER)
        axes.annotate(f"{score.correct}/{score.n}", (at, place), fontsize=7.5, va="center", color=color)
    axes.set_yticks(range(len(scores)), [score.name for score in scores], fontsize=8 if len(scores) < 40 else 5)
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xlabel="top-1 of the class, %; the line is its 95 % interval", title=_title(run))
    plain_axes(axes)
    return figure


def _title(run: RunData) -> str:
    name = run.result.get("name") or run.folder.resolve().name
    where = run.result.get("set")
    return f"{name}, {where}" if where and where != name else str(name)
