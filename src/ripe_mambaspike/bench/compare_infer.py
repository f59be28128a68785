"""Inference of networks of any kind beside each other: on clips of one size, called as they are and captured."""

from functools import partial
from typing import Any, NamedTuple

import torch

from ripe_mambaspike.bench.agreement import compare_captured
from ripe_mambaspike.bench.bounds import least_bytes, operations, shares
from ripe_mambaspike.bench.machine import Product, describe, measure_memory_rate, measure_product
from ripe_mambaspike.bench.measure import Measured, Subject, measure, ratio
from ripe_mambaspike.bench.memory import bytes_of, explain_out_of_memory, lacks_memory
from ripe_mambaspike.bench.network import (
    Progress,
    batches_of,
    captured,
    check_models,
    check_sizes,
    clips,
    compared_configs,
    compared_network,
    direct,
    precisions_of,
    quiet,
    refuse_with_models,
    repeats_of,
    resized_config,
)
from ripe_mambaspike.bench.options import InferOptions
from ripe_mambaspike.errors import InputError, MemoryNeededError
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.nn.eval_mode import choose_device


class MachineRates(NamedTuple):
    """What this machine can do at most."""

    products: dict[str, Product]  # by precision
    memory: float  # bytes a second


def compare_infer(options: InferOptions, progress: Progress = quiet) -> dict[str, Any]:
    """One row per network, precision and batch size; a network that runs out of memory says so in its row."""
    check_models(options.models)
    refuse_with_models(options, "model", "baseline", "reference")
    device = choose_device(options.device)
    batches, repeats = batches_of(options.batches, device), repeats_of(options.repeats, device)
    check_sizes(batches=batches, repeats=repeats, batch_option="--batches")
    precisions = precisions_of(options.precision)
    like = resized_config(options.models[0], options.time_steps, options.in_size)
    configs = compared_configs(options.models, like)
    progress("measuring the machine …")
    rates = MachineRates({one: measure_product(device, one) for one in precisions}, measure_memory_rate(device))
    rows = []
    for name, config in configs.items():
        progress(f"{name}: making the network …")
        model = compared_network(name, config, device)
        for precision in precisions:
            for batch in batches:
                progress(f"{name}, {precision}, batch {batch} …")
                rows.append(_row(model, batch, precision, device, rates, repeats))
        del model
    return {
        "bench": "infer",
        "machine": {
            **describe(device),
            "matrix_flops_per_second": {precision: round(p.rate) for precision, p in rates.products.items()},
            "memory_bytes_per_second": round(rates.memory),
        },
        "models": list(configs),
        "num_classes": like.num_classes,
        "time_steps": like.time_steps,
        "in_size": list(like.in_size),
        "rows": rows,
    }


def _row(
    model: Model, batch: int, precision: str, device: torch.device, rates: MachineRates, repeats: int
) -> dict[str, Any]:
    config = model.config
    row: dict[str, Any] = {
        "model": model.name,
        "form": config.form,
        "parameters": model.parameter_count(),
        "flops_per_sample": operations(config),
        "precision": precision,
        "batch": batch,
    }
    try:
        with explain_out_of_memory(device, f"{model.name}, batch {batch}"):
            return row | _measured(model, batch, precision, device, rates, repeats)
    except (InputError, MemoryNeededError) as error:
        if not lacks_memory(error):
            raise
        return row | {"plain": {"error": str(error)}}


def _measured(
    model: Model, batch: int, precision: str, device: torch.device, rates: MachineRates, repeats: int
) -> dict[str, Any]:
    config, product = model.config, rates.products[precision]
    graph, x = captured(model, clips(config, batch, device), precision)
    plain = direct(model, device, precision, "auto")
    agreement = compare_captured(graph, plain, x, precision)
    job, held = partial(plain, x), bytes_of(model, x)
    subjects = {"captured": Subject(partial(graph, x), held, memory_of=job), "plain": Subject(job, held)}
    found, beside = measure(subjects, device, repeats, {"product": product.job} if device.type == "cpu" else {})
    rate = 1e3 * product.operations / beside["product"].median if "product" in beside else product.rate
    traffic = least_bytes(config, precision) if isinstance(config, RipeConfig) else None
    row: dict[str, Any] = {
        "agreement": agreement.to_dict(),
        "summary": agreement.sentence,
        "plain_over_captured": ratio(found["plain"], found["captured"]) if agreement.agrees else None,
        "matrix_flops_per_second": round(rate),
    }
    for path, result in found.items():
        assert isinstance(result, Measured)  # these two paths raise where they fail
        row[path] = result.to_dict() | shares(result.times, batch, operations(config), rate, traffic, rates.memory)
    return row
