"""One training step of networks of any kind beside each other: on clips of one size, as it is called and captured."""

from typing import Any

import torch

from ripe_mambaspike.bench.agreement import Agreement, compare_losses, compare_training
from ripe_mambaspike.bench.machine import describe
from ripe_mambaspike.bench.measure import Measured, measure, ratio
from ripe_mambaspike.bench.memory import explain_out_of_memory, lacks_memory
from ripe_mambaspike.bench.network import (
    SEED,
    Progress,
    check_models,
    clips,
    common_fields,
    compared_configs,
    quiet,
    refuse_with_models,
    resized_config,
)
from ripe_mambaspike.bench.options import TrainOptions
from ripe_mambaspike.bench.step import StepBatch, StepChoice, captured_step, choose_step, fresh_copy, step_subjects
from ripe_mambaspike.errors import InputError, MemoryNeededError
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import ModelConfig
from ripe_mambaspike.models.registry import create_model
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.train.objective import LossTerms
from ripe_mambaspike.train.step import training_step


def compare_train(options: TrainOptions, progress: Progress = quiet) -> dict[str, Any]:
    """One row per network; a network without a relaxed pass takes the hard one alone, and its row says so."""
    check_models(options.models)
    refuse_with_models(options, "reference")
    chosen = choose_step(options)
    like = resized_config(chosen.name, options.time_steps, options.in_size)
    rows = []
    for name, config in compared_configs(options.models, like).items():
        progress(f"{name} …")
        rows.append(_row(name, config, options, chosen))
    return {
        "bench": "train",
        "machine": describe(chosen.device),
        "models": [row["model"] for row in rows],
        "recipe": chosen.name,
        "precision": chosen.precision,
        "batch": chosen.batch,
        "num_classes": like.num_classes,
        "time_steps": like.time_steps,
        "in_size": list(like.in_size),
        "rows": rows,
    }


def _row(name: str, config: ModelConfig, options: TrainOptions, chosen: StepChoice) -> dict[str, Any]:
    device = chosen.device
    model = create_model(name, seed=SEED, **common_fields(config)).to(device).train()
    wanted = options.passes or chosen.recipe.passes
    passes = wanted if model.has_relaxed_pass else 1
    row: dict[str, Any] = {"model": name, "parameters": model.parameter_count(), "passes": passes}
    if passes < wanted:
        row["note"] = "the hard pass alone, since there is no relaxed one"
    try:
        with explain_out_of_memory(device, f"a training step of {name}, batch {chosen.batch}"):
            x = clips(config, chosen.batch, device)
            targets = torch.arange(chosen.batch, device=device) % config.num_classes
            batch = StepBatch(x, targets, chosen.settings(passes), chosen.recipe)
            return row | _measured(model, batch, chosen)
    except (InputError, MemoryNeededError) as error:
        if not lacks_memory(error):
            raise
        return row | {"plain": {"error": str(error)}}


def _measured(model: Model, batch: StepBatch, chosen: StepChoice) -> dict[str, Any]:
    agreement = _compare(model, batch, chosen.precision)
    found, _ = measure(step_subjects(model, batch, "plain", reference=False), chosen.device, chosen.repeats)
    row: dict[str, Any] = {"agreement": agreement.to_dict(), "summary": agreement.sentence}
    row["plain_over_captured"] = ratio(found["plain"], found.get("captured")) if agreement.agrees else None
    for path, result in found.items():
        row[path] = result.to_dict()
        if isinstance(result, Measured):
            row[path]["samples_per_second"] = round(1e3 * chosen.batch / result.times.median, 2)
    return row


def _compare(model: Model, batch: StepBatch, precision: str) -> Agreement:
    """The captured step with the one that is called; on a CPU, where nothing is captured, with the reference path's.

    A RIPE-MambaSpike is compared in its relaxed pass, in which no spike can flip.
    """
    if isinstance(model, RipeMambaSpike):
        copied, _ = fresh_copy(model, batch.recipe)
        assert isinstance(copied, RipeMambaSpike)
        return compare_training(copied, batch.x, batch.targets, batch.settings, precision)
    plain = _take_step(model, batch, "auto")
    other = _replay_step(model, batch) if batch.x.is_cuda else _take_step(model, batch, "off")
    return compare_losses(other, plain, precision, len(batch.x))


def _take_step(model: Model, batch: StepBatch, choice: str) -> LossTerms:
    copied, optimizer = fresh_copy(model, batch.recipe)
    torch.manual_seed(SEED)  # the same units are dropped in both
    with kernels(choice):
        return training_step(copied, optimizer, batch.x, batch.targets, batch.settings)


def _replay_step(model: Model, batch: StepBatch) -> LossTerms:
    replay = captured_step(*fresh_copy(model, batch.recipe), batch)
    assert replay is not None
    torch.manual_seed(SEED)
    terms = [None if term is None else term.clone() for term in replay()]
    torch.cuda.synchronize(batch.x.device)  # before the graph is freed
    return LossTerms(*terms)  # type: ignore[arg-type]
