"""MR-S3A: rates on the last grid, three scales mixed, the norm, and the attention map added."""

import pytest
import torch
import torch.nn.functional as F
from tests.nn.ways import WAYS

from ripe_mambaspike.nn.bridge import Bridge, FoldedMixture, ProjectedMixture, rates_on_grid
from ripe_mambaspike.nn.forward_mode import ForwardMode

B, T, WIDTH = 2, 4, 5
CHANNELS = (3, 4, 6)
SIZES = ((17, 12), (9, 6), (5, 3))


def spikes(sizes=SIZES, channels=CHANNELS, steps=T):
    return [(torch.rand(B, steps, c, *size) < 0.4).double() for c, size in zip(channels, sizes, strict=True)]


def slow_rates(x):
    """r_t = (s_1 + … + s_t) / t and its change, r_0 = 0; stacked over channels."""
    rates, before, total = [], torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        total = total + x[:, t]
        rate = total / (t + 1)
        rates.append(torch.cat((rate, rate - before), 1))
        before = rate
    return torch.stack(rates, 1)


def slow_pool(x, grid):
    """Cell (i, j) is the mean over the input it covers, from ⌊i·n/g⌋ up to ⌈(i+1)·n/g⌉."""

    def span(index, size, cells):
        return slice(index * size // cells, -(-(index + 1) * size // cells))

    height, width = x.shape[-2:]
    rows = [
        torch.stack([x[..., span(i, height, grid[0]), span(j, width, grid[1])].mean((-1, -2)) for j in range(grid[1])])
        for i in range(grid[0])
    ]
    return torch.stack(rows).movedim((0, 1), (-2, -1))


@pytest.mark.parametrize(("size", "grid"), [((8, 12), (4, 3)), ((9, 6), (5, 3)), ((17, 17), (5, 5)), ((5, 3), (5, 3))])
def test_pooling_commutes_with_rates(same, size, grid):
    x = (torch.rand(B, T, 3, *size) < 0.4).double()
    rates, _ = rates_on_grid(x, grid)
    same(rates, slow_pool(slow_rates(x), grid))
    same(rates, slow_rates(slow_pool(x, grid)))


def made(randomize, channels=CHANNELS):
    bridge = randomize(Bridge(ProjectedMixture(channels, WIDTH), CHANNELS[-1], WIDTH).double())
    with torch.no_grad():
        for parameter in (bridge.norm.weight, bridge.norm.bias):
            parameter.normal_()
        if bridge.mixture.mix is not None:
            bridge.mixture.mix.normal_()
    return bridge


@torch.no_grad()
def folded(bridge, channels=CHANNELS):
    """The deployed form with numbers computed here."""
    mixture = FoldedMixture(channels, WIDTH).double()
    for new, old in zip(mixture.scales, bridge.mixture.scales, strict=True):
        scale = old.norm.weight / (old.norm.running_var + 1e-5).sqrt()
        new.weight.copy_(old.conv.weight)
        new.scale.copy_(scale)
        new.shift.copy_(old.norm.bias - old.norm.running_mean * scale)
    if mixture.mix is not None:
        mixture.mix.copy_(bridge.mixture.mix)
    out = Bridge(mixture, CHANNELS[-1], WIDTH).double()
    out.norm.load_state_dict(bridge.norm.state_dict())
    out.attention.load_state_dict(bridge.attention.state_dict())
    return out.eval()


def slow_bridge(bridge, given, attention, grid, twin_norm):
    shares = torch.softmax(bridge.mixture.mix, 0) if len(given) > 1 else torch.ones(1)
    mixed = 0.0
    for share, scale, s in zip(shares, bridge.mixture.scales, given, strict=True):
        rates = slow_pool(slow_rates(s), grid).flatten(0, 1)
        norm = twin_norm(scale.norm)
        mixed = mixed + share * norm(F.conv2d(rates, scale.conv.weight, padding=1))
    tokens = mixed.unflatten(0, (B, T)).movedim(2, -1).flatten(2, 3)  # raster order inside a step
    mean, variance = tokens.mean(-1, keepdim=True), tokens.var(-1, keepdim=True, unbiased=False)
    tokens = (tokens - mean) / (variance + 1e-5).sqrt() * bridge.norm.weight + bridge.norm.bias
    columns = attention.movedim(2, -1).flatten(2, 3)
    return tokens + columns @ bridge.attention.weight.T + bridge.attention.bias


@WAYS
@pytest.mark.parametrize("scales", [3, 1])
def test_equals_the_specification(randomize, twin_norm, same, scales, training, mode):
    bridge = made(randomize, CHANNELS[-scales:]).train(training)
    given, attention = spikes()[-scales:], torch.randn(B, T, CHANNELS[-1], *SIZES[-1], dtype=torch.float64)
    with torch.no_grad():
        expected = slow_bridge(bridge, given, attention, SIZES[-1], twin_norm)
        features, _ = bridge.features(given, SIZES[-1], mode)
        same(bridge(features, attention), expected, 1e-11)


@pytest.mark.parametrize("scales", [3, 1])
def test_the_folded_form_is_exact(randomize, same, scales):
    channels = CHANNELS[-scales:]
    bridge = made(randomize, channels).eval()
    given = spikes()[-scales:]
    features, _ = bridge.features(given, SIZES[-1], ForwardMode(literal=True))
    deployed, _ = folded(bridge, channels).features(given, SIZES[-1])
    same(deployed, features, 1e-12)


def test_the_mixture_starts_even_and_one_scale_has_no_weight():
    assert (ProjectedMixture(CHANNELS, WIDTH).mix == 1).all()
    assert ProjectedMixture(CHANNELS[-1:], WIDTH).mix is None
    count = sum(p.numel() for p in Bridge(ProjectedMixture((32, 64, 128), 32), 128, 32).parameters())
    assert count == 133_411


def test_an_untracked_pass_leaves_the_statistics(randomize):
    bridge = made(randomize)
    before = [scale.norm.running_mean.clone() for scale in bridge.mixture.scales]
    bridge.features(spikes(), SIZES[-1], ForwardMode(track_statistics=False))
    assert all(torch.equal(s.norm.running_mean, b) for s, b in zip(bridge.mixture.scales, before, strict=True))
    bridge.features(spikes(), SIZES[-1])
    assert not torch.equal(bridge.mixture.scales[0].norm.running_mean, before[0])


def test_pieces_with_carried_state_equal_one_call(randomize, same):
    bridge = made(randomize).eval()
    given = spikes()
    whole, final = bridge.features(given, SIZES[-1])
    state, parts = None, []
    for first_step, pieces in zip((0, 1, 3), zip(*(s.split((1, 2, 1), 1) for s in given), strict=True), strict=True):
        features, state = bridge.features(list(pieces), SIZES[-1], initial_state=state, first_step=first_step)
        parts.append(features)
    same(torch.cat(parts, 1), whole)
    torch.testing.assert_close(state, final)


def test_kept_positions_are_those_columns_of_the_whole(randomize, same):
    bridge = made(randomize).eval()
    features, attention = torch.randn(B, T, 15, WIDTH).double(), torch.randn(B, T, CHANNELS[-1], 5, 3).double()
    indices = torch.tensor([[1, 4, 14], [0, 2, 9]])
    whole = bridge(features, attention)
    expected = torch.stack([whole[b][:, indices[b]] for b in range(B)])
    same(bridge(features, attention, indices), expected)
