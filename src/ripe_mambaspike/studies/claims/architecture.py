"""Facts of the architecture: branches, initial values, the bridge's weights, tokens, levels and the head."""

import itertools
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F

from ripe_mambaspike.models.base import clip_logits
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.flops import token_counts
from ripe_mambaspike.models.registry import create_model, meta_model, model_config
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
from ripe_mambaspike.studies.claims.verdict import Claim, count, exact, fact

PRINTED_LEVELS = ((256, 32), (128, 64), (64, 128))  # Table 10: tokens a step, and width


def architecture_claims() -> Iterator[Claim]:
    return chain(_branches(), _start(), _bridge(), _tokens(), _levels(), _outputs())


def _branches() -> Iterator[Claim]:
    model: Any = meta_model(model_config("dvsgesture"), "training")
    for level, stage in enumerate(model.stages, 1):
        for which, conv in ((1, stage.first_conv), (2, stage.second_conv)):
            yield count("architecture.branches.stage{level}.conv{which}", len(conv.branches), level=level, which=which)
    equal = model.stages[0].second_conv
    carrying = sum(len(branch.convs) > 0 for branch in equal.branches)
    kernels = sum(len(branch.convs) for branch in equal.branches)
    yield count("architecture.weighted-branches", carrying, kernels=kernels)


def _start() -> Iterator[Claim]:
    model: Any = create_model("dvsgesture", seed=0)
    ones = all(bool((stage.attention.gain == 1).all()) for stage in model.stages)
    out = model.stages[0](random_binary(generator(0), 1, 3, 2, 16, 16).float())
    first = float(out.attention[:, 0].detach().abs().max())
    yield fact("architecture.gain", "1 in all channels" if ones else "not 1", ones)
    yield fact("architecture.first-step", f"largest |A| at the first step {first:g}", first == 0)


@torch.no_grad()
def _bridge() -> Iterator[Claim]:
    model = random_network(seed=5)
    mixture: Any = model.bridge.mixture
    mixture.mix.copy_(random_uniform(generator(5), 3, low=-3, high=3))
    shares = mixture.shares(mixture.mix)
    spikes = random_binary(generator(6), 1, 5, 4, 12, 12)
    pooled_last = F.adaptive_avg_pool2d(cumulative_rates(spikes)[0].flatten(0, 1), 3).unflatten(0, (1, 5))
    yield exact("architecture.partition", abs(float(shares.sum()) - 1) if bool((shares > 0).all()) else 1.0)
    yield exact("architecture.pool-first", relative_error(rates_on_grid(spikes, (3, 3))[0], pooled_last))


def _config(**overrides: Any) -> RipeConfig:
    config = model_config("dvsgesture", **overrides)
    assert isinstance(config, RipeConfig)
    return config


@torch.no_grad()
def _tokens() -> Iterator[Claim]:
    for keep, paper in ((32, 512), (64, 1024), (128, 2048), (256, 4096)):
        yield count(
            "architecture.tokens.{keep}", 16 * token_counts(_config(num_tokens=keep))[0], paper=paper, keep=keep
        )
    model: Any = create_model("dvsgesture", seed=0, form="deployed", time_steps=2).eval()
    features = model.front_end(random_binary(generator(1), 1, 2, 2, 128, 128, rate=0.1).float()).features
    yield count("architecture.all-tokens", 16 * features.shape[2], width=features.shape[3])


def _levels() -> Iterator[Claim]:
    config = _config()
    counts, widths = token_counts(config), config.embed_dims
    for level, (tokens, width, paper) in enumerate(zip(counts, widths, PRINTED_LEVELS, strict=True), 1):
        yield count("architecture.level{level}.tokens", tokens, paper=paper[0], level=level)
        yield count("architecture.level{level}.width", width, paper=paper[1], level=level)
    model: Any = meta_model(config, "deployed")
    states = {block.forward_mamba.A_log.shape[1] for block in model.hierarchy.blocks}
    scans = [tokens * STATES * width for tokens, width in zip(counts, widths, strict=True)]
    products = [tokens * width**2 for tokens, width in zip(counts, widths, strict=True)]
    growth = [after / before for before, after in itertools.pairwise(products)]
    yield fact("architecture.state", str(*states), states == {16})
    yield count("architecture.expansion", EXPAND)
    yield fact("architecture.scan-constant", ", ".join(f"{scan:,}" for scan in scans), len(set(scans)) == 1)
    yield fact("architecture.projection-doubles", ", ".join(f"{ratio:g}×" for ratio in growth), growth == [2, 2])


@torch.no_grad()
def _outputs() -> Iterator[Claim]:
    model = random_network(seed=6)
    logits = model(random_binary(generator(7), 3, 4, 2, 16, 16))
    predicted = model.predict(random_binary(generator(7), 3, 4, 2, 16, 16))
    same = bool((predicted == logits.mean(1).argmax(-1)).all()) and bool((clip_logits(logits) == logits.mean(1)).all())
    daily: Any = meta_model(model_config("dailydvs200"), "deployed")
    width, hidden = daily.head[0].in_features, daily.head[0].out_features
    needed = _simplex_dimension(200)
    yield fact(
        "architecture.mean",
        f"logits {tuple(logits.shape)}, prediction from their mean" if same else "not the mean",
        same and logits.shape[1] == 4,
    )
    yield count("architecture.head-width", hidden)
    yield fact("architecture.simplex", f"{needed} dimensions", needed > width, width=width)


def _simplex_dimension(classes: int) -> int:
    """Rank of the centred unit vectors, which are a regular simplex's corners."""
    corners = torch.eye(classes, dtype=torch.float64) - 1 / classes
    return int(torch.linalg.matrix_rank(corners))
