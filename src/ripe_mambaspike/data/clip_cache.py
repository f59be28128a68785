"""Batches of binned clips: binned when needed, or binned once and cached in memory or on the device.

Counts are integers, so uint8 stores them exactly if none exceeds 255: all modes give the same bits. Worker processes
never use torch's global generator, and their errors are raised unchanged.
"""

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ripe_mambaspike.data.kept_clips import shared_clips
from ripe_mambaspike.data.loader_exit import iterate_loader
from ripe_mambaspike.data.settings import DataSettings
from ripe_mambaspike.errors import ConfigError, DataError, MemoryNeededError, RipeError

if TYPE_CHECKING:
    from ripe_mambaspike.data.clips import Clips

Indices = NDArray[np.int64]  # of clips
Mode = Literal["off", "memory", "device"]
Progress = Callable[[int, int], None]  # clips done, of how many
MAX_AUTO_BYTES = 2 << 30  # of the machine's memory that `auto` may take
BUILD_BATCH = 16  # clips binned at a time
FLOAT32 = 4  # bytes
LOST_WORKER = ("DataLoader worker", "Pin memory thread")  # prefixes of PyTorch's errors about lost workers


class ClipCache:
    """Batches of clips by index on one device; made by `open_cache`."""

    def __init__(self, clips: "Clips", device: torch.device, kept: Tensor | None = None, workers: int = 0) -> None:
        """`kept` holds all clips [N, T, 2, H, W], uint8 or float32, where they are cached."""
        self.clips, self.device, self.kept, self.workers = clips, device, kept, workers
        self._idle: list[DataLoader[Any]] = []

    @property
    def mode(self) -> Mode:
        if self.kept is None:
            return "off"
        return "memory" if self.kept.device.type == "cpu" else "device"

    def batches(self, plan: Sequence[Indices]) -> Iterator[tuple[Tensor, Tensor]]:
        """(counts [B, T, 2, H, W] float32, labels [B] int64) for each of the plan's batches of indices; B may be 0."""
        for indices, counts in zip(plan, self._packed(plan), strict=True):
            labels = torch.from_numpy(self.clips.labels[indices])
            yield counts.to(self.device, non_blocking=True).to(torch.float32), labels.to(self.device)

    def _packed(self, plan: Sequence[Indices]) -> Iterator[Tensor]:
        if self.kept is not None:
            kept = self.kept
            return (kept.index_select(0, torch.from_numpy(indices).to(kept.device)) for indices in plan)
        if not self.workers or not plan:
            return (bin_clips(self.clips, indices) for indices in plan)
        return self._from_workers(plan)

    def _from_workers(self, plan: Sequence[Indices]) -> Iterator[Tensor]:
        """Batches from persistent worker processes; concurrent iterations have separate workers."""
        self._idle = [loader for loader in self._idle if _alive(loader)]
        loader = self._idle.pop() if self._idle else _start_loader(self.clips, self.workers, self.device)
        loader.sampler.plan = plan  # type: ignore[attr-defined]
        refused = None
        try:
            with explain_lost_workers():
                for made in iterate_loader(loader):
                    if isinstance(made, RipeError):
                        refused = made
                        break
                    yield made
        except GeneratorExit:
            self._idle.append(loader)
            raise
        self._idle.append(loader)  # unless a worker died: then it is dropped
        del loader  # a stored error would keep this frame, and with it the workers, alive
        if refused is not None:
            raise refused

    def close(self) -> None:
        """End idle workers."""
        self._idle.clear()


def open_cache(
    clips: "Clips",
    data: DataSettings,
    device: torch.device,
    *,
    processes: int = 1,
    progress: Progress | None = None,
) -> ClipCache:
    """The clips, cached as `data.cache` says; `processes` processes share this machine's memory."""
    if data.num_workers < 0:
        raise ConfigError.expected("data.num_workers", "an int of at least 0", data.num_workers)
    if data.cache == "device" and device.type != "cuda":
        raise ConfigError.expected("data.cache", f"auto, memory or off on {device.type}", "'device'")
    kept = None
    if data.cache != "off":
        build = _build_auto if data.cache == "auto" else _build_given
        key = (clips.identity, data.cache, device)
        kept = shared_clips(key, lambda: build(clips, data, device, processes, progress))
    return ClipCache(clips, device, kept, data.num_workers)


