"""Which settings of a step decide what is captured."""

from dataclasses import replace

from ripe_mambaspike.models.registry import create_model
from ripe_mambaspike.train.capture import used_settings
from ripe_mambaspike.train.objective import LossWeights
from ripe_mambaspike.train.step import StepSettings

FIRST = StepSettings(2.0, LossWeights(relaxed_share=0.5), passes=1, autocast=True)
LATER = StepSettings(4.0, LossWeights(relaxed_share=0.1), passes=1, autocast=True)


def test_a_network_with_a_relaxed_pass_uses_all():
    model = create_model("nmnist")
    assert used_settings(model, FIRST) == FIRST
    assert used_settings(model, FIRST) != used_settings(model, LATER)


def test_others_take_the_same_step_in_every_epoch():
    model = create_model("cnn-gru")
    assert used_settings(model, FIRST) == used_settings(model, LATER)
    for changed in ({"autocast": False}, {"clip_grad_norm": 2.0}, {"weights": LossWeights(rates=1.0)}):
        assert used_settings(model, FIRST) != used_settings(model, replace(FIRST, **changed))
