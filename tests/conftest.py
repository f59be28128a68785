"""What every test shares: one thread, a fixed seed, and a way to make uninitialized memory show.

Hypothesis draws the same examples in every run, so that a change is judged by what it changed. New ones are sought by
`HYPOTHESIS_PROFILE=explore make test`; one that fails becomes a test of its own.
"""

import os
import signal
import threading

import pytest
import torch
from hypothesis import settings

settings.register_profile("same", derandomize=True, database=None)
settings.register_profile("explore", database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# A shell's background job ignores SIGINT, and so would all processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)
if not torch.cuda.is_available():  # Triton's kernels run in its interpreter, which is chosen before Triton is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_sessionstart() -> None:
    """The C++ operators are built before the first test, so that none waits for them or sees the line about it."""
    from ripe_mambaspike.ops.cpp.build import unavailable_reason

    unavailable_reason()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def poisoned_empty(monkeypatch):
    """From here to the end of the test, uninitialized floating memory is NaN."""

    def nan_where_not_finite(allocate):
        def allocate_nan(*args, **kwargs):
            tensor = allocate(*args, **kwargs)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return allocate_nan

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, nan_where_not_finite(getattr(owner, name)))


@pytest.fixture
def toy():
    """The small spiking network of `tests.toy_network`, registered until the test ends."""
    from tests.toy_network import registered_toy

    with registered_toy():
        yield
