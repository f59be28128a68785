"""Triton kernels without a GPU: in Triton's interpreter."""

import pytest


@pytest.fixture(autouse=True)
def _triton_everywhere():
    """Operators use the Triton kernels wherever their tensors lie."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from ripe_mambaspike.ops.backend import kernels

    with kernels("triton"):
        yield
