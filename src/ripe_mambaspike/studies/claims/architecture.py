"""Facts of the architecture: branches, initial values, the bridge's weights, tokens, levels and the head."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F

from ripe_mambaspike.account.parameters import meta_model
from ripe_mambaspike.models.base import clip_logits
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.flops import token_counts
from ripe_mambaspike.models.registry import create_model, model_config
from ripe_mambaspike.nn.bridge import rates_on_grid
from ripe_mambaspike.nn.mamba import EXPAND, STATES
from ripe_mambaspike.ops.pooled_rates.reference import cumulative_rates
from ripe_mambaspike.studies.claims.random_network import (
    generator,
    random_binary,
    random_network,
    random_uniform,
    relative_error,
)
from ripe_mambaspike.studies.claims.verdict import Claim, ClaimSource

STAGE = ClaimSource("architecture", "§4.1, Reparameterized Spiking Stage")
BRIDGE = ClaimSource("architecture", "§4.4, MR-S3A Bridge")
LEVELS = ClaimSource("architecture", "Table 10 (hierarchical Mamba)")


def architecture_claims() -> list[Claim]:
    return [*_branches(), *_start(), *_bridge(), *_tokens(), *_levels(), *_outputs()]


def _branches() -> list[Claim]:
    model: Any = meta_model(model_config("dvsgesture"), "training")
    claims = []
    for level, stage in enumerate(model.stages, 1):
        for which, conv in ((1, stage.first_conv), (2, stage.second_conv)):
            claims.append(
                STAGE.count(
                    f"architecture.branches.stage{level}.conv{which}",
                    f"Parallel branches of RepConv {which} of stage {level}",
                    7,
                    len(conv.branches),
                    reason="Identity and average pool need equal widths and stride 1; a strided convolution has five.",
                )
            )
    equal = model.stages[0].second_conv
    carrying = sum(len(branch.convs) > 0 for branch in equal.branches)
    kernels = sum(len(branch.convs) for branch in equal.branches)
    return [
        *claims,
        ClaimSource("architecture", "Appendix B, definitions and parameter algebra").count(
            "architecture.weighted-branches",
            "Branches that carry weights",
            6,
            carrying,
            reason=f"Five branches carry weights, in {kernels} kernels: the 1×1→3×3 branch has two.",
        ),
    ]


def _start() -> list[Claim]:
    model: Any = create_model("dvsgesture", seed=0)
    ones = all(bool((stage.attention.gain == 1).all()) for stage in model.stages)
    out = model.stages[0](random_binary(generator(0), 1, 3, 2, 16, 16).float())
    first = float(out.attention[:, 0].detach().abs().max())
    return [
        ClaimSource("architecture", "§4.3, Dual-Stream Membrane-Potential Attention").fact(
            "architecture.gain", "The gate γ starts at 1", "1", "1 in all channels" if ones else "not 1", ones
        ),
        ClaimSource("architecture", "Appendix B, DS-MPA in full").fact(
            "architecture.first-step",
            "Values are the spikes of the step before, so at the first step A = 0",
            "A = 0",
            f"largest |A| at the first step {first:g}",
            first == 0,
        ),
    ]


@torch.no_grad()
def _bridge() -> list[Claim]:
    model = random_network(seed=5)
    mixture: Any = model.bridge.mixture
    mixture.mix.copy_(random_uniform(generator(5), 3, low=-3, high=3))
    shares = mixture.shares(mixture.mix)
    spikes = random_binary(generator(6), 1, 5, 4, 12, 12)
    pooled_last = F.adaptive_avg_pool2d(cumulative_rates(spikes)[0].flatten(0, 1), 3).unflatten(0, (1, 5))
    return [
        ClaimSource("architecture", "Appendix B, MR-S3A in full").exact(
            "architecture.partition",
            "The softmax weights of the scales are a partition of unity",
            abs(float(shares.sum()) - 1) if bool((shares > 0).all()) else 1.0,
            paper="sum 1, all positive",
        ),
        ClaimSource("architecture", "Appendix B, MR-S3A in full").exact(
            "architecture.pool-first",
            "Rates pooled after summing, as printed, are those pooled before, as built",
            relative_error(rates_on_grid(spikes, (3, 3))[0], pooled_last),
        ),
    ]


def _config(**overrides: Any) -> RipeConfig:
    config = model_config("dvsgesture", **overrides)
    assert isinstance(config, RipeConfig)
    return config


@torch.no_grad()
def _tokens() -> list[Claim]:
    sweep = ClaimSource("architecture", "Table 13 (tokens)")
    claims = [
        sweep.count(
            f"architecture.tokens.{keep}",
            f"Tokens a sample with {keep} a step",
            paper,
            16 * token_counts(_config(num_tokens=keep))[0],
        )
        for keep, paper in ((32, 512), (64, 1024), (128, 2048), (256, 4096))
    ]
    model: Any = create_model("dvsgesture", seed=0, form="deployed", time_steps=2).eval()
    features = model.front_end(random_binary(generator(1), 1, 2, 2, 128, 128, rate=0.1).float()).features
    return [
        *claims,
        BRIDGE.count(
            "architecture.all-tokens",
            "Tokens of the bridge at T = 16, 128²",
            4096,
            16 * features.shape[2],
            remark=f"Each {features.shape[3]} wide.",
        ),
    ]


def _levels() -> list[Claim]:
    config = _config()
    counts, widths = token_counts(config), config.embed_dims
    claims = []
    for level, (count, width, tokens, dim) in enumerate(
        zip(counts, widths, (256, 128, 64), (32, 64, 128), strict=True), 1
    ):
        claims += [
            LEVELS.count(f"architecture.level{level}.tokens", f"Tokens a step at level {level}", tokens, count),
            LEVELS.count(f"architecture.level{level}.width", f"Width of level {level}", dim, width),
        ]
    model: Any = meta_model(config, "deployed")
    states = {block.forward_mamba.A_log.shape[1] for block in model.hierarchy.blocks}
    scans = [count * STATES * width for count, width in zip(counts, widths, strict=True)]
    products = [count * width**2 for count, width in zip(counts, widths, strict=True)]
    growth = [after / before for before, after in itertools.pairwise(products)]
    return [
        *claims,
        LEVELS.fact("architecture.state", "State size of every level", "16", str(*states), states == {16}),
        LEVELS.count("architecture.expansion", "Expansion of every level", 2, EXPAND),
        LEVELS.fact(
            "architecture.scan-constant",
            "The scan's cost L·d_state·d is the same at every level",
            "constant",
            ", ".join(f"{scan:,}" for scan in scans),
            len(set(scans)) == 1,
        ),
        LEVELS.fact(
            "architecture.projection-doubles",
            "The projections' cost L·d² doubles from level to level",
            "2×",
            ", ".join(f"{ratio:g}×" for ratio in growth),
            growth == [2, 2],
        ),
    ]


@torch.no_grad()
def _outputs() -> list[Claim]:
    model = random_network(seed=6)
    logits = model(random_binary(generator(7), 3, 4, 2, 16, 16))
    predicted = model.predict(random_binary(generator(7), 3, 4, 2, 16, 16))
    same = bool((predicted == logits.mean(1).argmax(-1)).all()) and bool((clip_logits(logits) == logits.mean(1)).all())
    daily: Any = meta_model(model_config("dailydvs200"), "deployed")
    width, hidden = daily.head[0].in_features, daily.head[0].out_features
    needed = _simplex_dimension(200)
    return [
        ClaimSource("architecture", "§4, Method").fact(
            "architecture.mean",
            "Logits are given for every step and averaged over T",
            "mean over T",
            f"logits {tuple(logits.shape)}, prediction from their mean" if same else "not the mean",
            same and logits.shape[1] == 4,
        ),
        ClaimSource("architecture", "Table 9 (hyperparameters)").count(
            "architecture.head-width", "Width of the DailyDVS-200 head", 1024, hidden
        ),
        ClaimSource("architecture", "Table 9 (hyperparameters), note on the head").fact(
            "architecture.simplex",
            "A 384-dimensional feature cannot form the optimal simplex for 200 classes",
            f"more than {width} dimensions",
            f"{needed} dimensions",
            needed > width,
            reason="A regular simplex of 200 points lies in 199 dimensions, so 384 (and lite's 256) suffice.",
        ),
    ]


def _simplex_dimension(classes: int) -> int:
    """Rank of the centred unit vectors, which are a regular simplex's corners."""
    corners = torch.eye(classes, dtype=torch.float64) - 1 / classes
    return int(torch.linalg.matrix_rank(corners))
