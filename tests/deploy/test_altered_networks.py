"""Functions that compute with the weights, not with the modules, refuse modified modules."""

import pytest
import torch
from tests.raising import raises
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
def test_modified_modules_are_refused_by_name(way):
    form, do = WAYS[way]
    do(network(form))  # unmodified
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
        with raises(ConfigError, "" if change.startswith("network") else name):
            do(model)


def test_fuse_refuses_a_layer_that_differs_from_the_config():
    model = network("training")
    model.stages[2].attention = type(model.stages[0].attention)(8, ((2, 8), (8, 2)))
    with raises(ConfigError) as caught:
        fuse(model)
    assert caught.value.field.startswith("stages.2.attention")


def test_a_training_step_refuses_an_overridden_forward():
    model = network("training").train()
    x, y = synthetic_clip(3, 16, 16, samples=2), torch.tensor([0, 1])
    optimizer = make_optimizer(model, 1e-3, 0.0)
    training_step(model, optimizer, x, y, StepSettings())
    model.__class__ = OtherForward
    with raises(ConfigError, ""):
        training_step(model, optimizer, x, y, StepSettings())


def test_names_of_classes_are_kept():
    model = network("training")
    model.labels = Labels(("a", "b", "c"), "mine", None, 3, (16, 16), "time", False)
    assert fuse(model, quiet=True).class_names == dual_kernel(model, quiet=True).class_names == ("a", "b", "c")


def test_a_replaced_head_is_fused():
    model = network("training")
    model.head = nn.Linear(8, 5)
    fused = fuse(model, quiet=True)
    assert fused.config.num_classes == 5
    assert fused(synthetic_clip(3, 16, 16)).shape == (1, 3, 5)


@pytest.mark.gpu
def test_capture_on_a_gpu_refuses_a_hook():
    model, example = network("deployed").cuda(), synthetic_clip(3, 16, 16).cuda()
    model.stages[0].second_neuron.register_forward_hook(lambda *given: None)
    with raises(ConfigError, "stages.0.second_neuron"):
        capture(model, example)
