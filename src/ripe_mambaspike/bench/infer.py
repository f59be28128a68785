"""The deployed network: ours beside the plain-PyTorch reference path and beside Mamba-Spike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ripe_mambaspike.bench.agreement import compare_inference
from ripe_mambaspike.bench.bounds import least_bytes, operations, shares
from ripe_mambaspike.bench.machine import Product, describe, measure_memory_rate, measure_product
from ripe_mambaspike.bench.measure import Measured, Subject, measure, ratio
from ripe_mambaspike.bench.memory import bytes_of, expect_memory, explain_out_of_memory
from ripe_mambaspike.bench.network import (
    baseline_network,
    captured,
    check_sizes,
    clips,
    deployed_network,
    direct,
    ripe_config,
)
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.ripe import RipeMambaSpike


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    model: str
    batches: Sequence[int]
    precisions: Sequence[str]
    steps: int | None
    side: int | None
    baseline: str | None
    repeats: int


def bench_infer(
    setting: Setting, device: torch.device, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """One row a precision and batch, each with every path's times and memory."""
    check_sizes(batches=setting.batches, repeats=setting.repeats, batch_option="--batches")
    config = ripe_config(setting.model, setting.steps, setting.side)
    for batch in setting.batches:
        expect_memory(batch * least_bytes(config, "bfloat16"), device, f"batch {batch}")
    baseline = None if setting.baseline is None else baseline_network(setting.baseline, config, device)
    progress("fusing the network …")
    model = deployed_network(setting.model, config, device)
    progress("measuring the machine …")
    memory_rate = measure_memory_rate(device)
    products = {precision: measure_product(device, precision) for precision in setting.precisions}
    rows = []
    for precision in setting.precisions:
        for batch in setting.batches:
            progress(f"{precision}, batch {batch} …")
            with explain_out_of_memory(device, f"batch {batch}"):
                row = _row(model, baseline, config, batch, precision, products[precision], memory_rate, setting.repeats)
            rows.append(row)
    return {
        "bench": "infer",
        "machine": {
            **describe(device),
            "matrix_flops_per_second": {precision: round(p.rate) for precision, p in products.items()},
            "memory_bytes_per_second": round(memory_rate),
        },
        "model": setting.model,
        "form": "deployed",
        "steps": config.time_steps,
        "resolution": list(config.in_size),
        "flops_per_sample": operations(config),
        "least_bytes_per_sample": {precision: least_bytes(config, precision) for precision in setting.precisions},
        "rows": rows,
    }


def _row(
    model: RipeMambaSpike,
    baseline: Model | None,
    config: RipeConfig,
    batch: int,
    precision: str,
    product: Product,
    memory_rate: float,
    repeats: int,
) -> dict[str, Any]:
    x = clips(config, batch, next(model.parameters()).device)
    device = x.device
    graph, x = captured(model, x, precision)
    agreement = compare_inference(model, x, precision, graph)
    held = bytes_of(model, x)
    ours = partial(direct(model, device, precision, "auto"), x)
    reference = partial(direct(model, device, precision, "off"), x)
    subjects = {
        "captured": Subject(partial(graph, x), held, memory_of=ours),
        "ours": Subject(ours, held),
        "reference": Subject(reference, held),
    }
    if baseline is not None:
        call = direct(baseline, device, precision, "auto")
        subjects[baseline.name] = Subject(partial(call, x), bytes_of(baseline, x))
    beside = {"product": product.job} if device.type == "cpu" else {}
    found, beside_times = measure(subjects, device, repeats, beside)
    rate = product.rate
    if "product" in beside_times:  # measured in turns with the network
        rate = 1e3 * product.operations / beside_times["product"].median
    row: dict[str, Any] = {"precision": precision, "batch": batch, "agreement": agreement.to_dict()}
    row["says"] = agreement.sentence
    row["speedup"] = ratio(found["reference"], found["captured"]) if agreement.agrees else None
    row["matrix_flops_per_second"] = round(rate)
    for name, measured in found.items():
        row[name] = measured.to_dict()
        if isinstance(measured, Measured):
            other = baseline is not None and name == baseline.name
            flops = operations(baseline.config if other and baseline is not None else config)
            traffic = None if other else least_bytes(config, precision)
            row[name] |= shares(measured.times, batch, flops, rate, traffic, memory_rate)
    return row
