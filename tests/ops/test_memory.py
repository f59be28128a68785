"""Keeping freed memory is asked of glibc alone, and changes no result."""

import platform

import torch

from ripe_mambaspike.ops import memory


def test_only_glibc_is_asked(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    monkeypatch.setattr(memory.ctypes, "CDLL", None)
    assert memory.keep_freed_memory() is False


def test_glibc_accepts_and_results_stay():
    before = torch.ones(2**21).cumsum(0)
    accepted = memory.keep_freed_memory()
    assert accepted == (platform.libc_ver()[0] == "glibc")
    assert torch.equal(torch.ones(2**21).cumsum(0), before)
