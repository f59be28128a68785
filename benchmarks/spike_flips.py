"""What float32 rounding does when branches become one kernel, and one kernel two.

In float64 nothing flips. In float32 a potential within rounding of its threshold can fire in one form and not in the
other, and the flip then spreads. Several networks with random filters, norms and statistics are tried on several
synthetic clips; the error is the largest of any layer or logit over the clips in which no spike flipped.
Usage: python benchmarks/spike_flips.py [--model dvsgesture] [--networks 4] [--clips 6] [--in-size 128]
"""

import argparse
import json
from typing import Any

from ripe_mambaspike import create_model, dual_kernel, fuse
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.models.form_agreement import FormAgreement, compare_forms, probe
from ripe_mambaspike.models.ripe import RipeMambaSpike

STEPS = ("branches against one kernel", "one kernel against two")


def summary(found: list[FormAgreement]) -> dict[str, Any]:
    """Summary over all clips and networks."""
    unflipped = [agreement for agreement in found if not agreement.flips]
    worst = max(unflipped, key=lambda agreement: agreement.error, default=None)
    return {
        "clips": len(found),
        "clips_with_flips": len(found) - len(unflipped),
        "spikes": sum(agreement.spikes for agreement in found),
        "flips": sum(agreement.flips for agreement in found),
        "largest_error_without_flips": None if worst is None else f"{worst.error:.1e} at {worst.where}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dvsgesture")
    parser.add_argument("--networks", type=int, default=4)
    parser.add_argument("--clips", type=int, default=6)
    parser.add_argument("--in-size", type=int, default=128)
    arguments = parser.parse_args()
    found: dict[str, list[FormAgreement]] = {step: [] for step in STEPS}
    for seed in range(arguments.networks):
        model = create_model(arguments.model, seed=seed)
        assert isinstance(model, RipeMambaSpike)
        randomize(model, seed)
        fused = fuse(model, quiet=True)
        dual = dual_kernel(fused, quiet=True)
        for clip_seed in range(arguments.clips):
            clip = probe(model, side=arguments.in_size, seed=clip_seed).float()
            for step, pair in zip(STEPS, ((model, fused), (fused, dual)), strict=True):
                found[step].append(compare_forms(*pair, clip))
    report = {"model": arguments.model, "networks": arguments.networks, "side": arguments.in_size}
    print(json.dumps({**report, **{step: summary(agreements) for step, agreements in found.items()}}, indent=2))


if __name__ == "__main__":
    main()
