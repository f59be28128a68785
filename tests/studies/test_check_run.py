"""Claims about a trained network: what is measured on a small one, and that wrong networks are noticed."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import Recording, check_run, create_model, write
from ripe_mambaspike.errors import InputError, WeightsError
from ripe_mambaspike.events.recording import make_events
from ripe_mambaspike.models.labels import Labels, save_labels
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.calibrate import recalibrate
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.studies.claims import verdict
from ripe_mambaspike.studies.claims.trained import TrainedNetwork, trained_claims
from ripe_mambaspike.train.recipes import load_recipe, save_recipe, with_settings

SMALL = {"num_classes": 3, "stage_channels": (4, 8, 8), "embed_dims": (4, 8, 8), "time_steps": 4, "in_size": 16}
CLIPS = list(synthetic_clip(4, 16, 16, samples=3))


def make_model(filters=(0.7, 0.3, 0.05), **fields):
    """A small calibrated network; every filter of a stage has the same λ."""
    model = create_model("dvsgesture", seed=0, **SMALL, **fields).eval()
    with torch.no_grad():
        for stage, value in zip(model.stages, filters, strict=True):
            for conv in (stage.first_conv, stage.second_conv):
                if conv.coefficient is not None:
                    conv.coefficient.fill_(value)
    recalibrate(model, [synthetic_clip(4, 16, 16, samples=4, seed=1)], run=model.front_end)
    return model


def checked(model, **options):
    claims, notes = trained_claims(TrainedNetwork(model, CLIPS, **options))
    return {claim.id: claim for claim in claims}, notes


def test_filters_by_depth():
    found, _ = checked(make_model())
    assert found["trained.tdm.first"].ours == "0.7000"
    assert found["trained.tdm.depth"].ours == "0.700, 0.300, 0.050"
    assert [found[f"trained.tdm.{name}"].verdict for name in ("first", "high-pass", "depth", "deepest")] == [
        "differs", "holds", "holds", "holds",
    ]  # fmt: skip
    other, _ = checked(make_model((-0.3, 0.724, 0.72)))
    assert [other[f"trained.tdm.{name}"].verdict for name in ("first", "high-pass", "depth", "deepest")] == [
        "differs", "differs", "differs", "differs",
    ]  # fmt: skip
    same, _ = checked(make_model((0.722, 0.0, 0.0)))
    assert same["trained.tdm.first"].verdict == "holds"


def test_rates_are_those_of_a_run():
    model = make_model()
    found, _ = checked(model)
    with torch.no_grad():
        rates = model.run(torch.stack(CLIPS)).rates
    layers = [f"trained.rate.stage{level}.{which}" for level in (1, 2, 3) for which in ("first", "second")]
    assert [float(found[id].ours) for id in layers] == pytest.approx(rates.tolist(), abs=1e-4)
    for id, rate in zip(layers, rates.tolist(), strict=True):
        assert found[id].verdict == ("holds" if 0.015 <= rate <= 0.19 else "differs")


def test_energy_is_at_the_measured_rates():
    model = make_model()
    found, _ = checked(model)
    with torch.no_grad():
        rates = model.run(torch.stack(CLIPS)).rates[:5].double()  # operands of the five convolutions after the first
    low, high = (float(v) for v in re.findall(r"[\d.]+", found["trained.energy.range"].ours))
    assert (low, high) == pytest.approx((1.8 * float(rates.min()), 1.8 * float(rates.max())), abs=1e-3)
    event, dense = (float(v) for v in re.findall(r"[\d.]+", found["trained.energy.below"].ours))
    assert 0 < event < dense


def test_attention_outside_its_hull_is_noticed():
    inside, _ = checked(make_model())
    outside, _ = checked(make_model(attention="sigmoid"))
    for level in (1, 2, 3):
        assert inside[f"trained.hull.{level}"].verdict == "holds"
        assert outside[f"trained.hull.{level}"].verdict == "differs"


def test_what_a_network_does_not_have_is_said():
    found, notes = checked(make_model(attention="gate", tdm=False))
    assert not [id for id in found if id.startswith(("trained.hull", "trained.tdm", "trained.energy", "trained.gap"))]
    assert len(notes) == 5  # filters, the log, the sharpness, the hull, energy
    assert "trained.stable" in found


def test_unstable_neuron_is_noticed():
    model = make_model()
    assert checked(model)[0]["trained.stable"].verdict == "holds"
    with torch.no_grad():
        model.stages[1].first_neuron.log_step.fill_(-30.0)
    assert checked(model)[0]["trained.stable"].verdict == "differs"


def test_gap_between_the_passes():
    model = make_model()
    found, notes = checked(model, gaps=[0.02, 0.3, 0.0017], sharpness=4.0)
    assert notes == []
    x = torch.stack(CLIPS)
    with torch.no_grad():
        hard, soft = model.run_passes(x, [ForwardMode(sharpness=4.0), ForwardMode(relaxed=True, sharpness=4.0)])
    gap = float((hard.logits - soft.logits).square().mean())
    assert float(found["trained.gap.clips"].ours) == pytest.approx(gap, rel=1e-3)
    assert found["trained.gap.clips"].verdict == ("holds" if gap < 0.00185 else "differs")
    assert [found[id].verdict for id in ("trained.gap.falls", "trained.gap.end")] == ["holds", "holds"]
    found, _ = checked(model, gaps=[0.02, 0.3], sharpness=4.0)
    assert [found[id].verdict for id in ("trained.gap.falls", "trained.gap.end")] == ["differs", "differs"]


def test_every_statement_of_trained_networks_is_checked():
    found, _ = checked(make_model(), gaps=[0.02, 0.001], sharpness=4.0)
    for id in verdict.statements_of("trained.yaml"):
        pattern = re.sub(r"\\\{\w+\\\}", ".+", re.escape(id))
        assert any(re.fullmatch(pattern, one) for one in found), id


@pytest.fixture
def run(tmp_path):
    """The folder of a run with its recipe and log, and a recording as a .npz file."""
    folder = tmp_path / "run"
    make_model().save_pretrained(folder / "best")
    save_labels(Labels(("a", "b", "c"), None, None, 4, (16, 16), "time", False, 2), folder / "best")
    save_recipe(with_settings(load_recipe("synthgesture"), ["schedule.epochs=3"]), folder / "recipe.yaml")
    with (folder / "log.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("epoch", "consistency"), (1, 0.5), (2, 0.25), (3, 0.125)])
    return folder


@pytest.fixture
def recording(tmp_path):
    random = np.random.default_rng(0)
    path: Path = tmp_path / "wave.npz"
    x, y = random.integers(0, 16, (2, 400))
    times = np.sort(random.integers(0, 10**6, 400))
    write(Recording(make_events(x, y, times, random.integers(0, 2, 400)), (16, 16)), path)
    return path


def test_a_run_is_checked_on_recordings(run, recording):
    found = check_run(run, recordings=[recording])
    by_id = {claim.id: claim for claim in found.claims}
    assert found.notes == []
    assert found.clips == "1 recording"
    assert by_id["trained.gap.falls"].ours == "from 0.5 in epoch 1 to 0.125 in epoch 3"
    assert by_id["trained.tdm.depth"].ours == "0.700, 0.300, 0.050"
    assert {claim.group for claim in found.claims} == {"trained"}
    assert found.to_dict()["claims"][0]["id"] == "trained.tdm.first"


def test_a_damaged_log_is_refused(run, recording):
    (run / "log.csv").write_text("epoch,consistency\n1,many\n")
    with raises(InputError, field="consistency", path=run / "log.csv"):
        check_run(run, recordings=[recording])


def test_invalid_arguments(run, tmp_path):
    with raises(InputError, field="clips"):
        check_run(run, clips=0)
    with raises(InputError, field="recordings"):
        check_run(run, recordings=[])
    other = create_model("spikformer", num_classes=3, time_steps=2, in_size=32).save_pretrained(tmp_path / "other")
    with raises(WeightsError, field="network"):
        check_run(other, recordings=[tmp_path / "none.npz"])
