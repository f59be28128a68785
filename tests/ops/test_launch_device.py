"""Kernels are launched on the device of their tensors, also where another one is current."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

import ripe_mambaspike.models.fused  # noqa: F401  registers the operators
from ripe_mambaspike.ops import operator
from ripe_mambaspike.ops.triton_launch import launch_beside


class OnGpu:
    """As much of a tensor on a GPU as a launch looks at."""

    is_cuda = True

    def __init__(self, index):
        self.index = index

    def get_device(self):
        return self.index


@pytest.fixture
def devices(monkeypatch):
    """The current device, changed as `torch.cuda.device` does; `entered` lists the changes."""

    devices = SimpleNamespace(current=0, entered=[])

    @contextmanager
    def device(index):
        before, devices.current = devices.current, index
        devices.entered.append(index)
        try:
            yield
        finally:
            devices.current = before

    monkeypatch.setattr(torch.cuda, "current_device", lambda: devices.current)
    monkeypatch.setattr(torch.cuda, "device", device)
    return devices


def test_on_the_device_of_the_tensor(devices):
    launched = launch_beside(OnGpu(1), lambda *given: (devices.current, given), "a", 2)
    assert launched == (1, ("a", 2))
    assert devices.current == 0


def test_the_current_device_is_left_alone(devices):
    devices.current = 1
    assert launch_beside(OnGpu(1), lambda: devices.current) == 1
    assert devices.entered == []


def test_a_tensor_on_the_cpu_asks_for_no_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: pytest.fail("asked for a device"))
    assert launch_beside(torch.zeros(1), lambda: "run") == "run"


def test_the_device_is_restored_after_an_error(devices):
    def fail():
        raise RuntimeError("launch failed")

    with pytest.raises(RuntimeError, match="launch failed"):
        launch_beside(OnGpu(1), fail)
    assert devices.current == 0


@pytest.mark.parametrize("name", sorted(operator.OPERATORS))
def test_operators_launch_both_passes_there(devices, monkeypatch, name):
    chosen = operator.OPERATORS[name]
    launched = []

    def implementation(kind, folder, function):
        return lambda *given: launched.append((kind, function, devices.current)) or (torch.zeros(1),)

    monkeypatch.setattr(operator, "first_tensor", lambda i: OnGpu(1))
    monkeypatch.setattr(operator, "implementation", implementation)
    monkeypatch.setattr(chosen, "_kind", lambda i: "triton")
    chosen.forward(())
    chosen.backward((), (), ())
    assert launched == [("triton", name, 1), ("triton", f"{name}_backward", 1)]
    assert devices.entered == [1, 1]
    assert devices.current == 0
