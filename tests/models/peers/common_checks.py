"""What every network of another author must do; the tests of each call these with a small one."""

import torch
from torch import nn

from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.nn.calibrate import has_running_statistics, recalibrate


def calibrated(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """The network with the statistics of x, in evaluation mode: its neurons fire."""
    if has_running_statistics(model):
        recalibrate(model, [x])
    return model.eval()


def check_gradients(model, x):
    """Every parameter has a finite gradient that is not zero throughout."""
    logits = calibrated(model, x)(x)
    (logits * torch.randn_like(logits)).sum().backward()
    still = [
        n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all() or not p.grad.any()
    ]
    assert still == []


@torch.no_grad()
def check_reloaded(model, x, folder):
    """A saved and reloaded network gives the same bits."""
    expected = calibrated(model, x)(x)
    assert torch.equal(from_pretrained(model.save_pretrained(folder))(x), expected)


@torch.no_grad()
def check_rates(model, x, count):
    """One rate per neuron, of those that this network has."""
    rates = calibrated(model, x).run(x).rates
    assert rates.shape == (count,)
    assert model.num_spiking_layers() == count
    assert ((rates >= 0) & (rates <= 1)).all()
    if count:
        assert rates.max() > 0.01


@torch.no_grad()
def check_precisions(model, x, tolerance=0.1):
    """bfloat16 autocast runs and, for a network without spikes, is near float32; embeddings replace logits."""
    expected = calibrated(model, x)(x)
    with torch.autocast("cpu", torch.bfloat16):
        given = model(x)
    assert given.isfinite().all()
    if not model.num_spiking_layers():
        assert (given - expected).abs().max() < tolerance * expected.abs().max()
    model.reset_classifier(0)
    assert model(x).shape == (*expected.shape[:2], model.num_features)
