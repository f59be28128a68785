"""The network on a CUDA device: the same answers as on the CPU. Run by `make test-gpu`."""

import pytest
import torch

from ripe_mambaspike import create_model, dual_kernel, from_pretrained, fuse
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.ops import selective_scan

pytestmark = pytest.mark.usefixtures("exact_float32")
RELAXED = ForwardMode(relaxed=True)


@pytest.fixture
def model():
    made = create_model("dvsgesture", seed=0, time_steps=6)
    randomize(made, 0)
    return made


@pytest.fixture
def clip():
    return synthetic_clip(6, 34, 34, samples=2)


def test_float64_forward_is_the_cpus(model, clip):
    model = model.double().eval()
    with torch.no_grad():
        expected = model.run(clip.double())
        given = model.cuda().run(clip.double().cuda())
    torch.testing.assert_close(given.logits.cpu(), expected.logits, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(given.rates.cpu(), expected.rates)


def test_relaxed_float32_forward_and_gradients_are_the_cpus(model, clip):
    def gradients(device):
        copy = create_model("dvsgesture", seed=0, time_steps=6)
        copy.load_state_dict(model.state_dict())
        copy = copy.to(device).train()
        copy.hierarchy.drop_rates = [0.0] * 3
        logits = copy.run(clip.to(device), RELAXED).logits
        logits.square().mean().backward()
        return logits.detach().cpu(), [p.grad.cpu() for p in copy.parameters() if p.requires_grad]

    (expected, wanted), (given, got) = gradients("cpu"), gradients("cuda")
    torch.testing.assert_close(given, expected, rtol=1e-3, atol=1e-3)
    for a, b in zip(got, wanted, strict=True):
        assert (a - b).abs().max() <= 1e-2 * b.abs().max() + 1e-5


def test_fusion_and_dual_kernel(model, clip):
    model = model.cuda().eval()
    small = fuse(model, quiet=True)
    with torch.no_grad():
        assert torch.equal(small(clip.cuda()), model(clip.cuda()))
    dual_kernel(small, quiet=True)


def test_save_on_the_gpu_load_on_the_cpu(model, tmp_path):
    model.cuda().save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.cpu())


def test_autocast_bfloat16_trains(model, clip):
    model = model.cuda().train()
    with torch.autocast("cuda", torch.bfloat16):
        output = model.run(clip.cuda())
        loss = output.logits.float().square().mean()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("length", [1, 7, 130, 4096])
def test_scan(length):
    shape = (2, length, 24)
    x, delta = torch.randn(shape), torch.rand(shape)
    decay, b, c = -torch.rand(24, 16) * 4, torch.randn(2, length, 16), torch.randn(2, length, 16)
    tensors = [t.double().requires_grad_() for t in (x, delta, decay, b, c)]
    on_gpu = [t.detach().cuda().requires_grad_() for t in tensors]
    expected, given = selective_scan(*tensors)[0], selective_scan(*on_gpu)[0]
    torch.testing.assert_close(given.cpu(), expected, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weight).sum(), tensors)
    got = torch.autograd.grad((given * weight.cuda()).sum(), on_gpu)
    for a, e in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-9, atol=1e-9)
