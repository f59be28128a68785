"""Lower bounds of a pass: operations and bytes, to compare measured times with this machine's rates."""

from typing import Any

from ripe_mambaspike.bench.measure import Times
from ripe_mambaspike.models.config import ModelConfig, RipeConfig
from ripe_mambaspike.models.flops import count_flops, token_counts

BYTES = {"float32": 4, "bfloat16": 2}


def operations(config: ModelConfig) -> int:
    """Of one sample's matrix products and convolutions, as the account counts them, without the scan."""
    return count_flops(config).without_scan


def least_bytes(config: RipeConfig, precision: str) -> int:
    """A lower bound of one sample's memory traffic in the deployed form.

    The events and the logits in float32, the outputs of each stage's two convolutions, and the tokens of every level,
    each moved once. A real pass also rereads its outputs and reads its weights, so it moves more.
    """
    height, width = config.in_size
    steps = config.time_steps
    grids = config.grids(height, width)
    spikes = sum(2 * channels * h * w for channels, (h, w) in zip(config.stage_channels, grids, strict=True))
    tokens = sum(count * level.width for count, level in zip(token_counts(config), config.levels(), strict=True))
    ends = 2 * height * width + config.num_classes
    return steps * (BYTES["float32"] * ends + BYTES[precision] * (spikes + tokens))


def shares(
    times: Times, batch: int, flops: int, matrix_rate: float, bytes_: int | None, memory_rate: float
) -> dict[str, Any]:
    """Throughput, and the share of the machine's peak rates for the operations and the (least) bytes of a sample."""
    seconds = times.median / 1e3
    return {
        "samples_per_second": round(batch / seconds, 2),
        "matrix_share": round(flops * batch / seconds / matrix_rate, 5),
        "memory_share": None if bytes_ is None else round(bytes_ * batch / seconds / memory_rate, 5),
        "times_its_flops": round(seconds * matrix_rate / (flops * batch), 3),
    }
