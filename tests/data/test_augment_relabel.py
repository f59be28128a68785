"""Mirrored and reversed clips take the label of what they then show."""

import dataclasses

import pytest
import torch

from raising import raises
from ripe_mambaspike.data.augment import (
    Augmentation,
    augment_clips,
    augment_labeled,
    batch_generator,
    label_tables,
    relabel,
)
from ripe_mambaspike.data.augment.relabel import MIRROR, REVERSE, label_table
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.events.gesture_classes import CLASSES
from ripe_mambaspike.events.simulate.gestures import draw_clip, reversed_clip
from ripe_mambaspike.train.recipes import list_recipes, load_recipe

OFF = Augmentation(0, polarity_flip=0, mixup_probability=0, cutmix_probability=0)
GESTURES = ["gestures-hard", "gestures-hard-small", "quickstart"]  # recipes that relabel
GESTURES += ["sim-dvsgesture", "sim-dvsgesture-tuned", "synthgesture", "synthgesture-128", "synthgesture-causal"]
SWIPES = ("swipe_down", "swipe_left", "swipe_right", "swipe_up")


@pytest.fixture(params=GESTURES)
def tables(request):
    return label_tables(load_recipe(request.param).augmentation, CLASSES)


def changed(classes, pairs=(), change=MIRROR):
    return label_table(classes, tuple(pairs), change)


def refused(call):
    """The field that an error names."""
    with pytest.raises(ConfigError) as caught:
        call()
    return caught.value.field


