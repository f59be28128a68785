"""The pictures of docs/concepts.md, made by the package from a simulated gesture and the shipped network.

Usage: python -m tools.concept_pictures [FOLDER], by default docs/images
"""

import io
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from PIL import Image
from torch import Tensor

from ripe_mambaspike import bin_events, create_model, load
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.models.observe import attention_contrast
from ripe_mambaspike.nn.neurons import LIF
from ripe_mambaspike.report.figures.network import simulated_gesture

ROOT = Path(__file__).parents[1]
ON, OFF = "#d9691e", "#1f63b5"
NETWORK, GESTURE = "gestures-simulated", "right_arm_clockwise"
STEPS = (1, 5, 9, 13)


def events_picture(recording: Recording) -> Figure:
    """Events as points in space and time, and those of one pixel row."""
    figure = plt.figure(figsize=(8, 3.6))
    cloud = figure.add_subplot(1, 2, 1, projection="3d")
    every = recording.events[:: max(1, len(recording) // 6000)]
    for polarity, color in ((1, ON), (0, OFF)):
        chosen = every[every["p"] == polarity]
        cloud.scatter(chosen["t"] / 1000, chosen["x"], 127 - chosen["y"].astype(int), s=0.6, color=color)
    cloud.set(xlabel="time (ms)", ylabel="x", zlabel="y", yticks=[], zticks=[], title="every point is one event")
    row = figure.add_subplot(1, 2, 2)
    busiest = int(torch.bincount(torch.from_numpy(recording["y"].astype(int))).argmax())
    for polarity, color, name in ((1, ON, "ON: brighter"), (0, OFF, "OFF: darker")):
        chosen = recording.events[(recording["p"] == polarity) & (recording["y"] == busiest)]
        row.scatter(chosen["t"] / 1000, chosen["x"], s=0.8, color=color, label=name)
    row.set(xlabel="time (ms)", ylabel="x", title=f"the events of row y = {busiest}")
    row.legend(markerscale=8, loc="upper left", fontsize=8)
    return figure


def binning_picture(recording: Recording, clip: Tensor) -> Figure:
    """The event rate with the edges of the bins, and some of the bins as images."""
    figure, axes = plt.subplot_mosaic(
        [["rate"] * len(STEPS), list(STEPS)], figsize=(8, 4.2), height_ratios=(2, 3), layout="constrained"
    )
    axes["rate"].hist((recording["t"] - recording.first_us) / 1000, bins=150, color="gray")
    for edge in range(len(clip) + 1):
        axes["rate"].axvline(edge * recording.duration_us / 1000 / len(clip), color="black", linewidth=0.5)
    axes["rate"].set(xlabel="time (ms)", ylabel="events", title=f"one recording, divided into T = {len(clip)} steps")
    for step in STEPS:
        axes[step].imshow(polarity_image(clip[step]))
        axes[step].set(xticks=[], yticks=[], title=f"step {step}")
    return figure


def polarity_image(counts: Tensor) -> Tensor:
    """Counts [2, H, W] as colors on white, the two polarities apart."""
    off, on = (counts / 3).clamp(max=1).unbind()
    colors = [torch.tensor([int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for code in (OFF, ON)]
    image = torch.ones(*on.shape, 3)
    for share, color in ((off, colors[0]), (on, colors[1])):
        image = image * (1 - share[..., None]) + color * share[..., None]
    return image


def neuron_picture() -> Figure:
    """The membrane of a leaky neuron of the package that is given a current, with its spikes."""
    neuron = LIF(1)
    current = torch.zeros(40)
    current[5:14], current[20:26], current[30:34] = 0.9, 0.45, 1.6
    with torch.no_grad():
        (spikes, membrane), _ = neuron(current.reshape(1, -1, 1, 1, 1))
    spikes, membrane = spikes.flatten(), membrane.flatten()
    threshold = float(neuron.constants(current.device).threshold)
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 3.4), sharex=True, height_ratios=(1, 2))
    top.step(range(40), current, where="mid", color="gray")
    top.set(ylabel="input")
    bottom.plot(membrane, marker="o", markersize=3, label="membrane potential, before the reset")
    bottom.vlines(spikes.nonzero(), 0, float(membrane.max()), color=ON, label="a spike: the output is 1")
    bottom.axhline(threshold, color="black", linestyle=":", label="threshold")
    bottom.set(xlabel="time step", ylabel="membrane")
    bottom.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def stages_picture(clip: Tensor) -> Figure:
    """What the stages of the trained network emit, and where the last one attends."""
    model = load(NETWORK).model
    with torch.no_grad():
        out = model.run(clip[None], observe=("spikes", "attention"))
    rows = {"events": clip.sum(1).clamp(max=4)}
    for stage in range(3):
        spikes = out.observed[f"stages.{stage}.second_neuron.spikes"][0]
        size = f"{spikes.shape[1]} ch., {spikes.shape[2]}²"
        rows[f"stage {stage + 1}\n{size}"] = spikes.mean(1)
    rows["attention"] = attention_contrast(out.observed["stages.2.attention"])[0]
    figure, axes = plt.subplots(len(rows), len(STEPS), figsize=(5.2, 6.6))
    for line, (name, maps) in zip(axes, rows.items(), strict=True):
        for one, step in zip(line, STEPS, strict=True):
            one.imshow(maps[step], vmin=0, vmax=float(maps.max()), cmap="magma")
            one.set(xticks=[], yticks=[], title=f"step {step}" if name == "events" else "")
        line[0].set_ylabel(name, fontsize=8)
    return figure


def network_picture() -> Figure:
    """The parts of the network with the shapes between them, taken from a pass."""
    model = create_model("dvsgesture", form="deployed").eval()
    x = torch.zeros(1, 16, 2, 128, 128)
    with torch.no_grad():
        spikes = [
            value for name, value in model.run(x, observe=("spikes",)).observed.items() if "second_neuron" in name
        ]
        tokens = model.forward_features(x)
    width = vars(model.config)["embed_dims"][0]
    shapes = [f"{list(value.shape[1:])}" for value in spikes]
    parts = [
        ("events", "counts\n[16, 2, 128, 128]"), ("stage 1", shapes[0]), ("stage 2", shapes[1]), ("stage 3", shapes[2]),
        ("bridge", f"tokens of width\n{width} from all stages"),
        ("Mamba × 3", f"tokens\n{list(tokens.shape[1:])}"), ("head", "logits of each step\n[16, 11]"),
    ]  # fmt: skip
    figure, axes = plt.subplots(figsize=(9.5, 2.3))
    for place, (name, shape) in enumerate(parts):
        color = "#ffe2cc" if name.startswith("stage") else "#d6e4f5" if name[0] in "bMh" else "#eeeeee"
        axes.add_patch(FancyBboxPatch((place * 1.6, 0), 1.2, 1, boxstyle="round,pad=0.05", facecolor=color))
        axes.text(place * 1.6 + 0.6, 0.5, name, ha="center", va="center", fontsize=10)
        axes.text(place * 1.6 + 0.6, -0.25, shape, ha="center", va="top", fontsize=7.5)
        if place:
            axes.add_patch(
                FancyArrowPatch(
                    (place * 1.6 - 0.34, 0.5), (place * 1.6 - 0.06, 0.5), arrowstyle="->", mutation_scale=10
                )
            )
    for stage, lift in ((1, 0.45), (2, 0.28)):  # the bridge reads the earlier stages, too
        start, end = (stage * 1.6 + 0.6, 1.06), (4 * 1.6 + 0.5, 1.06)
        curve = f"arc3,rad=-{lift}"
        axes.add_patch(
            FancyArrowPatch(start, end, connectionstyle=curve, arrowstyle="->", mutation_scale=10, color="gray")
        )
    axes.set(xlim=(-0.2, 11.1), ylim=(-0.9, 2.4))
    axes.axis("off")
    return figure


def forms_picture() -> Figure:
    """The kernels of the branches of one convolution, and their sum, which is deployed: mean |weight| of each tap."""
    conv: Any = create_model("dvsgesture", seed=0).get_submodule("stages.1.second_conv")
    branches = [branch.kernel(conv.in_channels) for branch in conv.branches]
    kernels = [*branches, conv.kernel_and_bias()[0]]
    titles = [f"branch {number}" for number in range(1, len(kernels))] + ["deployed:\none kernel"]
    figure, axes = plt.subplots(1, len(kernels), figsize=(9, 1.6), layout="constrained")
    for one, kernel, title in zip(axes, kernels, titles, strict=True):
        one.imshow(kernel.detach().abs().mean((0, 1)), cmap="Blues", vmin=0)
        one.set(xticks=[], yticks=[])
        one.set_title(title, fontsize=8)
    return figure


def save(figure: Figure, path: Path) -> None:
    """A small file: few colors are enough."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
    plt.close(figure)
    Image.open(buffer).convert("RGB").quantize(64).save(path, optimize=True)


def main(folder: Path) -> None:
    recording = simulated_gesture(GESTURE)
    clip = bin_events(recording, time_steps=16, grid=128)
    pictures = {
        "events": events_picture(recording),
        "binning": binning_picture(recording, clip),
        "neuron": neuron_picture(),
        "stages": stages_picture(clip),
        "network": network_picture(),
        "forms": forms_picture(),
    }
    for name, figure in pictures.items():
        save(figure, folder / f"concept-{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
