"""One run on several processes, as started by torchrun: each has its share of every batch.

The weights are always identical: gradients are averaged before a step, and everything that affects a decision (losses,
scores, a request to stop) is reduced over all processes first. Only rank 0 prints and writes. All need access to the
same folders. Only tensors are sent, never pickled objects.
"""

import gc
import inspect
import os
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ripe_mambaspike.data.clips import Clips, EvalBatches, share_of
from ripe_mambaspike.errors import ConfigError, RipeError
from ripe_mambaspike.models.accuracy import EVAL_BATCH, Evaluation, evaluate_batches
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.memory import explain_model_memory
from ripe_mambaspike.nn.sync_stats import sync_batch_stats
from ripe_mambaspike.train.objective import LossTerms
from ripe_mambaspike.train.step import Batch, StepSettings, compute_loss, update_weights, weighted_terms

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # scalars are always sent through gloo
PLACEHOLDERS = 2  # empty clips for a process without clips; two, since one value has no variance
LOST_MESSAGES = ("gloo", "NCCL", "TCPStore", "Connection closed by peer", "Connection reset by peer", "Broken pipe")


class ProcessLostError(RipeError):
    """Another process of the run has ended unexpectedly."""


@dataclass(frozen=True)
class Processes:
    """The rank of this process and the number of processes."""

    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints and writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, on the tensor's device."""
        total = values.detach().clone()
        if self.world > 1:
            dist.all_reduce(total)
        return total

    def max(self, value: int) -> int:
        """The maximum over all processes. All have to call it."""
        most = torch.tensor(value)
        if self.world > 1:
            dist.all_reduce(most, dist.ReduceOp.MAX)
        return int(most)

    def any(self, flag: bool) -> bool:
        """Whether it is true on any process. All have to call it."""
        return bool(self.max(int(flag)))

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.max(0)


SINGLE_PROCESS = Processes()


def processes_from_environment() -> Processes:
    """Read from torchrun's environment variables; a single process without them."""
    world = _variable("WORLD_SIZE", 1, least=1)
    if world == 1:
        return SINGLE_PROCESS
    rank = _variable("RANK", None)
    if rank >= world:
        raise ConfigError.expected("RANK", f"an int below WORLD_SIZE ({world})", rank)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise ConfigError.expected(name, "a value, as torchrun sets it", "none")
    return Processes(rank, world)


@contextmanager
def process_group(processes: Processes, device: str) -> Iterator[None]:
    """Inside, the processes can communicate, to compute on `cpu` or `cuda` (one device per process)."""
    if processes.world == 1:
        yield
        return
    if device == "cuda":
        index, there = _variable("LOCAL_RANK", None), torch.cuda.device_count()
        if index >= there:
            raise ConfigError.expected("LOCAL_RANK", f"an int below the number of CUDA devices ({there})", index)
        torch.cuda.set_device(index)
    try:
        dist.init_process_group(BACKENDS[device], rank=processes.rank, world_size=processes.world)
        yield
    except BaseException as error:
        # Tensors referenced by the error's frames would outlive the group: see `SharedStep.close`.
        for each in _chain(error):
            traceback.clear_frames(each.__traceback__)
        _leave(device, failed=True)
        if not _is_loss(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise ProcessLostError(
            f"process {processes.rank} lost connection to the others ({reason}); see the first one that failed"
        ) from error
    else:
        _leave(device)


def _leave(device: str, failed: bool = False) -> None:
    """Destroy the group; after an error without waiting for pending messages."""
    if not dist.is_initialized():
        return
    gc.collect()
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if failed and device == "cuda" and abort is not None:
        abort()
    else:
        dist.destroy_process_group()


def _is_loss(error: BaseException) -> bool:
    """Whether the error means that another process cannot be reached."""
    if isinstance(error, RipeError) or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, dist.DistError) or any(words in str(error) for words in LOST_MESSAGES)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _variable(name: str, default: int | None, least: int = 0) -> int:
    given = os.environ.get(name)
    if given is None and default is not None:
        return default
    if given is None or not given.isdecimal() or int(given) < least:
        raise ConfigError.expected(name, f"an int of at least {least}, as torchrun sets it", repr(given))
    return int(given)


