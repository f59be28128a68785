"""Where binned clips come from: made when needed, or made once and kept in memory or on the device.

Counts are whole numbers, so bytes hold them exactly where none is over 255: every way gives the same bits. Worker
processes never draw from torch's global generator, and a recording they cannot read is refused with its own sentence.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ripe_mambaspike.errors import ConfigError, DataError, MemoryNeededError, RipeError
from ripe_mambaspike.train.recipe import DataSettings

if TYPE_CHECKING:
    from ripe_mambaspike.data.clips import Clips

Numbers = NDArray[np.int64]  # of clips
Mode = Literal["off", "memory", "device"]
Progress = Callable[[int, int], None]  # clips done, of how many
MOST_BYTES = 2 << 30  # that auto takes of the machine's memory
TOGETHER = 16  # clips that are made at a time for the cache
FLOAT32 = 4
DEATHS = ("DataLoader worker", "Pin memory thread")  # what PyTorch's errors about lost workers begin with


class ClipCache:
    """Batches of clips by number on one device; made by `open_cache`."""

    def __init__(self, clips: "Clips", device: torch.device, kept: Tensor | None = None, workers: int = 0) -> None:
        """`kept` are all the clips [N, T, 2, H, W], uint8 or float32, if they are."""
        self.clips, self.device, self.kept, self.workers = clips, device, kept, workers
        self._idle: list[DataLoader[Any]] = []

    @property
    def mode(self) -> Mode:
        if self.kept is None:
            return "off"
        return "memory" if self.kept.device.type == "cpu" else "device"

    def batches(self, plan: Sequence[Numbers]) -> Iterator[tuple[Tensor, Tensor]]:
        """(counts [B, T, 2, H, W] float32, labels [B] int64) for each of the plan's numbers, in order; B may be 0."""
        for numbers, counts in zip(plan, self._packed(plan), strict=True):
            labels = torch.from_numpy(self.clips.labels[numbers])
            yield counts.to(self.device, non_blocking=True).to(torch.float32), labels.to(self.device)

    def _packed(self, plan: Sequence[Numbers]) -> Iterator[Tensor]:
        if self.kept is not None:
            kept = self.kept
            return (kept.index_select(0, torch.from_numpy(numbers).to(kept.device)) for numbers in plan)
        if not self.workers or not plan:
            return (pack(self.clips, numbers) for numbers in plan)
        return self._from_workers(plan)

    def _from_workers(self, plan: Sequence[Numbers]) -> Iterator[Tensor]:
        """From processes that stay for the next epoch; two passes at the same time have their own."""
        self._idle = [loader for loader in self._idle if _alive(loader)]
        loader = self._idle.pop() if self._idle else _start_loader(self.clips, self.workers, self.device)
        loader.sampler.plan = plan  # type: ignore[attr-defined]
        refused = None
        try:
            with workers_explained():
                for made in loader:
                    if isinstance(made, RipeError):
                        refused = made
                        break
                    yield made
        except GeneratorExit:
            self._idle.append(loader)
            raise
        self._idle.append(loader)  # one whose worker died is let go instead
        del loader  # an error that is kept would keep this frame, and it the workers
        if refused is not None:
            raise refused

    def close(self) -> None:
        """End the workers that are waiting."""
        self._idle.clear()


def open_cache(
    clips: "Clips",
    data: DataSettings,
    device: torch.device,
    *,
    processes: int = 1,
    progress: Progress | None = None,
) -> ClipCache:
    """The clips, kept where `data.cache` says; `processes` share this machine's memory."""
    if data.num_workers < 0:
        raise ConfigError(f"data.num_workers is {data.num_workers}; 0 or more processes are wanted")
    if data.cache == "device" and device.type != "cuda":
        raise ConfigError(f"data.cache is device and the run is on {device.type}; auto, memory or off is wanted")
    found = _build_auto if data.cache == "auto" else _build_given
    kept = None if data.cache == "off" else found(clips, data, device, processes, progress)
    return ClipCache(clips, device, kept, data.num_workers)


