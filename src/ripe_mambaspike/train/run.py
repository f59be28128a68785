"""A whole run: train, pick by validation, read the test part once, and write down what was found.

The folder of a run is described in docs/training.md. What is saved as `best` is what was evaluated, statistics and all:
reloaded it gives the same number.
"""

import json
import logging
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ripe_mambaspike.data.clip_cache import workers_explained
from ripe_mambaspike.data.clips import Clips, TrainBatches, TrainingData, open_data
from ripe_mambaspike.errors import ConfigError, DataError, RipeError, WeightsError
from ripe_mambaspike.files import atomic_folder, atomic_write, commit
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.evaluate import Evaluation
from ripe_mambaspike.models.labels import LAST, Labels
from ripe_mambaspike.models.pretrained import from_pretrained, save_pretrained
from ripe_mambaspike.nn.calibrate import recalibrate
from ripe_mambaspike.nn.evaluation import choose_device
from ripe_mambaspike.train.chance import chance_warning, first_check, result_warnings
from ripe_mambaspike.train.checkpoint import Checkpoint, last_checkpoint, save_checkpoint
from ripe_mambaspike.train.checkpoint_checks import check_checkpoint, largest_checkpoint
from ripe_mambaspike.train.distributed import ALONE, Processes, evaluate_together, shared_batch
from ripe_mambaspike.train.history import Board, Row, write_log
from ripe_mambaspike.train.network import make_network, parameters
from ripe_mambaspike.train.recipe import RESUMABLE_FIELDS, Recipe
from ripe_mambaspike.train.recipes import difference, load_recipe, save_recipe
from ripe_mambaspike.train.run_folder import ended_result, in_use
from ripe_mambaspike.train.sizes import describe_grid, settled_grid, with_sizes_of
from ripe_mambaspike.train.threads import resume_threads, run_threads
from ripe_mambaspike.train.trainer import Trainer

LOGGER = logging.getLogger("ripe_mambaspike")
RECIPE, LOG, RESULT, BEST, CHECKPOINTS = "recipe.yaml", "log.csv", "result.json", "best", "checkpoints"
PICKED = {"validation": "val", "paper": "test"}
UNFINISHED_BATCHES = 10  # that the statistics of a stopped run's network are taken from at most; someone waits


class Callback(Protocol):
    """Who is told how a run goes."""

    def on_train_begin(self, recipe: Recipe, data: dict[str, Any], trainer: Trainer) -> None: ...
    def on_step_end(self, trainer: Trainer) -> None: ...
    def on_epoch_end(self, row: Row, best: dict[str, Any] | None) -> None: ...
    def on_message(self, line: str) -> None: ...


class Stop(Exception):  # noqa: N818
    """Someone asked for the run to end; what was reached is saved first."""


