"""Resolution: our count and a real pass at each size, and the growing projection of the baseline."""

import torch

from ripe_mambaspike.account.parameters import count_parameters
from ripe_mambaspike.models.observe import by_layer
from ripe_mambaspike.models.registry import create_model, model_config
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.studies.claims.random_network import generator, random_binary
from ripe_mambaspike.studies.claims.verdict import Claim, ClaimSource

TABLE = ClaimSource("resolution", "Table 6 (resolution sweep)")
INTRO = ClaimSource("resolution", "§1, Introduction")
FIGURE = ClaimSource("resolution", "Figure 2 (interface cost)")
SWAP = ClaimSource("resolution", "Table 7 (interface swap)")

SIDES = (34, 48, 128, 224)
GRIDS = {34: (17, 9, 5), 48: (24, 12, 6), 128: (64, 32, 16), 224: (112, 56, 28)}
BASELINE = {34: ("4.79", "2.10", "43.8"), 48: ("7.41", "4.72", "63.6"), 128: ("36.25", "33.55", "92.6")} | {
    224: ("105.46", "102.76", "97.4")
}


def resolution_claims() -> list[Claim]:
    return [*_ours(), *_baseline(), *_growth(), *_sensor(), *_swap()]


def _ours() -> list[Claim]:
    """One deployed network at every size: the same weights run at all of them."""
    model = create_model("cifar10dvs", seed=0, form="deployed").eval()
    assert isinstance(model, RipeMambaSpike)
    claims, counts = [], []
    for side in SIDES:
        counts.append(count_parameters(model_config("cifar10dvs", in_size=side)).deployed)
        claims.append(TABLE.millions(f"resolution.deployed.{side}", f"Deployed at {side}²", "0.870 M", counts[-1]))
        claims += _pass(model, side)
    growth = max(counts) / min(counts)
    area = (max(SIDES) / min(SIDES)) ** 2
    return [
        *claims,
        TABLE.number("resolution.growth.ours", "Growth of our count from 34² to 224²", "1.00×", growth),
        INTRO.number("resolution.area", "Range of input areas from 34² to 224²", "43×", area),
    ]


@torch.no_grad()
def _pass(model: RipeMambaSpike, side: int) -> list[Claim]:
    front = model.front_end(random_binary(generator(side), 1, 10, 2, side, side, rate=0.1).float(), observe=("spikes",))
    logits = model.classify(front.features, front.attention)
    finite = bool(logits.isfinite().all())
    grids = tuple(spikes.shape[-1] for spikes in by_layer(front.observed, "second_neuron.spikes").values())
    return [
        TABLE.fact(
            f"resolution.pass.{side}",
            f"The same deployed weights run at {side}²",
            "runs",
            f"logits {tuple(logits.shape)}, {'finite' if finite else 'not finite'}",
            tuple(logits.shape) == (1, 10, 10) and finite,
        ),
        ClaimSource("resolution", "§4, Method (stride-2 downsampling)").fact(
            f"resolution.grid.{side}",
            f"Three strides of two give these grids at {side}²",
            "→".join(map(str, GRIDS[side])),
            "→".join(map(str, grids)),
            grids == GRIDS[side],
        ),
    ]


def _parts(side: int) -> tuple[int, int]:
    """Baseline's total and its input projection."""
    counted = count_parameters(model_config("mamba-spike", in_size=side))
    return counted.training, counted.by_part["input_proj"]


def _baseline() -> list[Claim]:
    claims = []
    for side, (total, projection, share) in BASELINE.items():
        ours, joined = _parts(side)
        claims += [
            TABLE.millions(f"resolution.baseline.total.{side}", f"Mamba-Spike at {side}²", f"{total} M", ours),
            TABLE.millions(
                f"resolution.baseline.projection.{side}", f"Its projection, {side}²", f"{projection} M", joined
            ),
            TABLE.number(
                f"resolution.baseline.share.{side}",
                f"Share of the projection, {side}²",
                f"{share} %",
                100 * joined / ours,
            ),
        ]
    return claims