def _build_auto(
    clips: "Clips", data: DataSettings, device: torch.device, processes: int, progress: Progress | None
) -> Tensor | None:
    """On the device, in memory, or not at all."""
    itemsize = 1
    for place in (device, torch.device("cpu")) if device.type == "cuda" else (device,):
        allowed = _free(place) // 4
        if place.type == "cpu":
            allowed = min(MOST_BYTES, allowed // processes)
        if clip_bytes(clips) * itemsize > allowed:
            continue
        kept = build(clips, place, data.num_workers, allowed, progress)
        if kept is not None:
            return kept
        itemsize = FLOAT32  # bytes were too small
    return None


def _build_given(
    clips: "Clips", data: DataSettings, device: torch.device, processes: int, progress: Progress | None
) -> Tensor:
    """Where the recipe says, or an error."""
    place = device if data.cache == "device" else torch.device("cpu")
    free = _free(place, unknown=1 << 62) // (processes if place.type == "cpu" else 1)
    needed = clip_bytes(clips)
    if needed <= free:
        kept = build(clips, place, data.num_workers, free, progress)
        if kept is not None:
            return kept
        needed *= FLOAT32
    raise MemoryNeededError(
        f"data.cache is {data.cache}, which takes {needed / 2**30:.2f} GiB, and {free / 2**30:.2f} GiB are free; "
        "data.cache=off is wanted"
    )


def build(clips: "Clips", place: torch.device, workers: int, most: int, progress: Progress | None) -> Tensor | None:
    """All clips [N, T, 2, H, W], uint8 where no count is over 255 and float32 otherwise; None if over `most` bytes."""
    numbers = np.arange(len(clips), dtype=np.int64)
    plan = [numbers[start : start + TOGETHER] for start in range(0, len(clips), TOGETHER)]
    made = ClipCache(clips, torch.device("cpu"), workers=min(workers, len(plan)))
    kept = torch.empty((len(clips), *clips.shape), dtype=torch.uint8, device=place)
    done = 0
    try:
        for counts in made._packed(plan):
            if counts.dtype != kept.dtype and kept.dtype == torch.uint8:
                if clip_bytes(clips) * FLOAT32 > most:
                    return None
                kept = kept.to(torch.float32)
            kept[done : done + len(counts)] = counts.to(place)
            done += len(counts)
            if progress is not None:
                progress(done, len(clips))
    finally:
        made.close()
    return kept


def clip_bytes(clips: "Clips") -> int:
    """Of all clips with a byte a count."""
    return len(clips) * prod(clips.shape)


def _free(place: torch.device, unknown: int = 0) -> int:
    from ripe_mambaspike.models.memory import free_memory  # here: workers import this module and need no network

    free = free_memory(place)
    return unknown if free is None else free


def pack(clips: "Clips", numbers: Numbers) -> Tensor:
    """Clips by number [B, T, 2, H, W], uint8 where no count is over 255 and float32 otherwise."""
    counts = torch.empty((len(numbers), *clips.shape))
    for at, number in enumerate(numbers):
        counts[at] = clips.clip(int(number))[0]
    return counts if counts.numel() and counts.max() > 255 else counts.to(torch.uint8)


class _Packed(Dataset[Any]):
    """Whole batches by their numbers. An error is handed over as it is; a loader would wrap it in a traceback."""

    def __init__(self, clips: "Clips") -> None:
        self.clips = clips

    def __getitem__(self, numbers: Numbers) -> Tensor | RipeError:
        try:
            return pack(self.clips, numbers)
        except RipeError as error:
            return error


class _Plan:
    """The batches of the pass that is under way: a loader with lasting workers reads it anew for each."""

    plan: Sequence[Numbers] = ()

    def __iter__(self) -> Iterator[Numbers]:
        return iter(self.plan)

    def __len__(self) -> int:
        return len(self.plan)


def _start_loader(clips: "Clips", workers: int, device: torch.device) -> DataLoader[Any]:
    return DataLoader(
        _Packed(clips),
        batch_size=None,
        sampler=_Plan(),
        num_workers=workers,
        collate_fn=_as_it_is,
        worker_init_fn=_begin,
        persistent_workers=True,
        multiprocessing_context="spawn",  # a fork of a process that has threads or CUDA may hang
        generator=torch.Generator(),  # its own: the global one belongs to the run
        pin_memory=device.type == "cuda",
    )


def _as_it_is(made: Any) -> Any:
    return made


def _alive(loader: DataLoader[Any]) -> bool:
    """Whether all workers of a loader that waits are there."""
    workers = getattr(getattr(loader, "_iterator", None), "_workers", [])
    return all(worker.is_alive() for worker in workers)


def _begin(worker: int) -> None:
    """A stop reaches every process of a group, but is the run's to answer: it may want more batches before it ends."""
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)


@contextmanager
def workers_explained() -> Iterator[None]:
    """Inside, a worker that dies is a DataError.

    PyTorch may raise it in the middle of anything that the main thread does, so a loop over batches stands in this.
    """
    try:
        yield
    except (EOFError, ConnectionError, RuntimeError) as error:  # the first two: it died while it handed a batch over
        said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if isinstance(error, RuntimeError) and not said.startswith(DEATHS):
            raise
        raise DataError(f"a data worker died ({said}); fewer data.num_workers or more memory is wanted") from error
