"""Networks of other authors: small ones that fire, what each of them must do, and their parts by hand."""

from typing import Any, ClassVar

import pytest
import torch

from ripe_mambaspike import create_model
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.calibrate import has_running_statistics, recalibrate
from ripe_mambaspike.nn.leaky import LeakyNeuron
from ripe_mambaspike.nn.plain_norm import PlainBatchNorm


def clip(steps=4, size=32, samples=2, dtype=torch.float32, seed=0):
    """Event counts [samples, steps, 2, size, size]."""
    return synthetic_clip(steps, size, size, samples, seed).to(dtype)


def loud_clips(model, samples=2, steps=None, dtype=torch.float32, seed=0):
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


def calibrated(model, x):
    """The network with the statistics of x, in evaluation mode: its neurons fire."""
    if has_running_statistics(model):
        recalibrate(model, [x])
    return model.eval()


@torch.no_grad()
def loud_network(name, dtype=torch.float32, **fields):
    """The network in evaluation, its norms adapted to `clip` and then loud enough that every layer fires."""
    fields = {"in_size": 32, "time_steps": 4, "num_classes": 5, **fields}
    model = create_model(name, seed=0, **fields).to(dtype)
    for module in model.modules():
        if isinstance(module, PlainBatchNorm):
            module.weight.uniform_(1.5, 2.5)
            module.bias.uniform_(0.5, 2.0)
            module.momentum = 1.0  # the running statistics become those of the next batch
    model.train()(clip(fields["time_steps"], 32, dtype=dtype))
    return model.eval()


def neurons(model):
    """The network's neurons by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LeakyNeuron)}


def check_outputs(model, steps):
    """Shapes, rates and precisions; `steps` is the number of steps of the logits for a clip of its own length."""
    model = livelier(model).eval()
    x = loud_clips(model)
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
    x = loud_clips(model, samples=3)
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
    x = loud_clips(model)
    loaded = from_pretrained(model.save_pretrained(folder / "network")).eval()
    assert loaded.config == model.config
    assert loaded.parameter_count() == model.parameter_count()
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


def check_heads(name, fields):
    """Embeddings, and new classes."""
    embedder = create_model(name, seed=0, **{**fields, "num_classes": 0}).eval()
    model = create_model(name, seed=0, **fields).eval()
    x = loud_clips(model)
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
    x = loud_clips(model, dtype=torch.float64)
    with torch.no_grad():
        forward, backward = (model(one).mean(1) for one in (x, x.flip(1)))
    assert torch.equal(forward, backward) != matters


def check_any_steps(model):
    """Clips shorter and longer than the config's; the first steps do not depend on later ones."""
    model = livelier(model).eval()
    x = loud_clips(model, steps=model.config.time_steps + 2)
    with torch.no_grad():
        whole, start = model(x), model(x[:, :2])
    assert whole.shape[1] == x.shape[1]
    torch.testing.assert_close(whole[:, :2], start, rtol=1e-4, atol=1e-5)


def check_network(model, x, *, steps, spiking_layers, folder):
    """Shape, gradients, rates, a saved copy and precisions, of a network with the statistics of its clips x."""
    assert model(x).shape == (len(x), steps, model.num_classes)
    check_calibrated_gradients(model, x)
    check_rates(model, x, spiking_layers)
    check_reloaded(model, x, folder)
    check_precisions(model, x)


def check_calibrated_gradients(model, x):
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


class CommonTests:
    """The tests that five networks share; a file derives a class of it, with a small network of its own."""

    name: ClassVar[str]
    fields: ClassVar[dict[str, Any]]  # of the small network
    steps: ClassVar[int]  # of the logits for a clip of its own length

    @classmethod
    def small(cls):
        return create_model(cls.name, seed=0, **cls.fields)

    def test_its_outputs(self):
        check_outputs(self.small(), self.steps)

    def test_gradients_reach_every_parameter(self):
        check_gradients(self.small())

    def test_saved_and_loaded(self, tmp_path):
        check_saved(self.small(), tmp_path)

    def test_other_heads(self):
        check_heads(self.name, self.fields)

    def test_the_order_of_steps_matters(self):
        check_order(self.small())
