"""Times: which calls count, in which order, and how they are summarized."""

import pytest
import torch

from ripe_mambaspike.bench import measure as measuring
from ripe_mambaspike.bench.measure import Failed, Measured, Subject, Times, measure, ratio, summarize, time_jobs
from ripe_mambaspike.bench.memory import Memory

CPU = torch.device("cpu")


class Clock:
    """A clock that only jobs move."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(measuring.time, "perf_counter", lambda: self.now)

    def job(self, *seconds):
        """A job that takes the given seconds, call by call, the last of them from then on."""
        left = list(seconds)

        def run():
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_median_and_p95():
    assert summarize([3.0, 1.0, 2.0]) == Times(2.0, 3.0, 3)
    assert summarize([float(n) for n in range(1, 101)]) == Times(50.5, 95.0, 100)
    assert summarize([4.0]) == Times(4.0, 4.0, 1)


def test_the_first_calls_do_not_count(monkeypatch):
    clock = Clock(monkeypatch)
    found = time_jobs({"a": clock.job(100.0, 50.0, 0.001, 0.003, 0.002)}, CPU, repeats=3, warm_up=2)
    assert found["a"].median == pytest.approx(2.0)
    assert found["a"].p95 == pytest.approx(3.0)
    assert found["a"].calls == 3


def test_jobs_take_turns():
    order = []
    time_jobs({name: lambda name=name: order.append(name) for name in "ab"}, CPU, repeats=2, warm_up=1)
    assert "".join(order) == "ababab"


def test_measured_with_memory_and_a_job_beside(monkeypatch):
    clock = Clock(monkeypatch)
    subjects = {"ours": Subject(clock.job(0.5), 100), "reference": Subject(clock.job(1.5), 200)}
    found, beside = measure(subjects, CPU, 3, {"product": clock.job(0.25)})
    assert found["ours"].times.median == pytest.approx(500)
    assert found["reference"].memory.held == 200
    assert beside["product"].median == pytest.approx(250)
    assert ratio(found["reference"], found["ours"]) == pytest.approx(3.0)


def test_no_ratio_of_what_was_not_measured():
    measured = Measured(Times(1.0, 1.0, 1), Memory(0, 0))
    assert ratio(Failed("too little memory"), measured) is None
    assert ratio(measured, None) is None
