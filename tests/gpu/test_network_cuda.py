"""The whole network with kernels on a GPU against the reference path, and recorded graphs against plain calls."""

import copy

import pytest
import torch

from ripe_mambaspike import create_model, fuse
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.inference.capture import capture
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.train.capture import capture_step
from ripe_mambaspike.train.step import StepSettings, make_optimizer, training_step

pytestmark = pytest.mark.usefixtures("exact_float32")
RELAXED = ForwardMode(relaxed=True)


def network(**fields):
    made = create_model("dvsgesture", seed=0, time_steps=6, **fields)
    randomize(made, 0)
    made.hierarchy.drop_rates = [0.0] * 3
    return made.cuda()


def relative(given, expected):
    return float((given.double() - expected.double()).abs().max() / expected.double().abs().max())


def passed(model, x, mode, choice):
    model.zero_grad()
    with kernels(choice):
        out = model.run(x, mode)
        (out.logits.square().mean() + out.rates.sum()).backward()
    return out, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("side", [34, 64])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_relaxed_pass_and_gradients_in_float32(side, training):
    model, x = network().train(training), synthetic_clip(6, side, side, samples=3).cuda()
    exact, _ = copy.deepcopy(model).double(), None
    expected, wanted = passed(exact, x.double(), RELAXED, "off")
    given, got = passed(model, x, RELAXED, "auto")
    assert relative(given.logits, expected.logits) < 2e-4
    assert relative(given.attention, expected.attention) < 2e-4
    assert relative(given.rates, expected.rates) < 1e-5
    for name, gradient in wanted.items():
        scale = max(float(gradient.abs().max()), 1e-4)
        assert float((got[name] - gradient).abs().max()) <= 5e-3 * scale, name


def test_hard_pass_fires_the_same_but_for_rounding():
    model, x = network().eval(), synthetic_clip(6, 64, 64, samples=3).cuda()
    with torch.no_grad():
        with kernels("off"):
            expected = model.run(x)
        given = model.run(x)
    torch.testing.assert_close(given.rates, expected.rates, rtol=1e-3, atol=1e-5)


def test_bfloat16_is_near_float32():
    model, x = network().eval(), synthetic_clip(6, 64, 64, samples=3).cuda()
    with torch.no_grad():
        expected = model.run(x, RELAXED)
        with torch.autocast("cuda", torch.bfloat16):
            given = model.run(x, RELAXED)
    assert given.logits.dtype == torch.float32
    assert relative(given.logits, expected.logits) < 0.1
    assert relative(given.rates, expected.rates) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_captured_network_gives_the_same_bits(dtype):
    model = fuse(network().eval(), quiet=True)
    clips = [synthetic_clip(6, 64, 64, samples=2, seed=seed).cuda() for seed in range(3)]
    run = capture(model, clips[0], dtype)
    for clip in clips:
        with torch.inference_mode(), torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            expected = model(clip)
        assert torch.equal(run(clip), expected)
        assert torch.equal(run(clip), run(clip))
        run.example.zero_().copy_(clip)
        assert torch.equal(run(run.example), expected)


@pytest.mark.parametrize("passes", [1, 2])
def test_captured_step_is_the_step(passes):
    settings = StepSettings(passes=passes, autocast=True)
    x, y = synthetic_clip(6, 34, 34, samples=4).cuda(), torch.tensor([0, 1, 2, 3], device="cuda")
    losses = []
    for captured in (False, True):
        model = network().train()
        optimizer = make_optimizer(model, 1e-3, 0.05)
        if captured:
            step = capture_step(model, optimizer, x, y, settings)
            losses.append([float(step().loss) for _ in range(4)])
        else:
            losses.append([float(training_step(model, optimizer, x, y, settings).loss) for _ in range(4)])
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-3)
    assert losses[0][-1] == pytest.approx(losses[1][-1], rel=2e-2)
    assert losses[1][-1] < losses[1][0]


def test_hard_pass_trains_under_autocast():
    model, x = network().train(), synthetic_clip(6, 34, 34, samples=4).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        out = model.run(x, HARD)
    out.logits.square().mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters() if p.requires_grad)


@torch.no_grad()
def test_front_end_in_pieces_and_with_rows_at_different_steps():
    """Relaxed, so that rounding flips no spike: states and features are the whole clip's."""
    model, x = network().eval(), synthetic_clip(6, 34, 34, samples=3).cuda()
    whole = model.front_end(x, RELAXED)
    first = model.front_end(x[:, :2], RELAXED)
    second = model.front_end(x[:, 2:], RELAXED, first.state, first_step=2)
    assert relative(torch.cat((first.features, second.features), 1), whole.features) < 1e-4
    for name, state in whole.state.items():
        assert relative(second.state[name], state) < 1e-4, name
    states = [model.front_end(x[row : row + 1, : row + 1], RELAXED).state for row in range(3)]
    state = {name: torch.cat([one[name] for one in states]) for name in states[0]}
    steps = torch.arange(1, 4, device="cuda")
    rows = torch.arange(3, device="cuda")
    next_ = model.front_end(x[rows, steps][:, None], RELAXED, state, first_step=steps)
    assert relative(next_.features[:, 0], whole.features[rows, steps]) < 1e-4


@torch.no_grad()
def test_causal_network_in_pieces():
    model = fuse(network(causal=True).eval(), quiet=True)
    x = synthetic_clip(6, 34, 34, samples=2).cuda()
    whole, state, pieces = model.run(x, RELAXED).logits, {}, []
    for piece in x.split((1, 3, 2), 1):
        out = model.run(piece, RELAXED, state=state)
        pieces.append(out.logits)
        state = out.state
    assert relative(torch.cat(pieces, 1), whole) < 1e-3


@torch.no_grad()
def test_plain_calls_keep_the_prepared_weights():
    """A call after a change of the weights sees it; without one nothing is prepared again."""
    model, x = fuse(network().eval(), quiet=True), synthetic_clip(6, 34, 34, samples=1).cuda()
    first = model(x)
    assert torch.equal(model(x), first)
    model.head[-1].weight.mul_(2) if isinstance(model.head, torch.nn.Sequential) else model.head.weight.mul_(2)
    assert not torch.equal(model(x), first)
