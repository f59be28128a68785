"""One step of training: ours beside the plain-PyTorch reference path."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ripe_mambaspike.bench.agreement import Agreement, compare_training
from ripe_mambaspike.bench.bounds import least_bytes
from ripe_mambaspike.bench.machine import describe
from ripe_mambaspike.bench.measure import Measured, Subject, measure, ratio
from ripe_mambaspike.bench.memory import bytes_of, expect_memory, explain_out_of_memory
from ripe_mambaspike.bench.network import check_sizes, clips, ripe_config, training_network
from ripe_mambaspike.bench.timing import Job
from ripe_mambaspike.errors import MemoryNeededError
from ripe_mambaspike.models.memory import is_memory_error
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.train.capture import capture_step
from ripe_mambaspike.train.objective import LossWeights
from ripe_mambaspike.train.step import StepSettings, make_optimizer, training_step


class Recipe(NamedTuple):
    """What of a data set's recipe one step depends on."""

    batch: int
    passes: Literal[1, 2]
    weights: LossWeights
    lr: float
    weight_decay: float


RECIPES = {
    "dvsgesture": Recipe(32, 2, LossWeights(), 1e-3, 0.05),
    "nmnist": Recipe(64, 2, LossWeights(label_smoothing=0.05), 1e-3, 0.05),
    "dailydvs200": Recipe(32, 1, LossWeights(consistency=0.0), 5e-4, 0.02),
}


@dataclass(frozen=True)
class Setting:
    """What is measured; None for the recipe's own."""

    recipe: str
    batch: int | None
    passes: Literal[1, 2] | None
    precision: str
    steps: int | None
    side: int | None
    repeats: int


def bench_train(
    setting: Setting, device: torch.device, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Times and memory of one step on every path, after its loss and gradients were compared."""
    recipe = RECIPES[setting.recipe]
    batch = recipe.batch if setting.batch is None else setting.batch
    check_sizes(batches=(batch,), repeats=setting.repeats)
    config = ripe_config(setting.recipe, setting.steps, setting.side)
    passes = setting.passes or recipe.passes
    settings = StepSettings(weights=recipe.weights, passes=passes, autocast=setting.precision == "bfloat16")
    expect_memory(passes * batch * least_bytes(config, setting.precision), device, f"batch {batch}")
    with explain_out_of_memory(device, f"a training step of batch {batch}"):
        model = training_network(setting.recipe, config, device).train()
        x = clips(config, batch, device)
        targets = torch.arange(batch, device=device) % config.num_classes
        progress("comparing loss and gradients …")
        agreement = _compare(model, x, targets, settings, setting.precision)
        progress("timing the step …")
        found = _measure(model, x, targets, settings, recipe, setting.repeats)
    fastest = found.get("captured", found["ours"])
    document: dict[str, Any] = {
        "bench": "train",
        "machine": describe(device),
        "recipe": setting.recipe,
        "precision": setting.precision,
        "batch": batch,
        "passes": passes,
        "steps": config.time_steps,
        "resolution": list(config.in_size),
        "agreement": agreement.to_dict(),
        "says": agreement.sentence,
        "speedup": ratio(found["reference"], fastest) if agreement.agrees else None,
    }
    for name, measured in found.items():
        document[name] = measured.to_dict()
        if isinstance(measured, Measured):
            document[name]["samples_per_second"] = round(1e3 * batch / measured.times.median, 2)
    return document


def _compare(model: RipeMambaSpike, x: Tensor, targets: Tensor, settings: StepSettings, precision: str) -> Agreement:
    """On all clips, or on fewer where both paths do not fit; running statistics and weights stay as they were."""
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


def _measure(
    model: RipeMambaSpike, x: Tensor, targets: Tensor, settings: StepSettings, recipe: Recipe, repeats: int
) -> dict[str, Any]:
    held = 3 * bytes_of(model) + x.nbytes  # the optimizer remembers two numbers a weight

    def fresh() -> tuple[RipeMambaSpike, Optimizer]:
        mine = copy.deepcopy(model)
        return mine, make_optimizer(mine, recipe.lr, recipe.weight_decay)

    ours, reference = (partial(_step, choice, *fresh(), x, targets, settings) for choice in ("auto", "off"))
    subjects = {"ours": Subject(ours, held), "reference": Subject(reference, held)}
    if (replay := _captured(*fresh(), x, targets, settings)) is not None:
        subjects = {"captured": Subject(replay, held, memory_of=ours), **subjects}
    return measure(subjects, x.device, repeats)[0]


def _step(choice: str, model: RipeMambaSpike, optimizer: Optimizer, *rest: Any) -> None:
    with kernels(choice):
        training_step(model, optimizer, *rest)
    optimizer.zero_grad(set_to_none=True)  # so that the next step's memory has its gradients in it


def _captured(
    model: RipeMambaSpike, optimizer: Optimizer, x: Tensor, targets: Tensor, settings: StepSettings
) -> Job | None:
    """The whole step as one CUDA graph; None on a CPU."""
    if not x.is_cuda:
        return None
    with kernels("auto"):
        return capture_step(model, optimizer, x, targets, settings)
