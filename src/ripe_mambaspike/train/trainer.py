"""The training loop: epochs of optimizer steps, from any point of an epoch.

What a step does depends on the recipe, the weights and the point in the run (epoch and batch) alone: order,
augmentation and drop-path draw from generators seeded with those numbers. So no random state has to be saved, and a
resumed run takes the same steps as one that was never stopped.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Self

import torch
from msgspec import Meta
from torch import Tensor

from ripe_mambaspike.data.augment.draws import batch_generator
from ripe_mambaspike.data.augment.settings import augment_labeled, label_tables, mix
from ripe_mambaspike.data.clips import Clips, TrainBatches
from ripe_mambaspike.data.settings import Count
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.ops.backend import log_once
from ripe_mambaspike.train.average import AveragedWeights
from ripe_mambaspike.train.capture import CapturedStep, compile_step
from ripe_mambaspike.train.distributed import SINGLE_PROCESS, Processes, SharedStep
from ripe_mambaspike.train.history import SUMMED, Row, mean_columns, summed_terms, tdm_columns
from ripe_mambaspike.train.nonfinite import find_nonfinite
from ripe_mambaspike.train.objective import LossTerms, LossWeights, relaxed_weight
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.schedule import batches_per_epoch, learning_rate, sharpness, steps_per_epoch
from ripe_mambaspike.train.start import frozen_modules
from ripe_mambaspike.train.step import Batch, StepSettings, accumulated_step, make_optimizer

# The first word of a step's seed. It determines every run's random numbers: changing it would change all results.
STEP_SEED = "move"


class NotFiniteError(RipeError):
    """A loss or gradient that is not finite; `field` names its source."""


@dataclass
class TrainState:
    """A point in a run: the next batch of an epoch, and the optimizer steps so far."""

    epoch: Count
    batch: Count
    global_step: Count
    clips: Count  # seen in this epoch
    seconds: Annotated[float, Meta(ge=0, le=1e15)]  # spent in this epoch

    @classmethod
    def at_epoch(cls, epoch: int, global_step: int) -> Self:
        """The beginning of an epoch."""
        return cls(epoch, 0, global_step, 0, 0.0)


@dataclass
class Trainer:
    """The network, its optimizer, and the point in the run that it has reached."""

    recipe: Recipe
    model: Model
    clips: Clips
    device: torch.device
    state: TrainState = field(default_factory=lambda: TrainState.at_epoch(0, 0))
    processes: Processes = SINGLE_PROCESS

    def __post_init__(self) -> None:
        settings, run = self.recipe.optimizer, self.recipe.run
        label_tables(self.recipe.augmentation, self.clips.classes)  # raises now for what would give clips wrong labels
        rate: float | Tensor = settings.learning_rate
        if self.device.type == "cuda":
            rate = torch.tensor(rate, device=self.device)  # a captured step reads it there
        tdm, body = settings.tdm_lr_scale, 1.0
        if self.recipe.model.pretrained is not None:  # its filters are learned already, and no longer at 0
            tdm, body = 1.0, settings.pretrained_lr_scale
        self.optimizer = make_optimizer(self.model, rate, settings.weight_decay, settings.decay_rule, tdm, body)
        self.average = AveragedWeights(self.model, run.ema_decay) if run.ema_decay else None
        self.sums = torch.zeros(len(SUMMED) + self.model.num_spiking_layers(), dtype=torch.float64)
        self._captured: CapturedStep | None = None
        self._compiled = False
        self._shared: SharedStep | None = None
        if self.processes.world > 1:
            self._shared = SharedStep(self.model, self.processes, sync_batch_norm=run.sync_batch_norm)
            if self.device.type == "cuda" and run.cuda_graph == "auto":
                log_once(f"run.cuda_graph: steps of {self.processes.world} processes are not captured as a graph")

    @property
    def batches(self) -> int:
        """Batches per epoch; each is split over all processes."""
        return batches_per_epoch(len(self.clips), self.recipe, self.processes.world)

    def step_settings(self) -> StepSettings:
        """The step settings of this epoch."""
        recipe, epoch = self.recipe, self.state.epoch
        loss = recipe.loss
        share = relaxed_weight(epoch, recipe.schedule.epochs) if loss.form == "release" else 0.0
        # Labels are smoothed before clips are mixed, so the loss has nothing left to smooth.
        weights = LossWeights(share, loss.spread, loss.consistency, loss.rates, label_smoothing=0.0)
        alpha, clip = sharpness(recipe, epoch), recipe.optimizer.clip_grad_norm
        passes = loss.num_passes if self.model.has_relaxed_pass else 1
        return StepSettings(alpha, weights, passes, uses_bfloat16(recipe, self.device), clip)

    def train_epoch(self, after_step: Callable[[], None]) -> Row:
        """Train to the end of the epoch and return its means. `after_step` may raise to stop between two steps."""
        settings = self.step_settings()
        self.model.train()
        for module in frozen_modules(self.model, self.recipe.model.freeze):
            module.eval()  # its norms keep their statistics, and use them
        if self._captured is not None:
            self._captured.record(settings)
        rate = self._rate(self.state.global_step)  # if no batch is left in the epoch
        for group, totals in self._groups():
            start = time.perf_counter()
            rate = self._rate(self.state.global_step + 1)
            self._set_rate(rate)
            terms = self._step(group, totals, settings)
            clips = sum(totals)
            self.sums += clips * torch.stack(summed_terms(terms)).double().cpu()
            state = self.state
            state.batch += len(group)
            state.global_step += 1
            state.clips += clips
            state.seconds += time.perf_counter() - start
            if self.average is not None:
                self.average.update(state.global_step)
            after_step()
        return self._end_epoch(rate, settings)

    def _end_epoch(self, rate: float, settings: StepSettings) -> Row:
        state = self.state
        row: Row = {
            "epoch": state.epoch + 1,
            "lr": rate,
            "sharpness": settings.sharpness,
            "relaxed_share": settings.weights.relaxed_share if settings.passes == 2 else 0.0,
            **mean_columns((self.sums / state.clips).tolist()),
            **tdm_columns(self.model),
            "samples_per_second": state.clips / max(state.seconds, 1e-9),
            "memory_mib": peak_memory(self.device),
        }
        if settings.passes == 1:
            row["relaxed"] = row["consistency"] = None
        if not self.model.uses_sharpness:
            row["sharpness"] = None  # its surrogate is its own
        if not self.model.num_spiking_layers():
            row["rate"] = None
        self.state = TrainState.at_epoch(state.epoch + 1, state.global_step)
        self.sums.zero_()
        return row

    def _groups(self) -> Iterator[tuple[list[Batch], list[int]]]:
        """The augmented batches of every remaining step, and their number of clips over all processes."""
        recipe, state = self.recipe, self.state
        rank, world, schedule = self.processes.rank, self.processes.world, recipe.schedule
        batches = TrainBatches(
            self.clips, schedule.batch_size, recipe.run.seed, state.epoch, self.device, rank, world, state.batch,
            state.epoch < schedule.first_epochs,
        )  # fmt: skip
        group: list[Batch] = []
        totals: list[int] = []
        for index, x, y, total in batches:
            group.append(self._augmented(x, y, index * world + rank))
            totals.append(total)
            if len(group) == schedule.grad_accum_steps or index == self.batches - 1:
                yield group, totals
                group, totals = [], []

    def _augmented(self, x: Tensor, y: Tensor, index: int) -> Batch:
        settings, num_classes = self.recipe.augmentation, self.model.config.num_classes
        if not len(x):  # possible in an epoch's last batch
            return x, x.new_zeros(0, num_classes)
        generator = batch_generator(self.recipe.run.seed, self.state.epoch, index)
        x, y = augment_labeled(x, y, settings, generator, self.clips.classes)
        return mix(x, y, settings, generator, num_classes)

    def _step(self, group: list[Batch], totals: list[int], settings: StepSettings) -> LossTerms:
        state, recipe = self.state, self.recipe
        full = len(group) == recipe.schedule.grad_accum_steps
        full = full and all(len(x) == recipe.schedule.batch_size for x, _ in group)
        capture = self._shared is None and self.device.type == "cuda" and recipe.run.cuda_graph == "auto" and full
        if capture and self._captured is None:
            self._captured = CapturedStep(self.model, self.optimizer, group, settings)
        elif self.device.type == "cuda" and self._shared is None and not self._compiled:
            compile_step(self.model, self.optimizer, group, settings)
        self._compiled = True
        words = (STEP_SEED, recipe.run.seed, state.epoch, state.batch)  # after capturing, which also draws numbers
        torch.manual_seed(seed_of(*words) if self._shared is None else seed_of(*words, self.processes.rank))
        if self._shared is not None:
            terms = self._shared(self.optimizer, group, totals, settings)
        elif capture and self._captured is not None:
            terms = self._captured(*group)
        else:
            terms = accumulated_step(self.model, self.optimizer, group, settings)
        if not math.isfinite(float(terms.loss)) or not math.isfinite(float(terms.norm)):  # type: ignore[arg-type]
            raise self._not_finite(float(terms.loss), group, settings)
        return terms

    def _not_finite(self, loss: float, group: list[Batch], settings: StepSettings) -> NotFiniteError:
        seen = [batch for batch in group if len(batch[0])]
        bad = [batch for batch in seen if not torch.isfinite(batch[0]).all()]  # first, where an input is the cause
        source = find_nonfinite(self.model, *(bad or seen)[0], settings) if seen else "another process's batch"
        return NotFiniteError(
            f"{source}: expected finite numbers in epoch {self.state.epoch + 1}, batch {self.state.batch + 1}, got "
            f"others (the loss is {loss:g}); lower optimizer.learning_rate, or check the data",
            field=source,
        )

    def _rate(self, global_step: int) -> float:
        steps = steps_per_epoch(len(self.clips), self.recipe, self.processes.world)
        return learning_rate(self.recipe, self.state.epoch, steps, global_step)

    def _set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            scaled = rate * group.get("lr_scale", 1.0)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(scaled)
            else:
                group["lr"] = scaled

    def close(self) -> None:
        """Release resources shared by processes; no step may follow."""
        if self._shared is not None:
            self._shared.close()

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that the next step depends on, by name; with `state` they form a checkpoint."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for index, parameter in enumerate(self._parameters()):
            for name, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{index}.{name}"] = value
        if self.average is not None:
            tensors |= {f"average.{name}": value for name, value in self.average.tensors().items()}
        return {**tensors, "sums": self.sums}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], state: TrainState) -> None:
        """Restore a checkpoint in place."""
        for name, value in self.model.state_dict().items():
            value.copy_(tensors[f"model.{name}"])
        for index, parameter in enumerate(self._parameters()):
            prefix = f"optimizer.{index}."
            found = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            self.optimizer.state[parameter] = {name: value.to(self.device) for name, value in found.items()}
        if self.average is not None:
            for name, value in self.average.tensors().items():
                value.copy_(tensors[f"average.{name}"])
        self.sums.copy_(tensors["sums"])
        self.state = state

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def uses_bfloat16(recipe: Recipe, device: torch.device) -> bool:
    """Whether products are computed in bfloat16."""
    return recipe.run.precision == "bfloat16" or (recipe.run.precision == "auto" and device.type == "cuda")


def seed_of(*words: object) -> int:
    """A seed derived from these words and numbers."""
    digest = hashlib.blake2b(" ".join(map(str, words)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def peak_memory(device: torch.device) -> float | None:
    """The peak memory so far, in MiB: of the device, or of this process."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**20
    try:
        import resource
    except ImportError:
        log_once("memory_mib: this system does not report how much memory was used")
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
