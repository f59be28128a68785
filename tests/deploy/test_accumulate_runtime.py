"""The accumulate-only runtime: the dense network's spikes in every step, additions counted, no product anywhere."""

import copy
import os
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import create_model, dual_kernel, fuse
from ripe_mambaspike.account.energy import measure_activity
from ripe_mambaspike.deploy.fuse.accumulate import (
    AccumulatingConv,
    Accumulator,
    differing_spikes,
    grid_step,
)
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.events.binning import bin_events
from ripe_mambaspike.events.reading import read
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.repconv import DualKernelConv
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason
from ripe_mambaspike.ops.sparse_conv import AccumulateConvInputs, accumulate_conv, reference

SHARED = Path(os.environ.get("RIPE_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")
SUMS = ["float64", "float32", "int8"]
ELIGIBLE = ["stage1.second_conv", "stage2.first_conv", "stage2.second_conv", "stage3.first_conv", "stage3.second_conv"]
WAYS = ["off"] if unavailable_reason() else ["native", "off"]
SMALL = (("stage_channels", (8, 12, 16)), ("embed_dims", (8, 16, 24)), ("time_steps", 4))


def dense_conv(*given):
    return reference.dense_conv(AccumulateConvInputs(*given))


@lru_cache
def deployed(*fields):
    """A small network in which all layers fire, fused."""
    model = create_model("nmnist", seed=0, **dict(SMALL + fields))
    randomize(model, 1)
    return fuse(model, quiet=True)


@lru_cache
def dual(*fields):
    return dual_kernel(deployed(*fields), quiet=True)


def clips(count, side=18, steps=4):
    return [synthetic_clip(steps, side, side, seed=seed) for seed in range(count)]


def same(first, second):
    """All spikes, maps and logits are equal to the last bit."""
    assert differing_spikes(first, second) == dict.fromkeys(first.spikes, 0)
    assert torch.equal(first.output.attention, second.output.attention)
    assert torch.equal(first.output.logits, second.output.logits)
    assert torch.equal(first.output.rates, second.output.rates)


@pytest.mark.parametrize("sums", SUMS)
def test_every_spike_of_the_dense_network(sums):
    runtime = Accumulator(dual(), sums)
    for x in clips(4):
        made, dense = runtime.run(x), runtime.run_dense(x)
        same(made, dense)
        assert list(made.additions) == ELIGIBLE
        assert dense.additions == {}
        assert made.output.rates.min() > 0.01
        assert list(made.spikes) == [f"stage{s}.{w}_neuron" for s in (1, 2, 3) for w in ("first", "second")]


@pytest.mark.parametrize(
    "fields",
    [
        (("csilif_reset", 0.2), ("attention_feature_map", "exp")),
        (("bridge_dim", 13), ("d_state", 6), ("expand", 1), ("attention_epsilon", 0.1)),
        (("mixer", "flat-matched"), ("attention_feature_map", "relu"), ("detach_reset", True)),
    ],
    ids=lambda fields: "-".join(name for name, _ in fields),
)
def test_the_paper_s_choices(fields):
    runtime = Accumulator(dual(*fields), "float64")
    made = runtime.run(clips(1)[0])
    same(made, runtime.run_dense(clips(1)[0]))
    assert list(made.additions) == ELIGIBLE
    assert min(made.additions.values()) > 0


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "nmnist-real").is_dir(), reason="the shared recordings are not there")
@pytest.mark.parametrize("sums", SUMS)
def test_every_step_of_20_real_recordings(sums):
    wide = (("stage_channels", (32, 64, 128)), ("embed_dims", (32, 64, 128)), ("time_steps", 10))
    runtime = Accumulator(dual(*wide), sums)
    paths = sorted((SHARED / "nmnist-real").rglob("*.bin"))[::30][:20]
    assert len(paths) == 20
    # All steps in float64, whose weights are the stored ones; three steps for the others.
    clip = torch.stack([bin_events(read(path), 10, grid=(34, 34)) for path in paths])
    clip = clip if sums == "float64" else clip[:, :3]
    for x in clip.split(4):
        made = runtime.run(x)
        same(made, runtime.run_dense(x))
        assert made.output.rates.min() > 0.05


