"""`ripe train synthgesture-causal` and what follows a run: evaluation, fusing, predictions."""

import json
import re

import numpy as np
import pytest
import torch

from raising import raises
from ripe_mambaspike import from_pretrained, write
from ripe_mambaspike.api import load
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.data.samples import held_out
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.predict import predict
from ripe_mambaspike.models.registry import create_model
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.calibrate import recalibrate

FIELDS = "model.fields={causal: true, stage_channels: [4, 8, 8], embed_dims: [4, 8, 8]}"


@pytest.fixture(scope="module")
def run(tiny_words, tmp_path_factory):
    folder = tmp_path_factory.mktemp("causal") / "run"
    words = tiny_words(FIELDS)
    words[1] = "synthgesture-causal"
    assert main([*words, "--out", str(folder)]) == 0
    return folder


def test_trains_and_evaluates_to_the_last_digit(run, capsys):
    result = json.loads((run / "result.json").read_text())
    model = from_pretrained(run / "best")
    assert model.config.causal
    assert model.entry.running_mean.shape == (1, 2)
    assert float(model.entry.running_mean.abs().min()) > 0
    assert main(["eval", str(run), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [printed[name] for name in ("top1", "n", "loss")] == [result[name] for name in ("top1", "n", "loss")]


def test_fuses_and_predicts(run, tiny, tmp_path, capsys):
    out = tmp_path / "fused"
    assert main(["fuse", str(run), "--out", str(out), "--json"]) == 0
    small = from_pretrained(out, form="deployed")
    assert json.loads(capsys.readouterr().out)["parameters"]["deployed"] == small.parameter_count()
    (recording, _, _), *_ = held_out(tiny().data, 1)
    clip = write(recording, tmp_path / "clip.npz")
    shares = []
    for network in (run, out):
        assert main(["predict", str(network), str(clip), "--json"]) == 0
        shares.append(json.loads(capsys.readouterr().out))
    assert shares[0]["recordings"] == shares[1]["recordings"]


def test_recalibration_averages_the_shared_statistics(run):
    model = from_pretrained(run / "best")
    batches = [synthetic_clip(4, 16, 16, 3, seed) for seed in range(2)]
    assert recalibrate(model, batches) == 2
    wanted = torch.stack([x.mean((0, 1, 3, 4)) for x in batches]).mean(0)
    torch.testing.assert_close(model.entry.running_mean[0], wanted, rtol=1e-5, atol=1e-6)


def test_a_recording_in_more_steps_than_it_was_trained_on(tmp_path):
    sizes = {"num_classes": 3, "time_steps": 4, "in_size": 16, "stage_channels": (4, 8, 8), "embed_dims": (4, 8, 8)}
    for causal in (True, False):
        create_model("nmnist", seed=0, causal=causal, **sizes).eval().save_pretrained(tmp_path / str(causal))
    random = np.random.default_rng(0)
    x, y, p = random.integers(0, 16, 400), random.integers(0, 16, 400), random.integers(0, 2, 400)
    recording = Recording(make_events(x, y, np.sort(random.integers(0, 90_000, 400)), p), (16, 16))
    found = predict(load(tmp_path / "True", time_steps=9), recording)
    assert len(found.timeline) == 9
    for causal, given, most in ((True, 4097, "4096"), (False, 9, "4")):
        with raises(InputError, field="time_steps") as caught:
            load(tmp_path / str(causal), time_steps=given)
        assert re.search(rf"1 to {most}\b.*\b{given}\b", str(caught.value))
