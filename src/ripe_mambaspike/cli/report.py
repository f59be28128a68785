"""`ripe report`: the report page of a training run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ripe_mambaspike.command_options import Folder, Number, option


@dataclass
class ReportCommand:
    """Write report.html into the folder of a run, finished or not. ripe train writes it at the end of a run."""

    run_folder: Annotated[Path, tyro.conf.Positional, option("RUN")]
    """The folder of a run."""
    root: Folder = None
    """Folder of the dataset, for the sample clips. Default: as in the run's recipe; without the data none are shown."""
    samples: Number = 4
    """How many test clips to show."""

    def run(self) -> int:
        from ripe_mambaspike import write_report

        print(f"report {write_report(self.run_folder, root=self.root, samples=self.samples)}")
        return 0
