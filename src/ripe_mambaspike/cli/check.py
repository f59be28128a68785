"""`ripe check`: test every claim of the paper that needs no data."""

from dataclasses import dataclass

from ripe_mambaspike.cli.output import console, print_json, print_table
from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import Flag, Json


@dataclass
class CheckCommand:
    """Test every claim of the paper that needs no data, and list which hold and which differ."""

    differing: Flag = False
    """Show only the claims that differ."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import run_claims

        with progress_bar() as update:
            claims = run_claims(progress=lambda group: update(f"checking {group} …"))
        holding = sum(claim.verdict == "holds" for claim in claims)
        shown = [claim for claim in claims if not self.differing or claim.verdict == "differs"]
        if self.json:
            summary = {"total": len(claims), "holds": holding, "differs": len(claims) - holding}
            print_json({"summary": summary, "claims": [claim.to_dict() for claim in shown]})
            return 0
        out = console()
        for group in dict.fromkeys(claim.group for claim in shown):
            rows = [
                (claim.statement, claim.paper, claim.ours, _mark(claim.verdict))
                for claim in shown
                if claim.group == group
            ]
            print_table(out, group, ("claim", "paper", "ours", "verdict"), rows)
        differing = [claim for claim in shown if claim.verdict == "differs"]
        if differing:
            out.print("\n[bold]Why they differ[/]")
        for claim in differing:
            out.print(f"  [bold]{claim.id}[/] ({claim.where}): {claim.reason}")
        out.print(f"\n{len(claims)} claims: {holding} hold, {len(claims) - holding} differ")
        return 0


def _mark(verdict: str) -> str:
    return "[green]holds" if verdict == "holds" else "[yellow]differs"
