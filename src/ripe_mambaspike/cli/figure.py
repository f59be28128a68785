"""`ripe figure`: a figure of the paper, drawn from this package's own numbers."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from ripe_mambaspike.cli.output import console, print_table
from ripe_mambaspike.command_options import Counts, Folder, Results, option
from ripe_mambaspike.errors import ConfigError


@dataclass
class FigureCommand:
    """Draw a figure of the paper from this package's own numbers; ripe figure list names them all."""

    name: Annotated[str, tyro.conf.Positional, option("NAME")] = "list"
    """The figure's name, or list."""
    out: Annotated[Path | None, option("FILE")] = None
    """The .pdf, .svg or .png file to write."""
    run_folder: Annotated[Path | None, tyro.conf.arg(name="run"), option("RUN")] = None
    """For firing-rates and classes: the folder of a run."""
    network: Folder = None
    """For filters and attention: the folder of a run or of a saved network."""
    recording: Annotated[Path | None, option("FILE")] = None
    """For attention: a recording. Default: a simulated hand clap."""
    steps: Counts = field(default_factory=lambda: [2, 6, 10, 14])
    """For attention: the steps that are shown, counted from 1."""
    results: Results = field(default_factory=list)

    def run(self) -> int:
        from ripe_mambaspike import draw_figure
        from ripe_mambaspike.report.figures.draw import FIGURES, find_figure
        from ripe_mambaspike.studies.tables.stored import folder_name, result_folders

        if self.name == "list":
            rows = [(name, kind.title, kind.paper, ", ".join(kind.uses)) for name, kind in FIGURES.items()]
            print_table(console(), "Figures", ("name", "shows", "in the paper", "drawn from"), rows, left=4)
            return 0
        kind = find_figure(self.name)
        if self.out is None:
            raise ConfigError.expected("--out", "a .pdf, .svg or .png file", "none")
        made = draw_figure(
            self.name, self.out, run=self.run_folder, network=self.network, recording=self.recording, steps=self.steps,
            results=self.results or None,
        )  # fmt: skip
        print(f"figure {made}")
        if "results" in kind.uses:
            print(f"results {', '.join(map(folder_name, result_folders(self.results or None))) or 'none'}")
        return 0
