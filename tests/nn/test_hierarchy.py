"""Tokens pooled and widened, what mixes them, and the sizes the study's arms are given."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ripe_mambaspike.nn.hierarchy import Hierarchy, drop_path, make_head, pool_tokens
from ripe_mambaspike.nn.levels import block_parameters, matched_flat_stack, plan_levels
from ripe_mambaspike.nn.mamba import BidirectionalMamba, Mamba, MambaSizes
from ripe_mambaspike.nn.mixers import ARMS, matched_sizes

WIDTHS, RATIOS = (8, 12, 16), (1, 2, 2)
MIXERS = ("mamba", "transformer", "gru", "conv1d", "none", "flat", "flat-matched")
SIZES = [MambaSizes(), MambaSizes(d_state=5), MambaSizes(8, 3, 1), MambaSizes(32, 7, 3)]


def size(module):
    return sum(p.numel() for p in module.parameters())


def slow_pool(tokens, ratio):
    """Groups of `ratio` from the first token on; what is left over is a smaller group."""
    columns = [tokens[:, :, i : i + ratio].mean(2) for i in range(0, tokens.shape[2], ratio)]
    return torch.stack(columns, 2)


@pytest.mark.parametrize("ratio", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 25])
def test_pooling_keeps_what_is_left_over(same, count, ratio):
    tokens = torch.randn(2, 3, count, 4, dtype=torch.float64)
    pooled = pool_tokens(tokens, ratio)
    assert pooled.shape == (2, 3, -(-count // ratio), 4)
    same(pooled, slow_pool(tokens, ratio))


def test_an_odd_token_is_averaged_on_its_own():
    tokens = torch.tensor([1.0, 3.0, 10.0]).reshape(1, 1, 3, 1)
    assert pool_tokens(tokens, 2).flatten().tolist() == [2, 10]


def test_drop_path_leaves_out_whole_samples_and_keeps_the_mean():
    x = torch.ones(20_000, 2, 3)
    out = drop_path(x, 0.3, training=True)
    kept = out[:, 0, 0] != 0
    assert torch.equal(out, kept[:, None, None] * torch.full_like(x, 1 / 0.7))
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.02)
    assert torch.equal(drop_path(x, 0.3, training=False), x)
    assert torch.equal(drop_path(x, 0.0, training=True), x)


def test_drop_path_grows_linearly():
    assert Hierarchy(WIDTHS, RATIOS, "mamba", 0.2).drop_rates == pytest.approx([0, 0.1, 0.2])


def slow_block(block, x):
    """Linear[Mamba_f(LN x), flip Mamba_b(flip LN x)] + x; the operator itself is tested with the operators."""
    normed = F.layer_norm(x, x.shape[-1:], block.norm.weight, block.norm.bias)
    ahead, _ = block.forward_mamba(normed)
    behind, _ = block.backward_mamba(normed.flip(1))
    return x + torch.cat((ahead, behind.flip(1)), -1) @ block.merge.weight.T + block.merge.bias


@pytest.mark.parametrize("entry", [None, 8, 6, 20])
@pytest.mark.parametrize("count", [9, 6, 1])
def test_equals_the_specification(same, count, entry):
    """Tokens of another width than the first level's enter through a transition of their own."""
    hierarchy = Hierarchy(WIDTHS, (2, 2, 2), "mamba", 0.5, entry=entry).double().eval()
    width = entry or 8
    tokens = torch.randn(2, 3, count, width, dtype=torch.float64)
    with torch.no_grad():
        expected = F.layer_norm(tokens, (width,), hierarchy.norm.weight, hierarchy.norm.bias)
        for level, block in enumerate(hierarchy.blocks):
            if not level and width == 8:
                expected = slow_pool(expected, 2)
            if level or width != 8:
                change = hierarchy.transitions[level]
                widened = slow_pool(expected, 2) @ change.widen.weight.T + change.widen.bias
                expected = F.layer_norm(widened, widened.shape[-1:], change.norm.weight, change.norm.bias)
            flat = slow_block(block, expected.reshape(2, -1, expected.shape[-1]))
            expected = flat.reshape(expected.shape)
        same(hierarchy(tokens), expected, 1e-11)


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_runs_and_learns(mixer):
    hierarchy = Hierarchy(WIDTHS, RATIOS, mixer, 0.0)
    tokens = torch.randn(2, 3, 9, 8, requires_grad=True)
    out = hierarchy(tokens)
    assert out.shape == (2, 3, 9 if mixer.startswith("flat") else 3, 16)
    out.square().sum().backward()
    for name, parameter in hierarchy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert tokens.grad.abs().sum() > 0


@pytest.mark.parametrize("mixer", ["mamba", "transformer", "gru"])
def test_blocks_see_the_whole_sequence_in_both_directions(mixer):
    hierarchy = Hierarchy(WIDTHS, RATIOS, mixer, 0.0).double().eval()
    tokens = torch.randn(1, 4, 5, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 16, dtype=torch.float64)
    for step in (0, 3):
        (reach,) = torch.autograd.grad((hierarchy(tokens)[0, step] * weight).sum(), tokens)
        assert (reach.abs().sum(-1) > 0).all()


def test_without_blocks_each_token_stays_alone():
    hierarchy = Hierarchy(WIDTHS, RATIOS, "none", 0.0)
    assert len(hierarchy.blocks) == 0
    tokens = torch.randn(1, 2, 4, 8, requires_grad=True)
    (reach,) = torch.autograd.grad(hierarchy(tokens)[0, 0, 0].square().sum(), tokens)
    assert (reach[0, 0].abs().sum(-1) > 0).all()
    assert not reach[0, 1].any()


