"""How often float32 rounding flips a spike when branches become one kernel, and one kernel two.

In float64 nothing flips. In float32 a potential within rounding of its threshold can fire in one form and not in the
other, and the flip then spreads. Usage: python benchmarks/spike_flips.py [--clips 12] [--side 128]
"""

import argparse
import json

from ripe_mambaspike import create_model, dual_kernel, fuse
from ripe_mambaspike.deploy.randomise import randomise
from ripe_mambaspike.deploy.verify import compare, probe
from ripe_mambaspike.models.ripe import RipeMambaSpike


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=12)
    parser.add_argument("--side", type=int, default=128)
    arguments = parser.parse_args()
    model = create_model("dvsgesture", seed=0)
    assert isinstance(model, RipeMambaSpike)
    randomise(model, 0)
    fused = fuse(model, quiet=True)
    dual = dual_kernel(fused, quiet=True)
    spikes = 0
    flips: dict[str, list[int]] = {"branches against one kernel": [], "one kernel against two": []}
    for seed in range(arguments.clips):
        clip = probe(model, side=arguments.side, seed=seed).float()
        for name, pair in zip(flips, ((model, fused), (fused, dual)), strict=True):
            agreement = compare(*pair, clip)
            flips[name].append(agreement.flips)
        spikes += agreement.spikes
    print(json.dumps({"side": arguments.side, "spikes": spikes, "flips_by_clip": flips}, indent=2))


if __name__ == "__main__":
    main()
