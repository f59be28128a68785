"""Resolution: our count and a real pass at each size, and the growing projection of the baseline."""

from collections.abc import Iterator
from itertools import chain

import torch

from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.models.observe import by_layer
from ripe_mambaspike.models.registry import create_model, model_config
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.studies.claims.random_network import generator, random_binary
from ripe_mambaspike.studies.claims.verdict import Claim, fact, millions, number

SIDES = (34, 48, 128, 224)
GRIDS = {34: (17, 9, 5), 48: (24, 12, 6), 128: (64, 32, 16), 224: (112, 56, 28)}
BASELINE = {34: ("4.79", "2.10", "43.8"), 48: ("7.41", "4.72", "63.6"), 128: ("36.25", "33.55", "92.6")} | {
    224: ("105.46", "102.76", "97.4")
}


def resolution_claims() -> Iterator[Claim]:
    return chain(_ours(), _baseline(), _growth(), _sensor(), _swap())


def _ours() -> Iterator[Claim]:
    """One deployed network at every size: the same weights run at all of them."""
    model = create_model("cifar10dvs", seed=0, form="deployed").eval()
    assert isinstance(model, RipeMambaSpike)
    counts = []
    for side in SIDES:
        counts.append(count_parameters(model_config("cifar10dvs", in_size=side)).deployed)
        yield millions("resolution.deployed.{side}", counts[-1], side=side)
        yield from _pass(model, side)
    growth = max(counts) / min(counts)
    area = (max(SIDES) / min(SIDES)) ** 2
    yield number("resolution.growth.ours", growth)
    yield number("resolution.area", area)


@torch.no_grad()
def _pass(model: RipeMambaSpike, side: int) -> Iterator[Claim]:
    front = model.front_end(random_binary(generator(side), 1, 10, 2, side, side, rate=0.1).float(), observe=("spikes",))
    logits = model.classify(front.features, front.attention)
    finite = bool(logits.isfinite().all())
    grids = tuple(spikes.shape[-1] for spikes in by_layer(front.observed, "second_neuron.spikes").values())
    yield fact(
        "resolution.pass.{side}",
        f"logits {tuple(logits.shape)}, {'finite' if finite else 'not finite'}",
        tuple(logits.shape) == (1, 10, 10) and finite,
        side=side,
    )
    yield fact(
        "resolution.grid.{side}",
        "→".join(map(str, grids)),
        grids == GRIDS[side],
        paper="→".join(map(str, GRIDS[side])),
        side=side,
    )


def _parts(side: int) -> tuple[int, int]:
    """Baseline's total and its input projection."""
    counted = count_parameters(model_config("mamba-spike", in_size=side))
    return counted.training, counted.by_part["input_proj"]


def _baseline() -> Iterator[Claim]:
    for side, (total, projection, share) in BASELINE.items():
        ours, joined = _parts(side)
        yield millions("resolution.baseline.total.{side}", ours, side=side, total=total)
        yield millions("resolution.baseline.projection.{side}", joined, side=side, projection=projection)
        yield number("resolution.baseline.share.{side}", 100 * joined / ours, side=side, share=share)


def _growth() -> Iterator[Claim]:
    small, small_join = _parts(34)
    large, large_join = _parts(224)
    total, joined = _parts(128)
    formula = [128 * (side // 4) ** 2 * 256 for side in SIDES]
    weights = [_parts(side)[1] - 256 for side in SIDES]
    released = count_parameters(model_config("mamba-spike", conv_bias=True)).training
    gesture = count_parameters(model_config("mamba-spike", num_classes=11)).training
    nmnist = count_parameters(model_config("mamba-spike-nmnist")).training
    ours = {name: count_parameters(model_config(name)).deployed for name in ("dvsgesture", "cifar10dvs", "nmnist")}
    yield number("resolution.growth.total", large / small)
    yield number("resolution.growth.projection", large_join / small_join)
    yield number("resolution.share.rounded", 100 * joined / total)
    yield millions("resolution.released", released, total=total)
    yield fact("resolution.formula", "equal" if weights == formula else "not equal", weights == formula)
    yield number("resolution.ratio.dvsgesture", gesture / ours["dvsgesture"])
    yield number("resolution.ratio.cifar10dvs", total / ours["cifar10dvs"])
    yield millions("resolution.baseline.nmnist", nmnist)
    yield number("resolution.ratio.nmnist", nmnist / ours["nmnist"])


def _sensor() -> Iterator[Claim]:
    weights = 128 * (720 // 4) * (1280 // 4) * 256
    built = count_parameters(model_config("mamba-spike", in_size=(720, 1280))).by_part["input_proj"]
    yield number("resolution.hd.weights", weights / 1e9)
    yield number("resolution.hd.built", built / 1e9)
    yield number("resolution.hd.bytes", 4 * weights / 2**30)


def _swap() -> Iterator[Claim]:
    pooled = count_parameters(model_config("mamba-spike-pooled"))
    flat = count_parameters(model_config("mamba-spike", conv_bias=True))
    joined = pooled.by_part["input_proj"]
    share = 100 * joined / pooled.training
    bridge, model = flat.by_part["input_proj"] / joined, flat.training / pooled.training
    yield millions("resolution.pooled.total", pooled.training)
    yield millions("resolution.pooled.projection", joined)
    yield number("resolution.pooled.share", share)
    yield number("resolution.pooled.bridge", bridge)
    yield number("resolution.pooled.model", model)