@dataclass
class Run:
    """A run under way in its folder."""

    recipe: Recipe
    folder: Path
    callback: Callback
    asked_to_stop: Any = lambda: False  # looked at after every move
    rows: list[Row] = field(default_factory=list)
    best: dict[str, Any] | None = None
    seconds: float = 0.0
    processes: Processes = ALONE

    def __post_init__(self) -> None:
        self.device = choose_device(self.recipe.run.device, "run.device")
        self.data: TrainingData = open_data(self.recipe)
        self.recipe = replace(self.recipe, data=self.data.settings)  # with the sizes that were left to the data
        self.recipe = with_store(self.recipe, self.data.store.key)
        model = make_network(self.recipe, self.data.classes).to(self.device)
        self.trainer = Trainer(self.recipe, model, self.data.train, self.device, processes=self.processes)
        self._began = time.monotonic()
        self._saved = time.monotonic()

    def resume(self) -> bool:
        """Go on from the last checkpoint, where there is one."""
        store = self.data.store.folder.name
        found = last_checkpoint(
            self.folder / CHECKPOINTS,
            lambda one: check_checkpoint(one, self.trainer, store),
            largest_checkpoint(self.trainer),
        )
        if found is None:
            return False
        document = found.document
        world = document.get("processes", 1)
        if world != self.processes.world:  # a place in an epoch, and the batches after it, would mean something else
            raise ConfigError(
                f"{self.folder} was begun on {world} process{'es' * (world > 1)} and is to go on with "
                f"{self.processes.world}; the same number is wanted"
            )
        here = self._stores()
        begun_on = [document["store"], *document.get("extra_stores", here[1:])]
        if begun_on != here:
            raise DataError(
                f"{self.folder}: store: expected {', '.join(map(str, begun_on))}, which the run was begun on, got "
                f"{', '.join(here)}; prepare the set again as it was then",
                field="store",
                path=self.folder,
            )
        resume_threads(document.get("threads"), self.callback.on_message)
        self.trainer.restore(found)
        self.rows, self.best, self.seconds = document["rows"], document["best"], document["seconds"]
        return True

    def train(self) -> dict[str, Any]:
        """To the end; what is reported."""
        epochs = self.recipe.schedule.epochs
        first = self.processes.is_first
        if first:
            save_recipe(self.recipe, self.folder / RECIPE)
        self.callback.on_train_begin(self.recipe, self.data.describe(), self.trainer)
        for sentence in self.data.other_sensors if first else ():
            self.callback.on_message(f"warning: {sentence}")
        board = Board(self.folder, self.trainer.place.epoch + 1) if first else None
        try:
            while self.trainer.place.epoch < epochs:
                with workers_explained():
                    row = self.trainer.epoch(self._after_move)
                    if self._validates(int(row["epoch"] or 0)):
                        row |= self._validate(int(row["epoch"] or 0))
                row["seconds"] = self._spent()
                self.rows.append(row)
                self.save()
                if board is not None:
                    write_log(self.folder / LOG, self.rows)
                    board.write(row)
                self.callback.on_epoch_end(row, self.best)
                self._warn_at_chance(row)
        except Stop:  # raised between two moves, so what is saved is whole
            self.save()
            self._keep_unfinished()
            self.processes.wait()  # one that ends early may have the others killed
            raise
        except RipeError:
            if self.processes.world == 1:  # of several, others may not have come here
                self._keep_unfinished()
            raise
        finally:
            if board is not None:
                board.close()
        if first:
            write_log(self.folder / LOG, self.rows)  # a run killed behind its last checkpoint has not
        return self._report()

    def _warn_at_chance(self, row: Row) -> None:
        if row["epoch"] == first_check(self.recipe, len(self.data.train), self.processes.world) and (
            said := chance_warning(self.recipe, self.data, row)
        ):
            self.callback.on_message(f"warning: {said}")

    def _validates(self, epoch: int) -> bool:
        if epoch == self.recipe.schedule.epochs:
            return True
        picks = self.recipe.run.protocol == "paper" or self.data.val is not None
        return picks and epoch % self.recipe.run.validate_every == 0

    def _validate(self, epoch: int) -> Row:
        """Statistics taken anew, the part that picks evaluated, the network saved where it is the best so far."""
        model, protocol = self.trainer.model, self.recipe.run.protocol
        average = self.trainer.average
        part = self.data.test if protocol == "paper" else self.data.val
        with average.in_place() if average is not None else nullcontext():
            recalibrate(model, self._clean(), self.device, None)
            found = None if part is None else self._evaluate(model, part)
            score: tuple[float, float] = (epoch, 0.0)  # without such a part the last epoch, the only one to come here
            if found is not None:
                score = (found.top1, -found.loss if math.isfinite(found.loss) else -math.inf)
            if self.best is None or score > tuple(self.best["score"]):
                self._save_network(BEST, epoch)
                self.best = {"epoch": epoch, "score": list(score)}
        return {} if found is None else {"val_loss": found.loss, "val_top1": found.top1}

    def _save_network(self, name: str, epoch: int) -> None:
        """The network as it is, with its labels: the folder of that name holds all of it or what it held before."""
        if not self.processes.is_first:
            return
        place = self.folder / name
        try:
            with atomic_folder(place) as folder:
                self.trainer.model.labels = self._labels(epoch)
                save_pretrained(self.trainer.model, folder)
        except OSError as error:
            raise WeightsError(
                f"{place} cannot be written ({error.strerror or error}); a disk with room is wanted", path=place
            ) from error

    def _keep_unfinished(self) -> None:
        """Leave a network that can be used where a run stops before it has picked one; a failure is told, no more.

        It comes after the checkpoint, and nothing of it goes into the run that goes on.
        """
        model, average, place = self.trainer.model, self.trainer.average, self.trainer.place
        if self.best is not None or not place.moves:
            return
        try:
            with average.in_place() if average is not None else nullcontext():
                recalibrate(model, self._clean(UNFINISHED_BATCHES))
                if all(bool(torch.isfinite(value).all()) for value in model.state_dict().values()):
                    self._save_network(LAST, place.epoch)
        except (RipeError, OSError, RuntimeError) as error:
            LOGGER.warning(f"the network reached so far was not saved ({error}); the last checkpoint stands")

    def _clean(self, most: int | None = None) -> Iterator[Tensor]:
        """Training clips as they are, always the same ones.

        Processes that share their statistics in training share these batches too; others all have the same ones. So
        their statistics are equal. Run each batch before the next one is asked for.
        """
        run = self.recipe.run
        shared = self.processes if run.sync_batch_norm else ALONE
        rank, world = shared.rank, shared.world
        length = self.recipe.schedule.batch_size
        batches = TrainBatches(self.data.train, length, run.seed, 0, self.device, rank, world)
        for _, x, _, total in islice(
            batches, run.recalibrate_batches if most is None else min(most, run.recalibrate_batches)
        ):
            with shared_batch(x, total, world > 1) as clips:
                yield clips

    def _evaluate(self, model: Model, part: Clips) -> Evaluation:
        return evaluate_together(model, part, self.device, len(self.data.classes), self.processes)

    def _labels(self, epoch: int) -> Labels:
        data = self.recipe.data
        return Labels(
            classes=self.data.classes, set=data.dataset, cut=self.data.cut, steps=data.time_steps,
            grid=settled_grid(data), by=data.by, binary=data.binary, epoch=epoch, protocol=self.recipe.run.protocol,
            store=self.data.store.folder.name, sensor_size=self.data.store.whole_size, crop=self.data.store.crop,
            duration_us=self.data.duration_us,
        )  # fmt: skip

    def _report(self) -> dict[str, Any]:
        """The picked network, reloaded, on the test part: read here for the first time, and once."""
        self.processes.wait()  # for the first one, which writes the network
        model = from_pretrained(self.folder / BEST).to(self.device)
        found = self._evaluate(model, self.data.test)
        protocol = self.recipe.run.protocol
        picked = PICKED[protocol] if protocol == "paper" or self.data.val is not None else "last epoch"
        result = {
            "format": "ripe-result",
            "version": 1,
            "name": self.recipe.name,
            "protocol": protocol,
            "picked_on": picked,
            "epoch": (self.best or {})["epoch"],
            "set": self.recipe.data.dataset,
            "cut": self.data.cut,
            "store": self.data.store.key,
            "split": "test",
            **found.to_dict(self.data.classes),
            "seed": self.recipe.run.seed,
            "folds": self.recipe.data.folds or None,
            "fold": self.recipe.data.fold if self.recipe.data.folds else None,
            "parameters": parameters(model),
            "seconds": self._spent(),
            "threads": torch.get_num_threads(),
            "commit": commit(),
            "warnings": result_warnings(self.recipe, self.data, self.rows, found.top1),
        }
        if self.processes.is_first:
            write_json(self.folder / RESULT, result)
            shutil.rmtree(self.folder / LAST, ignore_errors=True)  # what a stop had left
        return result

    def _after_move(self) -> None:
        self.callback.on_step_end(self.trainer)
        if self.processes.any(self.asked_to_stop()):
            raise Stop
        if time.monotonic() - self._saved > 60 * self.recipe.run.checkpoint_minutes:
            self.save()

    def save(self) -> None:
        """A checkpoint of where the run is."""
        if not self.processes.is_first:
            return
        state = self.trainer.state()
        place = self.trainer.place
        document = {**state.document, "rows": self.rows, "best": self.best, "seconds": self._spent()}
        store, *extra = self._stores()
        document |= {"processes": self.processes.world, "store": store, "extra_stores": extra}
        document["threads"] = torch.get_num_threads()
        save_checkpoint(self.folder / CHECKPOINTS, (place.moves, place.epoch), Checkpoint(state.tensors, document))
        self._saved = time.monotonic()

    def _stores(self) -> list[str]:
        """The keys of all that is learned from."""
        return [self.data.store.key, *(extra.events.store.key for extra in self.data.extra)]

    def _spent(self) -> float:
        """Seconds since the run began, without those it was stopped."""
        return self.seconds + time.monotonic() - self._began


