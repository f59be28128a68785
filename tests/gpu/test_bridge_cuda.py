"""The bridge that convolves spikes on a GPU, at the sizes of inference, against the one over rates and float64."""

import pytest
import torch
from tests.ops.operator_cases import relative

from ripe_mambaspike import create_model
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.bridge import Bridge, FoldedMixture
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.fused import bridge as fused_bridge
from ripe_mambaspike.nn.fused.carried import Carried
from ripe_mambaspike.nn.fused.stage import Spikes
from ripe_mambaspike.ops.row_norm import row_norm

pytestmark = pytest.mark.usefixtures("exact_float32")
DEVICE = "cuda"
CASES = {  # samples, steps, scales (height, width, channels), grid, width of a token
    "gesture": (2, 16, [(64, 64, 32), (32, 32, 64), (16, 16, 128)], (16, 16), 32),
    "one clip": (1, 16, [(64, 64, 32), (32, 32, 64), (16, 16, 128)], (16, 16), 32),
    "nmnist": (3, 10, [(17, 17, 32), (9, 9, 64), (5, 5, 128)], (5, 5), 32),
    "daily": (1, 10, [(56, 56, 96), (28, 28, 192), (14, 14, 384)], (14, 14), 96),
    "last scale": (40, 3, [(9, 9, 40)], (9, 9), 24),
    "one step": (1, 1, [(17, 9, 3), (5, 5, 2)], (5, 4), 8),
    "one cell": (2, 7, [(13, 13, 5)], (1, 1), 16),
}


def bridge_inputs(case, dtype, relaxed=False):
    """A bridge, the spikes of its scales, the attention map and the norm that follows."""
    samples, steps, sizes, grid, width = CASES[case]
    channels = tuple(size[2] for size in sizes)
    bridge = Bridge(FoldedMixture(channels, width), channels[-1], width).to(DEVICE)
    draws = [torch.rand(samples, steps, *size, device=DEVICE) for size in sizes]
    spikes = [one.to(dtype) if relaxed else (one < 0.2).to(torch.uint8) for one in draws]
    proxies = [torch.empty((), dtype=dtype, device=DEVICE).expand(one.shape) for one in spikes]
    kept = [Spikes(one, proxy, proxy) for one, proxy in zip(spikes, proxies, strict=True)]
    attention = torch.rand(samples, steps, *grid, channels[-1], device=DEVICE).to(dtype)
    return bridge, kept, attention, (torch.rand(width, device=DEVICE) + 0.5, torch.randn(width, device=DEVICE))


def normed_tokens(plan, spikes, attention, following):
    """The tokens after the LayerNorm that follows, and whether they were joined by one kernel."""
    tokens = fused_bridge.bridge_tokens(plan, spikes, attention, None, HARD, Carried())
    if isinstance(tokens, fused_bridge.UnnormedTokens):
        return tokens.normed(following), True
    return row_norm(tokens, *following, torch.float32), False


def exact_tokens(bridge, spikes, attention, following):
    numbers = [one.data.double().permute(0, 1, 4, 2, 3) for one in spikes]
    exact = bridge.double()
    features, _ = exact.features(numbers, tuple(attention.shape[2:4]))
    tokens = exact(features, attention.double().permute(0, 1, 4, 2, 3))
    weight, bias = (value.double() for value in following)
    return torch.nn.functional.layer_norm(tokens, weight.shape, weight, bias)


@pytest.mark.parametrize("relaxed", [False, True], ids=["hard", "relaxed"])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_the_bridge_over_spikes_is_the_one_over_rates(case, dtype, limit, relaxed):
    bridge, *inputs = bridge_inputs(case, dtype, relaxed)
    plan = fused_bridge.plan_bridge(bridge, dtype)
    given, joined = normed_tokens(plan, *inputs)
    over_rates, also_joined = normed_tokens(plan._replace(paired=None), *inputs)
    assert (joined, also_joined) == (True, False)
    expected = exact_tokens(bridge, *inputs)
    assert relative(given, expected) < max(limit, 1.5 * relative(over_rates, expected))


@torch.no_grad()
def test_the_bridge_over_spikes_needs_no_more_memory():
    bridge, *inputs = bridge_inputs("gesture", torch.bfloat16)
    plan, peaks = fused_bridge.plan_bridge(bridge, torch.bfloat16), []
    for one in (plan._replace(paired=None), plan):
        for _ in range(2):  # the first time libraries take their work space
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            tokens, _ = normed_tokens(one, *inputs)
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - held
            del tokens
        peaks.append(peak)
    assert peaks[1] <= peaks[0]


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)], ids=str)
@pytest.mark.parametrize("side", [34, 64])
@torch.no_grad()
def test_whole_network(monkeypatch, side, dtype, limit):
    model = create_model("dvsgesture", seed=0, time_steps=6)
    randomize(model, 0)
    model, x = model.to(DEVICE).eval(), synthetic_clip(6, side, side, samples=2).to(DEVICE)
    outputs = []
    with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == torch.bfloat16):
        for over_spikes in (True, False):
            if not over_spikes:
                monkeypatch.setattr(fused_bridge, "_over_spikes", lambda *_: False)
            outputs.append(model.run(x, ForwardMode(relaxed=True)))
    given, expected = outputs
    assert torch.equal(given.rates, expected.rates)
    assert relative(given.logits, expected.logits) < limit
