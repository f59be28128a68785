"""Which settings of a step decide what is captured."""

from dataclasses import replace

from ripe_mambaspike.models.base import Model
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


class OwnPasses(Model):
    """Takes the hard pass alone, with the sharpness of its mode."""

    def run_passes(self, x, modes):
        return [self.run(x)]


def test_a_network_with_passes_of_its_own_keeps_the_sharpness_alone():
    model = OwnPasses(create_model("cnn-gru").config, "own")
    assert model.uses_sharpness
    used = [used_settings(model, settings) for settings in (FIRST, LATER)]
    assert [one.sharpness for one in used] == [2.0, 4.0]
    assert used[0] == replace(used[1], sharpness=2.0)
