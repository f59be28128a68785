"""Benchmarks are tested without kernels: the fast path is the network over the fused operators' references."""

import pytest
import torch

from ripe_mambaspike.ops import backend


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """`auto` means `plain`; under autocast, which that cannot do, the reference path."""
    chosen = backend.choice

    def choice():
        if chosen() != "auto":
            return chosen()
        return "off" if torch.is_autocast_enabled("cpu") else "plain"

    monkeypatch.setattr(backend, "choice", choice)
