"""Proposition (branch fusion): every convolution and the whole network, before and after fusion."""

import torch

from ripe_mambaspike.deploy.fuse.convert import fuse
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.deploy.fuse.verify import LITERAL, compare_forms, probe
from ripe_mambaspike.errors import VerificationError
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.repconv import FusedConv, RepConv
from ripe_mambaspike.studies.claims.random_network import generator, random_network, random_normal, relative_error
from ripe_mambaspike.studies.claims.verdict import Claim, ClaimSource

PROPOSITION = ClaimSource("fusion", "Proposition 1 (branch fusion)")
DOUBLE, SINGLE = 1e-12, 1e-6

# The three stages' convolutions: level, which, in, out, stride.
CONVS = [
    (level, which, before if which == 1 else after, after, 2 if which == 1 else 1)
    for level, (before, after) in enumerate(((2, 32), (32, 64), (64, 128)), 1)
    for which in (1, 2)
]


def fusion_claims() -> list[Claim]:
    return [*_units(), *_network(), *_static()]


def _units() -> list[Claim]:
    claims = []
    for seed, (level, which, before, after, stride) in enumerate(CONVS):
        for dtype, limit in ((torch.float64, DOUBLE), (torch.float32, SINGLE)):
            name = str(dtype).removeprefix("torch.")
            error = _unit_error(before, after, stride, dtype, seed)
            statement = f"RepConv {which} of stage {level} ({before}→{after}, stride {stride}) equals one 3×3 kernel"
            claims.append(
                PROPOSITION.exact(f"fusion.stage{level}.conv{which}.{name}", f"{statement}, in {name}", error, limit)
            )
    return claims


@torch.no_grad()
def _unit_error(before: int, after: int, stride: int, dtype: torch.dtype, seed: int) -> float:
    """Largest relative difference between the branches and their fused kernel, on random input."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        conv = RepConv(before, after, stride)
        fused = FusedConv(before, after, stride)
    conv = conv.double().eval()
    randomize(conv, seed)
    kernel, bias = conv.kernel_and_bias()
    assert conv.coefficient is not None
    fused.double().load_state_dict({"coefficient": conv.coefficient, "weight": kernel, "bias": bias})
    x = random_normal(generator(seed), 2, 3, before, 9, 11).to(dtype)
    return relative_error(fused.to(dtype)(x)[0], conv.to(dtype)(x, LITERAL)[0])


def _network() -> list[Claim]:
    """The whole network: error and spikes, in both precisions."""
    model = random_network(seed=3)
    statement = "The whole network does the same before and after fusion"
    try:
        fused = fuse(model, quiet=True)
    except VerificationError as error:
        return [
            PROPOSITION.fact(id, statement, "exact", "verification failed", False, reason=str(error))
            for id in ("fusion.network.float64", "fusion.network.float32", "fusion.network.flips")
        ]
    return _compared(model, fused, statement)


def _compared(model: RipeMambaSpike, fused: RipeMambaSpike, statement: str) -> list[Claim]:
    double = compare_forms(model, fused, probe(model, side=34))
    single = compare_forms(model, fused, probe(model, side=16).float())
    flips, fired = double.flips + single.flips, double.spikes + single.spikes
    where = "Largest at {0.where}."
    return [
        PROPOSITION.exact(
            "fusion.network.float64", f"{statement}, in float64", double.error, DOUBLE, remark=where.format(double)
        ),
        PROPOSITION.exact(
            "fusion.network.float32", f"{statement}, in float32", single.error, SINGLE, remark=where.format(single)
        ),
        PROPOSITION.fact(
            "fusion.network.flips",
            "Fusion changes no spike",
            "exact",
            f"{flips} of {fired:,} spikes differ",
            flips == 0 and fired > 0,
            remark="On one network; with others float32 rounding does flip spikes (benchmarks/spike_flips.py).",
        ),
    ]


def _static() -> list[Claim]:
    """Fused kernels are the same for all steps, so their count does not grow with T."""
    place = ClaimSource("fusion", "§4.1, Reparameterized Spiking Stage")
    sizes = []
    for steps in (4, 10, 16, 32):
        config = model_config("dvsgesture", time_steps=steps, form="deployed")
        with torch.device("meta"):
            network = RipeMambaSpike(config, "claim")  # type: ignore[arg-type]
        fused = [part for part in network.modules() if isinstance(part, FusedConv)]
        sizes.append(sum(part.weight.numel() + part.bias.numel() for part in fused))
    return [
        place.fact(
            "fusion.static",
            "Fusion does not replicate weights across time",
            "static kernels",
            f"{sizes[0]:,} at T = 4, {sizes[-1]:,} at T = 32",
            len(set(sizes)) == 1,
        )
    ]
