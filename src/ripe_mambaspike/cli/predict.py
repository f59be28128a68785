"""`ripe predict`: classify recordings with a trained network."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ripe_mambaspike.cli.network_options import NetworkOptions
from ripe_mambaspike.cli.output import console, print_json, print_message, print_warnings, printable
from ripe_mambaspike.cli.picture_names import PictureNames
from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import Count, Flag, FormatName, Json, Number, option
from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.files import write_file

if TYPE_CHECKING:
    from ripe_mambaspike.events.recording import Recording
    from ripe_mambaspike.inference.classifier import Classifier
    from ripe_mambaspike.inference.predict import Prediction, TimelineStep

BARS = "▁▂▃▄▅▆▇█"  # the leading class's probability
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta", "bright_green")
INDENT = "  "
MARK_EVERY = 10  # steps
LAST_MARK_WIDTH = 12  # columns that the last mark may take after the cells


@dataclass(kw_only=True)
class PredictCommand(NetworkOptions):
    """Classify recordings: the class, its probability, and the leading class over time."""

    recordings: Annotated[tuple[Path, ...], tyro.conf.Positional, option("RECORDING …")]
    """Recordings of any format, or folders of them."""
    held_out: Number = 0
    """Also predict N test recordings of the dataset it was trained on, of different classes."""
    time_steps: Count = None
    """Time bins of a recording. Default: as in training."""
    format: FormatName = None
    trust: Flag = False
    """Open an export that carries code (aoti, executorch, or a changed torch-export), and run that code."""
    csv: Annotated[Path | None, option("FILE")] = None
    """Also write a table, one row a recording: file, class, probability and, for a network with a threshold, unknown
    and score. It is written at the end, whole or not at all;
    the row of a recording that failed has no class."""
    save: Annotated[Path | None, option("DIR")] = None
    """Also write a picture of every recording into a new or empty folder: event frames, the predicted class, and the
    probabilities over time."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike.events.reading import find_format

        if not self.recordings and not self.held_out:
            raise InputError("recordings: expected at least one, got none", field="recordings")
        if self.held_out < 0:
            raise InputError(f"--held-out: expected 0 or more, got {self.held_out}", field="--held-out")
        _check_csv(self.csv)
        if self.format is not None:
            find_format(self.format)
        recordings = _find_all(self.recordings, self.csv)
        pictures = None if self.save is None else PictureNames(self.save, self.recordings)
        classifier = self.load(time_steps=self.time_steps, trust=self.trust)
        out = console()
        keys = ClassStyles()
        made: list[dict[str, Any]] = []
        failed: list[dict[str, str]] = []
        for path in recordings:
            try:
                with progress_bar(f"predicting {printable(path)} …"):
                    recording, prediction = _predict(classifier, path, self.format)
            except RipeError as error:
                if len(recordings) == 1:
                    raise
                failed.append({"file": printable(path), "error": str(error)})
                print_message(str(error))
                continue
            made.append({**_row(path, recording, prediction), **_save(pictures, path, recording, prediction)})
            if not self.json:
                _show(out, path, prediction, keys)
        made += self._held_out(classifier, out, keys, pictures)
        if self.csv is not None:
            write_file(self.csv, _table([*made, *failed], recordings), field="csv")
        if self.json:
            print_json(
                {
                    "checkpoint": printable(self.checkpoint),
                    "network": classifier.model.name,
                    "form": classifier.model.config.form,
                    **classifier.describe_binning(),
                    "recordings": made,
                    "failed": failed,
                }
            )
        else:
            written = [] if self.csv is None else [printable(self.csv)]
            if self.save is not None and made:
                written.append(f"{len(made)} pictures in {printable(self.save)}")
            if written:
                out.print(escape(f"Written: {', '.join(written)}"), soft_wrap=True)
        if failed:
            names = ", ".join(one["file"] for one in failed)
            ending = "; the others were predicted" if made else ""
            print_message(f"{len(failed)} of {len(recordings)} recordings failed: {names}{ending}")
        return 2 if failed else 0

    def _held_out(
        self, classifier: "Classifier", out: Console, keys: "ClassStyles", pictures: PictureNames | None
    ) -> list[dict[str, Any]]:
        """Test recordings of the dataset in the recipe of the run that the network or the export belongs to."""
        if not self.held_out:
            return []
        from ripe_mambaspike.data.samples import held_out
        from ripe_mambaspike.deploy.export.run import is_export
        from ripe_mambaspike.inference.checkpoint_data import run_data_settings
        from ripe_mambaspike.inference.predict import predict
        from ripe_mambaspike.models.labels import find_checkpoint

        folder = self.checkpoint if is_export(self.checkpoint) else find_checkpoint(self.checkpoint)
        if (settings := run_data_settings(folder)) is None:
            got = f"{printable(folder)}, which is in none"
            raise InputError.expected("held_out", "a run, or a network or an export in a run's folder", got)
        if settings.store is None:  # a run of an earlier version, without a store key
            warning = "the run keeps no key of its store; whether these clips were held out from it cannot be checked"
            print_message(f"warning: {warning}")
        made = []
        for recording, label, name in held_out(settings, self.held_out):
            with print_warnings():
                prediction = predict(classifier, recording)
            row = {**_row(Path(name), recording, prediction), "true": label}
            made.append({**row, **_save(pictures, Path(f"{name} ({label})"), recording, prediction)})
            if not self.json:
                _show(out, Path(f"{name} ({label})"), prediction, keys)
        return made


