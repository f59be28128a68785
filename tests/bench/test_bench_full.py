"""A network that runs out of memory while it is measured: an error in one line, or a row with it."""

import pytest
import torch

from ripe_mambaspike.bench import machine, train
from ripe_mambaspike.bench import measure as measuring
from ripe_mambaspike.bench.measure import Failed, Measured, Subject, measure
from ripe_mambaspike.bench.memory import Memory, explain_out_of_memory
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.errors import MemoryNeededError
from ripe_mambaspike.models.ripe import RipeMambaSpike

CUDA = torch.device("cuda")
SMALL = (
    "bench infer --model nmnist --device cpu --time-steps 3 --in-size 16 --batches 2 --repeats 1 --baseline none "
    "--precision float32"
)


def full(*_, **__):
    raise MemoryNeededError("a pass of batch 9, 3 steps of 16×16, needs about 7.00 GiB …")


def test_a_networks_own_memory_error_passes_through():
    with pytest.raises(MemoryNeededError, match=r"7\.00 GiB"), explain_out_of_memory(torch.device("cpu"), "batch 9"):
        full()


def test_a_reference_out_of_memory_becomes_a_row(monkeypatch):
    monkeypatch.setattr(measuring, "measure_memory", lambda job, device, held: job() or Memory(held, 1))
    monkeypatch.setattr(measuring, "time_jobs", lambda jobs, device, repeats: dict.fromkeys(jobs))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found, _ = measure({"ours": Subject(lambda: None, 1), "reference": Subject(full, 1)}, CUDA, 1)
    assert isinstance(found["ours"], Measured)
    assert isinstance(found["reference"], Failed)
    assert "needs about 7.00 GiB" in found["reference"].to_dict()["error"]
    with pytest.raises(MemoryNeededError):
        measure({"ours": Subject(full, 1)}, CUDA, 1)


def test_fewer_clips_are_compared_where_both_paths_do_not_fit(monkeypatch):
    tried = []

    def compare(model, x, *_):
        tried.append(len(x))
        return full() if len(x) > 1 else "compared"

    monkeypatch.setattr(train, "compare_training", compare)
    x = torch.zeros(8, 1)
    assert train._compare(torch.nn.Identity(), x, x, None, "float32") == "compared"
    assert tried == [8, 2, 1]
    monkeypatch.setattr(train, "compare_training", full)
    with pytest.raises(MemoryNeededError):
        train._compare(torch.nn.Identity(), x, x, None, "float32")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()], ids=["cuda", "cpu"])
def test_the_command_reports_out_of_memory_in_one_line(monkeypatch, capsys, error):
    def failing(*_, **__):
        raise error

    monkeypatch.setattr(RipeMambaSpike, "_run", failing)
    monkeypatch.setattr("ripe_mambaspike.models.ripe.run_fused", failing)
    monkeypatch.setitem(machine.SIDES, "cpu", (64,))
    monkeypatch.setitem(machine.COPY_BYTES, "cpu", 1 << 16)
    assert main(SMALL.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert all(part in printed.err for part in ("batch 2", "16×16", "MiB", "memory", "reduce the batch"))
