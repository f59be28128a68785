"""A study that takes seconds: two arms of a very small network on a few simulated gestures."""

import pytest

from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.studies.plan import plan_study
from ripe_mambaspike.studies.study import load_study

SETTINGS = (
    "data.time_steps=4",
    "data.grid=16",
    "model.fields.stage_channels=[4, 8, 8]",
    "model.fields.embed_dims=[4, 8, 8]",
    "schedule.batch_size=11",
    "schedule.epochs=1",
    "schedule.warmup_epochs=0",
    "run.recalibrate_batches=2",
    "run.device=cpu",
)


@pytest.fixture(scope="session")
def gestures_root(tmp_path_factory):
    """The folder of the datasets, with one in it."""
    root = tmp_path_factory.mktemp("sets")
    simulate_dataset("synthgesture", root / "synthgesture", train=22, val=11, test=22, size=16)
    return root


@pytest.fixture
def tiny_settings():
    return SETTINGS


@pytest.fixture
def tiny_plan(tmp_path):
    """Makes the plan of two arms and two seeds without data."""

    def make(**changes):
        options = {"out": tmp_path / "out", "settings": SETTINGS, "arms": ["no-tdm"], **changes}
        seeds = options.pop("seeds", [0, 1])
        return plan_study(load_study("components"), ["synthgesture"], seeds, **options)

    return make
