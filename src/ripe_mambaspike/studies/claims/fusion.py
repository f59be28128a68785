"""Proposition (branch fusion): every convolution and the whole network, before and after fusion."""

from collections.abc import Iterator
from itertools import chain

import torch

from ripe_mambaspike.deploy.fuse.convert import fuse
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import VerificationError
from ripe_mambaspike.models.form_agreement import LITERAL, compare_forms, probe
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.repconv import FusedConv, RepConv
from ripe_mambaspike.studies.claims.random_network import generator, random_network, random_normal, relative_error
from ripe_mambaspike.studies.claims.verdict import Claim, exact, fact

DOUBLE, SINGLE = 1e-12, 1e-6

# The three stages' convolutions: level, which, in, out, stride.
CONVS = [
    (level, which, before if which == 1 else after, after, 2 if which == 1 else 1)
    for level, (before, after) in enumerate(((2, 32), (32, 64), (64, 128)), 1)
    for which in (1, 2)
]


def fusion_claims() -> Iterator[Claim]:
    return chain(_units(), _network(), _static())


def _units() -> Iterator[Claim]:
    for seed, (level, which, before, after, stride) in enumerate(CONVS):
        for dtype, limit in ((torch.float64, DOUBLE), (torch.float32, SINGLE)):
            values = {"level": level, "which": which, "before": before, "after": after, "stride": stride}
            name = str(dtype).removeprefix("torch.")
            error = _unit_error(before, after, stride, dtype, seed)
            yield exact("fusion.stage{level}.conv{which}.{name}", error, limit, name=name, **values)


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


def _network() -> Iterator[Claim]:
    """The whole network: error and spikes, in both precisions."""
    model = random_network(seed=3)
    try:
        fused = fuse(model, quiet=True)
    except VerificationError as error:
        for id in ("fusion.network.float64", "fusion.network.float32", "fusion.network.flips"):
            yield fact(id, "verification failed", False, reason=str(error))
        return
    double = compare_forms(model, fused, probe(model, side=34))
    single = compare_forms(model, fused, probe(model, side=16).float())
    flips, fired = double.flips + single.flips, double.spikes + single.spikes
    yield exact("fusion.network.float64", double.error, DOUBLE, where=double.where)
    yield exact("fusion.network.float32", single.error, SINGLE, where=single.where)
    yield fact("fusion.network.flips", f"{flips} of {fired:,} spikes differ", flips == 0 and fired > 0)


def _static() -> Iterator[Claim]:
    """Fused kernels are the same for all steps, so their count does not grow with T."""
    sizes = []
    for steps in (4, 10, 16, 32):
        config = model_config("dvsgesture", time_steps=steps, form="deployed")
        with torch.device("meta"):
            network = RipeMambaSpike(config, "claim")  # type: ignore[arg-type]
        fused = [part for part in network.modules() if isinstance(part, FusedConv)]
        sizes.append(sum(part.weight.numel() + part.bias.numel() for part in fused))
    yield fact("fusion.static", f"{sizes[0]:,} at T = 4, {sizes[-1]:,} at T = 32", len(set(sizes)) == 1)
