"""Mirrored and reversed clips take the label of what they then show."""

import dataclasses

import pytest
import torch

from ripe_mambaspike.data.augment import Augmentation, augment_clips, augment_labelled, draws_for, relabel, relabels
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.events.gesture_classes import CLASSES
from ripe_mambaspike.events.simulate.gestures import draw_clip, reversed_clip

OFF = Augmentation(0, polarity_flip=0, mixup_probability=0, cutmix_probability=0)


def test_gestures_in_a_mirror():
    table = relabels(CLASSES).mirrored
    assert {CLASSES[label]: CLASSES[table[label]] for label in range(11)} == {
        "hand_clapping": "hand_clapping",
        "right_hand_wave": "left_hand_wave",
        "left_hand_wave": "right_hand_wave",
        "right_arm_clockwise": "left_arm_counter_clockwise",
        "right_arm_counter_clockwise": "left_arm_clockwise",
        "left_arm_clockwise": "right_arm_counter_clockwise",
        "left_arm_counter_clockwise": "right_arm_clockwise",
        "arm_roll": "arm_roll",
        "air_drums": "air_drums",
        "air_guitar": "air_guitar",
        "other_gestures": "other_gestures",
    }


@pytest.mark.parametrize("label", range(11))
def test_gestures_played_backwards_as_the_simulator_has_them(label):
    clip = draw_clip(label, 0, "train")
    assert relabels(CLASSES).backwards[label] == reversed_clip(clip).label


@pytest.mark.parametrize("which", [0, 1], ids=["mirrored", "backwards"])
def test_twice_is_the_identity(which):
    table = relabels(CLASSES)[which]
    assert [table[table[label]] for label in range(11)] == list(range(11))


@pytest.mark.parametrize("turn", ["counter_clockwise", "counterclockwise", "anticlockwise", "Counter-Clockwise"])
def test_other_ways_to_write_a_turn(turn):
    assert relabels(("Clockwise", turn)) == ((1, 0), (1, 0))


def test_words_inside_others_are_none():
    assert relabels(("bright", "upright", "Left arm", "right arm", "lefty")) == ((0, 1, 3, 2, 4), (0, 1, 2, 3, 4))


def test_an_opposite_that_is_no_class():
    with pytest.raises(ConfigError) as error:
        relabels(("left", "up"))
    assert str(error.value) == (
        "augmentation.relabel is true, and in a mirror class 'left' shows 'right', which is no class of this set; "
        "false is wanted, with horizontal_flip and time_reversal at 0"
    )


def test_the_chosen_alone_are_looked_up():
    labels = torch.tensor([0, 1, 2, 2])
    chosen = torch.tensor([True, False, True, False])
    assert relabel(labels, chosen, (1, 0, 2)).tolist() == [1, 1, 2, 2]
    assert relabel(labels, chosen, (2, 0, 1)).tolist() == [2, 1, 1, 2]
    assert labels.tolist() == [0, 1, 2, 2]


def test_labels_follow_the_flips_of_each_clip():
    names = ("left", "right", "left_clockwise", "left_counter_clockwise", "right_clockwise", "right_counter_clockwise")
    settings = dataclasses.replace(OFF, horizontal_flip=0.5, time_reversal=0.5, swap_polarity=True, relabel=True)
    first = torch.rand(1, 3, 2, 4, 5) + 1
    x, labels = first.repeat(64, 1, 1, 1, 1), torch.full((64,), 2)
    out, given = augment_labelled(x, labels, settings, draws_for(0, 0, 0), names)
    assert torch.equal(out, augment_clips(x, settings, draws_for(0, 0, 0)))  # the draws are the same
    expected = {
        2: first[0],
        5: first[0].flip(3),  # in a mirror: the other side, the other way round
        3: first[0].flip(0, 1),  # backwards: the other way round
        4: first[0].flip(0, 1, 3),
    }
    assert set(given.tolist()) == set(expected)
    for clip, label in zip(out, given.tolist(), strict=True):
        assert torch.equal(clip, expected[label])


def test_without_relabel_labels_stay():
    settings = dataclasses.replace(OFF, horizontal_flip=1.0, time_reversal=1.0)
    labels = torch.tensor([3, 4])
    _, given = augment_labelled(torch.ones(2, 3, 2, 4, 5), labels, settings, draws_for(0, 0, 0), CLASSES)
    assert given.tolist() == [3, 4]


def test_relabel_is_true_or_false():
    with pytest.raises(ConfigError, match="relabel is 1; true or false is wanted"):
        Augmentation(relabel=1)
