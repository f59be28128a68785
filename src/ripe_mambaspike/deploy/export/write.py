"""The folder of an export: written atomically, replacing nothing but an earlier export."""

from collections.abc import Callable, Mapping
from pathlib import Path

from ripe_mambaspike.deploy.export.card import CARD_FILE
from ripe_mambaspike.deploy.export.manifest import MANIFEST, Manifest, read_manifest
from ripe_mambaspike.deploy.export.registry import ExportOptions, ExportRequest, export_format
from ripe_mambaspike.deploy.fuse import fuse
from ripe_mambaspike.errors import ConfigError, InputError, RipeError, WeightsError
from ripe_mambaspike.folders import atomic_folder
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.labels import CONFIG_FILE, LABELS_FILE, Labels, save_labels
from ripe_mambaspike.models.pretrained import WEIGHTS_FILE
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.models.stored import Stored


def to_deployed(model: Model) -> Model:
    """The network to export, fused if necessary; one with nothing to fuse as it is."""
    if not isinstance(model, RipeMambaSpike):
        return model.eval()
    if model.config.form == "dual-kernel":
        got = f"dual-kernel of '{model.name}', which ripe account runs"
        raise ConfigError.expected("form", "training or deployed", got)
    return fuse(model, quiet=True) if model.config.form == "training" else model


def check_output_folder(out: Path) -> None:
    """Raise unless the target is missing, an empty folder, or an earlier export and nothing else."""
    try:
        if not out.exists():
            return
        names = {path.name for path in out.iterdir()} if out.is_dir() else {"."}
    except OSError as error:  # not a valid path on this system
        raise InputError.expected("out", "a folder", error, path=out) from error
    if names - _written(out, names):
        raise InputError.expected("out", "a new folder or an earlier export", "one that holds something else", path=out)


def _written(out: Path, names: set[str]) -> set[str]:
    """The files there that an earlier export wrote."""
    if MANIFEST in names:
        try:
            graphs = {graph.file for graph in read_manifest(out).graphs}
        except WeightsError as error:
            if error.field != "version":
                return set()
            graphs = {name for name in names if Path(name).stem in ("clip", "step", "tail", "front")}
        return {MANIFEST, LABELS_FILE, CARD_FILE, *graphs}
    network = {CONFIG_FILE, WEIGHTS_FILE, CARD_FILE}
    return {*network, LABELS_FILE} if network <= names else set()


def write_export(
    model: Model,
    options: ExportOptions,
    out: Path,
    labels: Labels | None,
    stored: Mapping[str, Stored] | None = None,
    finish: Callable[[Path], None] = lambda folder: None,
    progress: Callable[[str], None] = lambda what: None,
) -> Path:
    """Write the network as it is into `out`; `finish` may inspect the folder, and raise, before it is moved."""
    check_output_folder(out)
    if labels is not None and len(labels.classes) != model.config.num_classes:
        raise ConfigError.expected("labels", f"{model.config.num_classes} classes", len(labels.classes))
    target = export_format(options.to)
    target.check_network(model, options)
    time_steps, grid = (labels.time_steps, labels.grid) if labels else (model.config.time_steps, model.config.in_size)
    try:
        with atomic_folder(out) as folder:
            files, missing = target.write(ExportRequest(model, folder, options, time_steps, grid, stored, progress))
            if target.has_manifest:
                manifest = Manifest(
                    to=options.to,
                    weights=options.weights,
                    network=model.name,
                    architecture=model.config.architecture,
                    config=model.config.to_dict(),
                    time_steps=time_steps,
                    grid=grid,
                    static=options.static or not target.has_graphs,
                    graphs=tuple(files),
                    not_expressed=tuple(missing),
                    labels=None if labels is None else labels.to_dict(),
                )
                (folder / MANIFEST).write_bytes(manifest.to_json())
            if labels is not None:  # as given, even if the network has others
                save_labels(labels, folder)
            finish(folder)
    except RipeError as error:  # an error names the folder that was asked for, not the temporary one
        path = None if error.path is None else str(error.path).replace(str(folder), str(out))
        raise type(error)(str(error).replace(str(folder), str(out)), field=error.field, path=path) from error
    except OSError as error:
        raise WeightsError(f"{out}: expected a writable folder, got {error.strerror or error}", path=out) from error
    return out
