"""Functions that span several packages, for the top level of the package."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ripe_mambaspike.data.clips import EvalBatches
from ripe_mambaspike.deploy.export.run import is_export, load_export
from ripe_mambaspike.deploy.fuse.checkpoint import load_fused
from ripe_mambaspike.errors import InputError, WeightsError
from ripe_mambaspike.events.region import Crop, Size
from ripe_mambaspike.inference.capture import CapturedShapes
from ripe_mambaspike.inference.checkpoint_data import (
    data_settings_of,
    open_data_for,
    split_of,
    store_note,
    trained_store,
)
from ripe_mambaspike.inference.classifier import Classifier, load_network, make_classifier
from ripe_mambaspike.inference.error_pictures import check_errors, draw_errors
from ripe_mambaspike.inference.evaluate import CheckpointEvaluation, shuffled_steps
from ripe_mambaspike.inference.evaluate_unknown import check_other_class, evaluate_unknown, unknown_clips
from ripe_mambaspike.inference.evaluate_windows import check_windows, evaluate_windows
from ripe_mambaspike.inference.recorded import RecordedLogits
from ripe_mambaspike.models.accuracy import EVAL_BATCH, evaluate_batches
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.labels import find_checkpoint, read_labels
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.nn.eval_mode import choose_device


def load(
    path: str | Path,
    *,
    time_steps: int | None = None,
    grid: int | None = None,
    sensor_size: Size | None = None,
    crop: Crop | None = None,
    device: str | None = None,
    trust: bool = False,
) -> Classifier:
    """A trained network with its class names and its binning, for `predict` and `Streamer`.

    The binning is that of training unless an argument says otherwise.

    Args:
        path: the folder of a run (its best network is taken), of a saved network in any form, or of an export, or the
            name of a shipped network
        time_steps: T, time bins of a recording
        grid: side of the bins' grid
        sensor_size: (width, height) of the recordings' sensor
        crop: (x, y, width, height), the part of the sensor to bin
        device: "cpu" (the default), "cuda" or "auto"
        trust: open an export that carries code, and run that code
    """
    if not is_export(Path(path)):
        return load_network(path, time_steps=time_steps, grid=grid, sensor_size=sensor_size, crop=crop, device=device)
    if device is not None:
        raise InputError(f"device: expected none for the export in {path}, got {device}", field="device")
    return load_export(path, time_steps=time_steps, grid=grid, sensor_size=sensor_size, crop=crop, trust=trust)


def evaluate(
    checkpoint: str | Path,
    *,
    dataset: str | None = None,
    root: str | Path | None = None,
    split: Literal["train", "val", "test"] = "test",
    partition: str | None = None,
    store: str | None = None,
    fused: bool = False,
    shuffle: bool = False,
    unknown: str | Path | None = None,
    other_class: str | None = None,
    windows: Sequence[float] = (),
    errors: str | Path | None = None,
    max_errors: int = 100,
    device: str | None = "auto",
    model: Model | None = None,
) -> CheckpointEvaluation:
    """Evaluate the network of a run, or of a saved folder, on a split of a dataset, binned as for training.

    Args:
        checkpoint: the folder of a run or of a saved network, or the name of a shipped network
        dataset: name of the dataset; by default that of training
        root: its folder; by default that of training
        split: "train", "val" or "test"
        partition: how the dataset is split, where there are several ways; by default as in training
        store: key of one of its preparations, or "current"; by default that of training
        fused: fuse the network first
        shuffle: put every clip's time steps into a random order, to see what the network knows from time
        unknown: recordings of classes that the network was not shown: a folder of them, or DATASET=ROOT for the clips
            of a dataset's same split; the clips of this split are compared with them
        other_class: with unknown, a class of the network that stands for everything else, such as "other_gestures"
        windows: lengths in ms; also classify all windows of each length, half a length apart
        errors: a new or empty folder for a picture of every recording that is classified wrongly
        max_errors: how many pictures at most
        device: "auto", "cpu" or "cuda"
        model: evaluate this network instead of the saved one
    """
    if fused and model is not None:
        raise InputError.expected("fused", "False with a model", fused)
    if shuffle and (unknown is not None or windows or errors is not None):
        raise InputError.expected("shuffle", "False with unknown, windows or errors", shuffle)
    if errors is not None:
        check_errors(Path(errors), max_errors)
    folder = find_checkpoint(checkpoint)
    target = choose_device(device, "device")
    if model is None:
        model = load_fused(folder) if fused else from_pretrained(folder)
    labels = read_labels(folder)
    settings = data_settings_of(folder, labels, dataset=dataset, root=root, partition=partition, store=store)
    data = open_data_for(folder, labels, settings)
    trained = trained_store(folder, labels)
    lengths = check_windows(windows, labels.time_steps)
    clips = split_of(data, split)
    batches: Iterable[tuple[Tensor, Tensor]] = EvalBatches(clips, EVAL_BATCH, target)
    if shuffle:
        batches = shuffled_steps(batches)
    model = model.to(target)
    classifier = make_classifier(model, labels, labels.time_steps, labels.grid)
    check_other_class(classifier, other_class, unknown)
    others = None if unknown is None else unknown_clips(classifier, unknown, split, data)  # refused now, not at the end
    record = RecordedLogits(CapturedShapes(model).run)
    scores = evaluate_batches(model, batches, len(data.classes), record)
    if not math.isfinite(scores.loss):  # a clip without finite logits would count as its first class
        raise WeightsError.expected("logits", "finite numbers", "others", path=folder)
    events = data.events(split)
    compared = None
    if others is not None:
        known = torch.as_tensor(events.labels)
        compared = evaluate_unknown(classifier, record.clips, known, str(unknown), others, other_class)
    selected_on_test = labels.protocol == "paper" and split == "test" and settings.dataset == labels.set
    return CheckpointEvaluation(
        str(checkpoint), model.config.form, settings.dataset, data.partition, data.store.key, trained, split, shuffle,
        selected_on_test, data.classes, scores, store_note(trained, data),
        compared,
        tuple(evaluate_windows(classifier, events, length) for length in lengths),
        None if errors is None else draw_errors(classifier, events, record.steps, Path(errors), max_errors),
    )  # fmt: skip
