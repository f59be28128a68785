"""The model card, README.md of an exported folder: the network, how to load it, its accuracy and its limits.

It states only what is known. Names of classes and datasets come from users: `safe` escapes them for Markdown.
"""

import math
import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ripe_mambaspike.data.sets.registry import dataset_info
from ripe_mambaspike.deploy.export.parity import ParityResult
from ripe_mambaspike.deploy.export.registry import export_format
from ripe_mambaspike.deploy.export.run_result import PICKED, RunResult
from ripe_mambaspike.deploy.quantize.convert import AccuracyChange, CalibrationReport
from ripe_mambaspike.errors import ConfigError, DataError, RipeError
from ripe_mambaspike.events.region import format_size
from ripe_mambaspike.events.view.words import MAX_TITLE_CHARS, clean
from ripe_mambaspike.files import atomic_write
from ripe_mambaspike.models.labels import LABELS_FILE, Labels
from ripe_mambaspike.models.ripe import RipeMambaSpike

CARD_FILE = "README.md"
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
    "it computes in float32",
}


@dataclass(frozen=True)
class CardFacts:
    """The facts of a card beside the network itself; any of them may be unknown."""

    to: str = "safetensors"  # the format of the export
    weights: str = "fp32"  # fp32, fp16 or int8
    labels: Labels | None = None
    result: RunResult | None = None
    parity: Mapping[str, ParityResult] = field(default_factory=dict)  # by format and graph
    accuracy: AccuracyChange | None = None  # of the smaller weights, on held-out clips
    calibration: CalibrationReport | None = None
    cost: tuple[tuple[str, str], ...] = ()  # name, and value with its unit
    limits: tuple[str, ...] = ()  # sentences, such as on what the format cannot express


