"""The objective against sums written out, and one training step."""

import math

import pytest
import torch

from raising import raises
from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.base import Output
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.train.objective import LossWeights, consistency, objective, rate_penalty, relaxed_weight, tet
from ripe_mambaspike.train.step import StepSettings, make_optimizer, training_step

SMALL = {"stage_channels": (8, 8, 12), "embed_dims": (8, 12, 16), "time_steps": 3, "in_size": 16, "drop_path_rate": 0.0}


def small(**fields):
    return create_model("nmnist", seed=0, **{**SMALL, **fields})


def entropy(row, target):
    """−Σ y log softmax(z), in plain Python."""
    total = math.log(sum(math.exp(z) for z in row))
    return sum(y * (total - z) for y, z in zip(target, row, strict=True))


def by_hand(logits, targets, spread, smoothing):
    """TET with every sum written out; targets as probabilities."""
    batch, steps, classes = logits.shape
    rows = logits.tolist()
    smooth = [[(1 - smoothing) * y + smoothing / classes for y in row] for row in targets]
    cross = sum(entropy(rows[b][t], smooth[b]) for b in range(batch) for t in range(steps)) / (batch * steps)
    apart = 0.0
    for b in range(batch):
        for c in range(classes):
            mean = sum(rows[b][t][c] for t in range(steps)) / steps
            apart += sum((rows[b][t][c] - mean) ** 2 for t in range(steps))
    return cross + spread * apart / (batch * steps * classes)


def one_hot(indices, classes):
    return [[float(c == i) for c in range(classes)] for i in indices]


@pytest.mark.parametrize("smoothing", [0.0, 0.1], ids=["plain", "smoothed"])
@pytest.mark.parametrize("steps", [1, 3])
def test_tet_of_classes(smoothing, steps):
    logits = torch.randn(2, steps, 4, dtype=torch.float64)
    expected = by_hand(logits, one_hot([3, 0], 4), 0.25, smoothing)
    assert tet(logits, torch.tensor([3, 0]), 0.25, smoothing).item() == pytest.approx(expected, rel=1e-12)


