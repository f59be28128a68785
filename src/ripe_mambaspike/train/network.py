"""The network of a run: created by its recipe, saved with its labels, and its result on the test clips."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.commit import commit
from ripe_mambaspike.data.listing import SPLITS
from ripe_mambaspike.data.settings import resolved_grid
from ripe_mambaspike.data.training_data import TrainingData
from ripe_mambaspike.models.accuracy import ClassAccuracy, Evaluation, StartedFrom, TrainingResult
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.labels import Labels
from ripe_mambaspike.models.registry import create_model, meta_model
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.train.chance import result_warnings
from ripe_mambaspike.train.history import Row
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.start import Start, start_network, unused_by_start


def create_network(
    recipe: Recipe, classes: tuple[str, ...], start: Start | None = None, clips: Iterable[Tensor] = ()
) -> Model:
    """The recipe's network with fresh weights for its seed, or with those of its start.

    The norms of a start that is expanded get the statistics of these clips.
    """
    if start is not None:
        return start_network(recipe, classes, start, clips)
    data = recipe.data
    sizes = {"num_classes": len(classes), "time_steps": data.time_steps, "in_size": resolved_grid(data)}
    return create_model(recipe.model.name, seed=recipe.run.seed, **{**sizes, **recipe.model.fields})


def unused_settings(recipe: Recipe, model: Model) -> list[str]:
    """The settings of a recipe that this network cannot use, each with the reason; they are left out."""
    unused = []
    if recipe.model.unused_fields:
        unused.append(f"model.fields: '{model.name}' has another architecture: {', '.join(recipe.model.unused_fields)}")
    if not model.has_relaxed_pass and recipe.loss.num_passes == 2:
        unused.append(f"loss.passes: '{model.name}' has no relaxed pass; trained with the hard pass alone")
    if not model.num_spiking_layers() and recipe.loss.rates:
        unused.append(f"loss.rates: '{model.name}' has no spikes")
    if model.answers_once and recipe.loss.spread:
        unused.append(f"loss.spread: '{model.name}' answers once for all steps")
    if not model.uses_sharpness:
        own = "has a surrogate gradient of its own" if model.num_spiking_layers() else "has no spikes"
        unused.append(f"schedule.sharpness_start, schedule.sharpness_end: '{model.name}' {own}")
    if not isinstance(model, RipeMambaSpike) and recipe.optimizer.tdm_lr_scale != 1:
        unused.append(f"optimizer.tdm_lr_scale: '{model.name}' has no temporal filters")
    return unused + unused_by_start(recipe, model)


def network_labels(recipe: Recipe, data: TrainingData, epoch: int) -> Labels:
    """The labels that are saved with the network of an epoch."""
    settings, store = recipe.data, data.store
    return Labels(
        classes=data.classes, set=settings.dataset, partition=data.partition, time_steps=settings.time_steps,
        grid=resolved_grid(settings), by=settings.by, binary=settings.binary, epoch=epoch,
        protocol=recipe.run.protocol, store=store.key, sensor_size=store.whole_size, crop=store.crop,
        duration_us=data.duration_us,
    )  # fmt: skip


def make_result(
    recipe: Recipe,
    data: TrainingData,
    found: Evaluation | None,
    model: Model,
    epoch: int,
    rows: list[Row],
    seconds: float,
    started_from: StartedFrom | None = None,
) -> TrainingResult:
    """The result of a run, from the evaluation of its selected network on the test clips; None where there are none."""
    protocol, folds, facts = recipe.run.protocol, recipe.data.folds, data.describe()
    scores: dict[str, Any] = {"top1": None, "n": 0}
    if found is not None:
        scores = found.to_dict(data.classes)
        scores["per_class"] = [ClassAccuracy(**score) for score in scores["per_class"]]
        scores["loss"] = found.loss if math.isfinite(found.loss) else None
    deployed = meta_model(model.config.deployed(), name=model.name)
    return TrainingResult(
        format="ripe-result",
        version=1,
        name=recipe.name,
        protocol=protocol,
        picked_on="test" if protocol == "paper" else "val" if data.val is not None else "last epoch",
        epoch=epoch,
        set=recipe.data.dataset,
        partition=data.partition,
        store=data.store.key,
        clips={split: facts[split] for split in SPLITS},
        **scores,
        seed=recipe.run.seed,
        folds=folds or None,
        fold=recipe.data.fold if folds else None,
        parameters={"training": model.parameter_count(), "deployed": deployed.parameter_count()},
        seconds=seconds,
        threads=torch.get_num_threads(),
        commit=commit(),
        warnings=result_warnings(recipe, data, rows, None if found is None else found.top1),
        started_from=started_from,
        left_out=unused_settings(recipe, model),
    )