@pytest.mark.parametrize("arm", sorted(ARMS))
@pytest.mark.parametrize("widths", [(32, 64, 128), (96, 192, 384), (8, 16, 24)])
def test_arms_have_the_budget_of_the_blocks_they_replace(arm, widths):
    budget = sum(size(BidirectionalMamba(width)) for width in widths)
    sizes = matched_sizes(arm, widths)
    spent = sum(size(ARMS[arm](width, hidden)) for width, hidden in zip(widths, sizes, strict=True))
    step = size(ARMS[arm](widths[0], sizes[0] + 1)) - size(ARMS[arm](widths[0], sizes[0]))
    assert abs(spent - budget) <= step
    assert min(sizes) >= 1


@pytest.mark.parametrize("arm", sorted(ARMS))
def test_arms_follow_the_sizes_of_mamba(arm):
    widths, sizes = (32, 64, 128), MambaSizes(d_state=4, expand=3)
    budget = sum(size(BidirectionalMamba(width, sizes)) for width in widths)
    free = matched_sizes(arm, widths, sizes)
    spent = sum(size(ARMS[arm](width, hidden)) for width, hidden in zip(widths, free, strict=True))
    assert abs(spent - budget) <= 0.005 * budget
    assert size(Hierarchy(widths, RATIOS, arm, 0.0, sizes=sizes).blocks) == spent


@pytest.mark.parametrize("sizes", [*SIZES, MambaSizes(d_inner=11)])
@pytest.mark.parametrize("width", [1, 6, 33])
def test_the_formula_counts_a_block(width, sizes):
    assert block_parameters(width, sizes) == size(BidirectionalMamba(width, sizes))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("entry", [None, 24, 200])
@pytest.mark.parametrize("widths", [(32, 64, 128), (96, 192, 384), (64, 128, 256), (64, 64, 64), (16, 32, 48)])
def test_a_matched_flat_stack_has_the_hierarchys_parameters(widths, entry, sizes):
    with torch.device("meta"):
        pyramid, flat = (Hierarchy(widths, RATIOS, mixer, 0.0, entry=entry, sizes=sizes)
                         for mixer in ("mamba", "flat-matched"))  # fmt: skip
    assert abs(size(flat) - size(pyramid)) <= 0.001 * size(pyramid)
    assert len({block.norm.normalized_shape for block in flat.blocks}) == 1
    inner = {block.forward_mamba.D.numel() for block in flat.blocks}
    assert max(inner) - min(inner) <= 1


@pytest.mark.parametrize("widths", [(1, 1, 1), (4, 4, 4), (4, 8, 8), (8, 16, 24), (1024, 2048, 16384)])
def test_the_smallest_and_largest_stacks_can_be_matched(widths):
    width, inner = matched_flat_stack(widths, widths[0])
    assert len(inner) == 3
    assert 1 <= width <= widths[-1]
    assert sum(inner) / (3 * 2 * width) == pytest.approx(1, abs=0.7)


def test_a_matched_flat_stack_is_mamba_at_one_width():
    """Three blocks without pooling between a transition in and one out; the numbers of the paper's widths."""
    levels = plan_levels((32, 64, 128), RATIOS, "flat-matched")
    assert [(level.before, level.width) for level in levels] == [(32, 83), (83, 83), (83, 83), (83, 128)]
    assert [level.ratio for level in levels] == [1, 1, 1, 1]
    assert [level.sizes.d_inner for level in levels if level.mixes] == [167, 167, 167]
    hierarchy = Hierarchy((32, 64, 128), RATIOS, "flat-matched", 0.2)
    assert hierarchy.drop_rates == pytest.approx([0, 0.1, 0.2])
    assert [type(one).__name__ for one in hierarchy.transitions] == ["Transition", "Identity", "Identity", "Transition"]


@pytest.mark.parametrize(("width", "count"), [(32, 21_984), (64, 73_664), (128, 266_112)])
def test_the_size_of_a_block(width, count):
    assert size(BidirectionalMamba(width)) == count


def test_the_initialization_of_mamba():
    module = Mamba(256)
    assert module.dt_proj.weight.shape == (512, 16)
    torch.testing.assert_close(module.A_log.exp().detach(), torch.arange(1.0, 17).expand(512, -1))
    assert (module.D == 1).all()
    step = F.softplus(module.dt_proj.bias.detach())
    assert 1e-3 * (1 - 1e-3) <= step.min() < 2e-3
    assert 5e-2 < step.max() <= 1e-1 * (1 + 1e-3)


def test_the_wide_head():
    assert isinstance(make_head(8, 3, None), nn.Linear)
    head = make_head(8, 3, 32).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    hidden = F.layer_norm(x @ head[0].weight.T + head[0].bias, (32,), head[1].weight, head[1].bias)
    gelu = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    torch.testing.assert_close(head(x), gelu @ head[3].weight.T + head[3].bias)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_state_dict_of_mamba_ssm_loads_as_it_is(sizes):
    width, rank = 24, 2
    inner, states, taps = sizes.expand * width, sizes.d_state, sizes.d_conv
    shapes = {
        "A_log": (inner, states), "D": (inner,), "in_proj.weight": (2 * inner, width),
        "conv1d.weight": (inner, 1, taps), "conv1d.bias": (inner,),
        "x_proj.weight": (rank + 2 * states, inner), "dt_proj.weight": (inner, rank),
        "dt_proj.bias": (inner,), "out_proj.weight": (width, inner),
    }  # fmt: skip
    module = Mamba(width, sizes)
    torch.testing.assert_close(module.A_log.exp().detach(), torch.arange(1.0, states + 1).expand(inner, -1))
    assert module.conv1d.weight.abs().max() <= taps**-0.5
    module.load_state_dict({name: torch.randn(shape) for name, shape in shapes.items()}, strict=True)
