"""DS-MPA's modules: their size, and what they compute on maps [B, T, C, H, W]."""

import pytest
import torch

from ripe_mambaspike.nn.attention import ATTENTIONS, make_attention

B, T, C, H, W = 2, 4, 8, 3, 5
ATTENDING = pytest.mark.parametrize("kind", ["ds-mpa", "low-rank", "grouped", "sigmoid"])


def size(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("kind", "total", "count"),
    [
        ("ds-mpa", 64_736, lambda c: 3 * c * c + c),
        ("low-rank", 32_480, lambda c: 3 * 2 * c * c // 4 + c),
        ("grouped", 16_352, lambda c: 3 * c * c // 4 + c),
        ("sigmoid", 64_736, lambda c: 3 * c * c + c),
        ("gate", 21_728, lambda c: c * c + c),
        ("none", 0, lambda c: 0),
    ],
)
def test_sizes(kind, total, count):
    widths = (32, 64, 128)
    sizes = [size(ATTENTIONS[kind](c)) for c in widths]
    assert sizes == [count(c) for c in widths]
    assert sum(sizes) == total


@ATTENDING
def test_the_gain_starts_at_one(kind):
    module = ATTENTIONS[kind](C)
    assert module.gain.shape == (C,)
    assert (module.gain == 1).all()


def maps():
    potential, features = (torch.randn(B, T, C, H, W, dtype=torch.float64) for _ in range(2))
    return potential, (torch.rand(B, T, C, H, W) < 0.4).double(), features


def dense(factors):
    """The factors of one projection as the one matrix they are."""
    if len(factors) == 2:
        return factors[1] @ factors[0]
    return torch.block_diag(*factors[0]) if factors[0].ndim == 3 else factors[0]


def slow_feature(z):
    return torch.where(z > 0, z + 1, z.exp())


FEATURES = {"elu": slow_feature, "relu": lambda z: z.clamp(min=0), "softplus": lambda z: (1 + z.exp()).log(),
            "exp": torch.exp}  # fmt: skip


def slow_attention(module, kind, potential, spikes, features, feature=slow_feature, epsilon=1e-5):
    """Over the N×N weights themselves, with the previous step's spikes as values."""
    out, maps_ = [], []
    previous = torch.zeros_like(spikes[:, 0])
    query, key, value = (dense(list(f)) for f in (module.query, module.key, module.value))
    for t in range(T):
        flat = potential[:, t].flatten(2)
        q, k = torch.einsum("oc,bcn->bon", query, flat), torch.einsum("oc,bcn->bon", key, flat)
        v = torch.einsum("oc,bcn->bon", value, previous.flatten(2))
        if kind == "sigmoid":
            weights = torch.sigmoid(torch.einsum("bci,bcj->bij", q, k))
        else:
            weights = torch.einsum("bci,bcj->bij", feature(q), feature(k))
            weights = weights / (weights.sum(-1, keepdim=True) + epsilon)
        attention = torch.einsum("bij,bcj->bci", weights, v).view_as(features[:, t])
        maps_.append(attention)
        out.append(features[:, t] * (1 + module.gain[:, None, None] * attention))
        previous = spikes[:, t]
    return torch.stack(out, 1), torch.stack(maps_, 1)


@ATTENDING
def test_equals_the_slow_formula(same, kind):
    module = ATTENTIONS[kind](C).double()
    torch.nn.init.normal_(module.gain)
    potential, spikes, features = maps()
    (out, attention), state = module(potential, spikes, features)
    expected, expected_map = slow_attention(module, kind, potential, spikes, features)
    same(attention, expected_map, 1e-11)
    same(out, expected, 1e-11)
    assert torch.equal(state["spikes"], spikes[:, -1])
    assert torch.equal(out[:, 0], features[:, 0]), "at the first step V = 0 and X passes unchanged"


@pytest.mark.parametrize("kind", ["ds-mpa", "low-rank", "grouped"])
@pytest.mark.parametrize("feature_map", FEATURES)
def test_the_configs_feature_map_and_epsilon(same, kind, feature_map):
    module = make_attention(kind, C, feature_map=feature_map, epsilon=0.2).double()
    given = maps()
    (out, attention), _ = module(*given)
    expected, expected_map = slow_attention(module, kind, *given, FEATURES[feature_map], 0.2)
    same(attention, expected_map, 1e-11)
    same(out, expected, 1e-11)


@pytest.mark.parametrize("kind", ["sigmoid", "gate", "none"])
def test_the_controls_have_neither(same, kind):
    module, plain = make_attention(kind, C, feature_map="exp", epsilon=0.2).double(), ATTENTIONS[kind](C).double()
    plain.load_state_dict(module.state_dict())
    given = maps()
    same(module(*given)[0], plain(*given)[0])


@ATTENDING
def test_pieces_with_carried_state_equal_one_call(same, kind):
    module = ATTENTIONS[kind](C).double()
    given = maps()
    state, parts = None, []
    for pieces in zip(*(m.split((1, 2, 1), 1) for m in given), strict=True):
        out, state = module(*pieces, state)
        parts.append(out)
    expected, _ = module(*given)
    for part, wanted in zip(zip(*parts, strict=True), expected, strict=True):
        same(torch.cat(part, 1), wanted)


def test_the_gate_is_a_convolution_with_bias_and_a_sigmoid(same):
    module = ATTENTIONS["gate"](C).double()
    torch.nn.init.normal_(module.bias)
    conv = torch.nn.Conv2d(C, C, 1).double()
    with torch.no_grad():
        conv.weight.copy_(module.weight[:, :, None, None])
        conv.bias.copy_(module.bias)
    potential, spikes, features = maps()
    (out, attention), _ = module(potential, spikes, features)
    gate = torch.sigmoid(conv(potential.flatten(0, 1)))
    same(attention.flatten(0, 1), gate)
    same(out.flatten(0, 1), gate * features.flatten(0, 1))


def test_removed_attention_passes_the_features():
    potential, spikes, features = maps()
    (out, attention), state = ATTENTIONS["none"](C)(potential, spikes, features)
    assert torch.equal(out, features)
    assert attention.shape == features.shape
    assert not attention.any()
    assert not state
