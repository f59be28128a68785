"""Invalid arguments of the network's functions raise an error that names the argument."""

import numpy as np
import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import create_model, from_pretrained, fuse
from ripe_mambaspike.account.document import account_clip
from ripe_mambaspike.errors import ConfigError, InputError, WeightsError
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.eval_mode import eval_mode

SMALL = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": 18}


@pytest.fixture
def model():
    return create_model("dvsgesture", seed=0, **SMALL)


def test_numpy_numbers_are_accepted():
    made = create_model(
        "dvsgesture",
        num_classes=np.int64(5),
        time_steps=np.int32(4),
        in_size=np.array([18, 20]),
        stage_channels=np.array([8, 12, 16]),
        drop_path_rate=np.float32(0.25),
    )
    assert (made.config.num_classes, made.config.in_size) == (5, (18, 20))
    assert made.config.stage_channels == (8, 12, 16)
    assert all(type(value) is int for value in made.config.stage_channels)
    assert made.config.drop_path_rate == 0.25


@pytest.mark.parametrize("name", [["dvsgesture"], None, 3])
def test_a_name_that_is_not_a_string_is_refused(name):
    with raises(ConfigError, "model"):
        create_model(name)


@pytest.mark.parametrize("seed", ["a", 1.5, True])
def test_a_seed_that_is_not_an_int_is_refused(seed):
    with raises(ConfigError, "seed"):
        create_model("dvsgesture", seed=seed, **SMALL)


@pytest.mark.parametrize("folder", [None, 3])
def test_a_folder_that_is_not_a_path_is_refused(folder, model):
    with raises(WeightsError, "folder"):
        from_pretrained(folder)
    with raises(WeightsError, "folder"):
        model.save_pretrained(folder)


def test_fusing_something_else_is_refused():
    with raises(ConfigError, mentions=("NoneType",)):
        fuse(None)


def test_fusing_mixed_precision_is_refused(model):
    model.head.double()
    with raises(ConfigError, mentions=("float32", "float64")):
        fuse(model)


def test_a_state_of_another_size(model):
    model.eval()
    state = model.front_end(synthetic_clip(2, 18, 18)).state
    with raises(InputError, "state"):
        model.front_end(synthetic_clip(2, 20, 20), state=state)
    with raises(InputError, "state"):
        model.front_end(synthetic_clip(2, 18, 18, samples=2), state=state)


@pytest.mark.parametrize(
    "indices", [torch.tensor([[0, 99]]), torch.tensor([[-1]]), torch.tensor([0]), torch.zeros(1, 2)]
)
def test_token_indices_outside_the_grid_are_refused(model, indices):
    with raises(InputError, "token_indices"):
        model.eval().run(synthetic_clip(4, 18, 18), token_indices=indices)


def test_one_sample_on_one_cell_cannot_be_normalized(model):
    with raises(InputError, "x"):
        model.train()(synthetic_clip(4, 8, 8))
    assert model.eval()(synthetic_clip(4, 8, 8)).isfinite().all()


def test_the_account_of_a_baseline_needs_its_resolution():
    baseline = create_model("mamba-spike-nmnist", seed=0)
    with raises(InputError, "x", mentions=("34×34", "48×48")):
        account_clip(baseline, synthetic_clip(10, 48, 48), "a test")
    document = account_clip(baseline, synthetic_clip(4, 34, 34), "a test")
    assert document["parameters"]["deployed"] == 1_026_506
    assert document["counted_at"] == {"time_steps": 4, "in_size": [34, 34]}


def test_every_module_gets_its_mode_back(model):
    def fail_inside():
        with eval_mode(model):
            assert not any(module.training for module in model.modules())
            raise RuntimeError("halfway")

    model.train()
    model.entry.eval()
    with pytest.raises(RuntimeError, match="halfway"):
        fail_inside()
    assert model.training
    assert not model.entry.training


def test_second_neurons_keep_no_potential(model):
    """What nothing reads is not stacked."""
    for stage in model.stages:
        fired, _ = stage.second_neuron(torch.randn(1, 3, stage.second_conv.channels, 2, 2), keep_potential=False)
        assert fired[1] is None


def test_spelling_of_choices_does_not_matter():
    given = {"attention": "Low_Rank", "bridge": "MR-S3A", "mixer": "Conv1D", "neurons": ["LIF", "SiLIF", "CSiLIF"]}
    config = create_model("dvsgesture", **SMALL, **given).config
    assert (config.attention, config.bridge, config.mixer) == ("low-rank", "mr-s3a", "conv1d")
    assert config.neurons == ("lif", "silif", "csilif")


def test_false_removes_a_part():
    config = create_model("dvsgesture", **SMALL, attention=False, bridge=False, repconv=False, tdm=False).config
    assert (config.attention, config.bridge) == ("none", "stage3")
    whole = create_model("dvsgesture", **SMALL, attention=True, bridge=True).config
    assert (whole.attention, whole.bridge) == ("ds-mpa", "mr-s3a")


@pytest.mark.parametrize(
    ("field", "value"), [("attention", None), ("mixer", False), ("neurons", ("lif", 3, "lif")), ("form", "")]
)
def test_unknown_choices_are_refused(field, value):
    with raises(ConfigError, field):
        create_model("dvsgesture", **{**SMALL, field: value})
