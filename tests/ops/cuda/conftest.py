"""Triton kernels without a GPU: in Triton's interpreter, which must be chosen before Triton is imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _triton_everywhere():
    """Operators use the Triton kernels wherever their tensors lie."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from ripe_mambaspike.ops.backend import kernels

    with kernels("triton"):
        yield
