"""Checks that this run could have written a checkpoint: its numbers and every tensor.

On a ValueError the checkpoint before it is tried. These checks are for files that were edited by hand or come from
another run; damage is detected by the checksum.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.train.checkpoint import Checkpoint, CheckpointDocument
from ripe_mambaspike.train.schedule import steps_per_epoch
from ripe_mambaspike.train.trainer import Trainer, TrainState

ADAM_STATE = ("exp_avg", "exp_avg_sq", "step")
MAX_DOCUMENT_BYTES = 64 << 20


def largest_checkpoint(trainer: Trainer) -> int:
    """An upper bound for the bytes of this run's checkpoints."""
    network = sum(value.numel() * value.element_size() for value in trainer.model.state_dict().values())
    return MAX_DOCUMENT_BYTES + 4 * network + 16 * 1024 * len(trainer.model.state_dict())


def check_checkpoint(checkpoint: Checkpoint, trainer: Trainer, store: str) -> None:
    """Check everything; the position in an epoch only for the same clips and number of processes."""
    document = checkpoint.document
    _check_epochs(document, trainer.recipe.schedule.epochs)
    _check_tensors(checkpoint.tensors, trainer)
    if document.store == store and document.processes == trainer.processes.world:
        _check_state(document.state, trainer)


def _check_epochs(document: CheckpointDocument, epochs: int) -> None:
    done = document.state.epoch
    _expect("state.epoch", done, 0, epochs)
    _expect("rows", len(document.rows), done, done)
    for index, row in enumerate(document.rows):
        if row.get("epoch") != index + 1:
            raise _mismatch(f"rows[{index}].epoch", f"{index + 1}", row.get("epoch"))
    if document.best is not None:
        _expect("best.epoch", document.best.epoch, 1, done)


def _check_state(state: TrainState, trainer: Trainer) -> None:
    """Check that this run passes through the state with these clips."""
    schedule, clips, world = trainer.recipe.schedule, len(trainer.clips), trainer.processes.world
    _expect("state.batch", state.batch, 0, 0 if state.epoch == schedule.epochs else trainer.batches)
    steps = state.epoch * steps_per_epoch(clips, trainer.recipe, world) + -(-state.batch // schedule.grad_accum_steps)
    _expect("state.global_step", state.global_step, steps, steps)
    seen = min(clips, state.batch * schedule.batch_size * world)
    _expect("state.clips", state.clips, seen, seen)


def _check_tensors(tensors: Mapping[str, Tensor], trainer: Trainer) -> None:
    """Check that all tensors are present, of the right dtype and shape, and finite."""
    wanted = {name: value for name, value in trainer.tensors().items() if not name.startswith("optimizer.")}
    parameters = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    for index, parameter in enumerate(parameters):
        names = [f"optimizer.{index}.{name}" for name in ADAM_STATE]
        if any(name in tensors for name in names):  # parameters without a gradient have no optimizer state
            wanted |= dict(zip(names, (parameter, parameter, torch.zeros((), dtype=torch.float32)), strict=True))
    if differing := sorted(wanted.keys() ^ tensors.keys()):
        name = differing[0]
        raise _mismatch(name, *(("a tensor", "none") if name in wanted else ("none", "a tensor")))
    for name, value in wanted.items():
        found = tensors[name]
        if found.shape != value.shape or found.dtype != value.dtype:
            raise _mismatch(name, f"{tuple(value.shape)} {value.dtype}", f"{tuple(found.shape)} {found.dtype}")
        if found.is_floating_point() and not torch.isfinite(found).all():
            raise _mismatch(name, "finite numbers", "NaN or Inf")
        if name.endswith(("exp_avg_sq", ".step")) and (found < 0).any():
            raise _mismatch(name, "numbers of at least 0", "negative ones")


def _expect(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _mismatch(field, f"{least}" if least == most else f"an int from {least} to {most}", value)


def _mismatch(field: str, expected: str, got: object) -> InputError:
    return InputError.expected(field, expected, got)
