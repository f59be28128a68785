"""`model(x)` records small inputs that come again: the same bits, fresh outputs, and never stale weights."""

import pytest
import torch

from ripe_mambaspike import create_model, fuse
from ripe_mambaspike.models import cuda_graphs


@pytest.fixture
def model():
    torch.manual_seed(0)
    return fuse(create_model("dvsgesture").eval()).cuda()


def clips(seed, batch=2):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(batch, 16, 2, 32, 32, generator=generator) > 0.9).float().cuda()


def recorded(model):
    return [one for one in model.prepared_weights.graphs._recorded.values() if one.graph is not None]


def eager(model, x, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("RIPE_CUDA_GRAPHS", "off")
        return model(x)


@torch.inference_mode()
def test_a_shape_that_comes_again_is_recorded_with_the_same_bits(model, monkeypatch):
    outputs = [model(clips(seed)) for seed in range(5)]
    assert len(recorded(model)) == 1
    for seed, out in enumerate(outputs):
        assert torch.equal(out, eager(model, clips(seed), monkeypatch))


@torch.inference_mode()
def test_changed_weights_are_noticed(model, monkeypatch):
    x = clips(0)
    for _ in range(4):
        before = model(x)
    with torch.inference_mode(False), torch.no_grad():
        model.head.bias.add_(1.0)
    assert torch.equal(model(x), eager(model, x, monkeypatch))
    assert not torch.equal(model(x), before)


@torch.inference_mode()
def test_each_precision_has_its_own(model, monkeypatch):
    x = clips(0)
    for _ in range(4):
        wide = model(x)
    with torch.autocast("cuda", torch.bfloat16):
        for _ in range(4):
            narrow = model(x)
        assert torch.equal(narrow, eager(model, x, monkeypatch))
    assert torch.equal(model(x), wide)


@torch.inference_mode()
def test_few_are_kept_and_large_inputs_are_not(model):
    for batch in range(1, 8):
        for _ in range(4):
            model(clips(0, batch))
    assert len(recorded(model)) == cuda_graphs.MAX_GRAPHS
    large = torch.zeros(9, 16, 2, 128, 128, device="cuda")
    for _ in range(4):
        model(large)
    assert all(one.x.shape != large.shape for one in recorded(model))


def test_gradients_are_never_recorded(model):
    for _ in range(4):
        assert model(clips(0)).requires_grad
    assert not recorded(model)