def test_float64_has_the_spikes_of_the_stored_weights():
    """In float64 the grid changes the weights by less than 1e-14."""
    runtime, stored = Accumulator(deployed()), copy.deepcopy(dual()).double()
    for x in clips(3):
        front = stored.front_end(x.double(), observe=("spikes",))
        made = runtime.run(x)
        for ours, expected in zip(made.spikes.values(), front.observed.values(), strict=True):
            assert torch.equal(ours, expected)
        torch.testing.assert_close(made.output.logits, stored.run(x.double()).logits, rtol=1e-12, atol=1e-12)
    for name, weight in runtime.dense.named_parameters():
        torch.testing.assert_close(weight, stored.get_parameter(name), rtol=0, atol=1e-14)


@pytest.mark.parametrize("steps_at_once", [1, 3])
@pytest.mark.parametrize("sums", SUMS)
def test_in_pieces_with_carried_state(sums, steps_at_once):
    runtime, x = Accumulator(dual(), sums), clips(1)[0]
    whole, pieces = runtime.run(x), runtime.run(x, steps_at_once)
    assert differing_spikes(whole, pieces) == dict.fromkeys(whole.spikes, 0)
    assert pieces.additions == whole.additions
    assert pieces.state.keys() == whole.state.keys()
    for name, state in whole.state.items():
        torch.testing.assert_close(pieces.state[name], state, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pieces.output.logits, whole.output.logits, rtol=1e-5, atol=1e-5)
    same(pieces, runtime.run_dense(x, steps_at_once))


def count_by_hand(spikes, channels, stride):
    """For every output, tap and step: one addition per channel for each spike under either kernel."""
    samples, steps, in_channels, height, width = spikes.shape
    fired = spikes.bool().tolist()
    seen = 0
    for b in range(samples):
        for t in range(steps):
            for i in range(0, height, stride):
                for j in range(0, width, stride):
                    for y in range(max(0, i - 1), min(height, i + 2)):
                        for x in range(max(0, j - 1), min(width, j + 2)):
                            for c in range(in_channels):
                                seen += fired[b][t][c][y][x] + (t > 0 and fired[b][t - 1][c][y][x])
    return seen * channels


