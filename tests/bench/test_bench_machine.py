"""Memory of a call, free memory, the rates of the machine, and lower bounds of a pass."""

import pytest
import torch

from raising import raises
from ripe_mambaspike.bench import memory
from ripe_mambaspike.bench.bounds import least_bytes, operations, shares
from ripe_mambaspike.bench.machine import describe, measure_memory_rate, measure_product
from ripe_mambaspike.bench.measure import Times
from ripe_mambaspike.bench.memory import bytes_of, expect_memory, explain_out_of_memory, free_memory, measure_memory
from ripe_mambaspike.bench.sweep import fit_line
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.nn.eval_mode import choose_device

CPU = torch.device("cpu")
MEGABYTE = 1_000_000


def test_the_peak_counts_tensors_alive_at_once():
    def job():
        first = torch.zeros(MEGABYTE, dtype=torch.uint8)
        second = torch.zeros(2 * MEGABYTE, dtype=torch.uint8)
        del first
        third = torch.zeros(MEGABYTE // 2, dtype=torch.uint8)  # after the first has gone
        return second, third

    found = measure_memory(job, CPU, held=5)
    assert 3 * MEGABYTE <= found.beyond < 3.1 * MEGABYTE
    assert found.to_dict()["peak_mib"] == pytest.approx((5 + found.beyond) / 2**20, abs=1e-3)


def test_tensors_saved_for_backward_are_counted():
    weight = torch.zeros(1000, 1000, requires_grad=True)  # four megabytes

    def job():
        (weight.sigmoid() * 2).sigmoid().sum().backward()
        weight.grad = None

    assert measure_memory(job, CPU, 0).beyond >= 11 * MEGABYTE  # two results are kept, and a gradient grows


def test_the_profiler_prints_nothing(capfd):
    measure_memory(lambda: torch.zeros(10), CPU, 0)
    assert capfd.readouterr() == ("", "")


def test_bytes_of_a_network():
    norm = torch.nn.BatchNorm1d(10)  # two parameters and two buffers of ten numbers, and a counter
    assert bytes_of(norm, torch.zeros(3)) == 4 * 40 + 8 + 12


def test_too_little_memory_before_and_after(monkeypatch):
    assert free_memory(CPU) > 0
    monkeypatch.setattr(memory, "free_memory", lambda device: 3 << 30)
    expect_memory(3 << 30, CPU, "batch 9")
    with raises(InputError, field="memory", mentions=("batch 9", "4.00 GiB", "3.00 GiB")):
        expect_memory(4 << 30, CPU, "batch 9")
    cuda = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.50 GiB. GPU 0 has a total capacity …")
    cpu = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes.")
    for error, requested in ((cuda, "20.50 GiB"), (cpu, "2.00 GiB")):
        mentions = ("batch 9", requested, "3.00 GiB")
        with raises(InputError, field="memory", mentions=mentions), explain_out_of_memory(CPU, "batch 9"):
            raise error
    with pytest.raises(RuntimeError, match="another error"), explain_out_of_memory(CPU, "batch 9"):
        raise RuntimeError("another error")


def test_measured_rates_are_plausible():
    product = measure_product(CPU, "float32", sides=(64, 96))
    assert product.side in (64, 96)
    assert product.operations == 2 * product.side**3
    assert 1e6 < product.rate < 1e14
    assert 1e7 < measure_memory_rate(CPU, 1 << 20) < 1e13


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None) == CPU
    for name in ("cuda", "tpu"):
        with raises(ConfigError, field="device", mentions=name):
            choose_device(name)


def test_the_machine_is_described():
    about = describe(CPU)
    assert about["device"] == "cpu"
    assert about["torch"] == torch.__version__
    assert about["name"]


def test_the_bounds_of_the_default():
    config = model_config("dvsgesture")
    assert round(operations(config) / 1e9, 4) == 8.9884
    spikes = 16 * 2 * (32 * 64**2 + 64 * 32**2 + 128 * 16**2)
    tokens = 16 * (256 * 32 + 128 * 64 + 64 * 128)
    ends = 16 * (2 * 128**2 + 11)
    assert least_bytes(config, "float32") == 4 * (spikes + tokens + ends)
    assert least_bytes(config, "bfloat16") == 2 * (spikes + tokens) + 4 * ends


def test_shares_of_the_rates():
    found = shares(Times(500.0, 600.0, 5), 4, 10**9, 16e9, 10**6, 80e6)  # half a second: 4 GFLOP at 16 GFLOP/s
    assert found == {"samples_per_second": 8.0, "matrix_share": 0.5, "memory_share": 0.1, "times_its_flops": 2.0}


def test_fit_line():
    exact = fit_line([1e6, 2e6, 5e6], [3.0, 5.0, 11.0])
    assert exact["intercept_ms"] == pytest.approx(1.0)
    assert exact["ms_per_million"] == pytest.approx(2.0)
    assert exact["r2"] == pytest.approx(1.0)
    bent = fit_line([1e6, 2e6, 3e6], [1.0, 1.0, 4.0])  # line −1 + 1.5 x, residuals ½, −1, ½
    assert bent["r2"] == pytest.approx(1 - 1.5 / 6)
