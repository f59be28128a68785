"""The same seed, the same bits; half precision beside float32; the prediction's mean."""

import pytest
import torch

from ripe_mambaspike.models.base import Model, clip_logits
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode

RELAXED = ForwardMode(relaxed=True)


def there_and_back(model, x, mode=HARD, seed=0):
    """Logits and every gradient; the seed is that of drop-path."""
    torch.manual_seed(seed)
    logits = model.run(x, mode).logits
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [logits.detach(), *torch.autograd.grad(logits.square().sum(), parameters)]


@pytest.mark.parametrize("mode", [HARD, RELAXED], ids=["hard", "relaxed"])
@pytest.mark.parametrize("training", [True, False])
def test_the_same_seed_gives_the_same_bits(small, events, mode, training):
    first, second = (
        there_and_back(small(drop_path_rate=0.5).train(training), events(samples=4), mode) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_drop_path_follows_the_seed(small, events):
    first, second = (there_and_back(small(drop_path_rate=0.5), events(samples=8), seed=seed)[0] for seed in (0, 1))
    assert not torch.equal(first, second)


def test_uninitialized_memory_is_never_read(small, tiny_baseline, events, request):
    model, baseline, x, y = small(), tiny_baseline(), events(), events(13, 18)
    expected = there_and_back(model, x), baseline(y)
    request.getfixturevalue("poisoned_empty")
    for actual, wanted in zip(there_and_back(small(), x), expected[0], strict=True):
        assert torch.equal(actual, wanted)
    assert torch.equal(tiny_baseline()(y), expected[1])


@pytest.mark.parametrize("seed", [0, 1])
def test_bfloat16_is_close_to_float32_when_relaxed(small, events, seed):
    model = small(seed=seed).eval()
    x = events(34, seed=seed)
    with torch.no_grad():
        half = model.bfloat16().run(x.bfloat16(), RELAXED)
        full = model.float().run(x, RELAXED)  # the same numbers, rounded to bfloat16 before
    assert half.logits.dtype == torch.bfloat16
    assert half.rates.dtype == torch.float32
    scale = full.logits.abs().max().item()
    torch.testing.assert_close(half.logits.float(), full.logits, rtol=0, atol=0.02 * scale)
    torch.testing.assert_close(half.rates, full.rates, rtol=0.005, atol=1e-4)
    torch.testing.assert_close(half.attention.float(), full.attention, rtol=0, atol=0.005)


def test_bfloat16_gradients_are_close_when_relaxed(small, events):
    model, x = small().eval(), events()
    half = there_and_back(model.bfloat16(), x.bfloat16(), RELAXED)
    full = there_and_back(model.float(), x, RELAXED)
    assert all(part.isfinite().all() for part in half)
    flat, wanted = (torch.cat([g.float().flatten() for g in gradients[1:]]) for gradients in (half, full))
    assert torch.cosine_similarity(flat, wanted, dim=0) > 0.99


@pytest.mark.parametrize("training", [True, False])
def test_bfloat16_spikes(small, louder, events, training):
    model = louder(small()).bfloat16().train(training)
    out = model.run(events(34, dtype=torch.bfloat16))
    assert out.logits.dtype == torch.bfloat16
    assert out.logits.isfinite().all()
    assert (out.rates > 0.01).all()


def test_float64_and_float32_agree(small, louder, events):
    model, x = louder(small()).eval(), events()
    with torch.no_grad():
        single = model.run(x, RELAXED).logits
        double = model.double().run(x.double(), RELAXED).logits
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)


class Stub(Model):
    def __init__(self, config, logits):
        super().__init__(config, "stub")
        self.logits = logits

    def forward(self, x):
        return self.logits


def test_predictions_are_averaged_in_float32(small):
    """In bfloat16 the two means are the same number, and argmax would take the first."""
    logits = torch.zeros(1, 3, 2, dtype=torch.bfloat16)
    logits[0, :, 0] = torch.tensor([1.0, 1.0, 1.0])
    logits[0, :, 1] = torch.tensor([1.0, 1.0, 1.0078125])
    assert logits.mean(1)[0, 0] == logits.mean(1)[0, 1]
    model = Stub(small().config, logits)
    assert model.predict(torch.zeros(1)).tolist() == [1]
    assert clip_logits(logits).dtype == torch.float32
    assert clip_logits(logits.double()).dtype == torch.float64


def test_predict_is_the_argmax_of_the_mean_over_steps(small, louder, events):
    model = louder(small()).eval()
    x = events(samples=6)
    prediction = model.predict(x)
    assert not prediction.requires_grad
    with torch.no_grad():
        expected = [max(range(7), key=lambda c: row[:, c].sum().item()) for row in model(x)]
    assert prediction.tolist() == expected