def test_additions_equal_a_count_by_hand_and_the_estimate():
    runtime = Accumulator(dual())
    x = torch.cat(clips(2, 13))
    made = runtime.run(x)
    names = [f"stage{stage}.{which}_neuron" for stage in (1, 2, 3) for which in ("first", "second")]
    operands = [made.spikes[name] for name in names[:-1]]
    outs, strides = (8, 12, 12, 16, 16), (1, 2, 1, 2, 1)
    by_hand = [count_by_hand(*each) for each in zip(operands, outs, strides, strict=True)]
    assert min(by_hand) > 0
    assert list(made.additions.values()) == by_hand
    estimate = measure_activity(runtime.dense, x.double())  # for one sample, on average
    assert [2 * layer.accumulates for layer in estimate[1:]] == by_hand


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("worst", [torch.inf, torch.nan], ids=["inf", "nan"])
def test_weights_without_spikes_are_not_read(way, worst):
    """A product with 0 would give NaN."""
    layer = DualKernelConv(4, 6, 1)
    with torch.no_grad():
        layer.weight_before.normal_()
        for weight in (layer.weight_now, layer.weight_before):
            weight[:, 2] = worst  # a channel that is silent
            weight[:, :, 0] = worst  # a row of taps: spikes are in the last row, which has none below
    spikes = torch.zeros(1, 3, 4, 5, 7)
    spikes[:, :2, [0, 1, 3], -1] = torch.randint(2, (2, 3, 7)).float()
    spikes[0, 0, 0, -1, 3] = 1
    with kernels(way):
        out, state = AccumulatingConv(layer)(spikes)
    assert not layer(spikes)[0].isfinite().all()
    assert out.isfinite().all()
    assert state["additions"] > 0
    clean = DualKernelConv(4, 6, 1)
    clean.load_state_dict({name: value.nan_to_num(0, 0, 0) for name, value in layer.state_dict().items()})
    torch.testing.assert_close(out, clean(spikes)[0].detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("carried", [False, True], ids=["first", "carried"])
def test_the_operator_in_every_precision(way, kind, stride, carried):
    spikes = torch.randint(0, 5, (2, 5, 6, 7, 9)).eq(0).byte()
    now, before = torch.randint(-127, 128, (2, 70, 9, 3, 3)).to(getattr(torch, kind))
    bias = torch.randint(-999, 999, (70,)).to(torch.int32 if kind == "int8" else now.dtype)
    earlier = torch.randint(0, 2, (2, 6, 7, 9)).byte() if carried else None
    with kernels(way):
        out, additions = accumulate_conv(spikes, now, before, bias, stride, earlier)
    expected, count = dense_conv(spikes, now, before, bias, stride, earlier)
    assert out.dtype == (torch.int32 if kind == "int8" else now.dtype)
    assert torch.equal(out, expected)  # integers: exact in any order
    assert additions == count


@pytest.mark.parametrize("way", WAYS)
def test_what_the_operator_refuses(way):
    spikes, now = torch.zeros(1, 2, 4, 4, 8, dtype=torch.uint8), torch.ones(16, 8, 3, 3)
    with kernels(way):
        with raises(InputError, "initial_state", mentions=("torch.uint8 [1, 4, 4, 7]", "bytes [1, 4, 4, 8]")):
            accumulate_conv(spikes, now, now, None, 1, spikes[:, 0, :, :, 1:])
        with raises(InputError, "spikes", mentions="above 1"):
            accumulate_conv(spikes, now, now, None, 1, spikes[:, 0] + 2)
        with raises(InputError, "weight_before", mentions=("torch.float64", "torch.float32")):
            accumulate_conv(spikes, now, now.double(), None)
        with raises(InputError, "weight_before", mentions="−128"):
            accumulate_conv(spikes, now.char(), -128 * now.char(), None)
        with raises(InputError, "bias", mentions="integers"):
            accumulate_conv(spikes, now.char(), now.char(), torch.zeros(16))


def test_plain_pytorch_makes_the_same_additions():
    runtime, x = Accumulator(dual()), clips(1)[0]
    with kernels("off"):
        plain = runtime.run(x)
    made = runtime.run(x)
    same(plain, made)
    assert plain.additions == made.additions
    spikes = torch.randint(0, 2, (1, 300, 8, 8, 9)).byte()  # more spikes than are looked up at a time
    weights = (torch.randn(2, 9, 3, 3).double(), torch.randn(2, 9, 3, 3).double(), torch.randn(2).double())
    out, additions = reference.accumulate_conv(AccumulateConvInputs(spikes, *weights))
    expected, count = dense_conv(spikes, *weights)
    torch.testing.assert_close(out, expected)
    assert additions == count > 2**16


@pytest.mark.parametrize("sums", ["float64", "float32"])
def test_on_the_grid_the_order_of_a_sum_does_not_matter(sums):
    dtype = getattr(torch, sums)
    weights = torch.randn(8, 64, 3, 3).to(dtype), 0.01 * torch.randn(8, 64, 3, 3).to(dtype), torch.randn(8).to(dtype)
    step = grid_step(*weights, sums)
    assert torch.equal(step.log2(), step.log2().round())
    terms = torch.cat([weight.flatten(1) if weight.ndim > 1 else weight[:, None] for weight in weights], 1)
    put = ((terms.double() / step[:, None]).round() * step[:, None]).to(dtype)
    orders = [torch.randperm(terms.shape[1]) for _ in range(4)]

    def one_by_one(values, order):
        total = torch.zeros_like(values[:, 0])
        for value in values[:, order].unbind(1):
            total = total + value
        return total

    sums_of = [one_by_one(put, order) for order in orders]
    assert all(torch.equal(value, sums_of[0]) for value in sums_of)
    if sums == "float32":  # which sums off the grid do not have
        assert not all(torch.equal(one_by_one(terms, order), one_by_one(terms, orders[0])) for order in orders)
    # Rounding to the grid changes a weight by at most this share of the sum of a channel's weights.
    share = ((put - terms).abs().amax(1) / terms.abs().sum(1)).max()
    assert share <= 2.0 ** -(24 if sums == "float32" else 53)


def test_int8_weights_are_bytes_and_their_sums_integers():
    runtime, given = Accumulator(dual(), "int8"), dual()
    for name, conv in runtime.network.named_modules():
        if not isinstance(conv, AccumulatingConv):
            continue
        dense, stored = runtime.dense.get_submodule(name), given.get_submodule(name)
        assert (conv.now.dtype, conv.before.dtype, conv.bias.dtype) == (torch.int8, torch.int8, torch.int32)
        assert 64 <= max(int(value.abs().amax()) for value in (conv.now, conv.before)) <= 127
        step = conv.step[:, None, None, None]
        for ours, twin, own in (
            (conv.now, dense.weight_now, stored.weight_now),
            (conv.before, dense.weight_before, stored.weight_before),
        ):
            assert torch.equal(ours * step, twin)
            assert ((twin - own).abs() <= step / 2).all()
        assert torch.equal(conv.bias * conv.step, dense.bias)
        largest = torch.maximum(stored.weight_now.abs().amax((1, 2, 3)), stored.weight_before.abs().amax((1, 2, 3)))
        assert (conv.step <= largest / 63.5 * (1 + 1e-6)).all()


def test_float32_without_the_grid_is_close():
    """Without the grid sums are rounded, so single spikes may differ from the dense network's."""
    runtime, x = Accumulator(dual(), "float32", grid=False), clips(1)[0]
    made, dense = runtime.run(x), runtime.run_dense(x)
    assert sum(differing_spikes(made, dense).values()) <= 0.01 * sum(int(s.sum()) for s in dense.spikes.values())
    for name, weight in dual().named_parameters():
        assert torch.equal(runtime.dense.get_parameter(name), weight)


@pytest.mark.parametrize("form", ["training", "deployed", "bfloat16"])
def test_networks_of_any_form(form):
    model, wanted, x = copy.deepcopy(deployed()), dual(), clips(1)[0]
    if form == "training":
        model = create_model("nmnist", seed=0, **dict(SMALL)).train()
        randomize(model, 1)
    elif form == "bfloat16":
        model = model.bfloat16()
        wanted = dual_kernel(copy.deepcopy(model).float(), quiet=True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    training = model.training
    same(Accumulator(model).run(x), Accumulator(wanted).run(x))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training is training


def test_the_selected_tokens_are_the_dense_network_s():
    runtime = Accumulator(dual(("num_tokens", 5)))
    made, dense = (run(clips(1, 34)[0]) for run in (runtime.run, runtime.run_dense))
    assert made.output.token_indices.shape == (1, 5)
    assert torch.equal(made.output.token_indices, dense.output.token_indices)
    same(made, dense)


def test_what_the_runtime_refuses():
    x = clips(1)[0]
    with raises(ConfigError, "sums", mentions=("int4", "float64, float32, int8")):
        Accumulator(dual(), "int4")
    with raises(ConfigError, "model", mentions="mamba-spike-nmnist"):
        Accumulator(create_model("mamba-spike-nmnist"))
    with raises(ConfigError, "form", mentions="tdm is false"):
        Accumulator(create_model("nmnist", tdm=False, stage_channels=(4, 4, 4), form="deployed"))
    runtime = Accumulator(dual())
    with raises(InputError, "steps_at_once", mentions="got 0"):
        runtime.run(x, 0)
    with raises(InputError, "mode", mentions="relaxed"):
        runtime.network.front_end(x.double(), ForwardMode(relaxed=True))
    with raises(InputError, "x", mentions=("at most 4", "got 5")):
        runtime.run(torch.cat((x, x[:, :1]), 1))
