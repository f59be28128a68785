"""The bridge that convolves spikes on a GPU, at the sizes of inference, against the one over rates and float64."""

import pytest
import torch
from comparing import relative

from ripe_mambaspike import create_model, fuse
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.inference.capture import capture
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.bridge import Bridge, FoldedMixture
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.fused import bridge as fast_bridge
from ripe_mambaspike.nn.fused.stage import Spikes
from ripe_mambaspike.ops.joined_tokens import (
    joined_tokens,
    joined_tokens_reference,
    pooled_spikes,
    pooled_spikes_reference,
)
from ripe_mambaspike.ops.joined_tokens import triton as kernels_of
from ripe_mambaspike.ops.row_norm import row_norm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
CASES = {  # samples, steps, scales (height, width, channels), grid, width of a token
    "gesture": (2, 16, [(64, 64, 32), (32, 32, 64), (16, 16, 128)], (16, 16), 32),
    "one clip": (1, 16, [(64, 64, 32), (32, 32, 64), (16, 16, 128)], (16, 16), 32),
    "nmnist": (3, 10, [(17, 17, 32), (9, 9, 64), (5, 5, 128)], (5, 5), 32),
    "daily": (1, 10, [(56, 56, 96), (28, 28, 192), (14, 14, 384)], (14, 14), 96),
    "last scale": (40, 3, [(9, 9, 40)], (9, 9), 24),
    "one step": (1, 1, [(17, 9, 3), (5, 5, 2)], (5, 4), 8),
    "one cell": (2, 7, [(13, 13, 5)], (1, 1), 16),
}
LIMITS = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)]


@pytest.fixture(autouse=True)
def exact_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def drawn(case, kind):
    samples, steps, sizes, grid, _ = CASES[case]
    generator = torch.Generator("cuda").manual_seed(0)
    scales = [torch.rand(samples, steps, *size, generator=generator, device="cuda") for size in sizes]
    return [one.to(kind) if kind.is_floating_point else (one < 0.2).to(kind) for one in scales], grid


def whole_bridge(case, dtype, relaxed=False):
    """Bridge, the spikes of its scales, the attention map and the norm that follows, seeded."""
    samples, steps, sizes, grid, width = CASES[case]
    torch.manual_seed(0)
    channels = tuple(size[2] for size in sizes)
    made = Bridge(FoldedMixture(channels, width), channels[-1], width).cuda()
    spikes, _ = drawn(case, dtype if relaxed else torch.uint8)
    carriers = [torch.empty((), dtype=dtype, device="cuda").expand(one.shape) for one in spikes]
    kept = [Spikes(*pair, pair[1]) for pair in zip(spikes, carriers, strict=True)]
    attention = torch.rand(samples, steps, *grid, channels[-1], device="cuda").to(dtype)
    following = (torch.rand(width, device="cuda") + 0.5, torch.randn(width, device="cuda"))
    return made, kept, attention, following


@torch.no_grad()
def exactly(made, kept, attention, following):
    numbers = [one.data.double().permute(0, 1, 4, 2, 3) for one in kept]
    exact = made.double()
    features, _ = exact.features(numbers, tuple(attention.shape[2:4]))
    tokens = exact(features, attention.double().permute(0, 1, 4, 2, 3))
    weight, bias = (value.double() for value in following)
    return torch.nn.functional.layer_norm(tokens, weight.shape, weight, bias)


@pytest.mark.parametrize("kind", [torch.uint8, None], ids=["bytes", "numbers"])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_pooled_spikes(case, dtype, limit, kind):
    spikes, grid = drawn(case, kind or dtype)
    out = pooled_spikes(spikes, torch.empty(0, dtype=dtype, device="cuda"), grid)
    expected = pooled_spikes_reference([one.double() for one in spikes], grid)
    assert out.dtype == dtype
    assert relative(out, expected) < limit
    if case == "gesture" and kind is torch.uint8:
        assert torch.equal(out.double(), expected)


@pytest.mark.parametrize("wanted", [1, 512, 1 << 20], ids=["walked", "as it is", "every step apart"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_joined_tokens(monkeypatch, case, dtype, wanted):
    monkeypatch.setattr(kernels_of, "WANTED", wanted)
    samples, steps, _, grid, width = CASES[case]
    positions = grid[0] * grid[1]
    convolved = torch.randn(samples, steps, positions, 2 * width, device="cuda").to(dtype)
    attended = torch.randn(samples, steps, positions, width, device="cuda").to(dtype)
    bias, *norms = torch.randn(5, width, device="cuda")
    out = joined_tokens(convolved, bias, tuple(norms[:2]), attended, tuple(norms[2:]))
    exact = [value.double() for value in (bias, *norms)]
    expected = joined_tokens_reference(
        convolved.double(), exact[0], tuple(exact[1:3]), attended.double(), tuple(exact[3:])
    )
    assert out.dtype == torch.float32
    assert relative(out, expected) < 1e-5
    assert torch.equal(out, joined_tokens(convolved, bias, tuple(norms[:2]), attended, tuple(norms[2:])))


@pytest.mark.parametrize("relaxed", [False, True], ids=["hard", "relaxed"])
@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=str)
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_the_bridge_is_the_one_over_rates(case, dtype, limit, relaxed):
    made, kept, attention, following = whole_bridge(case, dtype, relaxed)
    plan = fast_bridge.plan_bridge(made, dtype)
    parts = fast_bridge.bridge_tokens(plan, kept, attention, None, HARD)
    assert isinstance(parts, fast_bridge.UnnormedTokens)
    over_rates = fast_bridge.bridge_tokens(plan._replace(paired=None), kept, attention, None, HARD)
    before = row_norm(over_rates, *following, torch.float32)
    expected = exactly(made, kept, attention, following)
    given = relative(parts.normed(following), expected)
    assert given < max(limit, 1.5 * relative(before, expected))


def test_the_peak_of_memory_is_lower():
    peaks = []
    made, kept, attention, following = whole_bridge("gesture", torch.bfloat16)
    with torch.no_grad():
        plan = fast_bridge.plan_bridge(made, torch.bfloat16)
        for one in (plan._replace(paired=None), plan):
            for _ in range(2):  # the first time libraries take their work space
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
                tokens = fast_bridge.bridge_tokens(one, kept, attention, None, HARD)
                if isinstance(tokens, fast_bridge.UnnormedTokens):
                    tokens = tokens.normed(following)
                else:
                    tokens = row_norm(tokens, *following, torch.float32)
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
    model, x = model.cuda().eval(), synthetic_clip(6, side, side, samples=2).cuda()
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        given = model.run(x, ForwardMode(relaxed=True))
        monkeypatch.setattr(fast_bridge, "_over_spikes", lambda *_: False)
        expected = model.run(x, ForwardMode(relaxed=True))
    assert torch.equal(given.rates, expected.rates)
    assert relative(given.logits, expected.logits) < limit


def test_captured_in_a_graph():
    model = create_model("dvsgesture", seed=0, time_steps=4)
    randomize(model, 0)
    model = fuse(model.cuda().eval(), quiet=True)
    clips = [synthetic_clip(4, 34, 34, samples=1, seed=seed).cuda() for seed in range(2)]
    run = capture(model, clips[0], torch.bfloat16)
    for clip in clips:
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
            assert torch.equal(run(clip), model(clip))
