"""A training run in its folder: train, select the network by validation, test it once, and write the result.

The folder of a run is described in docs/training.md. The network saved in `best/` is the one that was evaluated,
including its statistics: reloaded, it gives the same accuracy.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.data.clip_cache import explain_lost_workers
from ripe_mambaspike.data.clips import Clips, TrainBatches
from ripe_mambaspike.data.training_data import TrainingData, open_data
from ripe_mambaspike.errors import ConfigError, DataError, RipeError, WeightsError
from ripe_mambaspike.folders import atomic_folder
from ripe_mambaspike.models.accuracy import Evaluation, TrainingResult
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.labels import BEST, LAST
from ripe_mambaspike.models.pretrained import from_pretrained, save_pretrained
from ripe_mambaspike.nn.calibrate import has_running_statistics, recalibrate
from ripe_mambaspike.nn.eval_mode import choose_device
from ripe_mambaspike.train.callback import Callback, SilentCallback, TrainingStopped
from ripe_mambaspike.train.chance import chance_warning, first_check_epoch
from ripe_mambaspike.train.checkpoint import (
    BestEpoch,
    Checkpoint,
    CheckpointDocument,
    last_checkpoint,
    restart_hint,
    save_checkpoint,
)
from ripe_mambaspike.train.checkpoint_checks import check_checkpoint, largest_checkpoint
from ripe_mambaspike.train.distributed import SINGLE_PROCESS, Processes, evaluate_distributed, shared_batch
from ripe_mambaspike.train.fit import fit_recipe, open_fields
from ripe_mambaspike.train.history import Row, TensorBoardLog, write_log
from ripe_mambaspike.train.network import create_network, make_result, network_labels, unused_settings
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.recipes import save_recipe
from ripe_mambaspike.train.run_folder import (
    CHECKPOINTS,
    LOG_FILE,
    RECIPE_FILE,
    with_store,
    write_result,
)
from ripe_mambaspike.train.start import describe_start, frozen_modules, load_start, with_start
from ripe_mambaspike.train.threads import resume_threads
from ripe_mambaspike.train.trainer import Trainer

LOG = logging.getLogger("ripe_mambaspike")
EXPAND_BATCH, EXPAND_BATCHES = 16, 8  # clips of a batch, and batches, whose statistics an expanded start gets
UNFINISHED_BATCHES = 10  # for the batch norms of a network that is not evaluated; few, to save time


@dataclass
class TrainingRun:
    """A run in progress in its folder."""

    recipe: Recipe
    folder: Path
    callback: Callback = field(default_factory=SilentCallback)
    stop_requested: Callable[[], bool] = lambda: False  # checked after every step
    rows: list[Row] = field(default_factory=list)
    best: BestEpoch | None = None
    seconds: float = 0.0
    processes: Processes = SINGLE_PROCESS
    save_seconds: float = 0.0  # between checkpoints at the ends of epochs that are not validated

    def __post_init__(self) -> None:
        self.device = choose_device(self.recipe.run.device, "run.device")
        self.data: TrainingData = open_data(self.recipe.data)
        self.recipe = replace(self.recipe, data=self.data.settings)  # with the grid, where it was left to the data
        self.recipe = with_store(self.recipe, self.data.store.key)
        if open_fields(self.recipe):
            self.recipe = fit_recipe(self.recipe, self.data)
            self.data = open_data(self.recipe.data)
        start = load_start(self.recipe, self.data.classes)
        self.recipe = with_start(self.recipe, start)
        self.started_from = None if start is None else start.facts
        model = create_network(self.recipe, self.data.classes, start, self._first_clips()).to(self.device)
        self.trainer = Trainer(self.recipe, model, self.data.train, self.device, processes=self.processes)
        self._start = self._saved = time.monotonic()

    def _first_clips(self) -> Iterator[Tensor]:
        """Training clips without augmentation, always the same ones and in every process, where a start needs them."""
        batches = TrainBatches(self.data.train, EXPAND_BATCH, self.recipe.run.seed, 0, torch.device("cpu"))
        return (x for _, x, _, _ in islice(batches, EXPAND_BATCHES))

    def resume(self) -> bool:
        """Continue from the last checkpoint; False if there is none."""
        store = self.data.store.key
        found = last_checkpoint(
            self.folder / CHECKPOINTS,
            lambda one: check_checkpoint(one, self.trainer, store),
            largest_checkpoint(self.trainer),
        )
        if found is None:
            return False
        document = found.document
        if document.processes != self.processes.world:  # the position in an epoch depends on it
            expected = f"{document.processes}, as the run began"
            raise ConfigError.expected("processes", expected, self.processes.world, path=self.folder)
        begun, here = [document.store, *document.extra_stores], self._stores()
        if begun != here:
            expected, hint = f"{', '.join(begun)}, which the run began on", "prepare the dataset as it was then"
            raise DataError.expected("store", expected, ", ".join(here), path=self.folder, hint=hint)
        resume_threads(document.threads, self.callback.on_message)
        self.trainer.restore(found.tensors, document.state)
        self.rows, self.best, self.seconds = document.rows, document.best, document.seconds
        if self.trainer.state.epoch < self.recipe.schedule.epochs and self._best_is_lost():
            LOG.warning(f"{self.folder / BEST}: the network selected so far is gone; the run needs a better one to end")
        return True

    def describe_position(self) -> str:
        """Where a resumed run goes on."""
        state, epochs = self.trainer.state, self.recipe.schedule.epochs
        if state.epoch == epochs:
            return f"resuming after epoch {epochs}, the last one: testing"
        if state.batch == self.trainer.batches:
            return f"resuming at the end of epoch {state.epoch + 1}"
        return f"resuming at epoch {state.epoch + 1}, batch {state.batch + 1}"

    def _best_is_lost(self) -> bool:
        return self.best is not None and not (self.folder / BEST).exists()

    def run(self) -> TrainingResult:
        """Train to the last epoch and test."""
        epochs = self.recipe.schedule.epochs
        first = self.processes.is_first
        if first:
            save_recipe(self.recipe, self.folder / RECIPE_FILE)
        self.callback.on_train_begin(self.recipe, self.data.describe(), self.trainer)
        if first and self.started_from is not None:
            self.callback.on_message(describe_start(self.started_from, len(self.data.classes)))
        for message in unused_settings(self.recipe, self.trainer.model) if first else ():
            self.callback.on_message(message)
        for warning in self.data.other_sensors if first else ():
            self.callback.on_message(f"warning: {warning}")
        board = TensorBoardLog(self.folder, self.trainer.state.epoch + 1) if first else None
        try:
            while self.trainer.state.epoch < epochs:
                self._run_epoch(board)
        except TrainingStopped:  # raised between two steps, so the saved state is consistent
            self.save()
            self._save_unfinished()
            self.processes.wait()  # torchrun may kill the others if one exits early
            raise
        except RipeError:
            if self.processes.world == 1:  # with several, others may be gone
                self._save_unfinished()
            raise
        finally:
            if board is not None:
                board.close()
        if first:
            write_log(self.folder / LOG_FILE, self.rows)  # missing if a run was killed after its last checkpoint
        return self._test()

    def _run_epoch(self, board: TensorBoardLog | None) -> None:
        with explain_lost_workers():
            row = self.trainer.train_epoch(self._after_step)
            epoch = self.trainer.state.epoch
            validates = self._validates(epoch)
            saves = validates or self.processes.any(time.monotonic() - self._saved >= self.save_seconds)
            if validates:
                row |= self._validate(epoch)
            elif saves:
                with self._averaged():
                    self._recalibrate(UNFINISHED_BATCHES)
                    self._save_network(LAST, epoch)
        row["seconds"] = self._elapsed()
        self.rows.append(row)
        if saves:
            self.save()
        if board is not None:
            write_log(self.folder / LOG_FILE, self.rows)
            board.write(row)
        self.callback.on_epoch_end(row, self.best)
        ended = epoch == self.recipe.schedule.epochs  # then the result has the warning
        checked = epoch == first_check_epoch(self.recipe, len(self.data.train), self.processes.world)
        if checked and not ended and (warning := chance_warning(self.recipe, self.data, row)):
            self.callback.on_message(f"warning: {warning}")

    def _validates(self, epoch: int) -> bool:
        if epoch == self.recipe.schedule.epochs:
            return True
        selects = self.recipe.run.protocol == "paper" or self.data.val is not None
        return selects and epoch % self.recipe.run.validate_every == 0

    def _validate(self, epoch: int) -> Row:
        """Re-estimate batch norms, evaluate the split that selects, and save the network if it is the best so far."""
        part = self.data.test if self.recipe.run.protocol == "paper" else self.data.val
        with self._averaged():
            self._recalibrate()
            found = None if part is None else self._evaluate(self.trainer.model, part)
            score: tuple[float, float] = (epoch, 0.0)  # without such a split, only the last epoch is evaluated
            if found is not None:
                score = (found.top1, -found.loss if math.isfinite(found.loss) else -math.inf)
            if self.best is None or score > self.best.score:
                self._save_network(BEST, epoch)
                self.best = BestEpoch(epoch=epoch, score=score)
            self._save_network(LAST, epoch)
        return {} if found is None else {"val_loss": found.loss, "val_top1": found.top1}

    def _averaged(self) -> Any:
        return self.trainer.average.swapped_in() if self.trainer.average is not None else nullcontext()

    def _save_network(self, name: str, epoch: int) -> None:
        """Save the network with its labels, atomically."""
        if not self.processes.is_first:
            return
        path = self.folder / name
        try:
            with atomic_folder(path) as folder:
                self.trainer.model.labels = network_labels(self.recipe, self.data, epoch)
                save_pretrained(self.trainer.model, folder)
        except OSError as error:
            raise WeightsError.expected("network", "a folder that can be written", error, path=path) from error

    def _save_unfinished(self) -> None:
        """Save the network of a run that stops within an epoch; a failure is only logged.

        Called after the checkpoint was written; it does not affect the resumed run.
        """
        model, state = self.trainer.model, self.trainer.state
        if not state.batch:  # nothing since the last epoch, whose network is saved
            return
        try:
            with self._averaged():
                self._recalibrate(UNFINISHED_BATCHES)
                if all(bool(torch.isfinite(value).all()) for value in model.state_dict().values()):
                    self._save_network(LAST, state.epoch)
        except (RipeError, OSError, RuntimeError) as error:
            LOG.warning(f"the network reached so far was not saved ({error}); the last checkpoint is valid")

    def _recalibrate(self, most: int | None = None) -> None:
        """Re-estimate the batch norms on clean batches; a network without any has nothing to re-estimate."""
        frozen = frozen_modules(self.trainer.model, self.recipe.model.freeze)
        if has_running_statistics(self.trainer.model, frozen):
            recalibrate(self.trainer.model, self._clean_batches(most), self.device, None, frozen=frozen)

    def _clean_batches(self, most: int | None = None) -> Iterator[Tensor]:
        """Batches of training clips without augmentation, always the same ones.

        Processes that share statistics in training split these batches; others all use the same ones. So statistics
        are equal. Run each batch before requesting the next one.
        """
        run = self.recipe.run
        shared = self.processes if run.sync_batch_norm else SINGLE_PROCESS
        rank, world = shared.rank, shared.world
        length, count = self.recipe.schedule.batch_size, run.recalibrate_batches
        batches = TrainBatches(self.data.train, length, run.seed, 0, self.device, rank, world)
        for _, x, _, total in islice(batches, count if most is None else min(most, count)):
            with shared_batch(x, total, world > 1) as clips:
                yield clips

    def _evaluate(self, model: Model, part: Clips) -> Evaluation:
        return evaluate_distributed(model, part, self.device, len(self.data.classes), self.processes)

    def _test(self) -> TrainingResult:
        """The selected network, reloaded, on the test split: read here for the first time, and once."""
        self.processes.wait()  # for the first one, which writes the network
        if self._best_is_lost():
            hint = restart_hint(self.folder / CHECKPOINTS)
            raise DataError.expected("network", "the selected one", "none", path=self.folder / BEST, hint=hint)
        model = from_pretrained(self.folder / BEST).to(self.device)
        found = self._evaluate(model, self.data.test) if self.data.is_tested else None
        epoch = self.best.epoch if self.best else self.recipe.schedule.epochs
        result = make_result(
            self.recipe, self.data, found, model, epoch, self.rows, self._elapsed(), self.started_from
        )  # fmt: skip
        if self.processes.is_first:
            write_result(self.folder, result)
        return result

    def _after_step(self) -> None:
        self.callback.on_step_end(self.trainer)
        if self.processes.any(self.stop_requested()):
            raise TrainingStopped
        if time.monotonic() - self._saved > 60 * self.recipe.run.checkpoint_minutes:
            self.save()

    def save(self) -> None:
        """Write a checkpoint; the first process does."""
        if self.processes.is_first:
            store, *extra = self._stores()
            document = CheckpointDocument(
                state=replace(self.trainer.state), rows=self.rows, best=self.best, seconds=self._elapsed(),
                processes=self.processes.world, store=store, extra_stores=extra, threads=torch.get_num_threads(),
            )  # fmt: skip
            save_checkpoint(self.folder / CHECKPOINTS, Checkpoint(self.trainer.tensors(), document))
        self._saved = time.monotonic()

    def _stores(self) -> list[str]:
        """The keys of all datasets that are trained on."""
        return [self.data.store.key, *(extra.events.store.key for extra in self.data.extra)]

    def _elapsed(self) -> float:
        """Seconds of training, excluding the time the run was stopped."""
        return self.seconds + time.monotonic() - self._start
