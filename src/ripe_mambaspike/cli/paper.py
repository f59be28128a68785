"""`ripe paper`: all tables and figures of the paper, with ours beside them, as one page."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import Folder, Results, option


@dataclass
class PaperCommand:
    """Write all tables and figures of the paper with ours beside them: paper.html, tables/ and figures/.

    Needs no GPU and no download. What has not been run or measured is listed on the page, with the command for it.
    """

    out: Annotated[Path, option("DIR")]
    """The folder to write into."""
    results: Results = field(default_factory=list)
    run_folder: Annotated[Path | None, tyro.conf.arg(name="run"), option("RUN")] = None
    """The folder of a run, for firing rates and accuracy by class."""
    network: Folder = None
    """A run or a saved network, for filters and attention. Default: the shipped gestures-simulated."""
    recording: Annotated[Path | None, option("FILE")] = None
    """A recording for the attention maps. Default: a simulated hand clap."""

    def run(self) -> int:
        from ripe_mambaspike import write_paper

        with progress_bar() as update:
            page = write_paper(
                self.out, results=self.results or None, run=self.run_folder, network=self.network,
                recording=self.recording, progress=update,
            )  # fmt: skip
        print(f"paper {page}")
        return 0
