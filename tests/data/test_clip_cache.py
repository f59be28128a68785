"""Where clips come from makes no difference to a batch; and the errors when memory or a worker is lost."""

import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from raising import raises
from ripe_mambaspike.data import clip_cache
from ripe_mambaspike.data.clip_cache import bin_all, bin_clips, clip_bytes, explain_lost_workers, open_cache
from ripe_mambaspike.data.clips import Clips, EvalBatches, TrainBatches
from ripe_mambaspike.data.prepare import prepare
from ripe_mambaspike.data.sets import list_dataset
from ripe_mambaspike.data.settings import DataSettings
from ripe_mambaspike.data.training_data import TrainingData, open_data
from ripe_mambaspike.errors import ConfigError, DataError, MemoryNeededError
from ripe_mambaspike.events import Recording, make_events, write

CPU = torch.device("cpu")
CLIPS = 20


def recording(seed: int, hot: bool = False) -> Recording:
    """Random events; a hot pixel has three hundred of its own."""
    draw = np.random.default_rng(seed)
    x, y = draw.integers(0, 12, (2, 400))
    if hot:
        x[:300], y[:300] = 5, 5
    times, signs = np.sort(draw.integers(0, 1000, 400)), draw.integers(0, 2, 400)
    return Recording(make_events(x, y, times, np.ones_like(signs) if hot else signs), (12, 12))


def make_root(folder: Path, hot: bool) -> Path:
    """Twenty clips to train on and two to test; with `hot`, one clip counts more than a byte holds."""
    for number in range(CLIPS + 4):
        part = "train" if number < CLIPS + 2 else "test"
        path = folder / part / "ab"[number % 2] / f"{number}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(recording(number, hot and number == 17), path)
    prepare(list_dataset("folder", folder), folder, folder / ".ripe")
    return folder


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> dict[bool, Path]:
    return {hot: make_root(tmp_path_factory.mktemp("hot" if hot else "cool"), hot) for hot in (False, True)}


def data_of(root: Path, **fields: object) -> TrainingData:
    settings = DataSettings(**{"dataset": "folder", "root": str(root), "time_steps": 1, "grid": (8, 8), **fields})
    return open_data(settings)