def _build_auto(
    clips: "Clips", data: DataSettings, device: torch.device, processes: int, progress: Progress | None
) -> Tensor | None:
    """Cache on the device, in memory, or not at all, whichever fits."""
    itemsize = 1
    for target in (device, torch.device("cpu")) if device.type == "cuda" else (device,):
        allowed = _free(target) // 4
        if target.type == "cpu":
            allowed = min(MAX_AUTO_BYTES, allowed // processes)
        if clip_bytes(clips) * itemsize > allowed:
            continue
        kept = bin_all(clips, target, data.num_workers, allowed, progress)
        if kept is not None:
            return kept
        itemsize = FLOAT32  # a count is over 255
    return None


def _build_given(
    clips: "Clips", data: DataSettings, device: torch.device, processes: int, progress: Progress | None
) -> Tensor:
    """Cache where the recipe says; raises if there is too little memory."""
    target = device if data.cache == "device" else torch.device("cpu")
    free = _free(target, unknown=1 << 62) // (processes if target.type == "cpu" else 1)
    needed = clip_bytes(clips)
    if needed <= free:
        kept = bin_all(clips, target, data.num_workers, free, progress)
        if kept is not None:
            return kept
        needed *= FLOAT32
    wanted = f"at least {needed / 2**30:.2f} GiB of free memory for '{data.cache}'"
    raise MemoryNeededError.expected("data.cache", wanted, f"{free / 2**30:.2f} GiB", hint="set data.cache=off")


def bin_all(clips: "Clips", target: torch.device, workers: int, most: int, progress: Progress | None) -> Tensor | None:
    """All clips [N, T, 2, H, W], uint8 where no count is over 255, else float32; None if over `most` bytes."""
    indices = np.arange(len(clips), dtype=np.int64)
    plan = [indices[start : start + BUILD_BATCH] for start in range(0, len(clips), BUILD_BATCH)]
    made = ClipCache(clips, torch.device("cpu"), workers=min(workers, len(plan)))
    kept = torch.empty((len(clips), *clips.shape), dtype=torch.uint8, device=target)
    done = 0
    try:
        for counts in made._packed(plan):
            if counts.dtype != kept.dtype and kept.dtype == torch.uint8:
                if clip_bytes(clips) * FLOAT32 > most:
                    return None
                kept = kept.to(torch.float32)
            kept[done : done + len(counts)] = counts.to(target)
            done += len(counts)
            if progress is not None:
                progress(done, len(clips))
    finally:
        made.close()
    return kept


def clip_bytes(clips: "Clips") -> int:
    """Bytes of all clips at one byte per count."""
    return len(clips) * prod(clips.shape)


def _free(target: torch.device, unknown: int = 0) -> int:
    free = free_memory(target)
    return unknown if free is None else free


def free_memory(device: torch.device) -> int | None:
    """Bytes that a new tensor could take; None where the system does not say."""
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():  # CUDA must not be queried while a graph is recorded
            return None
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def bin_clips(clips: "Clips", indices: Indices) -> Tensor:
    """Clips by index [B, T, 2, H, W], uint8 where no count is over 255, else float32."""
    counts = torch.empty((len(indices), *clips.shape))
    for at, index in enumerate(indices):
        counts[at] = clips.clip(int(index))[0]
    return counts if counts.numel() and counts.max() > 255 else counts.to(torch.uint8)


class _Packed(Dataset[Any]):
    """Batches by their indices. Errors are returned, since a DataLoader would wrap them in a traceback."""

    def __init__(self, clips: "Clips") -> None:
        self.clips = clips

    def __getitem__(self, indices: Indices) -> Tensor | RipeError:
        try:
            return bin_clips(self.clips, indices)
        except RipeError as error:
            return error


class _Plan:
    """The batches of the current iteration: a loader with persistent workers reads it again for each."""

    plan: Sequence[Indices] = ()

    def __iter__(self) -> Iterator[Indices]:
        return iter(self.plan)

    def __len__(self) -> int:
        return len(self.plan)


def _start_loader(clips: "Clips", workers: int, device: torch.device) -> DataLoader[Any]:
    return DataLoader(
        _Packed(clips),
        batch_size=None,
        sampler=_Plan(),
        num_workers=workers,
        collate_fn=_identity,
        worker_init_fn=_ignore_signals,
        persistent_workers=True,
        multiprocessing_context="spawn",  # forking a process with threads or CUDA may hang
        generator=torch.Generator(),  # not the global one, which belongs to the training run
        pin_memory=device.type == "cuda",
    )


def _identity(made: Any) -> Any:
    return made


def _alive(loader: DataLoader[Any]) -> bool:
    """Whether all workers of an idle loader are alive."""
    workers = getattr(getattr(loader, "_iterator", None), "_workers", [])
    return all(worker.is_alive() for worker in workers)


def _ignore_signals(worker: int) -> None:
    """Ignore Ctrl-C in workers: only the main process handles it, and it may need more batches first.

    They end with their loader (`loader_exit.py`), or within seconds of a main process that was killed.
    """
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)


@contextmanager
def explain_lost_workers() -> Iterator[None]:
    """Context in which a worker that dies raises a DataError.

    PyTorch may raise its error at any point of the main thread, so put the whole loop over batches inside.
    """
    try:
        yield
    except (EOFError, ConnectionError, RuntimeError) as error:  # the first two: it died while sending a batch
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if isinstance(error, RuntimeError) and not reason.startswith(LOST_WORKER):
            raise
        got, hint = f"one that died ({reason})", "set fewer, or free memory"
        raise DataError.expected("data.num_workers", "running workers", got, hint=hint) from error