def test_tet_of_mixed_targets():
    logits = torch.randn(2, 3, 4, dtype=torch.float64)
    mixed = [[0.3, 0.7, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    given = tet(logits, torch.tensor(mixed), 0.01, 0.1)
    assert given.item() == pytest.approx(by_hand(logits, mixed, 0.01, 0.1), rel=1e-6)
    hard = tet(logits, torch.tensor([1, 2]), 0.01, 0.1)
    soft = tet(logits, torch.tensor(one_hot([1, 2], 4)), 0.01, 0.1)
    assert hard.item() == pytest.approx(soft.item(), rel=1e-12)


def test_half_precision_logits_are_summed_in_float32():
    logits = torch.randn(64, 16, 11)
    rounded = logits.bfloat16()
    given = tet(rounded, torch.zeros(64, dtype=torch.long), 0.005)
    assert given.dtype == torch.float32
    assert given.item() == tet(rounded.float(), torch.zeros(64, dtype=torch.long), 0.005).item()


def test_the_whole_objective():
    hard = Output(torch.randn(2, 3, 4, dtype=torch.float64), torch.tensor([0.1, 0.3, 0.5], dtype=torch.float64))
    soft = Output(torch.randn(2, 3, 4, dtype=torch.float64), torch.tensor([9.0, 9.0, 9.0], dtype=torch.float64))
    weights = LossWeights(relaxed_share=0.2, spread=0.5, consistency=0.7, rates=0.01, label_smoothing=0.1)
    targets = torch.tensor([1, 2])
    parts = objective(hard, soft, targets, weights)
    first, second = (by_hand(out.logits, one_hot([1, 2], 4), 0.5, 0.1) for out in (hard, soft))
    pairs = zip(hard.logits.flatten().tolist(), soft.logits.flatten().tolist(), strict=True)
    square = sum((a - b) ** 2 for a, b in pairs) / 24
    assert parts.hard.item() == pytest.approx(first, rel=1e-12)
    assert parts.relaxed.item() == pytest.approx(second, rel=1e-12)
    assert parts.consistency.item() == pytest.approx(square, rel=1e-12)
    assert parts.rate.item() == pytest.approx(0.3, rel=1e-12)
    expected = 0.8 * first + 0.2 * second + 0.7 * square + 0.01 * 0.3
    assert parts.loss.item() == pytest.approx(expected, rel=1e-12)


def test_without_a_relaxed_pass_the_hard_one_has_full_weight():
    hard = Output(torch.randn(2, 3, 4, dtype=torch.float64), torch.tensor([0.2, 0.4], dtype=torch.float64))
    parts = objective(hard, None, torch.tensor([1, 2]), LossWeights(relaxed_share=0.5, rates=0.01))
    assert parts.relaxed is None
    assert parts.consistency is None
    assert parts.loss.item() == pytest.approx(parts.hard.item() + 0.01 * 0.3, rel=1e-12)


def test_the_gradient_of_the_consistency_reaches_both():
    hard, soft = (torch.randn(1, 2, 3, requires_grad=True) for _ in range(2))
    consistency(hard, soft).backward()
    assert torch.allclose(hard.grad, (hard - soft).detach() / 3)
    assert torch.equal(soft.grad, -hard.grad)
    rates = torch.tensor([0.1, 0.2, 0.6], requires_grad=True)
    rate_penalty(rates).backward()
    assert torch.allclose(rates.grad, torch.full((3,), 1 / 3))


def test_the_share_of_the_relaxed_pass_falls_to_a_tenth():
    assert [relaxed_weight(e, 10) for e in range(10)] == pytest.approx(
        [0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.1]
    )
    assert relaxed_weight(0, 1) == 0.5
    for epoch, epochs in ((-1, 10), (10, 10), (0, 0)):
        with raises(ConfigError, field="epoch", mentions=f"to {max(epochs, 1) - 1}, got {epoch}"):
            relaxed_weight(epoch, epochs)


@pytest.mark.parametrize(
    "targets",
    [torch.zeros(3, dtype=torch.long), torch.zeros(2, 4, dtype=torch.long), torch.zeros(2), torch.zeros(2, 5)],
    ids=["three", "whole matrix", "floating indices", "five classes"],
)
def test_targets_of_another_shape(targets):
    with raises(InputError, field="targets"):
        tet(torch.zeros(2, 3, 4), targets, 0.0)


def test_a_step_follows_the_clipped_gradient_and_statistics_follow_one_pass():
    model, twin = small().train(), small().train()
    x, y = synthetic_clip(3, 16, 16, samples=4), torch.tensor([0, 1, 2, 3])
    settings = StepSettings(clip_grad_norm=1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    parts = training_step(model, optimizer, x, y, settings)
    assert not parts.loss.requires_grad
    moved = torch.stack([(p.detach() - before[name]).norm() for name, p in model.named_parameters()]).norm()
    assert moved.item() == pytest.approx(1e-3, rel=1e-3)
    out = twin.run(x, ForwardMode(warm_up=False))  # one pass in training: what the statistics must have followed
    for (name, ours), theirs in zip(model.named_buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, theirs), name
    assert parts.rate.item() == pytest.approx(out.rates.mean().item())


def test_gradients_of_an_earlier_step_are_forgotten():
    x, y = synthetic_clip(3, 16, 16, samples=2), torch.tensor([0, 1])
    grads = []
    for stale in (False, True):
        model = small().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        if stale:
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 7.0) if parameter.requires_grad else None
        training_step(model, optimizer, x, y, StepSettings(clip_grad_norm=1e9))
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.equal(*grads)


def test_one_pass_or_two():
    x, y = synthetic_clip(3, 16, 16, samples=2), torch.tensor([0, 1])
    one, two = (
        training_step(m := small().train(), make_optimizer(m, 1e-3, 0.05), x, y, StepSettings(passes=passes))
        for passes in (1, 2)
    )
    assert one.relaxed is None
    assert two.relaxed is not None
    assert one.hard.item() == two.hard.item()
    with raises(ConfigError, field="passes", mentions="got 3"):
        StepSettings(passes=3)


def test_the_relaxed_pass_keeps_the_hard_tokens():
    model = small(num_tokens=2).train()
    seen = []
    run_passes = model.run_passes

    def spy(x, modes):
        outputs = run_passes(x, modes)
        seen.extend(zip(modes, outputs, strict=True))
        return outputs

    model.run_passes = spy
    x, y = synthetic_clip(3, 16, 16, samples=2), torch.tensor([0, 1])
    training_step(model, torch.optim.SGD(model.parameters(), 0.1), x, y, StepSettings(sharpness=3.0))
    (hard, of_hard), (relaxed, of_relaxed) = seen
    assert (hard.relaxed, hard.sharpness, hard.track_statistics) == (False, 3.0, True)
    assert (relaxed.relaxed, relaxed.sharpness, relaxed.track_statistics) == (True, 3.0, False)
    assert of_hard.token_indices.shape == (2, 2)
    assert torch.equal(of_relaxed.token_indices, of_hard.token_indices)


def test_training_lowers_the_loss():
    model = small().train()
    optimizer = make_optimizer(model, 5e-3, 0.05)
    x, y = synthetic_clip(3, 16, 16, samples=4), torch.tensor([0, 1, 2, 3])
    losses = [training_step(model, optimizer, x, y, StepSettings()).loss.item() for _ in range(8)]
    assert losses[-1] < losses[0] - 0.1
