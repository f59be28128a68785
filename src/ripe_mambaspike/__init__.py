"""RIPE-MambaSpike: a compact classifier for event cameras.

    model = create_model("dvsgesture", num_classes=5)          # trains as a multi-branch network
    recording = read("gesture.aedat4")                         # the file of any camera
    events = bin_events(recording, time_steps=16, grid=128)         # [T, 2, H, W]
    logits = model(events[None])                               # [B, T, 2, H, W] → [B, T, num_classes]
    small = fuse(model)                                        # deploys as a fused network of 0.87 M parameters
    small.save_pretrained("gestures")                          # config.json and model.safetensors

    network = load("gestures")                                 # with the binning that it was trained on
    print(predict(network, recording).label)

Every command of `ripe` calls one of the functions below; docs/api.md describes them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ripe_mambaspike.account.run import account as account
    from ripe_mambaspike.account.run import account_sweep as account_sweep
    from ripe_mambaspike.api import evaluate as evaluate
    from ripe_mambaspike.api import load as load
    from ripe_mambaspike.data.calibration import calibrate_camera as calibrate_camera
    from ripe_mambaspike.data.datasets import list_datasets as list_datasets
    from ripe_mambaspike.data.datasets import prepare_dataset as prepare_dataset
    from ripe_mambaspike.data.datasets import verify_dataset as verify_dataset
    from ripe_mambaspike.data.download import download_dataset as download_dataset
    from ripe_mambaspike.data.gesture_calibration import calibrate_gestures as calibrate_gestures
    from ripe_mambaspike.data.loading import load_dataset as load_dataset
    from ripe_mambaspike.data.simulated import simulate_dataset as simulate_dataset
    from ripe_mambaspike.deploy.adapt import adapt as adapt
    from ripe_mambaspike.deploy.export.pipeline import export as export
    from ripe_mambaspike.deploy.fuse.checkpoint import fuse_checkpoint as fuse_checkpoint
    from ripe_mambaspike.deploy.fuse.convert import dual_kernel as dual_kernel
    from ripe_mambaspike.deploy.fuse.convert import fuse as fuse
    from ripe_mambaspike.errors import RipeError as RipeError
    from ripe_mambaspike.events.binning import bin_events as bin_events
    from ripe_mambaspike.events.convert import convert_recording as convert_recording
    from ripe_mambaspike.events.convert import describe_recording as describe_recording
    from ripe_mambaspike.events.reading import read as read
    from ripe_mambaspike.events.reading import read_chunks as read_chunks
    from ripe_mambaspike.events.recording import Recording as Recording
    from ripe_mambaspike.events.view import view as view
    from ripe_mambaspike.events.writing import write as write
    from ripe_mambaspike.inference.calibrate import calibrate as calibrate
    from ripe_mambaspike.inference.capture import capture as capture
    from ripe_mambaspike.inference.classifier import Classifier as Classifier
    from ripe_mambaspike.inference.predict import Prediction as Prediction
    from ripe_mambaspike.inference.predict import predict as predict
    from ripe_mambaspike.inference.prediction_picture import view_prediction as view_prediction
    from ripe_mambaspike.inference.stream.connected import list_cameras as list_cameras
    from ripe_mambaspike.inference.stream.record import record as record
    from ripe_mambaspike.inference.streamer import Streamer as Streamer
    from ripe_mambaspike.live.serve import serve as serve
    from ripe_mambaspike.models.expand import expand as expand
    from ripe_mambaspike.models.pretrained import from_pretrained as from_pretrained
    from ripe_mambaspike.models.registry import create_model as create_model
    from ripe_mambaspike.models.registry import list_models as list_models
    from ripe_mambaspike.models.shipped import list_pretrained as list_pretrained
    from ripe_mambaspike.nn.calibrate import recalibrate as recalibrate
    from ripe_mambaspike.report import write_report as write_report
    from ripe_mambaspike.report.figures.draw import draw_figure as draw_figure
    from ripe_mambaspike.report.paper import write_paper as write_paper
    from ripe_mambaspike.studies.check_run import check_run as check_run
    from ripe_mambaspike.studies.claims import run_claims as run_claims
    from ripe_mambaspike.studies.run import run_study as run_study
    from ripe_mambaspike.studies.study import list_studies as list_studies
    from ripe_mambaspike.studies.tables.make import paper_table as paper_table
    from ripe_mambaspike.train.recipes import list_recipes as list_recipes
    from ripe_mambaspike.train.recipes import load_recipe as load_recipe
    from ripe_mambaspike.train.run import train as train
    from ripe_mambaspike.train.seeds import train_seeds as train_seeds

__version__ = "0.1.0"

_MODULES = {  # module → the names it brings to the top level
    "account.run": ("account", "account_sweep"),
    "api": ("evaluate", "load"),
    "data.calibration": ("calibrate_camera",),
    "data.datasets": ("list_datasets", "prepare_dataset", "verify_dataset"),
    "data.download": ("download_dataset",),
    "data.gesture_calibration": ("calibrate_gestures",),
    "data.loading": ("load_dataset",),
    "data.simulated": ("simulate_dataset",),
    "deploy.adapt": ("adapt",),
    "deploy.export.pipeline": ("export",),
    "deploy.fuse.checkpoint": ("fuse_checkpoint",),
    "deploy.fuse.convert": ("dual_kernel", "fuse"),
    "errors": ("RipeError",),
    "events.binning": ("bin_events",),
    "events.convert": ("convert_recording", "describe_recording"),
    "events.reading": ("read", "read_chunks"),
    "events.recording": ("Recording",),
    "events.view": ("view",),
    "events.writing": ("write",),
    "inference.calibrate": ("calibrate",),
    "inference.capture": ("capture",),
    "inference.classifier": ("Classifier",),
    "inference.predict": ("Prediction", "predict"),
    "inference.prediction_picture": ("view_prediction",),
    "inference.stream.connected": ("list_cameras",),
    "inference.stream.record": ("record",),
    "inference.streamer": ("Streamer",),
    "live.serve": ("serve",),
    "models.expand": ("expand",),
    "models.pretrained": ("from_pretrained",),
    "models.registry": ("create_model", "list_models"),
    "models.shipped": ("list_pretrained",),
    "nn.calibrate": ("recalibrate",),
    "report": ("write_report",),
    "report.figures.draw": ("draw_figure",),
    "report.paper": ("write_paper",),
    "studies.check_run": ("check_run",),
    "studies.claims": ("run_claims",),
    "studies.tables.make": ("paper_table",),
    "studies.run": ("run_study",),
    "studies.study": ("list_studies",),
    "train.recipes": ("list_recipes", "load_recipe"),
    "train.run": ("train",),
    "train.seeds": ("train_seeds",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that `ripe --help` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
