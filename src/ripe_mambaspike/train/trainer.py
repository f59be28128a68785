"""One network learning: epochs of moves, from any place in one.

What a move does is a function of the recipe, the weights and the place (epoch and batch) alone: order, augmentation and
drop-path draw from generators made of those numbers. So no random state has to be kept, and a run that goes on from a
checkpoint takes the same moves as one that was never stopped.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ripe_mambaspike.data.augment.draws import batch_generator
from ripe_mambaspike.data.augment.settings import augment_labeled, label_tables, mix
from ripe_mambaspike.data.clips import Clips, TrainBatches
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.ops.backend import log_once
from ripe_mambaspike.train.average import AveragedWeights
from ripe_mambaspike.train.capture import CapturedStep
from ripe_mambaspike.train.checkpoint import Checkpoint
from ripe_mambaspike.train.distributed import ALONE, Processes, SharedStep
from ripe_mambaspike.train.history import LAYERS, SUMMED, Row, averages, filters, summed
from ripe_mambaspike.train.nonfinite import find_nonfinite
from ripe_mambaspike.train.objective import LossTerms, LossWeights, relaxed_weight
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.schedule import learning_rate, sharpness, steps_per_epoch
from ripe_mambaspike.train.step import Batch, StepSettings, accumulated_step, make_optimizer


class NotFiniteError(RipeError):
    """A loss or gradient that is no number; says where it came from."""


@dataclass
class TrainState:
    """Where in a run: the next batch of an epoch, and the moves taken so far."""

    epoch: int = 0
    batch: int = 0
    moves: int = 0
    clips: int = 0  # seen in this epoch
    seconds: float = 0.0  # spent in this epoch


@dataclass
class Trainer:
    """The network, what moves it, and the place it has reached."""

    recipe: Recipe
    model: RipeMambaSpike
    clips: Clips
    device: torch.device
    place: TrainState = field(default_factory=TrainState)
    processes: Processes = ALONE

    def __post_init__(self) -> None:
        settings, run = self.recipe.optimizer, self.recipe.run
        label_tables(self.recipe.augmentation, self.clips.classes)  # refuses now what would give clips wrong labels
        rate: float | Tensor = settings.learning_rate
        if self.device.type == "cuda":
            rate = torch.tensor(settings.learning_rate, device=self.device)  # a recorded step reads it there
        self.optimizer = make_optimizer(
            self.model, rate, settings.weight_decay, settings.decay_rule, settings.tdm_lr_scale
        )
        self.average = AveragedWeights(self.model, run.ema_decay) if run.ema_decay else None
        self.sums = torch.zeros(len(SUMMED) + LAYERS, dtype=torch.float64)
        self._step: CapturedStep | None = None
        self._shared: SharedStep | None = None
        if self.processes.world > 1:
            self._shared = SharedStep(self.model, self.processes, sync_batch_norm=run.sync_batch_norm)
            if self.device.type == "cuda" and run.cuda_graph == "auto":
                log_once(f"{self.processes.world} processes take their steps one operation at a time: none is recorded")

    @property
    def batches(self) -> int:
        """Of an epoch; each is shared by all processes."""
        return -(-len(self.clips) // (self.recipe.schedule.batch_size * self.processes.world))

    def settings(self) -> StepSettings:
        """How a step of this epoch is taken."""
        recipe, epoch = self.recipe, self.place.epoch
        loss = recipe.loss
        # Labels are smoothed before clips are mixed, so the loss has nothing left to smooth.
        share = relaxed_weight(epoch, recipe.schedule.epochs)
        weights = LossWeights(share, loss.spread, loss.consistency, loss.rates, label_smoothing=0.0)
        return StepSettings(
            sharpness(recipe, epoch),
            weights,
            loss.passes,
            autocast(recipe, self.device),
            recipe.optimizer.clip_grad_norm,
        )

    def epoch(self, after_move: Callable[[], None]) -> Row:
        """Train to the end of the epoch; its means. `after_move` may raise to stop: the place is then a whole one."""
        settings = self.settings()
        self.model.train()
        if self._step is not None:
            self._step.record(settings)
        rate = self._rate(self.place.moves)  # where nothing is left of the epoch
        for group, totals in self._groups():
            began = time.perf_counter()
            rate = self._rate(self.place.moves + 1)
            self._set_rate(rate)
            parts = self._move(group, totals, settings)
            clips = sum(totals)
            self.sums += clips * torch.stack(summed(parts)).double().cpu()
            place = self.place
            place.batch += len(group)
            place.moves += 1
            place.clips += clips
            place.seconds += time.perf_counter() - began
            if self.average is not None:
                self.average.follow(place.moves)
            after_move()
        return self._end(rate, settings)

    def _end(self, rate: float, settings: StepSettings) -> Row:
        place = self.place
        row: Row = {
            "epoch": place.epoch + 1,
            "lr": rate,
            "sharpness": settings.sharpness,
            "relaxed_share": settings.weights.relaxed_share if settings.passes == 2 else 0.0,
            **averages((self.sums / place.clips).tolist()),
            **filters(self.model),
            "samples_per_second": place.clips / max(place.seconds, 1e-9),
            "memory_mib": peak_memory(self.device),
        }
        if settings.passes == 1:
            row["relaxed"] = row["consistency"] = None
        self.place = TrainState(place.epoch + 1, 0, place.moves)
        self.sums.zero_()
        return row

    def _groups(self) -> Iterator[tuple[list[Batch], list[int]]]:
        """The batches of every move from the place on, augmented, and the clips that all processes have of each."""
        recipe, place = self.recipe, self.place
        rank, world = self.processes.rank, self.processes.world
        size = recipe.schedule.grad_accum_steps
        length, seed = recipe.schedule.batch_size, recipe.run.seed
        alone = place.epoch < recipe.schedule.first_epochs
        batches = TrainBatches(self.clips, length, seed, place.epoch, self.device, rank, world, place.batch, alone)
        group: list[Batch] = []
        totals: list[int] = []
        for index, x, y, total in batches:
            group.append(self._augmented(x, y, index * world + rank))
            totals.append(total)
            if len(group) == size or index == self.batches - 1:
                yield group, totals
                group, totals = [], []

    def _augmented(self, x: Tensor, y: Tensor, index: int) -> Batch:
        settings, classes = self.recipe.augmentation, self.model.config.num_classes
        if not len(x):  # what a process may have of an epoch's last batch
            return x, x.new_zeros(0, classes)
        draws = batch_generator(self.recipe.run.seed, self.place.epoch, index)
        x, y = augment_labeled(x, y, settings, draws, self.clips.classes)
        return mix(x, y, settings, draws, classes)

    def _move(self, group: list[Batch], totals: list[int], settings: StepSettings) -> LossTerms:
        place = self.place
        whole = all(len(x) == self.recipe.schedule.batch_size for x, _ in group)
        full = whole and len(group) == self.recipe.schedule.grad_accum_steps
        recorded = self._shared is None and self.device.type == "cuda" and self.recipe.run.cuda_graph == "auto" and full
        if recorded and self._step is None:
            self._step = CapturedStep(self.model, self.optimizer, group, settings)
        drawn = ("move", self.recipe.run.seed, place.epoch, place.batch)  # after recording, which draws as well
        torch.manual_seed(seed_of(*drawn) if self._shared is None else seed_of(*drawn, self.processes.rank))
        if self._shared is not None:
            parts = self._shared(self.optimizer, group, totals, settings)
        elif recorded and self._step is not None:
            parts = self._step(*group)
        else:
            parts = accumulated_step(self.model, self.optimizer, group, settings)
        if not math.isfinite(float(parts.loss)) or not math.isfinite(float(parts.norm)):  # type: ignore[arg-type]
            seen = [batch for batch in group if len(batch[0])]
            bad = [batch for batch in seen if not torch.isfinite(batch[0]).all()]  # first, where an input is to blame
            where = find_nonfinite(self.model, *(bad or seen)[0], settings) if seen else "another process's batch"
            raise NotFiniteError(
                f"the loss is {float(parts.loss):g} in epoch {place.epoch + 1}, batch {place.batch + 1}: {where} is "
                "the first that is not finite; a smaller optimizer.learning_rate or other data is wanted"
            )
        return parts

    @property
    def _moves(self) -> int:
        """Of an epoch."""
        return steps_per_epoch(len(self.clips), self.recipe, self.processes.world)

    def _rate(self, move: int) -> float:
        return learning_rate(self.recipe, self.place.epoch, self._moves, move)

    def _set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            here = rate * group.get("times", 1.0)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(here)
            else:
                group["lr"] = here

    def close(self) -> None:
        """No move follows; processes can part."""
        if self._shared is not None:
            self._shared.close()

    def state(self) -> Checkpoint:
        """Everything the next move depends on."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for index, parameter in enumerate(self._parameters()):
            for name, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{index}.{name}"] = value
        if self.average is not None:
            tensors |= {f"average.{name}": value for name, value in self.average.tensors().items()}
        tensors["sums"] = self.sums
        return Checkpoint(tensors, {"place": vars(self.place).copy()})

    @torch.no_grad()
    def restore(self, checkpoint: Checkpoint) -> None:
        """The inverse of `state`, in place."""
        tensors = checkpoint.tensors
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
        self.place = TrainState(**checkpoint.document["place"])

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def autocast(recipe: Recipe, device: torch.device) -> bool:
    """Whether products are computed in bfloat16."""
    return recipe.run.precision == "bfloat16" or (recipe.run.precision == "auto" and device.type == "cuda")


def seed_of(*words: object) -> int:
    """A seed made of these words and numbers alone."""
    digest = hashlib.blake2b(" ".join(map(str, words)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def peak_memory(device: torch.device) -> float | None:
    """MiB at the most so far: of the device, or of this process."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**20
    try:
        import resource
    except ImportError:
        log_once("this system does not tell how much memory was used")
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
