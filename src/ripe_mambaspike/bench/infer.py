"""Inference of the deployed network: our kernels, the plain-PyTorch reference path, and Mamba-Spike."""

from functools import partial
from typing import Any

from torch import Tensor

from ripe_mambaspike.bench.agreement import compare_inference
from ripe_mambaspike.bench.bounds import least_bytes, operations, shares
from ripe_mambaspike.bench.compare_infer import compare_infer
from ripe_mambaspike.bench.machine import Product, describe, measure_memory_rate, measure_product
from ripe_mambaspike.bench.measure import Measured, Subject, measure, ratio
from ripe_mambaspike.bench.memory import bytes_of, expect_memory, explain_out_of_memory
from ripe_mambaspike.bench.network import (
    Progress,
    baseline_network,
    batches_of,
    captured,
    check_sizes,
    clips,
    deployed_network,
    direct,
    precisions_of,
    quiet,
    repeats_of,
    ripe_config,
)
from ripe_mambaspike.bench.options import InferOptions
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.eval_mode import choose_device


def bench_infer(options: InferOptions, progress: Progress = quiet) -> dict[str, Any]:
    """One row per precision and batch size, with the times and memory of every path."""
    if options.models:
        return compare_infer(options, progress)
    device = choose_device(options.device)
    batches = batches_of(options.batches, device)
    precisions, repeats = precisions_of(options.precision), repeats_of(options.repeats, device)
    check_sizes(batches=batches, repeats=repeats, batch_option="--batches")
    config = ripe_config(options.model, options.time_steps, options.in_size)
    for batch in batches:
        expect_memory(batch * least_bytes(config, "bfloat16"), device, f"batch {batch}")
    baseline = None if options.baseline == "none" else baseline_network(options.baseline, config, device)
    progress("fusing the network …")
    model = deployed_network(options.model, config, device)
    progress("measuring the machine …")
    memory_rate = measure_memory_rate(device)
    products = {precision: measure_product(device, precision) for precision in precisions}
    rows = []
    for precision in precisions:
        for batch in batches:
            progress(f"{precision}, batch {batch} …")
            with explain_out_of_memory(device, f"batch {batch}"):
                x = clips(config, batch, device)
                networks = (model, baseline, options.reference)
                rows.append(_row(*networks, x, precision, products[precision], memory_rate, repeats))
    return {
        "bench": "infer",
        "machine": {
            **describe(device),
            "matrix_flops_per_second": {precision: round(p.rate) for precision, p in products.items()},
            "memory_bytes_per_second": round(memory_rate),
        },
        "model": options.model,
        "form": "deployed",
        "time_steps": config.time_steps,
        "in_size": list(config.in_size),
        "flops_per_sample": operations(config),
        "least_bytes_per_sample": {precision: least_bytes(config, precision) for precision in precisions},
        "rows": rows,
    }


def _row(
    model: RipeMambaSpike,
    baseline: Model | None,
    with_reference: bool,
    x: Tensor,
    precision: str,
    product: Product,
    memory_rate: float,
    repeats: int,
) -> dict[str, Any]:
    config, device, batch = model.config, x.device, x.shape[0]
    graph, x = captured(model, x, precision)
    agreement = compare_inference(model, x, precision, graph)
    held = bytes_of(model, x)
    ours = partial(direct(model, device, precision, "auto"), x)
    subjects = {"captured": Subject(partial(graph, x), held, memory_of=ours), "ours": Subject(ours, held)}
    if with_reference:
        subjects["reference"] = Subject(partial(direct(model, device, precision, "off"), x), held)
    if baseline is not None:
        call = direct(baseline, device, precision, "auto")
        subjects[baseline.name] = Subject(partial(call, x), bytes_of(baseline, x))
    beside = {"product": product.job} if device.type == "cpu" else {}
    found, beside_times = measure(subjects, device, repeats, beside)
    rate = product.rate
    if "product" in beside_times:  # measured alternately with the network
        rate = 1e3 * product.operations / beside_times["product"].median
    row: dict[str, Any] = {
        "precision": precision,
        "batch": batch,
        "agreement": agreement.to_dict(),
        "summary": agreement.sentence,
        "speedup": ratio(found.get("reference"), found["captured"]) if agreement.agrees else None,
        "plain_over_captured": ratio(found["ours"], found["captured"]),
        "matrix_flops_per_second": round(rate),
    }
    for name, result in found.items():
        row[name] = result.to_dict()
        if isinstance(result, Measured):
            other = baseline is not None and name == baseline.name
            flops = operations(baseline.config if other and baseline is not None else config)
            traffic = None if other else least_bytes(config, precision)
            row[name] |= shares(result.times, batch, flops, rate, traffic, memory_rate)
    return row