def train_recipe(
    recipe: Recipe,
    folder: Path,
    callback: Callback,
    *,
    resume: bool = False,
    asked_to_stop: Any = lambda: False,
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """Train by the recipe in a folder; the result, also of a run that had ended before. One run a folder at a time."""
    with in_use(folder, processes), run_threads(recipe.run.threads):
        return _run_recipe(recipe, folder, callback, resume, asked_to_stop, processes)


def _run_recipe(
    recipe: Recipe, folder: Path, callback: Callback, resume: bool, asked_to_stop: Any, processes: Processes
) -> dict[str, Any]:
    begun = (folder / RECIPE).exists() or (folder / CHECKPOINTS).exists()
    if begun and not resume:
        raise DataError(f"{folder} holds a run already; --resume auto to go on with it, or another --out, is wanted")
    if begun and (folder / RECIPE).exists():
        saved = load_recipe(folder / RECIPE)
        recipe = with_sizes_of(recipe, saved)
        check_same(recipe, saved, folder)
        if (result := ended_result(folder)) is not None:
            callback.on_message(f"{folder} had ended; its result stands")
            return result
    recipe = with_store(recipe, recipe.data.store or store_begun_on(folder))
    processes.wait()  # all have looked at the folder before one writes there
    run = Run(recipe, folder, callback, asked_to_stop, processes=processes)
    if recipe.data.grid is None:
        callback.on_message(describe_grid(run.recipe.data, run.data.store.sensor_size))
    try:
        if resume and run.resume():
            place = run.trainer.place
            callback.on_message(f"going on from epoch {place.epoch + 1}, batch {place.batch + 1}")
        processes.wait()  # all have read the checkpoint before another is written
        return run.train()
    finally:
        run.trainer.close()


def with_store(recipe: Recipe, key: str | None) -> Recipe:
    """The recipe on this preparation of its set."""
    return replace(recipe, data=replace(recipe.data, store=key))


def store_begun_on(folder: Path) -> str | None:
    """The key of the store that the run in a folder was begun on, as its recipe or its checkpoint says."""
    saved = load_recipe(folder / RECIPE).data.store if (folder / RECIPE).exists() else None
    if saved is not None:
        return saved
    found = last_checkpoint(folder / CHECKPOINTS)  # of a run begun before recipes kept the key
    key = None if found is None else found.document.get("store")
    return key if isinstance(key, str) else None


def check_same(given: Recipe, saved: Recipe, folder: Path) -> None:
    """Refuse to go on with another recipe."""
    if None in (given.data.store, saved.data.store):  # the one that the run was begun on is then meant
        given, saved = with_store(given, None), with_store(saved, None)
    differing = [name for name in difference(given, saved) if name not in RESUMABLE_FIELDS]
    if differing:
        raise ConfigError(
            f"{folder} was begun with another recipe ({', '.join(differing[:3])} differ{'s' * (len(differing) == 1)}); "
            "the same one, or another --out, is wanted"
        )


def write_json(path: Path, document: dict[str, Any]) -> None:
    try:
        with atomic_write(path) as file:
            file.write((json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror or error}); a disk with room is wanted") from error