def _growth() -> list[Claim]:
    small, small_join = _parts(34)
    large, large_join = _parts(224)
    total, joined = _parts(128)
    formula = [128 * (side // 4) ** 2 * 256 for side in SIDES]
    weights = [_parts(side)[1] - 256 for side in SIDES]
    released = count_parameters(model_config("mamba-spike", conv_bias=True)).training
    gesture = count_parameters(model_config("mamba-spike", num_classes=11)).training
    nmnist = count_parameters(model_config("mamba-spike-nmnist")).training
    ours = {name: count_parameters(model_config(name)).deployed for name in ("dvsgesture", "cifar10dvs", "nmnist")}
    results = ClaimSource("resolution", "§6, Results")
    return [
        TABLE.number("resolution.growth.total", "Growth of Mamba-Spike from 34² to 224²", "22.0×", large / small),
        TABLE.number("resolution.growth.projection", "Growth of its projection", "49.0×", large_join / small_join),
        INTRO.number(
            "resolution.share.rounded",
            "Share of the projection at 128², as the introduction says it",
            "92 %",
            100 * joined / total,
            reason="It is 92.6 %, as the paper's own table says; the text cuts the digits off, rounding gives 93 %.",
        ),
        INTRO.millions(
            "resolution.released",
            "The released Mamba-Spike at 128²",
            "36.25 M",
            released,
            remark=f"With the released blocks' convolution bias, 512 a block; the table's count is without, {total:,}.",
        ),
        FIGURE.fact(
            "resolution.formula",
            "C⌊H/4⌋⌊W/4⌋d reproduces all four projections exactly",
            "exact",
            "equal" if weights == formula else "not equal",
            weights == formula,
            remark="The weights; each projection has 256 biases besides.",
        ),
        results.number(
            "resolution.ratio.dvsgesture", "Times smaller, DVS-Gesture", "41×", gesture / ours["dvsgesture"]
        ),
        results.number(
            "resolution.ratio.cifar10dvs",
            "Times smaller, CIFAR10-DVS",
            "41×",
            total / ours["cifar10dvs"],
            reason="With 0.870 M the ratio is 41.7; 41 is the figure of the 0.875 M network.",
        ),
        results.millions("resolution.baseline.nmnist", "Mamba-Spike on N-MNIST", "1.03 M", nmnist),
        results.number("resolution.ratio.nmnist", "Times smaller, N-MNIST", "1.2×", nmnist / ours["nmnist"]),
    ]


def _sensor() -> list[Claim]:
    weights = 128 * (720 // 4) * (1280 // 4) * 256
    built = count_parameters(model_config("mamba-spike", in_size=(720, 1280))).by_part["input_proj"]
    return [
        FIGURE.number("resolution.hd.weights", "The projection at 1280×720, by the formula", "1.89 B", weights / 1e9),
        FIGURE.number("resolution.hd.built", "The same, counted by building it", "1.89 B", built / 1e9),
        FIGURE.number("resolution.hd.bytes", "Its size in float32", "7 GiB", 4 * weights / 2**30),
    ]


def _swap() -> list[Claim]:
    pooled = count_parameters(model_config("mamba-spike-pooled"))
    flat = count_parameters(model_config("mamba-spike", conv_bias=True))
    joined = pooled.by_part["input_proj"]
    share = 100 * joined / pooled.training
    bridge, model = flat.by_part["input_proj"] / joined, flat.training / pooled.training
    return [
        SWAP.millions("resolution.pooled.total", "Mamba-Spike with an 8×8 pooled bridge", "4.80 M", pooled.training),
        SWAP.millions("resolution.pooled.projection", "Its projection", "2.10 M", joined),
        SWAP.number("resolution.pooled.share", "Share of its projection", "43.7 %", share),
        SWAP.number("resolution.pooled.bridge", "Pooling shrinks the bridge by", "16×", bridge),
        SWAP.number("resolution.pooled.model", "Pooling shrinks the whole model by", "7.6×", model),
    ]
