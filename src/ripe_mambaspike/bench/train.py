"""One training step: our kernels and the plain-PyTorch reference path."""

import copy
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.bench.agreement import Agreement, compare_training
from ripe_mambaspike.bench.bounds import least_bytes
from ripe_mambaspike.bench.compare_train import compare_train
from ripe_mambaspike.bench.machine import describe
from ripe_mambaspike.bench.measure import Measured, measure, ratio
from ripe_mambaspike.bench.memory import expect_memory, explain_out_of_memory
from ripe_mambaspike.bench.network import Progress, clips, quiet, ripe_config, training_network
from ripe_mambaspike.bench.options import TrainOptions
from ripe_mambaspike.bench.step import StepBatch, choose_step, step_subjects
from ripe_mambaspike.errors import MemoryNeededError
from ripe_mambaspike.models.memory import is_memory_error
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.train.step import StepSettings


def bench_train(options: TrainOptions, progress: Progress = quiet) -> dict[str, Any]:
    """Times and memory of one step on every path, after comparing loss and gradients."""
    if options.models:
        return compare_train(options, progress)
    device, name, recipe, batch, precision, repeats = chosen = choose_step(options)
    config = ripe_config(name, options.time_steps, options.in_size)
    passes = options.passes or recipe.passes
    settings = chosen.settings(passes)
    expect_memory(passes * batch * least_bytes(config, precision), device, f"batch {batch}")
    with explain_out_of_memory(device, f"a training step of batch {batch}"):
        model = training_network(name, config, device).train()
        x = clips(config, batch, device)
        targets = torch.arange(batch, device=device) % config.num_classes
        progress("comparing loss and gradients …")
        agreement = _compare(model, x, targets, settings, precision)
        progress("timing the step …")
        subjects = step_subjects(model, StepBatch(x, targets, settings, recipe), "ours", reference=options.reference)
        found, _ = measure(subjects, device, repeats)
    fastest = found.get("captured", found["ours"])
    document: dict[str, Any] = {
        "bench": "train",
        "machine": describe(device),
        "recipe": name,
        "precision": precision,
        "batch": batch,
        "passes": passes,
        "time_steps": config.time_steps,
        "in_size": list(config.in_size),
        "agreement": agreement.to_dict(),
        "summary": agreement.sentence,
        "speedup": ratio(found.get("reference"), fastest) if agreement.agrees else None,
    }
    for path, measured in found.items():
        document[path] = measured.to_dict()
        if isinstance(measured, Measured):
            document[path]["samples_per_second"] = round(1e3 * batch / measured.times.median, 2)
    return document


def _compare(model: RipeMambaSpike, x: Tensor, targets: Tensor, settings: StepSettings, precision: str) -> Agreement:
    """Compare on all clips, or on fewer if both paths do not fit; running statistics and weights are unchanged."""
    samples = x.shape[0]
    while True:
        try:
            return compare_training(copy.deepcopy(model), x[:samples], targets[:samples], settings, precision)
        except (MemoryNeededError, RuntimeError, MemoryError) as error:
            if samples == 1 or not is_memory_error(error):
                raise
        samples = -(-samples // 4)
        if x.is_cuda:
            torch.cuda.empty_cache()
