"""Figures of a study: every axis has numbers, no name covers another, and whose values they are is seen."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from tests.studies.stored_results import arm, store_study

from ripe_mambaspike.report.figures.pareto import draw_pareto
from ripe_mambaspike.studies.figure_labels import FigureLabel, place_labels
from ripe_mambaspike.studies.study_figures import _cost_axis

NETWORKS = {  # millions of parameters and accuracy: some of those that were trained on sim-caltech101
    "RIPE-MambaSpike": (0.88, 78.2),
    "Mamba-Spike for N-MNIST": (1.04, 64.6),
    "Mamba-Spike, pooled to 8×8": (4.82, 68.2),
    "CNN and GRU": (0.42, 61.4),
    "MLP on event counts": (0.16, 57.6),
    "CNN on one frame": (11.23, 65.7),
    "MS-ResNet": (11.23, 79.9),
    "PLIF-Net for N-MNIST": (19.0, 51.6),
    "SpikFormer": (2.59, 75.8),
    "QKFormer": (1.53, 71.3),
    "RTFormer": (2.62, 74.5),
    "SDT": (2.59, 74.5),
    "SpikePool": (0.56, 64.5),
    "SpikePool, large": (2.19, 74.9),
    "SpikMamba": (0.17, 55.6),
    "SpikMamba, width 256": (2.28, 65.2),
    "STAtten": (2.59, 68.0),
    "TET (VGGSNN)": (9.43, 84.7),
}


def panel(width=5.4, height=4.6):
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


@pytest.mark.parametrize(
    "costs", [(480.0, 487.0, 488.0), (0.8697, 0.8701, 0.8701), (1.0, 4.0), (2.0, 30.0), (0.6, 20000.0)]
)
def test_a_cost_can_be_read_off_its_axis(costs):
    """Two numbers at least, all different; also where costs differ by less than a power of ten."""
    figure, axes = panel()
    axes.plot(costs, [50.0] * len(costs), "o")
    _cost_axis(axes, costs, log=True)
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    shown = [tick.label1.get_text() for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert len(shown) == len(set(shown)) >= 2
    assert all(float(text) > 0 for text in shown)


def covering(figure, axes):
    """Pairs of names of a drawn panel that cover each other."""
    figure.draw_without_rendering()
    boxes = {text.get_text(): Text.get_window_extent(text) for text in axes.texts}  # without the line to its point
    names = sorted(boxes)
    return [(one, two) for at, one in enumerate(names) for two in names[at + 1 :] if boxes[one].overlaps(boxes[two])]


@pytest.mark.parametrize("width", [3.0, 5.4])
def test_no_name_covers_another(width):
    """How wide a name is depends on the panel's size and on the letters."""
    figure, axes = panel(width)
    labels = [FigureLabel("Mamba-Spike, pooled", 0.05, 0.5), FigureLabel("SpikMamba, MMMMMM", 0.95, 0.5)]
    place_labels(axes, labels)
    assert len(axes.texts) == len(labels)
    assert covering(figure, axes) == []


def test_no_name_covers_another_in_the_pareto_figure(tmp_path):
    arms = [
        arm(name, (top1,), title=name, parameters={"deployed": int(1e6 * millions)})
        for name, (millions, top1) in NETWORKS.items()
    ]
    store_study(tmp_path, "peers", {"gestures-hard": arms})
    figure = draw_pareto([tmp_path])
    panels = [axes for axes in figure.axes if axes.texts]
    assert len(panels) == 6
    assert [covering(figure, axes) for axes in panels] == [[]] * 6