def same(one: list[tuple[object, ...]], other: list[tuple[object, ...]]) -> bool:
    """Bit for bit, types too."""
    return len(one) == len(other) and all(
        a == b if isinstance(a, int) else a.dtype == b.dtype and torch.equal(a, b)
        for left, right in zip(one, other, strict=True)
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("hot", [False, True], ids=["bytes", "floats"])
def test_every_cache_mode_gives_the_same_bits(roots, hot):
    plain = data_of(roots[hot], cache="off").train
    assert len(plain) == CLIPS
    assert (max(float(plain.clip(number)[0].max()) for number in range(CLIPS)) > 255) == hot
    wanted = list(TrainBatches(plain, 6, 1, 2, CPU))
    evaluated = list(EvalBatches(plain, 7, CPU))
    for cache, workers, mode in (
        ("memory", 0, "memory"),
        ("auto", 0, "memory"),
        ("memory", 2, "memory"),
        ("off", 2, "off"),
    ):
        clips = data_of(roots[hot], cache=cache, num_workers=workers).train
        assert same(list(TrainBatches(clips, 6, 1, 2, CPU)), wanted)
        assert same(list(EvalBatches(clips, 7, CPU)), evaluated)
        assert same(list(TrainBatches(clips, 6, 1, 2, CPU, first=2)), wanted[2:])
        kept = clips.cache(CPU).kept
        assert clips.cache(CPU).mode == mode
        if mode == "memory":
            assert kept.shape == (CLIPS, 1, 2, 8, 8)
            assert kept.dtype == (torch.float32 if hot else torch.uint8)
        clips.close()


@pytest.mark.parametrize(("most", "dtype"), [(255, torch.uint8), (256, torch.float32)])
def test_counts_to_255_are_stored_as_uint8(train, monkeypatch, most, dtype):
    monkeypatch.setattr(train, "clip", lambda number: (torch.full(train.shape, float(most - number)), 0))
    packed = bin_clips(train, np.array([1, 0]))
    assert packed.dtype == dtype
    assert packed.float().amax((1, 2, 3, 4)).tolist() == [most - 1, most]
    assert bin_clips(train, np.array([], np.int64)).shape == (0, *train.shape)


def test_batches_may_be_modified_in_place(roots):
    clips = data_of(roots[True], cache="memory").train
    (before,) = (x.clone() for x, _ in EvalBatches(clips, CLIPS, CPU))
    for x, y in EvalBatches(clips, CLIPS, CPU):
        x.zero_()
        y.zero_()
    ((after, labels),) = EvalBatches(clips, CLIPS, CPU)
    assert torch.equal(before, after)
    assert labels.tolist() == clips.labels.tolist()


@pytest.mark.slow
def test_workers_stay_draw_nothing_and_serve_two_passes_at_once(roots):
    clips = data_of(roots[False], cache="off", num_workers=1).train
    plain = data_of(roots[False], cache="off").train
    before = torch.get_rng_state()
    list(islice(TrainBatches(clips, 4, 0, 0, CPU), 2))  # left in the middle
    ((worker,),) = (worker_pids(loader) for loader in clips.cache(CPU)._idle)
    assert same(list(TrainBatches(clips, 4, 0, 1, CPU)), list(TrainBatches(plain, 4, 0, 1, CPU)))
    assert [worker_pids(each) for each in clips.cache(CPU)._idle] == [[worker]]
    outer, joined = [], []
    for batch in TrainBatches(clips, 10, 0, 2, CPU):
        outer.append(batch)
        joined.append(list(EvalBatches(clips, 10, CPU)))
    assert same(outer, list(TrainBatches(plain, 10, 0, 2, CPU)))
    assert all(same(inner, list(EvalBatches(plain, 10, CPU))) for inner in joined)
    assert torch.equal(before, torch.get_rng_state())
    clips.close()
    until = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


def worker_pids(loader) -> list[int]:
    return [worker.pid for worker in loader._iterator._workers]


LOSES_A_WORKER = """
import os, signal, sys, time
import torch
from ripe_mambaspike.errors import DataError
from ripe_mambaspike.data.clip_cache import explain_lost_workers
from ripe_mambaspike.data.clips import TrainBatches
from ripe_mambaspike.data.training_data import open_data
from ripe_mambaspike.data.settings import DataSettings

def lose_it(clips, device):
    list(TrainBatches(clips, 4, 0, 0, device))
    (loader,) = clips.cache(device)._idle
    (worker,) = loader._iterator._workers
    os.kill(worker.pid, signal.SIGKILL)  # while it waits: what is under way when it dies differs from time to time
    time.sleep(5)  # ended by the news
    list(TrainBatches(clips, 1, 0, 1, device))

if __name__ == "__main__":
    data = DataSettings(dataset="folder", root=sys.argv[1], time_steps=1, grid=(8, 8), cache="off", num_workers=1)
    device = torch.device("cpu")
    clips = open_data(data).train
    try:
        with explain_lost_workers():
            lose_it(clips, device)
    except DataError as error:
        print(error.field)
    print(sum(len(y) for _, _, y, _ in TrainBatches(clips, 4, 0, 0, device)))  # by a new one
    clips.close()
"""


@pytest.mark.slow
def test_workers_that_die(roots, tmp_path):
    """In a process of its own: PyTorch raises the death anywhere in the main thread, also in a test's own machinery."""
    script = tmp_path / "lose.py"
    script.write_text(LOSES_A_WORKER)
    done = subprocess.run([sys.executable, script, roots[False]], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    field, again = done.stdout.splitlines()
    assert field == "data.num_workers"
    assert int(again) == CLIPS


@pytest.mark.parametrize(
    "error", [RuntimeError("DataLoader worker (pid 7) is killed."), EOFError(), ConnectionResetError()]
)
def test_a_lost_worker_is_explained(error):
    with raises(DataError, "data.num_workers"), explain_lost_workers():
        raise error


def test_other_errors_are_not_changed():
    with pytest.raises(RuntimeError, match="something else"), explain_lost_workers():
        raise RuntimeError("something else")


@pytest.mark.parametrize(
    ("cache", "workers"), [("off", 0), ("off", 1), pytest.param("memory", 1, marks=pytest.mark.slow)]
)
def test_a_lost_shard_is_named(tmp_path, cache, workers):
    clips = data_of(make_root(tmp_path / "set", False), cache=cache, num_workers=workers).train
    for shard in tmp_path.rglob("shard-*.npy"):
        shard.unlink()
    with raises(DataError, "shard", mentions="shard-00000.npy") as caught:
        list(EvalBatches(clips, 4, CPU))
    clips.close()  # the error's frames would keep the worker
    assert "\n" not in str(caught.value)


@pytest.fixture
def train(roots) -> Clips:
    return data_of(roots[False]).train


def with_free(monkeypatch, free: int | None) -> None:
    monkeypatch.setattr(clip_cache, "free_memory", lambda device: free)


def test_auto_caches_up_to_a_quarter_of_the_free_memory(train, monkeypatch):
    needed = clip_bytes(train)
    assert needed == CLIPS * 2 * 8 * 8

    def mode(free: int | None, processes: int = 1) -> str:
        with_free(monkeypatch, free)
        return open_cache(train, train.settings, CPU, processes=processes).mode

    assert mode(4 * needed) == "memory"
    assert mode(4 * needed - 4) == "off"
    assert mode(None) == "off"
    assert mode(8 * needed, processes=2) == "memory"
    assert mode(8 * needed - 8, processes=2) == "off"
    monkeypatch.setattr(clip_cache, "MAX_AUTO_BYTES", needed)
    assert mode(1 << 40) == "memory"
    monkeypatch.setattr(clip_cache, "MAX_AUTO_BYTES", needed - 1)
    assert mode(1 << 40) == "off"


def test_auto_gives_up_where_bytes_are_too_small(roots, monkeypatch):
    hot = data_of(roots[True]).train
    with_free(monkeypatch, 4 * 4 * clip_bytes(hot))
    assert open_cache(hot, hot.settings, CPU).mode == "memory"
    with_free(monkeypatch, 4 * 4 * clip_bytes(hot) - 4)
    cache = open_cache(hot, hot.settings, CPU)
    assert cache.mode == "off"
    ((x, _),) = cache.batches([np.arange(CLIPS)])
    assert x.max() > 255


def test_too_little_memory_is_refused(roots, train, monkeypatch):
    settings = replace(train.settings, cache="memory")
    with_free(monkeypatch, clip_bytes(train))
    assert open_cache(train, settings, CPU).mode == "memory"
    hot = data_of(roots[True]).train
    for clips, free in ((train, clip_bytes(train) - 1), (hot, clip_bytes(hot))):
        with_free(monkeypatch, free)
        with raises(MemoryNeededError, "data.cache", mentions=("0.00 GiB", "'memory'", "data.cache=off")):
            open_cache(clips, settings, CPU)
    with_free(monkeypatch, None)  # unknown
    assert open_cache(train, settings, CPU).mode == "memory"


def test_invalid_settings_are_refused(train):
    with raises(ConfigError, "data.cache", mentions=("auto, memory or off", "cpu", "'device'")):
        open_cache(train, replace(train.settings, cache="device"), CPU)
    with raises(ConfigError, "data.num_workers", mentions=("at least 0", "-1")):
        open_cache(train, replace(train.settings, num_workers=-1), CPU)


def test_progress_is_reported(train):
    reports = []
    bin_all(train, CPU, 0, 1 << 40, lambda done, total: reports.append((done, total)))
    assert reports == [(16, 20), (20, 20)]
    reports.clear()
    train.cache(CPU, progress=lambda done, total: reports.append((done, total)))
    assert reports[-1] == (20, 20)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("hot", [False, True], ids=["bytes", "floats"])
def test_the_same_bits_on_a_device(roots, hot):
    cuda = torch.device("cuda")
    wanted = list(TrainBatches(data_of(roots[hot], cache="off").train, 6, 1, 2, CPU))
    for cache, workers, mode in (
        ("device", 0, "device"),
        ("auto", 1, "device"),
        ("memory", 0, "memory"),
        ("off", 1, "off"),
    ):
        clips = data_of(roots[hot], cache=cache, num_workers=workers).train
        batches = list(TrainBatches(clips, 6, 1, 2, cuda))
        assert clips.cache(cuda).mode == mode
        assert all(x.device.type == y.device.type == "cuda" for _, x, y, _ in batches)
        assert same([(index, x.cpu(), y.cpu(), total) for index, x, y, total in batches], wanted)
        clips.close()