class _Objective(nn.Module):
    """The network with its loss, as one module whose gradients are averaged."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, targets: Tensor, settings: StepSettings) -> LossTerms:
        return compute_loss(self.model, x, targets, settings)


@contextmanager
def shared_batch(x: Tensor, total: int, sync_batch_norm: bool = True) -> Iterator[Tensor]:
    """This process's clips x [B, ...], or placeholders if it has none of `total`; inside, norms share statistics."""
    counted = len(x) > 0
    x = x if counted else x.new_zeros(PLACEHOLDERS, *x.shape[1:])
    with sync_batch_stats(len(x), total, counted=counted) if sync_batch_norm else nullcontext():
        yield x


class SharedStep:
    """A step of all processes, equal to the step of a single process with all their clips."""

    def __init__(self, model: Model, processes: Processes, *, sync_batch_norm: bool) -> None:
        self.model, self.processes, self.sync_batch_norm = model, processes, sync_batch_norm
        # Gradients of 1×1 kernels are channels-last, which is the same memory order.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        # Running statistics are shared, or re-estimated before use, so they need no broadcast.
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        sending = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options: dict[str, Any] = {sending: False}
        self._objective: Any = DistributedDataParallel(_Objective(model), **options)

    def __call__(
        self, optimizer: Optimizer, batches: Sequence[Batch], totals: Sequence[int], settings: StepSettings
    ) -> LossTerms:
        """Take a step on this process's batches, which may be empty; `totals` counts clips over all processes.

        A process without clips runs placeholders, so that it joins all communication; they have no weight in the
        statistics or the loss.
        """
        optimizer.zero_grad(set_to_none=True)
        together = sum(totals)
        found, shares = [], []
        for index, ((x, targets), total) in enumerate(zip(batches, totals, strict=True)):
            share = len(x) / together
            if not len(x):
                targets = targets.new_zeros(PLACEHOLDERS, *targets.shape[1:])
            last = index == len(batches) - 1
            with (
                shared_batch(x, total, self.sync_batch_norm) as x,
                nullcontext() if last else self._objective.no_sync(),
                explain_model_memory(self.model, x, settings.passes, torch.bfloat16 if settings.autocast else None),
            ):
                terms = self._objective(x, targets, settings)
                (terms.loss * (share * self.processes.world)).backward()  # DDP averages over processes
            found.append(terms.detach())
            shares.append(share)
        return self._reduced(weighted_terms(found, shares))._replace(
            norm=update_weights(self.model, optimizer, settings.clip_grad_norm)
        )

    def close(self) -> None:
        """Delete the DDP wrapper while the group exists: as its last reference it could deadlock on a thread that needs
        the GIL."""
        self._objective = None

    def _reduced(self, terms: LossTerms) -> LossTerms:
        """The already weighted terms, summed over the processes."""
        there = [term for term in terms if term is not None]
        total = self.processes.sum(torch.cat([term.float().reshape(-1) for term in there]))
        values = iter(total.split([term.numel() for term in there]))
        return LossTerms(*(None if term is None else next(values).view(term.shape) for term in terms))  # type: ignore[arg-type]


def evaluate_distributed(
    model: Model, clips: Clips, device: torch.device, num_classes: int, processes: Processes
) -> Evaluation:
    """Evaluate every clip once. Processes share the batches that a single process would use, so results are equal."""
    batches = EvalBatches(clips, EVAL_BATCH, device)
    if processes.world == 1:
        return evaluate_batches(model, batches, num_classes)
    batches.world = processes.world
    batches.plan = batches.plan[share_of(len(batches.plan), processes.rank, processes.world)]
    confusion, rest = np.zeros((num_classes, num_classes), np.int64), torch.zeros(2, dtype=torch.float64)
    rates = torch.zeros(0, dtype=torch.float64)
    if batches.plan:
        found = evaluate_batches(model, batches, num_classes)
        confusion = found.confusion
        rest = torch.tensor([found.among_five, found.loss * found.n], dtype=torch.float64)
        rates = torch.tensor(found.rates, dtype=torch.float64) * found.n
    confusion = processes.sum(torch.from_numpy(confusion)).numpy()
    among_five, loss = processes.sum(rest).tolist()
    layers = processes.max(len(rates))
    rates = processes.sum(rates if len(rates) else rates.new_zeros(layers))
    total = int(confusion.sum())
    return Evaluation(confusion, int(among_five), loss / total, (rates / total).tolist())