def _find_all(given: Sequence[Path], table: Path | None) -> list[Path]:
    """The recordings that were named, and those in the folders that were; a table of an earlier call is none."""
    from ripe_mambaspike.data.sets.folder import find_recordings

    recordings: list[Path] = []
    for path in given:
        if not path.is_dir():
            recordings.append(path)
            continue
        found = [one for one in find_recordings(path) if table is None or one.resolve() != table.resolve()]
        if not found:
            raise InputError.expected("recordings", "recordings in the folder", "none", path=path)
        recordings += found
    return recordings


def _check_csv(path: Path | None) -> None:
    """Refuse a table that could not be written, before anything is predicted."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        got = "a folder" if path.is_dir() else "one in a folder that does not exist"
        raise InputError.expected("csv", "a file that can be written", got, path=path)


def _table(rows: Sequence[Mapping[str, Any]], order: Sequence[Path]) -> bytes:
    """The rows as CSV, in the order of the recordings, then the held-out ones."""
    places = {printable(path): place for place, path in reversed(list(enumerate(order)))}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    judged = any(row.get("score") is not None for row in rows)  # by a network with a threshold
    writer.writerow(("file", "class", "probability", *(("unknown", "score") if judged else ())))
    for row in sorted(rows, key=lambda row: places.get(row["file"], len(places))):
        more = (str(row["unknown"]).lower() if "unknown" in row else "", row.get("score", "")) if judged else ()
        writer.writerow((row["file"], row.get("label", ""), row.get("probability", ""), *more))
    return text.getvalue().encode()


class ClassStyles:
    """A letter and a colour for every class that was predicted at some step, the same for all recordings."""

    def __init__(self) -> None:
        self._order: dict[str, int] = {}

    def letter(self, label: str) -> str:
        return LETTERS[self._number(label) % len(LETTERS)]

    def color(self, label: str) -> str:
        return COLORS[self._number(label) % len(COLORS)]

    def _number(self, label: str) -> int:
        return self._order.setdefault(label, len(self._order))


def _predict(classifier: "Classifier", path: Path, format: str | None) -> "tuple[Recording, Prediction]":
    """The recording as it was binned, and the prediction; an error always names the file."""
    from ripe_mambaspike.inference.classifier import read_recording
    from ripe_mambaspike.inference.predict import predict

    try:
        with print_warnings():
            recording = read_recording(classifier, path, format)
            return recording, predict(classifier, recording)
    except RipeError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error


def _save(
    pictures: PictureNames | None, path: Path, recording: "Recording", prediction: "Prediction"
) -> dict[str, str]:
    """Write the picture of a prediction, if there is a folder for it; its path for the JSON document."""
    from ripe_mambaspike import view_prediction

    if pictures is None:
        return {}
    made = view_prediction(recording, prediction, pictures.next(path), title=printable(Path(path.name)))
    return {"picture": printable(made)}


def _row(path: Path, recording: "Recording", prediction: "Prediction") -> dict[str, Any]:
    second = prediction.runner_up
    metadata = recording.metadata
    return {
        "file": printable(path),
        "sensor_size": list(metadata.get("whole_size") or recording.sensor_size),
        "sensor_size_from": metadata.get("sensor_size_from"),
        "label": prediction.label,
        "probability": prediction.probability,
        "unknown": prediction.unknown,
        "score": prediction.score,
        "runner_up": None if second is None else {"label": second[0], "probability": second[1]},
        "probabilities": prediction.probabilities,
        "timeline": [asdict(moment) for moment in prediction.timeline],
    }


def _show(out: Console, path: Path, prediction: "Prediction", keys: ClassStyles) -> None:
    second = prediction.runner_up
    color = keys.color(prediction.timeline[-1].label)
    then = "" if second is None else f", then {escape(second[0])} {_percent(second[1])}"
    label = f"[bold {color}]{escape(prediction.label)}[/] {_percent(prediction.probability)}"
    label = f"[bold]unknown[/], at best {label}" if prediction.unknown else label
    out.print(f"[bold]{escape(printable(path))}[/]: {label}{then}", soft_wrap=True)
    a_line = max(1, out.width - len(INDENT) - LAST_MARK_WIDTH)
    moments, start = prediction.timeline, prediction.timeline[0].start_us
    for first in range(0, len(moments), a_line):
        for line in _lines(moments[first : first + a_line], start, keys):
            out.print(line, soft_wrap=True)
    led = list(dict.fromkeys(moment.label for moment in moments))
    legend = Text(INDENT).append(" · ".join(f"{keys.letter(name)} {name}" for name in led), style="dim")
    out.print(legend, soft_wrap=True)


def _lines(moments: "Sequence[TimelineStep]", start_us: int, keys: ClassStyles) -> list[Text]:
    """Probability as the height of a cell, the leading class's letter under it, and the times under both."""
    bars, letters = Text(INDENT), Text(INDENT)
    for moment in moments:
        height = min(len(BARS) - 1, int(moment.probability * len(BARS)))
        bars.append(BARS[height], style=keys.color(moment.label))
        letters.append(keys.letter(moment.label), style=keys.color(moment.label))
    length = moments[-1].stop_us - start_us
    last = f"╵{_time(moments[-1].stop_us - start_us, length)}"
    marks = ""
    for index in range(0, len(moments), MARK_EVERY):
        mark = f"╵{_time(moments[index].start_us - start_us, length)}"
        if index == 0 or (len(marks) < index and index + len(mark) < len(moments)):
            marks = marks.ljust(index) + mark
    marks = marks.ljust(max(len(moments), len(marks) + 1)) + last
    return [bars, letters, Text(INDENT).append(marks, style="dim")]


def _time(us: int, length: int) -> str:
    """A time in a unit that suits the recording's length."""
    if length >= 10_000_000:
        return f"{us / 1e6:.1f} s"
    if length >= 10_000:
        return f"{us / 1e3:.0f} ms"
    return f"{us} µs"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
