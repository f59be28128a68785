"""The model card, README.md of an exported folder: the network, how to load it, its accuracy and its limits.

It states only what is known; its text is `templates/card.md`. Names of classes and datasets come from users, so every
value that the template shows is escaped for Markdown.
"""

import math
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ripe_mambaspike.data.sets.registry import dataset_info
from ripe_mambaspike.deploy.export.graph import graph_kinds
from ripe_mambaspike.deploy.export.parity import ParityResult
from ripe_mambaspike.deploy.export.registry import export_format
from ripe_mambaspike.deploy.export.tensors import graph_tensors
from ripe_mambaspike.deploy.quantize.convert import AccuracyChange, CalibrationReport
from ripe_mambaspike.errors import ConfigError, RipeError
from ripe_mambaspike.events.view.words import MAX_TITLE_CHARS, clean
from ripe_mambaspike.files import write_file
from ripe_mambaspike.inference.checkpoint_data import run_data_settings
from ripe_mambaspike.models.accuracy import TrainingResult, read_result
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.labels import Labels, read_labels
from ripe_mambaspike.models.ripe import RipeMambaSpike

CARD_FILE = "README.md"
NETWORK_FOLDERS = ("best", "fused")  # folders of a run that hold the tested network
OWN_RECORDINGS = "folder"  # the dataset of any folder
MAX_LISTED_NAMES = 200
MAX_SENTENCE = 2000
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
MARKUP = set(string.punctuation) - set("\"'(),-./%;=+!?") - set(ENTITIES)
LINK = re.compile(r"(?<=www)\.", re.IGNORECASE)  # Markdown would turn it into a link
LIST = re.compile(r"^([-+=]|\d+(?=[.)](\s|$)))")  # Markdown would turn the line into a list or a heading
WEIGHTS = {
    "fp32": "float32",
    "fp16": "float16 matrices and float32 vectors; it computes in float32",
    "int8": "int8 matrices with a scale for each output channel, some of them float16, and float32 vectors; "
    "it computes in float32, in ONNX the convolutions of spikes in integers without rounding",
}


@dataclass
class CardFacts:
    """The facts of a card beside the network itself; any of them may be unknown."""

    to: str = "safetensors"  # the format of the export
    weights: str = "fp32"  # fp32, fp16 or int8
    graphs: tuple[str, ...] = ()  # its graphs; empty: all that the network has
    static: bool = False  # whether they take one clip at a time, of one size
    labels: Labels | None = None
    result: TrainingResult | None = None  # of the training run
    extra: tuple[str, ...] = ()  # further datasets whose training splits were used
    parity: Mapping[str, ParityResult] = field(default_factory=dict)  # by format and graph
    accuracy: AccuracyChange | None = None  # of the smaller weights, on held-out clips
    calibration: CalibrationReport | None = None
    cost: Mapping[str, str] = field(default_factory=dict)  # values with their units
    limits: tuple[str, ...] = ()  # sentences, such as on what the format cannot express


def result_of_network(folder: Path) -> tuple[TrainingResult | None, tuple[str, ...]]:
    """The result of a network's training run, and the further datasets whose training splits were used.

    (None, ()) for a network outside a run, of an unfinished run, or of a run that continued after the test.
    """
    result = read_result(folder.parent) if folder.name in NETWORK_FOLDERS else None
    if result is None:
        return None, ()
    try:
        labels, settings = read_labels(folder), run_data_settings(folder)
    except (RipeError, OSError):
        return None, ()
    if (labels.epoch, labels.set) != (result.epoch, result.set):
        return None, ()
    return result, tuple(one.partition("=")[0] for one in settings.extra) if settings else ()


def write_card(folder: str | Path, model: Model, facts: CardFacts) -> Path:
    """Write README.md into the existing folder; returns the file's path."""
    path = Path(folder) / CARD_FILE
    if facts.weights not in WEIGHTS:
        raise ConfigError.expected("weights", f"one of {', '.join(WEIGHTS)}", facts.weights)
    files = {one.name: one.stat().st_size for one in sorted(path.parent.glob("*")) if one.is_file()}
    write_file(path, card_text(model, facts, files).encode())
    return path


def card_text(model: Model, facts: CardFacts, files: Mapping[str, int]) -> str:
    """The text of the card; `files` maps the folder's files to their bytes."""
    config, labels, result = model.config, facts.labels, facts.result
    source = result or labels
    height, width = labels.grid if labels else config.in_size
    steps = labels.time_steps if labels else config.time_steps
    target = export_format(facts.to)
    graphs = graph_kinds(config, facts.graphs) if target.has_graphs else ()
    return (
        _template_environment()
        .get_template("card.md")
        .render(
            model=model,
            config=config,
            title=_title(model, source),
            ripe=isinstance(model, RipeMambaSpike),
            spiking=model.num_spiking_layers() > 0,
            causal=getattr(config, "causal", False),
            facts=facts,
            labels=labels,
            result=result,
            correct=None if result is None or result.top1 is None else round(result.top1 * result.n),
            simulated=source is not None and _is_simulated(source.set),
            steps=steps,
            height=height,
            width=width,
            weights=_escape(WEIGHTS[facts.weights], MAX_SENTENCE),
            files={name: size for name, size in files.items() if name != CARD_FILE and not name.startswith(".")},
            by=labels.by if labels else "time",
            binary=labels.binary if labels else False,
            sensor=labels.sensor_size if labels else None,
            crop=labels.crop if labels else None,
            graphs=graphs,
            static=facts.static,
            tensors=graph_tensors(config, graphs, steps, (height, width), static=facts.static),
            script=facts.to == "onnx" and "clip" in graphs,
            code=target.carries_code,
            max_listed_names=MAX_LISTED_NAMES,
        )
    )


def _title(model: Model, source: TrainingResult | Labels | None) -> str:
    """The run and what it was trained on; of a network that says neither, the network."""
    kind = "RIPE-MambaSpike" if isinstance(model, RipeMambaSpike) else model.name
    if source is None or not source.set:
        return kind if kind == model.name else f"{kind} ({model.name})"
    title = f"{kind} trained on {'own recordings' if source.set == OWN_RECORDINGS else source.set}"
    name = getattr(source, "name", source.set)
    return title if name == source.set else f"{name} ({title})"


@cache
def _template_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__),
        finalize=lambda value: value if isinstance(value, Markup) else _escape(value),
        autoescape=False,  # which is for HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sentence"] = lambda text: _escape(text, MAX_SENTENCE)
    environment.tests["finite"] = math.isfinite
    return environment


def safe(text: Any, longest: int = MAX_TITLE_CHARS) -> str:
    """The text escaped as one line of Markdown: no markup, HTML, links or table separators."""
    kept = "".join(ENTITIES.get(one, f"\\{one}" if one in MARKUP else one) for one in clean(str(text), longest))
    kept = LINK.sub(r"\.", kept)
    return LIST.sub(lambda found: f"\\{found[0]}" if not found[0].isdigit() else f"{found[0]}\\", kept)


def _escape(text: Any, longest: int = MAX_TITLE_CHARS) -> Markup:
    return Markup(safe(text, longest))


def _is_simulated(name: str | None) -> bool:
    try:
        return name is not None and dataset_info(name).simulated
    except RipeError:
        return False
