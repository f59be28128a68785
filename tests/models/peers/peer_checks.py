"""What every network of other authors must do, checked on a small one."""

import pytest
import torch

from ripe_mambaspike import create_model
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.models.synthetic import synthetic_clip


def clips(model, samples=2, steps=None, dtype=torch.float32, seed=0):
    """Events of the network's own size, so many that every layer fires."""
    config = model.config
    return 4 * synthetic_clip(steps or config.time_steps, *config.in_size, samples, seed).to(dtype)


RANGES = {"running_mean": (-0.3, 0.3), "running_var": (0.5, 1.5), "norm.weight": (2.0, 4.0)}


@torch.no_grad()
def livelier(model, seed=0):
    """Random norms and biases: statistics differ from their start, and no weight is zero. Returns the network."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict(keep_vars=True).items():
        for low, high in (ends for end, ends in RANGES.items() if name.endswith(end)):
            drawn = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.copy_(drawn * (high - low) + low)
        if name.endswith("bias"):
            tensor.add_(0.2 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
    return model


def check_outputs(model, steps):
    """Shapes, rates and precisions; `steps` is the number of steps of the logits for a clip of its own length."""
    model = livelier(model).eval()
    x = clips(model)
    with torch.no_grad():
        out = model.run(x, observe=("spikes",))
        assert out.logits.shape == (2, steps, model.num_classes)
        assert out.logits.isfinite().all()
        assert len(out.rates) == model.num_spiking_layers() == len(out.observed)
        assert (out.rates >= 0).all()
        assert (out.rates <= 1).all()
        assert (out.rates > 0).any()
        assert all(((spikes == 0) | (spikes == 1)).all() for spikes in out.observed.values())
        assert torch.equal(model(x), out.logits)
        assert not torch.equal(out.logits[0], out.logits[1])
        features = model.forward_features(x)
        assert features.shape == (2, steps, model.num_features)
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x).isfinite().all()
        logits = model.double()(x.double())
        assert logits.dtype == torch.float64
        assert logits.isfinite().all()


def check_gradients(model):
    """Finite with batch statistics; with running ones, where a bias before a norm matters, also none is zero."""
    model = livelier(model)
    x = clips(model, samples=3)
    for training in (True, False):
        torch.manual_seed(0)
        model.zero_grad()
        logits = model.train(training)(x)
        (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
        missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert missing == []
    assert [name for name, p in model.named_parameters() if not p.grad.any()] == []


def check_saved(model, folder):
    model = livelier(model).eval()
    x = clips(model)
    loaded = from_pretrained(model.save_pretrained(folder / "network")).eval()
    assert loaded.config == model.config
    assert loaded.parameter_count() == model.parameter_count()
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


def check_heads(name, fields):
    """Embeddings, and new classes."""
    embedder = create_model(name, seed=0, **{**fields, "num_classes": 0}).eval()
    model = create_model(name, seed=0, **fields).eval()
    x = clips(model)
    with torch.no_grad():
        assert embedder(x).shape[-1] == embedder.num_features == model.num_features
        assert len(embedder.run(x).rates) == embedder.num_spiking_layers()
        model.reset_classifier(0)
        assert torch.equal(model(x), embedder(x))
        model.reset_classifier(4)
        assert model(x).shape[-1] == 4
        assert len(model.run(x).rates) == model.num_spiking_layers()


def check_order(model, *, matters=True):
    """Whether the clip's logits depend on the order of its steps."""
    model = livelier(model).eval().double()
    x = clips(model, dtype=torch.float64)
    with torch.no_grad():
        forward, backward = (model(one).mean(1) for one in (x, x.flip(1)))
    assert torch.equal(forward, backward) != matters


def check_any_steps(model):
    """Clips shorter and longer than the config's; the first steps do not depend on later ones."""
    model = livelier(model).eval()
    x = clips(model, steps=model.config.time_steps + 2)
    with torch.no_grad():
        whole, start = model(x), model(x[:, :2])
    assert whole.shape[1] == x.shape[1]
    torch.testing.assert_close(whole[:, :2], start, rtol=1e-4, atol=1e-5)


def leaky_by_hand(x, tau=2.0, threshold=1.0, decay_input=True):
    """Spikes of a neuron with a hard reset, step by step: x [B, T, ...]."""
    membrane, spikes = torch.zeros_like(x[:, 0]), []
    for x_t in x.unbind(1):
        gain = 1 / tau if decay_input else 1.0
        potential = (1 - 1 / tau) * membrane + gain * x_t
        spikes.append((potential >= threshold).to(x.dtype))
        membrane = torch.where(potential >= threshold, torch.zeros_like(potential), potential)
    return torch.stack(spikes, 1)


def norm_by_hand(norm, images):
    """Batch norm with running statistics: images [N, C, H, W] or rows [N, C]."""
    shape = (1, -1, *[1] * (images.ndim - 2))
    scaled = (images - norm.running_mean.view(shape)) / (norm.running_var.view(shape) + norm.eps).sqrt()
    return scaled * norm.weight.view(shape) + norm.bias.view(shape)


def assert_count(model, measured, printed=None):
    """The measured count exactly, and within one percent of the printed one, in millions."""
    assert model.parameter_count() == measured
    if printed is not None:
        assert measured / 1e6 == pytest.approx(printed, rel=0.01)