def write_card(folder: str | Path, model: RipeMambaSpike, facts: CardFacts) -> Path:
    """Write README.md into the existing folder; returns the file's path."""
    path = Path(folder) / CARD_FILE
    if facts.weights not in WEIGHTS:
        raise ConfigError(f"weights: expected one of {', '.join(WEIGHTS)}, got {facts.weights!r}", field="weights")
    try:
        files = {one.name: one.stat().st_size for one in sorted(path.parent.iterdir()) if one.is_file()}
        text = card_text(model, facts, files)
        with atomic_write(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise DataError(f"{path}: expected a writable file, got {error.strerror or error}", path=path) from error
    return path


def card_text(model: RipeMambaSpike, facts: CardFacts, files: Mapping[str, int]) -> str:
    """The text of the card; `files` maps the folder's files to their bytes."""
    sections = {
        "": _network(model, facts),
        "Files": _files(files),
        "Use": _use(model, facts),
        "Loading this export": _loading(facts),
        "Classes": _classes(model, facts),
        "Training": _training(facts),
        "Accuracy": _accuracy(facts),
        "Checks": _checks(facts),
        "Cost": (f"- {safe(what)}: {safe(much)}" for what, much in facts.cost),
        "Limits": _limits(model, facts),
        "Licence": iter(["The code is Apache-2.0. Weights and data keep their own licences."]),
    }
    lines = [*_front_matter(facts), "", f"# {safe(model.name)}"]
    for title, section in sections.items():
        if body := list(section):
            lines += ["", *([f"## {title}", ""] if title else []), *body]
    return "\n".join(lines) + "\n"


def safe(text: Any, longest: int = MAX_TITLE_CHARS) -> str:
    """The text escaped as one line of Markdown: no markup, HTML, links or table separators."""
    kept = "".join(ENTITIES.get(one, f"\\{one}" if one in MARKUP else one) for one in clean(str(text), longest))
    kept = LINK.sub(r"\.", kept)
    return LIST.sub(lambda found: f"\\{found[0]}" if not found[0].isdigit() else f"{found[0]}\\", kept)


def _front_matter(facts: CardFacts) -> list[str]:
    tags = ["event-camera", "neuromorphic", "spiking-neural-network", "mamba", "state-space-model", facts.weights]
    lines = ["---", "library_name: ripe-mambaspike", "pipeline_tag: video-classification"]
    return [*lines, "tags:", *(f"- {tag}" for tag in tags), "---"]


def _network(model: RipeMambaSpike, facts: CardFacts) -> Iterator[str]:
    config = model.config
    height, width = facts.labels.grid if facts.labels else config.in_size
    yield (
        "A RIPE-MambaSpike network, a classifier for recordings of event cameras: spiking convolutions whose rates "
        f"feed a {'forward' if config.causal else 'bidirectional'} Mamba."
    )
    yield from ("", "| | |", "|---|---|")
    yield f"| form | {safe(config.form)} |"
    yield f"| input | {_steps(model, facts)} time steps of 2 polarities, {height}×{width} pixels |"
    yield f"| output | {config.num_classes} classes, logits for every step |"
    yield f"| parameters | {model.parameter_count():,} |"
    yield f"| weights | {WEIGHTS[facts.weights]} |"
    yield f"| format | {safe(facts.to)} |"


def _files(files: Mapping[str, int]) -> Iterator[str]:
    listed = {name: size for name, size in files.items() if name != CARD_FILE and not name.startswith(".")}
    if listed:
        yield from ("| file | bytes |", "|---|---|")
    for name, size in listed.items():
        yield f"| {safe(name)} | {size:,} |"


def _use(model: RipeMambaSpike, facts: CardFacts) -> Iterator[str]:
    steps, (height, width) = _steps(model, facts), facts.labels.grid if facts.labels else model.config.in_size
    if facts.to == "nir":
        yield "The graph is read by `nir.read`; see the limits below for what it leaves out."
        return
    shape = f"1, {steps}, 2, {height}, {width}"
    yield "With the package `ripe-mambaspike` installed, in this folder:"
    yield from ("", "```python", "import torch", "")
    if facts.to == "safetensors":
        yield from ("from ripe_mambaspike import from_pretrained", "", 'network = from_pretrained(".")')
    else:
        trusted = ", trust=True" if _carries(facts) else ""
        yield "from ripe_mambaspike.deploy.export.run import load_exported"
        yield from ("", f'network = load_exported("."{trusted})')
    yield f"clips = torch.zeros({shape})  # events counted: clip, step, polarity (OFF, ON), row, column"
    yield f"logits = network(clips)  # [1, {steps}, {model.config.num_classes}]"
    yield "classes = logits.mean(1).argmax(-1)  # of every clip"
    yield from ("```", "", "On recordings of any length and format:", "")
    yield from ("```bash", f"ripe predict . RECORDING{' --trust' if _carries(facts) else ''}", "```")


def _carries(facts: CardFacts) -> str | None:
    """A description of the code that the format carries; None if it carries none."""
    return export_format(facts.to).carries_code


def _loading(facts: CardFacts) -> Iterator[str]:
    """Whether the format carries code, and what that means for its users."""
    if code := _carries(facts):
        yield f"This export carries code: {code}."
        yield (
            "Anyone who can change it can run code on your machine, so it is opened only with `--trust` (in Python "
            "`trust=True`). Do that only for a folder from someone you trust; the checksums in `export.json` show "
            "damage, not who wrote it."
        )
    elif facts.to == "torch-export":
        yield (
            "`ripe predict` and `load_exported` read this export without running anything from it but known tensor "
            "operators. A file with anything that `ripe export` does not write is rejected; `--trust` (in Python "
            "`trust=True`) opens it anyway and runs any code it carries. `torch.export.load` has no such check: it "
            "evaluates text from the file, so give it only files from someone you trust."
        )
    else:
        yield "This export carries no code, only weights and known operators. It needs no `--trust`."


def _classes(model: RipeMambaSpike, facts: CardFacts) -> Iterator[str]:
    if facts.labels is None:
        yield f"The outputs have no names: 0 to {model.config.num_classes - 1}."
        return
    yield from ("| output | class |", "|---|---|")
    for number, name in enumerate(facts.labels.classes[:MAX_LISTED_NAMES]):
        yield f"| {number} | {safe(name)} |"
    if (left := len(facts.labels.classes) - MAX_LISTED_NAMES) > 0:
        yield from ("", f"The other {left} are in {LABELS_FILE}.")


def _training(facts: CardFacts) -> Iterator[str]:
    labels, result = facts.labels, facts.result
    if labels is None and result is None:
        yield "Unknown: the network was exported without the files of a training run."
        return
    name, partition = (result.set, result.partition) if result else (labels.set, labels.partition)  # type: ignore[union-attr]
    split = f", split {safe(partition)}" if partition else ""
    if result and result.folds:
        split = f", fold {result.fold} of {result.folds} held out as the test part"
    if name is None:
        yield "- Set: not recorded."
    else:
        yield f"- Set: {safe(name)}{split}.{' Its recordings are simulated.' if _simulated(name) else ''}"
    if result:
        yield f"- Recipe: {safe(result.recipe)}; the network is that of epoch {result.epoch}."
        if result.extra:
            yield f"- The training splits of {', '.join(map(safe, result.extra))} were used too."
    if labels:
        height, width = labels.grid
        counted = "whether there was an event" if labels.binary else "events counted"
        yield f"- Clips: {labels.time_steps} bins of equal {labels.by}, {height}×{width}, {counted}."
        if labels.sensor_size is None:
            yield "- Sensor: not recorded; give `--sensor-size W H` for recordings that do not name theirs."
        else:
            size = format_size(labels.sensor_size)
            yield f"- Sensor: {size} pixels{_crop(labels)}; recordings of other sizes are rejected."
        lasts = "not recorded" if labels.duration_us is None else f"{labels.duration_us / 1e3:,.0f} ms (median)"
        yield f"- Duration of a clip: {lasts}."


def _crop(labels: Labels) -> str:
    if labels.crop is None:
        return ""
    left, top, width, height = labels.crop
    return f", of which {width}×{height} from column {left} and row {top} on are binned"


def _accuracy(facts: CardFacts) -> Iterator[str]:
    result, change = facts.result, facts.accuracy
    if result is None and change is None:
        yield "Unknown: the network was exported without the result of a training run."
    if result:
        correct = round(result.top1 * result.clips)
        smaller = ", before its weights were made smaller" if facts.weights != "fp32" else ""
        yield (
            f"- {100 * result.top1:.2f} % of {result.clips} test clips ({correct} right) by the trained "
            f"network{smaller}; {PICKED[result.picked_on]}."
        )
    if change:
        yield f"- {facts.weights} weights beside float32 on {change.clips} held-out clips: {change}."


def _checks(facts: CardFacts) -> Iterator[str]:
    for what, one in facts.parity.items():
        size = f"{one.difference:.1e}" if math.isfinite(one.difference) else "not finite"
        yield (
            f"- {safe(what)} beside PyTorch: largest relative difference {size}, {one.labels} of {one.clips} "
            "labels agree."
        )
    if facts.calibration:
        worst = facts.calibration.worst
        yield (
            f"- int8 was calibrated on {facts.calibration.clips} clips; the layer that moves most, {safe(worst.name)}, "
            f"moves by {100 * worst.error:.2f} % of its output there."
        )


def _limits(model: RipeMambaSpike, facts: CardFacts) -> Iterator[str]:
    yield "- Every recording is assigned one of the classes above; there is no class for anything else."
    if model.config.causal:
        yield f"- It takes any number of steps and was trained on clips of {model.config.time_steps} steps."
    else:
        yield f"- A clip has at most {model.config.time_steps} steps, and the answer is for the clip as a whole."
    yield "- Sensors, sizes, lenses and bin lengths other than those it was trained on were not tested."
    if facts.weights != "fp32":
        yield "- Rounded weights can flip single spikes, so logits differ slightly from the float32 network's."
    for sentence in facts.limits:
        yield f"- {safe(sentence, MAX_SENTENCE)}"


def _steps(model: RipeMambaSpike, facts: CardFacts) -> int:
    return facts.labels.time_steps if facts.labels else model.config.time_steps


def _simulated(name: str) -> bool:
    try:
        return dataset_info(name).simulated
    except RipeError:
        return False
