"""The hash of tensors' memory: any changed bit is noticed."""

import pytest
import torch

from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.cpp.memory_hash import MemoryHash

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason="no C++ operators here")


def tensors(dtype=torch.float32):
    made = [torch.randn(size) for size in (1, 63, 64, 65, 1000, 5000)] + [torch.zeros(200, 30).t(), torch.empty(0)]
    return [one.to(dtype) for one in made]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
def test_any_bit_counts(dtype):
    given = tensors(dtype)
    found = MemoryHash(given)
    for one in given[:-1]:
        memory = one.t().reshape(-1) if one.ndim == 2 else one
        for index in (0, len(memory) // 2, len(memory) - 1):
            byte = memory.view(torch.uint8)[index * one.element_size() :][:1]
            for bit in (1, 128):
                byte ^= bit
                assert not found.is_unchanged(full=True)
                byte ^= bit
    assert found.is_unchanged(full=True)
    assert found.is_unchanged(full=False)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(
    "change", [torch.neg, lambda x: 2 * x, lambda x: x + 1e-3, lambda x: x.flip(0), lambda x: x.clamp(-0.5, 0.5)]
)
def test_changes_of_a_whole_tensor_are_noticed(full, change):
    given = tensors()
    for one in given[1:6]:
        found, before = MemoryHash(given), one.clone()
        one.copy_(change(one))
        assert not found.is_unchanged(full=full)
        one.copy_(before)
        assert found.is_unchanged(full=full)


def test_values_that_are_exchanged_are_noticed():
    first, second = torch.randn(64), torch.randn(64)
    found = MemoryHash((first, second))
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)
    assert not found.is_unchanged(full=True)