def test_gestures_in_a_mirror(tables):
    assert {CLASSES[label]: CLASSES[tables.mirrored[label]] for label in range(11)} == {
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


def test_gestures_played_backwards_as_the_simulator_has_them(tables):
    assert list(tables.backwards) == [reversed_clip(draw_clip(label, 0, "train")).label for label in range(11)]


def test_the_labels_of_the_shipped_recipes_are_fixed():
    """Numbers as they were when only names were used: the bits of a run depend on them."""
    found = {name: load_recipe(name).augmentation for name in list_recipes()}
    assert [name for name, settings in found.items() if settings.relabel] == GESTURES
    for name in GESTURES:
        assert label_tables(found[name], CLASSES) == (
            (0, 2, 1, 6, 5, 4, 3, 7, 8, 9, 10),
            (0, 1, 2, 4, 3, 6, 5, 7, 8, 9, 10),
        )
    digits, actions = tuple("0123456789"), tuple(f"action_{number}" for number in range(1, 201))
    things = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    for name, classes in (
        ("nmnist", digits),
        ("dailydvs200", actions),
        ("cifar10dvs", things),
        ("dvsgesture", CLASSES),
    ):
        assert label_tables(found[name], classes) == (None, None)


def test_twice_is_the_identity(tables):
    for table in tables:
        assert [table[table[label]] for label in range(11)] == list(range(11))


@pytest.mark.parametrize("turn", ["counter_clockwise", "counterclockwise", "anticlockwise", "Counter-Clockwise"])
@pytest.mark.parametrize("change", [MIRROR, REVERSE], ids=["mirror", "reverse"])
def test_other_ways_to_write_a_turn(turn, change):
    assert changed(("Clockwise", turn), change=change) == (1, 0)


def test_names_with_sides_are_paired_and_others_declared():
    names = ("bright", "upright", "Left arm", "right arm", "lefty")
    assert changed(names, ["bright", "upright=lefty"]) == (0, 4, 3, 2, 1)
    assert changed(SWIPES, ["swipe_up", "swipe_down"]) == (0, 2, 1, 3)
    assert changed(SWIPES, ["swipe_up=swipe_down", "swipe_left=swipe_right"], REVERSE) == (3, 2, 1, 0)
    assert changed(("left_hand", "right_hand"), ["left_hand", "right_hand"], REVERSE) == (0, 1)
    assert changed(("a=b", "c"), ["a=b=c"]) == (1, 0)  # a class with a sign in its name


@pytest.mark.parametrize(
    ("classes", "pairs", "change"),
    [
        (SWIPES, [], MIRROR),  # a name without a side may or may not be symmetric
        (SWIPES, ["swipe_up"], MIRROR),
        (SWIPES, [], REVERSE),
        (SWIPES, ["swipe_up=swipe_down"], REVERSE),  # swipe_left backwards is swipe_right, left_hand_wave is itself
        (("left_hand_wave", "right_hand_wave"), [], REVERSE),
        (("left_clockwise", "left_counter_clockwise"), [], REVERSE),
        (("push", "pull"), [], REVERSE),
        (("left", "up"), ["up"], MIRROR),  # its opposite is no class
        (("left", "right"), ["left"], MIRROR),  # right would show left, and left itself
        (("left", "right"), ["left=right", "right"], MIRROR),  # twice
        (("left", "right"), ["left=right", "clap"], MIRROR),  # no class
        (("left", "right"), ["left=clap"], MIRROR),
        (("left", "right"), ["left="], MIRROR),
    ],
)
def test_a_class_that_cannot_be_paired_is_refused(classes, pairs, change):
    assert refused(lambda: changed(classes, pairs, change)) == change.pairs


def test_what_is_off_needs_no_pairs():
    for flips, field in (
        ({"horizontal_flip": 0.5}, "augmentation.mirror_pairs"),
        ({"time_reversal": 0.5}, "augmentation.reverse_pairs"),
    ):
        assert refused(lambda flips=flips: label_tables(Augmentation(relabel=True, **flips), ("push", "pull"))) == field
    assert label_tables(Augmentation(relabel=True), ("push", "pull")) == (None, None)
    settings = Augmentation(relabel=True, horizontal_flip=0.5, mirror_pairs=("push", "pull"))
    assert label_tables(settings, ("push", "pull")) == ((0, 1), None)


@pytest.mark.parametrize("name", ["swipe_left", "SwipeRight", "turn-CW", "anti_clockwise", "move rightwards", "left2"])
def test_a_sided_class_that_keeps_its_label_is_refused_in_a_mirror_and_backwards(name):
    for field in ("horizontal_flip", "time_reversal"):
        settings = Augmentation(**{field: 0.1})
        assert refused(lambda settings=settings: label_tables(settings, ("clap", name))) == f"augmentation.{field}"


@pytest.mark.parametrize("name", ["swipe_up", "push", "door_open", "zoomIn", "backward"])
def test_a_moving_class_that_keeps_its_label_is_refused_backwards_alone(name):
    assert label_tables(Augmentation(horizontal_flip=1.0), (name, "clap")) == (None, None)
    settings = Augmentation(time_reversal=1.0)
    assert refused(lambda: label_tables(settings, (name, "clap"))) == "augmentation.time_reversal"


def test_declared_pairs_are_accepted():
    settings = Augmentation(time_reversal=1.0, relabel=True, reverse_pairs=("push=pull",))
    assert label_tables(settings, ("push", "pull")) == (None, (1, 0))


def test_only_chosen_samples_are_relabeled():
    labels = torch.tensor([0, 1, 2, 2])
    chosen = torch.tensor([True, False, True, False])
    assert relabel(labels, chosen, (1, 0, 2)).tolist() == [1, 1, 2, 2]
    assert relabel(labels, chosen, (2, 0, 1)).tolist() == [2, 1, 1, 2]
    assert labels.tolist() == [0, 1, 2, 2]


def test_labels_follow_the_flips_of_each_clip():
    names = ("left", "right", "left_clockwise", "left_counter_clockwise", "right_clockwise", "right_counter_clockwise")
    settings = dataclasses.replace(OFF, horizontal_flip=0.5, time_reversal=0.5, swap_polarity=True, relabel=True)
    turns = tuple(f"{side}_clockwise={side}_counter_clockwise" for side in ("left", "right"))
    settings = dataclasses.replace(settings, reverse_pairs=("left", "right", *turns))
    first = torch.rand(1, 3, 2, 4, 5) + 1
    x, labels = first.repeat(64, 1, 1, 1, 1), torch.full((64,), 2)
    out, given = augment_labeled(x, labels, settings, batch_generator(0, 0, 0), names)
    assert torch.equal(out, augment_clips(x, settings, batch_generator(0, 0, 0)))  # the draws are the same
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
    _, given = augment_labeled(torch.ones(2, 3, 2, 4, 5), labels, settings, batch_generator(0, 0, 0), tuple("01234"))
    assert given.tolist() == [3, 4]


def test_clips_with_labels_that_would_be_wrong_are_not_augmented():
    settings = dataclasses.replace(OFF, horizontal_flip=1.0)
    clips, labels = torch.ones(2, 3, 2, 4, 5), torch.tensor([0, 1])

    def call():
        augment_labeled(clips, labels, settings, batch_generator(0, 0, 0), SWIPES)

    assert refused(call) == "augmentation.horizontal_flip"


def test_relabel_is_true_or_false():
    with raises(ConfigError, "relabel", mentions=("true or false", "got 1")):
        Augmentation(relabel=1)
