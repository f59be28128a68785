"""Every figure by its name, and drawing one into a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.report.figures.canvas import check_ending, save_figure
from ripe_mambaspike.report.figures.costs import draw_attention_cost, draw_interface, draw_latency, draw_resolution
from ripe_mambaspike.report.figures.network import draw_attention, draw_classes, draw_filters, draw_firing_rates
from ripe_mambaspike.report.figures.pareto import draw_pareto
from ripe_mambaspike.report.figures.studied import draw_rate_loss
from ripe_mambaspike.studies.tables.stored import ResultFolders, result_folders

STEPS = (2, 6, 10, 14)  # of the paper's attention figure


@dataclass(frozen=True)
class FigureInputs:
    """What a figure may be drawn from; each uses what it needs."""

    run: Path | None = None
    network: Path | None = None
    recording: Path | None = None
    steps: Sequence[int] = STEPS
    results: ResultFolders = ()

    def need(self, name: str, what: str) -> Path:
        given: Path | None = getattr(self, name)
        if given is None:
            raise ConfigError.expected(name, what, "none")
        return given


@dataclass(frozen=True)
class FigureKind:
    title: str
    paper: str  # what it answers in the paper
    uses: tuple[str, ...]  # fields of FigureInputs
    draw: Callable[[FigureInputs], Any]


def _run(inputs: FigureInputs) -> Path:
    return inputs.need("run", "the folder of a run")


def _network(inputs: FigureInputs) -> Path:
    return inputs.need("network", "the folder of a run or of a saved network")


FIGURES: dict[str, FigureKind] = {
    "interface": FigureKind(
        "Parameters of the interface against resolution", "Figure 2", (), lambda inputs: draw_interface()
    ),
    "pareto": FigureKind(
        "Accuracy against parameters", "Figure 3", ("results",), lambda inputs: draw_pareto(inputs.results)
    ),
    "rate-loss": FigureKind(
        "Accuracy and firing rate against λ_L1", "Figure 8", ("results",), lambda inputs: draw_rate_loss(inputs.results)
    ),
    "firing-rates": FigureKind(
        "Firing rates by stage and epoch", "Figure 9", ("run",), lambda inputs: draw_firing_rates(_run(inputs))
    ),
    "attention": FigureKind(
        "Attention of stage 3 over the events",
        "Figure 10",
        ("network", "recording", "steps"),
        lambda inputs: draw_attention(_network(inputs), inputs.recording, inputs.steps),
    ),
    "filters": FigureKind(
        "λ by depth, and the filters' spectra",
        "§4.2",
        ("network",),
        lambda inputs: draw_filters(_network(inputs)),
    ),
    "classes": FigureKind("Accuracy by class", "Table 15", ("run",), lambda inputs: draw_classes(_run(inputs))),
    "attention-cost": FigureKind(
        "DS-MPA alone, against a gate and nothing",
        "Table 16",
        ("results",),
        lambda inputs: draw_attention_cost(inputs.results),
    ),
    "latency": FigureKind("Latency and memory", "Table 17", ("results",), lambda inputs: draw_latency(inputs.results)),
    "resolution": FigureKind(
        "Speed and memory against resolution", "Table 19", ("results",), lambda inputs: draw_resolution(inputs.results)
    ),
}


def list_figures() -> list[str]:
    """The names that `draw_figure` accepts."""
    return list(FIGURES)


def find_figure(name: str) -> FigureKind:
    if name not in FIGURES:
        raise ConfigError.expected("name", f"one of {', '.join(FIGURES)}", repr(name))
    return FIGURES[name]


def draw_figure(
    name: str,
    out: str | Path,
    *,
    run: str | Path | None = None,
    network: str | Path | None = None,
    recording: str | Path | None = None,
    steps: Sequence[int] = STEPS,
    results: str | Path | Sequence[str | Path] | None = None,
) -> Path:
    """Draw a figure of the paper from this package's own numbers into a .pdf, .svg or .png file.

    Args:
        name: one of the figures that `ripe figure list` names
        out: the file to write
        run: folder of a run, for firing-rates and classes
        network: folder of a run or of a saved network, for filters and attention
        recording: for attention: the recording, by default a simulated hand clap
        steps: for attention: the steps shown, from 1
        results: folders of stored results as for `paper_table`, by default benchmarks/results of this checkout
    """
    kind = find_figure(name)
    given = {"run": run, "network": network, "recording": recording}
    for field, value in given.items():
        if value is not None and field not in kind.uses:
            raise ConfigError.expected(field, f"none for the figure {name}", str(value))
    check_ending(Path(out))
    paths = {field: None if value is None else Path(value) for field, value in given.items()}
    return save_figure(kind.draw(FigureInputs(**paths, steps=steps, results=result_folders(results))), Path(out))
