"""Whatever computes with a network's weights in another form refuses modules that it would not call."""

import pytest
import torch
from torch import nn

from ripe_mambaspike import create_model, dual_kernel, fuse
from ripe_mambaspike.deploy.export.graph import make_graph
from ripe_mambaspike.deploy.export.nir_graph import check_model
from ripe_mambaspike.deploy.fuse.accumulate import Accumulator
from ripe_mambaspike.deploy.quantize.convert import to_float16
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.inference.capture import capture
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.streamer import Streamer
from ripe_mambaspike.models.labels import Labels
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.neurons import SiLIF
from ripe_mambaspike.train.step import StepSettings, make_optimizer, training_step

SMALL = {"stage_channels": (4, 4, 8), "embed_dims": (4, 8, 8), "time_steps": 3, "num_classes": 3, "in_size": (16, 16)}


class Mine(SiLIF):
    pass


class OtherForward(RipeMambaSpike):
    def forward(self, x):
        return 2 * super().forward(x)


def network(form):
    return create_model("nmnist", seed=0, form=form, **SMALL).eval()


def stream(model):
    return Streamer(Classifier(model, ("a", "b", "c"), 3, (16, 16), "time", False), (16, 16), window_us=3000)


WAYS = {
    "fuse": ("training", fuse),
    "dual_kernel": ("deployed", dual_kernel),
    "accumulate": ("deployed", Accumulator),
    "accumulate-dual": ("dual-kernel", Accumulator),
    "capture": ("deployed", lambda model: capture(model, synthetic_clip(3, 16, 16))),
    "capture-training": ("training", lambda model: capture(model, synthetic_clip(3, 16, 16))),
    "graph": ("deployed", lambda model: make_graph("clip", model, 16, 16)),
    "nir": ("deployed", check_model),
    "quantize": ("deployed", to_float16),
    "stream": ("deployed", stream),
    "stream-training": ("training", stream),
}


@pytest.mark.parametrize("way", WAYS)
def test_refused_by_name(way):
    form, do = WAYS[way]
    do(network(form))  # as it is, all is well
    name = "stages.1.first_neuron"
    for change in ("hook", "subclass", "method", "network-hook", "network-forward"):
        model = network(form)
        module = model.get_submodule(name)
        if change == "hook":
            module.register_forward_pre_hook(lambda *given: None)
        elif change == "subclass":
            module.__class__ = Mine
        elif change == "method":
            module.forward = module.forward
        elif change == "network-hook":
            model.register_forward_hook(lambda *given: None)
        else:
            model.__class__ = OtherForward
        with pytest.raises(ConfigError) as caught:
            do(model)
        assert caught.value.field == ("" if change.startswith("network") else name), change


def test_fuse_refuses_what_the_config_does_not_say():
    model = network("training")
    model.stages[2].attention = type(model.stages[0].attention)(8, ((2, 8), (8, 2)))
    with pytest.raises(ConfigError) as caught:
        fuse(model)
    assert caught.value.field.startswith("stages.2.attention")


def test_a_step_refuses_a_forward_that_it_would_not_call():
    model = network("training").train()
    x, y = synthetic_clip(3, 16, 16, samples=2), torch.tensor([0, 1])
    optimizer = make_optimizer(model, 1e-3, 0.0)
    training_step(model, optimizer, x, y, StepSettings())
    model.__class__ = OtherForward
    with pytest.raises(ConfigError) as caught:
        training_step(model, optimizer, x, y, StepSettings())
    assert caught.value.field == ""


def test_names_of_classes_are_kept():
    model = network("training")
    model.labels = Labels(("a", "b", "c"), "mine", None, 3, (16, 16), "time", False)
    assert fuse(model, quiet=True).class_names == dual_kernel(model, quiet=True).class_names == ("a", "b", "c")


def test_a_head_put_in_by_hand_is_fused():
    model = network("training")
    model.head = nn.Linear(8, 5)
    fused = fuse(model, quiet=True)
    assert fused.config.num_classes == 5
    assert fused(synthetic_clip(3, 16, 16)).shape == (1, 3, 5)


@pytest.mark.gpu
def test_on_a_gpu_a_hook_is_not_recorded_away():
    model, example = network("deployed").cuda(), synthetic_clip(3, 16, 16).cuda()
    model.stages[0].second_neuron.register_forward_hook(lambda *given: None)
    with pytest.raises(ConfigError) as caught:
        capture(model, example)
    assert caught.value.field == "stages.0.second_neuron"
