"""The paper's claims about a trained network, tried on the network of a run or a saved folder."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError, WeightsError
from ripe_mambaspike.files import MAX_JSON_BYTES, read_regular
from ripe_mambaspike.inference.checkpoint_data import data_settings_of, open_data_for, split_of
from ripe_mambaspike.inference.classifier import load_network, make_clip, read_recording
from ripe_mambaspike.models.labels import find_checkpoint, read_labels
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.eval_mode import choose_device
from ripe_mambaspike.studies.claims.trained import TrainedNetwork, trained_claims
from ripe_mambaspike.studies.claims.verdict import Claim
from ripe_mambaspike.train.recipe import Recipe
from ripe_mambaspike.train.recipes import load_recipe
from ripe_mambaspike.train.run_folder import LOG_FILE, RECIPE_FILE
from ripe_mambaspike.train.schedule import sharpness

MAX_CLIPS = 16  # by default


@dataclass(frozen=True)
class RunCheck:
    """The claims tried on one network."""

    network: str
    clips: str  # what they were measured on
    claims: list[Claim]
    notes: list[str]  # what could not be checked, and why

    def to_dict(self) -> dict[str, Any]:
        """For a JSON document."""
        return {
            "network": self.network,
            "clips": self.clips,
            "claims": [claim.to_dict() for claim in self.claims],
            "notes": self.notes,
        }


def check_run(
    run: str | Path,
    *,
    recordings: Sequence[str | Path] | None = None,
    root: str | Path | None = None,
    store: str | None = None,
    clips: int = MAX_CLIPS,
    device: str | None = "auto",
) -> RunCheck:
    """Check the claims of the paper that need a trained network: temporal filters, rates, attention, energy.

    `run` is the folder of a run, or of a saved RIPE-MambaSpike network. It is run on `recordings`, or on this many
    `clips` of the test split that it belongs to, evenly spaced; `root` and `store` are those of `evaluate`.
    """
    if clips < 1:
        raise InputError.expected("clips", "1 or more", clips)
    if recordings is not None and not recordings:
        raise InputError.expected("recordings", "at least one file", "none")
    folder = find_checkpoint(run)
    classifier = load_network(folder)
    model = classifier.model
    if not isinstance(model, RipeMambaSpike):
        raise WeightsError.expected("network", "a RIPE-MambaSpike network", f"'{model.name}'", path=folder)
    if recordings is not None:
        binned = [make_clip(classifier, read_recording(classifier, path)) for path in recordings]
        measured_on = f"{len(binned)} recording{'s' if len(binned) > 1 else ''}"
    else:
        binned, measured_on = _test_clips(folder, root, store, clips)
    target = choose_device(device, "device")
    model = model.float().to(target)
    recipe = _recipe_of(folder)
    claims, notes = trained_claims(
        TrainedNetwork(
            model,
            [clip.to(target, torch.float32) for clip in binned],
            _gaps(folder.parent, recipe),
            _sharpness(folder, recipe),
        )
    )
    return RunCheck(str(run), measured_on, [replace(claim, group="trained") for claim in claims], notes)


def _test_clips(folder: Path, root: str | Path | None, store: str | None, count: int) -> tuple[list[Tensor], str]:
    labels = read_labels(folder)
    data = open_data_for(folder, labels, data_settings_of(folder, labels, root=root, store=store))
    test = split_of(data, "test")
    chosen = [index * len(test) // min(count, len(test)) for index in range(min(count, len(test)))]
    shown = f"{len(chosen)} test clip{'s' if len(chosen) > 1 else ''} of {data.settings.dataset}"
    return [test.clip(index)[0] for index in chosen], shown


def _recipe_of(folder: Path) -> Recipe | None:
    """The recipe of the run that the network belongs to; None for one outside a run."""
    path = folder.parent / RECIPE_FILE
    return load_recipe(path) if path.exists() else None


def _gaps(run: Path, recipe: Recipe | None) -> list[float]:
    """The gap between both passes by epoch, as the run logged it; empty without a relaxed pass."""
    path = run / LOG_FILE
    if recipe is None or recipe.loss.num_passes == 1 or not path.exists():
        return []
    try:
        rows = list(csv.DictReader(read_regular(path, MAX_JSON_BYTES).decode().splitlines()))
        return [float(row["consistency"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        wanted = "the log of a run with a number in the column consistency of every row"
        raise InputError(f"{path}: expected {wanted}, got another file", field="consistency", path=path) from error


def _sharpness(folder: Path, recipe: Recipe | None) -> float | None:
    """α of the relaxed pass in the epoch after which the network was saved."""
    epoch = read_labels(folder).epoch if recipe is not None else None
    if recipe is None or recipe.loss.num_passes == 1 or not epoch:
        return None
    return sharpness(recipe, min(epoch, recipe.schedule.epochs) - 1)
