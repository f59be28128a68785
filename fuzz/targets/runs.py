"""Checkpoints, resuming from them, and recipes."""

import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load, save

from fuzz.mutate import mutate_json
from fuzz.target import Target, WrongAnswer
from ripe_mambaspike.data.simulated import simulate_dataset
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.train import training_run as runs
from ripe_mambaspike.train.checkpoint import checkpoint_digest, last_checkpoint
from ripe_mambaspike.train.recipes import list_recipes, load_recipe, to_yaml, with_settings
from ripe_mambaspike.train.run_folder import CHECKPOINTS

SETTINGS = (
    "data.time_steps=2", "data.grid=8", "model.fields={stage_channels: [4, 4, 4], embed_dims: [4, 4, 4]}",
    "schedule.batch_size=4", "schedule.epochs=2", "run.recalibrate_batches=1", "run.device=cpu",
)  # fmt: skip


def make(name: str) -> Target:
    if name == "recipe":
        seeds = [to_yaml(load_recipe(one)).encode() for one in list_recipes()]
        words = (b"&a ", b"*a", b"<<: ", b"!!python/object:os.system ", b"{", b"[", b"\t", b": ", b"- ", b".nan")
        return Target(name, "others", seeds, _load_recipe, words, (RipeError,))
    run, folder = _make_run()
    file = sorted((folder / CHECKPOINTS).iterdir())[-1]
    seed = file.read_bytes()
    if name == "checkpoint":
        return Target(name, "others", [seed], _checkpoint(file.name, load(seed)), allowed=(RipeError,))
    document = last_checkpoint(folder / CHECKPOINTS).document  # type: ignore[union-attr]
    case = json.dumps(msgspec.to_builtins(document)).encode()
    return Target(name, "others", [case], _resume(run, load(seed)), allowed=(RipeError,), change=mutate_json)


def _load_recipe(case: bytes, folder: Path) -> None:
    path = folder / "recipe.yaml"
    path.write_bytes(case)
    load_recipe(path)


@lru_cache
def _make_run() -> tuple[Any, Path]:
    """A run of a very small network after its first epoch, in a temporary folder."""
    place = Path(tempfile.mkdtemp(prefix="ripe-fuzz-"))
    simulate_dataset("synthgesture", place / "set", train=11, val=11, test=11, size=16)
    recipe = with_settings(load_recipe("synthgesture"), [f"data.root={place / 'set'}", *SETTINGS])
    run = runs.TrainingRun(recipe, place / "run")
    (place / "run").mkdir()
    row = run.trainer.train_epoch(lambda: None)
    run.rows.append({**row, "seconds": 1.0})
    run.save()
    return run, place / "run"


def _checkpoint(file_name: str, tensors: dict[str, torch.Tensor]):  # type: ignore[no-untyped-def]
    def run(case: bytes, folder: Path) -> None:
        (folder / file_name).write_bytes(case)
        found = last_checkpoint(folder)
        if found is None:
            raise WrongAnswer("the checkpoint of the folder was not found")
        same = found.tensors.keys() == tensors.keys() and all(
            torch.equal(found.tensors[name], tensors[name]) for name in tensors
        )
        if not same:
            raise WrongAnswer("a damaged checkpoint was accepted")

    return run


def _resume(run, tensors: dict[str, torch.Tensor]):  # type: ignore[no-untyped-def]
    """Resume from a changed document with a valid checksum: it is refused, or training can continue from it."""

    def resume_from(case: bytes, folder: Path) -> None:
        document = json.loads(case) if case[:1] == b"{" else {}
        place = folder / CHECKPOINTS
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        text = json.dumps(document)
        signed = save(tensors, {"ripe": text, "sha256": checkpoint_digest(text, tensors)})
        (place / "step-000000001-000000001.safetensors").write_bytes(signed)
        run.folder = folder
        run.resume()

    def guarded(case: bytes, folder: Path) -> None:
        try:
            json.loads(case)
        except (ValueError, RecursionError):
            return
        resume_from(case, folder)

    return guarded
