"""NaN and Inf in weights, statistics and inputs never end in an answer."""

import itertools
import shutil

import pytest
import torch
from tests.models.saved_folder import rewrite_tensors
from tests.raising import raises

from ripe_mambaspike import from_pretrained, fuse
from ripe_mambaspike.deploy.quantize.convert import to_float16, to_int8
from ripe_mambaspike.errors import InputError, RipeError, WeightsError
from ripe_mambaspike.inference.capture import capture
from ripe_mambaspike.models.input_checks import nan_where_not_finite
from ripe_mambaspike.models.pretrained import save_pretrained
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import HARD
from ripe_mambaspike.ops.backend import kernels

BAD = [torch.nan, torch.inf, -torch.inf]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize(
    "name", ["head.weight", "entry.running_mean", "stages.1.first_conv.branches.2.norm.running_var", "tokens.activity"]
)
def test_weights_are_neither_loaded_nor_written(small, tmp_path, name, value):
    model = small()
    model.save_pretrained(tmp_path / "ours")
    rewrite_tensors(tmp_path / "ours", lambda tensors: tensors[name].view(-1)[-1:].fill_(value))
    with raises(WeightsError, name):
        from_pretrained(tmp_path / "ours")
    model.state_dict()[name].view(-1)[0] = value
    with raises(WeightsError, name):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_variance_below_zero(small, tmp_path):
    model = small()
    model.save_pretrained(tmp_path)
    rewrite_tensors(tmp_path, lambda tensors: tensors["entry.running_var"].sub_(3))
    with raises(WeightsError, "entry.running_var"):
        from_pretrained(tmp_path)
    model.entry.running_var[2, 1] = -1e-9
    with raises(WeightsError, "entry.running_var"):
        model.save_pretrained(tmp_path / "new")


@pytest.fixture(scope="module")
def stored_networks(small, tmp_path_factory):
    """The folder of a network stored in int8, and of one in float16."""
    fused, folder = fuse(small(), quiet=True), tmp_path_factory.mktemp("stored")
    save_pretrained(fused, folder / "int8", stored=to_int8(fused, synthetic_clip(5, 16, 16, samples=8))[0])
    save_pretrained(fused, folder / "float16", stored=to_float16(fused))
    return folder


@pytest.mark.parametrize("value", [*BAD, 0.0, -1.0, 3e38])
@pytest.mark.parametrize("kind", ["int8", "float16"])
def test_stored_weights(stored_networks, tmp_path, kind, value):
    shutil.copytree(stored_networks / kind, tmp_path, dirs_exist_ok=True)
    from_pretrained(tmp_path)
    name = "hierarchy.blocks.0.merge.weight"
    if kind == "float16" and value in (0.0, -1.0, 3e38):
        name, value = "head.bias", torch.nan  # what is kept in float32 is looked at too
    wanted = name + ".scale" * (kind == "int8")
    rewrite_tensors(tmp_path, lambda tensors: tensors[wanted].view(-1)[:1].fill_(value))
    with pytest.raises(WeightsError):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("choice", ["off", "auto"])
def test_an_input_is_refused(small, events, value, choice):
    model = small().eval()
    whole, one = events(), events()
    whole.fill_(value)
    one[1, 4, 0, 17, 17] = value
    run = capture(model, events())
    for x in (whole, one):
        for way in (model, model.run, model.predict, model.front_end, lambda x: model.run_passes(x, [HARD]), run):
            with kernels(choice), raises(InputError, "x"):
                way(x)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("choice", ["off", "auto"])
def test_in_training_the_loss_is_nan(small, events, value, choice):
    model, x = small().train(), events()
    x[1, 4, 0, 17, 17] = value
    with kernels(choice):
        for logits in (model(x), model.run(x).logits, model.run_passes(x, [HARD])[0].logits):
            assert logits[1].isnan().all()
        with torch.no_grad(), pytest.raises(InputError):
            model(x)


def test_the_baseline_refuses_it(tiny_baseline, events):
    x = events(13, 18, steps=7)
    x[0, 0, 0, 0, 0] = torch.nan
    with raises(InputError, "x"):
        tiny_baseline().eval()(x)


def test_an_expanded_input(small, events):
    x = events(samples=1)
    x[0, 1, 0, 2, 2] = torch.nan
    with torch.no_grad(), pytest.raises(InputError):
        small().eval()(x.expand(1 << 40, -1, -1, -1, -1))


def test_large_numbers_are_accepted(small, events):
    x = events()
    x.fill_(3e38)
    assert small().eval()(x).shape == (2, 5, 7)


def test_without_a_check_the_logits_of_that_sample_are_nan(monkeypatch):
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)  # as in a compiled pass
    x = synthetic_clip(3, 8, 8, samples=4)
    for value, dtype in itertools.product(BAD, (torch.float32, torch.float16)):
        logits = torch.randn(4, 3, 5).to(dtype)
        spoiled = (1000 * x).to(dtype)  # of which a sum in float16 would overflow
        spoiled[2, 1, 0, 3, 3] = value
        given = nan_where_not_finite(logits, spoiled)
        assert given[2].isnan().all()
        assert torch.equal(given[[0, 1, 3]], logits[[0, 1, 3]])


@pytest.mark.slow
def test_a_compiled_pass(small, events):
    model = small(form="deployed").eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = events()
    x[1, 0, 0, 0, 0] = torch.nan
    with torch.no_grad():
        logits = compiled(x)
    assert logits[1].isnan().all()
    assert logits[0].isfinite().all()


def test_predict_refuses_non_finite_logits(small, events):
    model = small().eval()
    with torch.no_grad():
        model.head.bias[0] = torch.nan
    with pytest.raises(RipeError):
        model.predict(events())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_the_sample_s_logits_are_nan(small, events, dtype):
    model, x = small(form="deployed").eval().cuda(), events(samples=3).cuda()
    run = capture(model, x, dtype=dtype)
    assert run._graph is not None
    with torch.no_grad():
        clean = [model(x), run(x)]
        x[1, 2, 1, 5, 5] = torch.nan
        with kernels("off"):
            answers = [model(x)]
        answers += [model(x), model.run(x).logits, run(x)]
        for logits in answers:
            assert logits[1].isnan().all()
            assert logits[[0, 2]].isfinite().all()
        assert torch.equal(answers[1][0], clean[0][0])
        assert torch.equal(answers[3][0], clean[1][0])
        with pytest.raises(InputError):
            model.predict(x)
