"""The catalog: every study is valid, names arms that exist, and carries the values that the paper prints."""

import itertools

import pytest

from raising import raises
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.registry import list_models, model_config
from ripe_mambaspike.studies.claims.printed import ABLATION, MIXES
from ripe_mambaspike.studies.study import Arm, Study, list_studies, load_study

NAMES = [study.name for study in list_studies()]
TABLES = {"table-1", "table-2", "table-3", "table-7", "table-11", "table-12", "table-13", "table-14", "table-18"}


def test_every_table_of_trained_networks_is_answered():
    answered = {word for study in list_studies() for word in study.answers}
    assert answered >= {*TABLES, "figure-lambda-sweep", "figure-spike-rates", "figure-pareto"}
    assert NAMES[:3] == ["peers", "components", "sequence-modules"]


def test_printed_effects_of_components():
    study = load_study("components")
    removed = {"DS-MPA": "no-attention", "RepConv": "no-repconv", "TDM": "no-tdm", "MR-S3A": "stage3-bridge"}
    for component, name in removed.items():
        paper, (costs, effects) = study.arm(name).paper, ABLATION[component]
        sets = ("dvsgesture", "cifar10dvs", "ncaltech101")
        assert [-paper[one].delta for one in sets] == costs
        assert [paper[one].significant for one in sets] == [float(effect) >= 2 for effect in effects]


def test_neuron_mixes_are_the_papers_eight_and_all_27():
    study = load_study("neuron-mixes")
    printed = [tuple(arm.name.split("-")) for arm in study.chosen_arms()]
    assert printed == [mix for mix, _ in MIXES]
    assert [arm.paper["dvsgesture"].top1 for arm in study.chosen_arms()] == [accuracy for _, accuracy in MIXES]
    every = {tuple(arm.name.split("-")) for arm in study.chosen_arms(every=True)}
    assert every == set(itertools.product(("lif", "silif", "csilif"), repeat=3))


def test_peers_are_every_network_of_another_architecture():
    ours = model_config("dvsgesture").architecture
    others = {name for name in list_models() if model_config(name).architecture != ours}
    assert {arm.name for arm in load_study("peers").arms} == {"ours", *others}


@pytest.mark.parametrize("name", NAMES)
def test_printed_differences_are_those_of_printed_accuracies(name):
    """Within rounding: Table 3 prints 82.75 (−2.75) beside 85.49."""
    study = load_study(name)
    reference = study.arm(study.reference).paper
    for arm in study.arms:
        for dataset, value in arm.paper.items():
            if value.delta is not None and value.top1 is not None:
                assert value.top1 - reference[dataset].top1 == pytest.approx(value.delta, abs=0.0151)


def test_chosen_arms():
    study = load_study("sequence-modules")
    assert [arm.name for arm in study.chosen_arms(["gru"])] == ["mamba", "gru"]
    assert "flat" not in {arm.name for arm in study.chosen_arms()}
    assert "flat" in {arm.name for arm in study.chosen_arms(every=True)}
    with raises(ConfigError, field="arms", mentions="gru"):
        study.chosen_arms(["grue"])
    with raises(ConfigError, field="name", mentions="components"):
        load_study("component")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"reference": "b"}, "reference"),
        ({"arms": (Arm(name="a", title="A"), Arm(name="a", title="B"))}, "arms"),
        ({"axis": "k"}, "axis"),
        ({"conditions": ("noise",)}, "conditions"),
        ({"conditions": ("dropped=2",)}, "conditions"),
        ({"conditions": ("fog=1",)}, "conditions"),
    ],
)
def test_an_invalid_study_is_refused(changes, field):
    values = {
        "name": "x", "title": "X", "question": "?", "answers": ("none",), "reference": "a",
        "arms": (Arm(name="a", title="A"),), "sets": ("synthgesture",), "seeds": "0",
    }  # fmt: skip
    assert Study(**values).reference == "a"
    with raises(ConfigError, field=field):
        Study(**{**values, **changes})
