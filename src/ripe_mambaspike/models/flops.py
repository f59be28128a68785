"""Operations of one forward pass of the deployed network.

The convention is the one of PyTorch's counter: matrix products and convolutions, a multiply and an add are two
operations, padded positions count, depthwise convolutions and element-wise work do not. That counter misses the
selective scan; here it counts as 9 operations per token, inner channel and state, and totals are given with and
without it.
"""

import math
from dataclasses import dataclass

from ripe_mambaspike.models.config import MambaSpikeConfig, ModelConfig, RipeConfig
from ripe_mambaspike.nn.mamba import MAMBA_SIZES, MambaSizes, step_rank
from ripe_mambaspike.nn.mixers import ARMS, MAMBA_MIXERS, matched_sizes

SCAN_OPERATIONS = 9  # of one state update and its readout


@dataclass(frozen=True)
class Flops:
    by_part: dict[str, int]  # for one sample

    @property
    def total(self) -> int:
        return sum(self.by_part.values())

    @property
    def without_scan(self) -> int:
        return self.total - self.by_part["scan"]


def count_flops(config: ModelConfig) -> Flops:
    """FLOPs of one sample at the config's resolution and time steps, in the deployed form."""
    if isinstance(config, RipeConfig):
        return Flops(_ripe(config))
    if isinstance(config, MambaSpikeConfig):
        return Flops(_mamba_spike(config))
    from ripe_mambaspike.models.counted_flops import count_by_running
    from ripe_mambaspike.models.registry import meta_model

    return Flops(count_by_running(meta_model(config).eval(), config.in_size, config.time_steps))


def token_counts(config: RipeConfig, size: tuple[int, int] | None = None) -> list[int]:
    """Tokens per step at every level of the hierarchy, for inputs of the config's or another size."""
    height, width = config.grids(*(size or config.in_size))[-1]
    count = config.num_tokens or height * width
    counts = []
    for level in config.levels():
        count = math.ceil(count / level.ratio)
        counts.append(count)
    return counts


def conv_macs(positions: int, in_channels: int, channels: int, taps: int = 9) -> int:
    return positions * in_channels * channels * taps


def _ripe(config: RipeConfig) -> dict[str, int]:
    grids = [height * width for height, width in config.grids(*config.in_size)]
    last = grids[-1]
    width = config.bridge_width
    channels = config.stage_channels
    read = channels if config.bridge == "mr-s3a" else channels[-1:]
    inputs = (2, *channels)
    backbone = sum(
        conv_macs(grid, before, after) + conv_macs(grid, after, after)
        for grid, before, after in zip(grids, inputs, channels, strict=False)
    )
    hierarchy, scan = _hierarchy(config)
    head = config.embed_dims[-1] * config.num_classes
    if config.head_hidden_size is not None:
        head = (config.embed_dims[-1] + config.num_classes) * config.head_hidden_size
    per_step = {
        "backbone": backbone,
        "attention": sum(_attention(config.attention, n, c) for n, c in zip(grids, channels, strict=True)),
        "bridge": sum(conv_macs(last, 2 * c, width) for c in read),
        "attention_projection": (config.num_tokens or last) * channels[-1] * width,
        "head": head,
    }
    parts = {part: 2 * config.time_steps * macs for part, macs in per_step.items()}
    return {**parts, "hierarchy": 2 * hierarchy, "scan": scan}


def _attention(kind: str, positions: int, channels: int) -> int:
    """Multiply-adds of one step: projections and the two contractions."""
    square = positions * channels**2
    contractions = 2 * square
    return {
        "ds-mpa": 3 * square + contractions,
        "low-rank": 3 * square // 2 + contractions,
        "grouped": 3 * square // 4 + contractions,
        "sigmoid": 3 * square + 2 * positions**2 * channels,
        "gate": square,
        "none": 0,
    }[kind]


def _hierarchy(config: RipeConfig) -> tuple[int, int]:
    """Multiply-adds of its matrix products, and operations of its scans, for all steps."""
    levels = config.levels()
    arms = (0,) * len(levels)
    if config.mixer in ARMS:
        arms = matched_sizes(config.mixer, config.embed_dims, config.mamba_sizes)
    macs = scan = 0
    for count, level, hidden in zip(token_counts(config), levels, arms, strict=True):
        length = count * config.time_steps
        if level.transition:
            macs += length * level.before * level.width
        if not level.mixes:
            continue
        if config.mixer in MAMBA_MIXERS:
            directions = 1 if config.causal else 2
            merge = 0 if config.causal else length * 2 * level.width * level.width
            macs += directions * _mamba(length, level.width, level.sizes) + merge
            scan += directions * _scan(length, level.width, level.sizes)
        else:
            macs += _arm(config.mixer, length, level.width, hidden)
    return macs, scan


def _arm(mixer: str, length: int, width: int, hidden: int) -> int:
    return {
        "transformer": length * (4 * width**2 + 2 * length * width + 2 * width * hidden),
        "gru": length * (2 * 3 * hidden * (width + hidden) + 2 * hidden * width),
        "conv1d": length * 2 * width * hidden,
        "none": 0,
    }[mixer]


def _mamba(length: int, width: int, sizes: MambaSizes = MAMBA_SIZES) -> int:
    """Multiply-adds of one direction's four projections."""
    inner, rank = sizes.inner(width), step_rank(width)
    return length * (width * 2 * inner + inner * (rank + 2 * sizes.d_state) + rank * inner + inner * width)


def _scan(length: int, width: int, sizes: MambaSizes = MAMBA_SIZES) -> int:
    return SCAN_OPERATIONS * length * sizes.inner(width) * sizes.d_state


def _mamba_spike(config: MambaSpikeConfig) -> dict[str, int]:
    height, width = config.in_size
    cells = [height * width, (height // 2) * (width // 2), (height // 4) * (width // 4)]
    after_pool = [cells[1], cells[2], cells[2]]
    widths = (2, *config.channels)
    encoder = sum(
        conv_macs(grid, before, after) + conv_macs(pooled, after, after, taps=1)
        for grid, pooled, before, after in zip(cells, after_pool, widths, config.channels, strict=False)
    )
    rows, columns = config.grid()
    steps = config.time_steps
    return {
        "encoder": 2 * steps * encoder,
        "input_proj": 2 * steps * config.channels[-1] * rows * columns * config.embed_dim,
        "blocks": 2 * config.depth * _mamba(steps, config.embed_dim),
        "scan": config.depth * _scan(steps, config.embed_dim),
        "head": 2 * config.embed_dim * config.num_classes,
    }
