"""`ripe eval` with --unknown, --windows and --errors."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from ripe_mambaspike import calibrate, evaluate, from_pretrained, load, load_dataset
from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.events.binning import bin_events
from ripe_mambaspike.events.recording import Recording
from ripe_mambaspike.events.writing import write
from ripe_mambaspike.inference.predict import predict
from ripe_mambaspike.models.base import clip_logits


def asked(ripe, *words):
    result = ripe("eval", *words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


@pytest.fixture(scope="module")
def unseen(tmp_path_factory):
    """The root of a set of other motions, as small as the gestures."""
    root = tmp_path_factory.mktemp("unseen")
    simulate_dataset("gestures-hard-unseen", root, train=2, val=6, test=8, size=16)
    return root


@pytest.fixture(scope="module")
def calibrated(finished, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    shutil.copy(finished / "recipe.yaml", run)
    shutil.copy(finished / "result.json", run)
    return calibrate(finished, run / "calibrated", keep=0.8, device="cpu")


def scores(network, root, dataset, split):
    """The probability of the best class of every clip, one at a time, by `predict`."""
    events = load_dataset(dataset, root, split)
    return [predict(network, events[number][0]).probability for number in range(len(events))]


def test_unknown_recordings_of_a_dataset(ripe, calibrated, gestures, unseen):
    found = asked(ripe, calibrated.out, "--unknown", f"gestures-hard-unseen={unseen}")
    own, rule = found["unknown"], calibrated.calibration.unknown
    network = load(calibrated.out)
    known = scores(network, gestures, "synthgesture", "test")
    others = scores(network, unseen, "gestures-hard-unseen", "test")
    pairs = [(a > b) + 0.5 * (a == b) for a in known for b in others]
    assert own["auroc"]["probability"] == pytest.approx(np.mean(pairs), abs=1e-3)
    assert set(own["auroc"]) == {"probability", "energy"}
    assert (own["n"], own["known"], own["score"], own["threshold"]) == (8, 37, "probability", rule.threshold)
    assert own["kept"] == pytest.approx(np.mean([one >= rule.threshold for one in known]))
    assert own["rejected"] == pytest.approx(np.mean([one < rule.threshold for one in others]))
    assert sum(own["answers"].values()) == 8
    assert asked(ripe, calibrated.out)["top1"] == found["top1"]


def test_the_same_split_is_compared(ripe, calibrated, unseen):
    own = asked(ripe, calibrated.out, "--split", "val", "--unknown", f"gestures-hard-unseen={unseen}")["unknown"]
    assert (own["n"], own["known"]) == (6, 13)


def test_a_class_that_stands_for_everything_else(ripe, finished, gestures, unseen):
    words = ("--unknown", f"gestures-hard-unseen={unseen}", "--other-class", "other_gestures")
    named = asked(ripe, finished, *words)["unknown"]["named"]
    network, other = load(finished), "other_gestures"

    def answers(root, dataset):
        events = load_dataset(dataset, root, "test")
        labels = [events.classes[label] for label in events.labels]
        return list(zip(labels, [predict(network, events[number][0]) for number in range(len(events))], strict=True))

    def best(found):
        return max(share for name, share in found.probabilities.items() if name != other)

    known = [found for label, found in answers(gestures, "synthgesture") if label != other]
    others = [found for _, found in answers(unseen, "gestures-hard-unseen")]
    pairs = [(best(a) > best(b)) + 0.5 * (best(a) == best(b)) for a in known for b in others]
    assert 0 < len(known) == named["known"] < 37
    assert named["auroc"] == pytest.approx(np.mean(pairs), abs=1e-3)
    assert named["kept"] == pytest.approx(np.mean([found.label != other for found in known]))
    assert named["rejected"] == pytest.approx(np.mean([found.label == other for found in others]))
    text = " ".join(ripe("eval", finished, *words).out.split())
    assert f"AUROC of {len(known)} clips of classes but other_gestures" in text


def test_unknown_recordings_of_a_folder_and_no_threshold(ripe, finished, unseen, tmp_path):
    events = load_dataset("gestures-hard-unseen", unseen, "test")
    for number in range(len(events)):
        recording, _ = events[number]
        write(Recording(recording.events, recording.sensor_size), tmp_path / f"{number}.npz")
    found = asked(ripe, finished, "--unknown", tmp_path)["unknown"]
    same = asked(ripe, finished, "--unknown", f"gestures-hard-unseen={unseen}")["unknown"]
    assert found["auroc"] == pytest.approx(same["auroc"])
    assert (found["kept"], found["rejected"], found["score"]) == (None, None, None)
    assert found["answers"] == same["answers"]


def test_what_is_printed(ripe, calibrated, finished, unseen):
    words = ("--unknown", f"gestures-hard-unseen={unseen}", "--windows", "500", "9000")
    text = " ".join(ripe("eval", calibrated.out, *words).out.split())
    assert "AUROC of 37 known clips and 8 of gestures-hard-unseen=" in text
    assert "37 of 37 recordings are shorter" in text
    assert " are kept, " in text
    assert "no threshold" in ripe("eval", finished, *words[:2]).out


def test_windows_are_classified_as_the_network_bins(ripe, finished, gestures):
    """Every window by hand; this network divides events by their number."""
    (found,) = asked(ripe, finished, "--windows", "500")["windows"]
    model, events = from_pretrained(finished), load_dataset("synthgesture", gestures, "test")
    right = count = silent = 0
    for number in range(len(events)):
        recording, label = events[number]
        times, start = recording["t"], recording.first_us
        while start + 500_000 <= recording.last_us + 1:
            inside = recording.events[(times >= start) & (times < start + 500_000)]
            start += 250_000
            if not len(inside):
                silent += 1
                continue
            clip = bin_events(Recording(inside, (16, 16)), 4, by="count", grid=(16, 18))
            with torch.no_grad():
                right += int(clip_logits(model(clip[None])).argmax()) == label
            count += 1
    assert count > 100
    assert (found["n"], found["silent"], found["too_short"]) == (count, silent, 0)
    assert abs(found["correct"] - right) <= 1  # of a tie, in batches of another size
    assert found["top1"] == found["correct"] / found["n"]
    assert (found["window_ms"], found["hop_ms"]) == (500, 250)


@pytest.mark.slow
def test_every_error_is_drawn(ripe, finished, gestures, tmp_path):
    found = asked(ripe, finished, "--split", "val", "--errors", tmp_path / "errors")
    wrong = found["n"] - round(found["top1"] * found["n"])
    assert wrong > 4
    assert found["errors"] == {"folder": str(tmp_path / "errors"), "wrong": wrong, "drawn": wrong}
    files = sorted((tmp_path / "errors").iterdir())
    assert len(files) == wrong
    confusion = np.array(found["confusion"])
    names = [row["name"] for row in found["per_class"]]
    for true, said in np.argwhere(confusion):
        drawn = [path for path in files if path.name.startswith(f"{names[true]}_as_{names[said]}_")]
        assert len(drawn) == (confusion[true, said] if true != said else 0)
    with Image.open(files[0]) as picture:
        assert picture.width > 300
    assert [path.name for path in tmp_path.iterdir()] == ["errors"]


def test_at_most_so_many_errors_are_drawn_of_all_classes(ripe, finished, tmp_path):
    result = ripe("eval", finished, "--errors", tmp_path / "errors", "--max-errors", "3")
    files = list((tmp_path / "errors").iterdir())
    assert len(files) == 3
    assert len({path.name.partition("_as_")[0] for path in files}) == 3
    assert "3 of them drawn" in " ".join(result.out.split())
    found = asked(ripe, finished)
    names, confusion = [row["name"] for row in found["per_class"]], np.array(found["confusion"])
    wrong = {f"{names[a]}_as_{names[b]}" for a, b in np.argwhere(confusion) if a != b}
    assert all(any(path.name.startswith(f"{one}_") for one in wrong) for path in files)
    assert f"classified wrongly: {found['n'] - np.trace(confusion)};" in " ".join(result.out.split())


def test_nothing_is_left_of_a_folder_that_failed(finished, tmp_path, monkeypatch):
    from ripe_mambaspike.inference import error_pictures

    made = []

    def fail(*words, **more):
        made.append(words)
        if len(made) == 3:
            raise KeyboardInterrupt
        return view(*words, **more)

    view = error_pictures.view_prediction
    monkeypatch.setattr(error_pictures, "view_prediction", fail)
    with pytest.raises(KeyboardInterrupt):
        evaluate(finished, errors=tmp_path / "errors", device="cpu")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_used(refused, finished, gestures, unseen, tmp_path):
    refused(("eval", finished, "--unknown", tmp_path / "none"), "--unknown", "none")
    refused(("eval", finished, "--unknown", tmp_path), "unknown", tmp_path)
    refused(("eval", finished, "--other-class", "other_gestures"), "--other-class")
    words = ("--unknown", f"gestures-hard-unseen={unseen}", "--other-class", "others")
    refused(("eval", finished, *words), "--other-class", "air_drums")
    refused(("eval", finished, "--unknown", f"synthgesture={gestures}"), "--unknown", "air_drums")
    refused(("eval", finished, "--unknown", f"gestures-hard-unseen={tmp_path}"), tmp_path)
    simulate_dataset("gestures-hard-unseen", tmp_path / "large", train=2, val=2, test=2, size=20, seconds=0.2)
    refused(("eval", finished, "--unknown", f"gestures-hard-unseen={tmp_path / 'large'}"), "--unknown", "16×16")
    (tmp_path / "clips" / "arm_roll").mkdir(parents=True)
    (tmp_path / "clips" / "arm_roll" / "a.npz").write_bytes(b"")
    refused(("eval", finished, "--unknown", tmp_path / "clips"), "--unknown", "arm_roll")
    for value in ("0", "-5", "0.003", "nan", "1e9"):
        refused(("eval", finished, "--windows", "500", value), "--windows")
    refused(("eval", finished, "--errors", tmp_path), "errors", tmp_path)
    refused(("eval", finished, "--errors", tmp_path / "new", "--max-errors", "0"), "--max-errors", "0")
    refused(("eval", finished, "--shuffle", "--windows", "500"), "--shuffle")
    assert not (tmp_path / "new").exists()
