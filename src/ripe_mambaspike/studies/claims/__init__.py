"""Checks of every claim of the paper that can be verified without data.

for claim in run_claims():
    print(claim.verdict, claim.id, claim.paper, claim.ours)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.studies.claims.architecture import architecture_claims
from ripe_mambaspike.studies.claims.attention import attention_claims
from ripe_mambaspike.studies.claims.comparisons import comparison_claims
from ripe_mambaspike.studies.claims.compute import compute_claims
from ripe_mambaspike.studies.claims.contradictions import contradiction_claims
from ripe_mambaspike.studies.claims.dual_kernel import dual_kernel_claims
from ripe_mambaspike.studies.claims.footprint import energy_claims, footprint_claims
from ripe_mambaspike.studies.claims.fusion import fusion_claims
from ripe_mambaspike.studies.claims.neurons import neuron_claims
from ripe_mambaspike.studies.claims.resolution import resolution_claims
from ripe_mambaspike.studies.claims.seeds import seed_claims
from ripe_mambaspike.studies.claims.stage_counts import stage_count_claims
from ripe_mambaspike.studies.claims.tdm import tdm_claims
from ripe_mambaspike.studies.claims.totals import total_claims
from ripe_mambaspike.studies.claims.variants import variant_claims
from ripe_mambaspike.studies.claims.verdict import Claim, Kind, Verdict, distinct_causes

__all__ = ["GROUPS", "Claim", "Kind", "Verdict", "distinct_causes", "run_claims"]

GROUPS: dict[str, Callable[[], Iterable[Claim]]] = {
    "fusion": fusion_claims,
    "dual-kernel": dual_kernel_claims,
    "tdm": tdm_claims,
    "attention": attention_claims,
    "neurons": neuron_claims,
    "architecture": architecture_claims,
    "parameters": lambda: [*stage_count_claims(), *total_claims()],
    "variants": variant_claims,
    "resolution": resolution_claims,
    "compute": compute_claims,
    "footprint": footprint_claims,
    "energy": energy_claims,
    "statistics": seed_claims,
    "comparisons": comparison_claims,
    "text": contradiction_claims,
}


def run_claims(groups: Sequence[str] | None = None, progress: Callable[[str], None] | None = None) -> list[Claim]:
    """Check the claims of the named groups, all by default; `progress` is called with each group's name."""
    names = list(GROUPS) if groups is None else list(groups)
    for name in names:
        if name not in GROUPS:
            raise InputError(f"groups: expected some of {', '.join(GROUPS)}, got {name!r}", field="groups")
    claims = []
    for name in names:
        if progress is not None:
            progress(name)
        with torch.random.fork_rng(devices=[]):  # leaves the caller's generator unchanged
            claims += [replace(claim, group=name) for claim in GROUPS[name]()]
    return claims
