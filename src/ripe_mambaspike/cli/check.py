"""`ripe check`: test the claims of the paper, those that need no data or those about a trained network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ripe_mambaspike.cli.output import console, print_json, print_table, print_warnings
from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import Count, DeviceName, Flag, Folder, Json, option
from ripe_mambaspike.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from ripe_mambaspike.studies.claims.verdict import Claim


@dataclass
class CheckCommand:
    """Test every claim of the paper that needs no data, and list which hold and which differ.

    With RUN, test those about a trained network instead: temporal filters by depth, the gap between the hard and the
    relaxed pass, firing rates, the hull of the attention, and energy at the measured rates.

    A claim is printed where the paper's own numbers and sentences decide it, so that one that differs is an erratum;
    all others are measured by this software. Claims that differ for the same cause share its name.
    """

    run_folder: Annotated[Path | None, tyro.conf.Positional, option("RUN")] = None
    """The folder of a run or of a saved network. Default: the claims that need none."""
    recordings: Annotated[tuple[Path, ...] | None, option("FILE …")] = None
    """With RUN: recordings to run it on. Default: test clips of its dataset."""
    root: Folder = None
    """With RUN: folder of the dataset. Default: as in the run's recipe, or data/NAME."""
    store: Annotated[str | None, option("KEY|current")] = None
    """With RUN: the preparation of the dataset. Default: the one it was trained on."""
    clips: Count = None
    """With RUN: the number of test clips. Default: 16."""
    device: DeviceName = "auto"
    """With RUN: where to compute."""
    differing: Flag = False
    """Show only the claims that differ."""
    markdown: Flag = False
    """Print the claims that differ by cause, as a Markdown page."""
    json: Json = False

    def run(self) -> int:
        if self.json and self.markdown:
            raise ConfigError("--markdown: expected none with --json, got one", field="--markdown")
        return self._check_claims() if self.run_folder is None else self._check_run(self.run_folder)

    def _check_claims(self) -> int:
        from ripe_mambaspike import run_claims
        from ripe_mambaspike.studies.claims.errata import errata_page, summarize_claims

        for name in ("recordings", "root", "store", "clips"):
            if getattr(self, name) is not None:
                raise ConfigError(f"--{name}: expected RUN with it, got none", field=f"--{name}")
        with progress_bar() as update:
            claims = run_claims(progress=lambda group: update(f"checking {group} …"))
        if self.markdown:
            print(errata_page(claims), end="")
        elif self.json:
            print_json({"summary": summarize_claims(claims), "claims": [c.to_dict() for c in self._chosen(claims)]})
        else:
            out = console()
            _show(out, self._chosen(claims))
            _summary(out, claims)
        return 0

    def _check_run(self, run: Path) -> int:
        from ripe_mambaspike import check_run
        from ripe_mambaspike.studies.claims.errata import summarize_claims

        if self.markdown:
            raise ConfigError("--markdown: expected none with RUN, got one", field="--markdown")
        options = {} if self.clips is None else {"clips": self.clips}
        with print_warnings():
            found = check_run(
                run, recordings=self.recordings, root=self.root, store=self.store, device=self.device, **options
            )
        if self.json:
            document = found.to_dict() | {"claims": [claim.to_dict() for claim in self._chosen(found.claims)]}
            print_json({"summary": summarize_claims(found.claims), **document})
            return 0
        out = console()
        out.print(f"{found.network}, on {found.clips}", soft_wrap=True, markup=False)
        _show(out, self._chosen(found.claims))
        for note in found.notes:
            out.print(note, soft_wrap=True, markup=False)
        _summary(out, found.claims)
        return 0

    def _chosen(self, claims: "Sequence[Claim]") -> "list[Claim]":
        return [claim for claim in claims if not self.differing or claim.verdict == "differs"]


def _show(out: "Console", shown: "Sequence[Claim]") -> None:
    for group in dict.fromkeys(claim.group for claim in shown):
        rows = [
            (claim.statement, claim.paper, claim.ours, _mark(claim.verdict)) for claim in shown if claim.group == group
        ]
        print_table(out, group, ("claim", "paper", "ours", "verdict"), rows)
    differing = [claim for claim in shown if claim.verdict == "differs"]
    if differing:
        out.print("\n[bold]Why they differ[/]")
    for claim in differing:
        kind = "erratum" if claim.is_erratum else "measured"
        out.print(f"  [bold]{claim.id}[/] ({claim.where}; {kind}, {claim.cause}): {claim.reason}")


def _summary(out: "Console", claims: "Sequence[Claim]") -> None:
    from ripe_mambaspike.studies.claims.errata import summarize_claims

    found = summarize_claims(claims)
    out.print(f"\n{found['total']} claims: {found['holds']} hold, {found['differs']} differ", highlight=False)
    split = (
        f", of them {found['errata_causes']} errata ({found['errata']} claims that the paper's own print decides), "
        f"{found['measured_causes']} measured here ({found['measured']} claims)"
    )
    if found["differs"]:
        shown = f"distinct causes: {found['causes']}" + (split if found["errata"] else "")
        out.print(shown, highlight=False, soft_wrap=True)


def _mark(verdict: str) -> str:
    return "[green]holds" if verdict == "holds" else "[yellow]differs"
