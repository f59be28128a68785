"""One training step: our kernels and the plain-PyTorch reference path."""

import copy
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ripe_mambaspike.bench.agreement import Agreement, compare_training
from ripe_mambaspike.bench.bounds import least_bytes
from ripe_mambaspike.bench.machine import describe
from ripe_mambaspike.bench.measure import Job, Measured, Subject, measure, ratio
from ripe_mambaspike.bench.memory import bytes_of, expect_memory, explain_out_of_memory
from ripe_mambaspike.bench.network import (
    Progress,
    check_sizes,
    clips,
    quiet,
    repeats_of,
    ripe_config,
    training_network,
)
from ripe_mambaspike.bench.options import TrainOptions
from ripe_mambaspike.errors import MemoryNeededError
from ripe_mambaspike.models.memory import is_memory_error
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.eval_mode import choose_device
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.train.capture import capture_step
from ripe_mambaspike.train.objective import LossWeights
from ripe_mambaspike.train.step import StepSettings, make_optimizer, training_step


class StepRecipe(NamedTuple):
    """The fields of a dataset's recipe that one training step depends on."""

    batch: int
    passes: Literal[1, 2]
    weights: LossWeights
    learning_rate: float
    weight_decay: float


RECIPES = {
    "dvsgesture": StepRecipe(32, 2, LossWeights(), 1e-3, 0.05),
    "nmnist": StepRecipe(64, 2, LossWeights(label_smoothing=0.05), 1e-3, 0.05),
    "dailydvs200": StepRecipe(32, 2, LossWeights(consistency=0.0), 5e-4, 0.02),
}
CPU_BATCH = 16  # of the default benchmark on a CPU


def bench_train(options: TrainOptions, progress: Progress = quiet) -> dict[str, Any]:
    """Times and memory of one step on every path, after comparing loss and gradients."""
    device = choose_device(options.device)
    on_cpu = device.type == "cpu"
    name = options.recipe or ("nmnist" if on_cpu else "dvsgesture")
    recipe = RECIPES[name]
    batch = recipe.batch if options.batch is None else options.batch
    if on_cpu and options.recipe is None and options.batch is None:
        batch = CPU_BATCH
    precision = options.precision or ("float32" if on_cpu else "bfloat16")
    repeats = repeats_of(options.repeats, device)
    check_sizes(batches=(batch,), repeats=repeats)
    config = ripe_config(name, options.time_steps, options.in_size)
    passes = options.passes or recipe.passes
    settings = StepSettings(weights=recipe.weights, passes=passes, autocast=precision == "bfloat16")
    expect_memory(passes * batch * least_bytes(config, precision), device, f"batch {batch}")
    with explain_out_of_memory(device, f"a training step of batch {batch}"):
        model = training_network(name, config, device).train()
        x = clips(config, batch, device)
        targets = torch.arange(batch, device=device) % config.num_classes
        progress("comparing loss and gradients …")
        agreement = _compare(model, x, targets, settings, precision)
        progress("timing the step …")
        found = _measure(model, x, targets, settings, recipe, repeats, options.reference)
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


def _measure(
    model: RipeMambaSpike,
    x: Tensor,
    targets: Tensor,
    settings: StepSettings,
    recipe: StepRecipe,
    repeats: int,
    with_reference: bool,
) -> dict[str, Any]:
    held = 3 * bytes_of(model) + x.nbytes  # the optimizer keeps two values per weight

    def fresh() -> tuple[RipeMambaSpike, Optimizer]:
        copied = copy.deepcopy(model)
        return copied, make_optimizer(copied, recipe.learning_rate, recipe.weight_decay)

    ours = partial(_step, "auto", *fresh(), x, targets, settings)
    subjects = {"ours": Subject(ours, held)}
    if (replay := _captured(*fresh(), x, targets, settings)) is not None:
        subjects = {"captured": Subject(replay, held, memory_of=ours), **subjects}
    if with_reference:
        subjects["reference"] = Subject(partial(_step, "off", *fresh(), x, targets, settings), held)
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
