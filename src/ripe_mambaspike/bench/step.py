"""One training step to be timed: the recipe that it follows, and its paths."""

import copy
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ripe_mambaspike.bench.measure import Subject
from ripe_mambaspike.bench.memory import bytes_of
from ripe_mambaspike.bench.network import check_sizes, repeats_of
from ripe_mambaspike.bench.options import Precision, TrainOptions
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.nn.eval_mode import choose_device
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.train.capture import CapturedStep, capture_step
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


class StepChoice(NamedTuple):
    """What the options of `bench train` come to on this device."""

    device: torch.device
    name: str  # of the recipe, and of its network
    recipe: StepRecipe
    batch: int
    precision: Precision
    repeats: int

    def settings(self, passes: Literal[1, 2]) -> StepSettings:
        return StepSettings(weights=self.recipe.weights, passes=passes, autocast=self.precision == "bfloat16")


def choose_step(options: TrainOptions) -> StepChoice:
    """The options with the defaults of their device and recipe."""
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
    return StepChoice(device, name, recipe, batch, precision, repeats)


class StepBatch(NamedTuple):
    """The clips and targets of a step, and how it is taken."""

    x: Tensor
    targets: Tensor
    settings: StepSettings
    recipe: StepRecipe


def step_subjects(model: Model, batch: StepBatch, ours: str, *, reference: bool) -> dict[str, Subject]:
    """The step as one CUDA graph (on a GPU), called as it is under the name `ours`, and on the reference path."""
    held = 3 * bytes_of(model) + batch.x.nbytes  # the optimizer keeps two values per weight
    step = partial(_step, "auto", *fresh_copy(model, batch.recipe), batch)
    subjects = {ours: Subject(step, held)}
    if (replay := captured_step(*fresh_copy(model, batch.recipe), batch)) is not None:
        subjects = {"captured": Subject(replay, held, memory_of=step), **subjects}
    if reference:
        subjects["reference"] = Subject(partial(_step, "off", *fresh_copy(model, batch.recipe), batch), held)
    return subjects


def fresh_copy(model: Model, recipe: StepRecipe) -> tuple[Model, Optimizer]:
    """A copy of the network and a new optimizer for it."""
    copied = copy.deepcopy(model)
    return copied, make_optimizer(copied, recipe.learning_rate, recipe.weight_decay)


def captured_step(model: Model, optimizer: Optimizer, batch: StepBatch) -> CapturedStep | None:
    """The whole step as one CUDA graph; None on a CPU."""
    if not batch.x.is_cuda:
        return None
    with kernels("auto"):
        return capture_step(model, optimizer, batch.x, batch.targets, batch.settings)


def _step(choice: str, model: Model, optimizer: Optimizer, batch: StepBatch) -> None:
    with kernels(choice):
        training_step(model, optimizer, batch.x, batch.targets, batch.settings)
    optimizer.zero_grad(set_to_none=True)  # so that the next step's memory has its gradients in it
