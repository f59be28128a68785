"""Results of the network: the score, the confusion matrix, and a few clips."""

from datetime import UTC, datetime
from typing import Any

from ripe_mambaspike.models.accuracy import BEST_TEST_EPOCH, has_trivial_top5
from ripe_mambaspike.report.charts import MAX_NUMBERED_CLASSES, Series, line_chart, matrix
from ripe_mambaspike.report.formatting import (
    count_text,
    duration_text,
    finite_or_none,
    int_or_none,
    number_text,
    percent_text,
    plural,
    wilson_interval,
)
from ripe_mambaspike.report.images import attention_images, data_uri, event_images, finite_maps
from ripe_mambaspike.report.observe import Observed, Sample
from ripe_mambaspike.report.run_data import RunData, is_best_test_epoch

NO_CLIPS = "No clips are shown: no held-out data was available when this page was made."
MAX_FRAMES = 16  # of a sample clip
MAX_CLASSES_IN_TIMELINE = 4
MAX_MISTAKES = 3
MAX_WARNINGS = 10


def selection(result: dict[str, Any]) -> tuple[str, bool]:
    """How the network was selected, and whether that makes the score too optimistic."""
    on = result.get("picked_on")
    if is_best_test_epoch(result):
        return BEST_TEST_EPOCH if on in ("test", None) else f"{BEST_TEST_EPOCH}, though picked_on is {on}", True
    if on == "val":
        return "selected on validation clips, then tested", False
    if on == "last epoch":
        return "last epoch, without selection", False
    return "how it was selected is not recorded", True


def headline(run: RunData, counted: dict[str, Any]) -> dict[str, Any]:
    """Name, score and facts. `counted` are the account's parameters, for a result that lacks them."""
    result = run.result
    words, doubt = selection(result)
    share, n = finite_or_none(result.get("top1")), int_or_none(result.get("n"))
    interval = None  # there is no score
    if share is not None and 0 <= share <= 1:
        low, high = wilson_interval(share, n) if n and n > 0 else (None, None)
        interval = "" if low is None or high is None else f"{100 * low:.1f} … {100 * high:.1f} %"
    split = str(result.get("split") or "test")[:30]
    warnings = result.get("warnings")
    return {
        "name": str(result.get("name") or run.folder.resolve().name or "run"),
        "score": "no score" if interval is None else percent_text(share),
        "selection": words,
        "is_doubtful": doubt,
        "dataset": " · ".join(str(result[key])[:60] for key in ("set", "partition", "cut") if result.get(key)),
        "tested_on": _tested_on(n, split),
        "interval": interval,
        "warnings": [text for text in warnings if isinstance(text, str)][:MAX_WARNINGS]
        if isinstance(warnings, list)
        else [],
        "facts": _facts(run, counted),
    }


def _tested_on(n: int | None, split: str) -> str:
    if n == 0:
        return f"no {split} clips"
    return f"an unknown number of {split} clips" if n is None else plural(n, f"{split} clip")


def _facts(run: RunData, counted: dict[str, Any]) -> list[tuple[str, str]]:
    result = run.result
    given = result.get("parameters")
    parameters = given if isinstance(given, dict) else counted
    epoch, seed = int_or_none(result.get("epoch")), int_or_none(result.get("seed"))
    of = f" of {run.epochs}" if epoch is not None and run.epochs else ""
    commit = result.get("commit")
    top5 = finite_or_none(result.get("top5"))
    facts = [("top-5", percent_text(top5))] if top5 is not None and not has_trivial_top5(len(run.classes)) else []
    clips = result.get("clips")
    for split, name in (("train", "training clips"), ("val", "validation clips")):
        if isinstance(clips, dict) and (number := int_or_none(clips.get(split))) is not None:
            facts.append((name, count_text(number)))
    return [
        *facts,
        ("loss", number_text(finite_or_none(result.get("loss")))),
        ("epoch", "–" if epoch is None else f"{epoch}{of}"),
        ("parameters, training", count_text(finite_or_none(parameters.get("training")))),
        ("parameters, deployed", count_text(finite_or_none(parameters.get("deployed")))),
        ("seed", "–" if seed is None else str(seed)),
        ("commit", str(commit)[:12] if commit else "not recorded"),
        ("time", duration_text(finite_or_none(result.get("seconds")))),
        ("written", _result_date(run)),
    ]


def _result_date(run: RunData) -> str:
    """The date of the result, so that the same run gives the same page."""
    for name in ("result.json", "log.csv", "recipe.yaml"):
        try:
            made = (run.folder / name).stat().st_mtime
        except OSError:
            continue
        return datetime.fromtimestamp(made, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return "–"


def confusion(run: RunData) -> dict[str, Any] | None:
    """The matrix and the most frequent mistakes."""
    if not run.confusion:
        return None
    names = [run.name_of(index) for index in range(len(run.confusion))]
    mistakes: list[dict[str, Any]] = [
        {"true": names[row], "predicted": names[column], "count": count, "total": sum(values)}
        for row, values in enumerate(run.confusion)
        for column, count in enumerate(values)
        if count and row != column
    ]
    return {
        "matrix": matrix(run.confusion, names),
        "numbered": len(names) <= MAX_NUMBERED_CLASSES,
        "mistakes": sorted(mistakes, key=lambda mistake: -mistake["count"])[:MAX_MISTAKES],
    }


def samples(run: RunData, observed: Observed | None) -> dict[str, Any]:
    """Each clip's frames with the attention overlaid, and its prediction at every step."""
    if run.model is None:
        notes = [f"No clips are shown. {run.notes.get('best', '')}"]
    elif observed is None:
        notes = [NO_CLIPS]
    else:
        notes = observed.notes
        if not observed.samples and not notes:
            notes = ["No clips are shown: none were given."]
    shown = observed.samples if run.model is not None and observed is not None else []
    return {"samples": [_panel(run, sample) for sample in shown], "sample_notes": notes}


def _panel(run: RunData, sample: Sample) -> dict[str, Any]:
    images = event_images(sample.frames)
    maps = None if sample.attention is None else attention_images(sample.attention)
    strength = None if sample.attention is None else finite_maps(sample.attention).mean((1, 2))
    frames: list[dict[str, Any]] = []
    for step in _frames_shown(len(images)):
        frame: dict[str, Any] = {"step": step + 1, "events": data_uri(images[step]), "attention": None}
        if maps is not None and strength is not None and step < len(maps):
            share = float(strength[step] / (strength.max() or 1))
            frame |= {"attention": data_uri(maps[step]), "strength": share}
        frames.append(frame)
    none = "This network has no attention map." if sample.attention is None else "The attention is the same everywhere."
    largest = None if maps is None or sample.attention is None else float(finite_maps(sample.attention).max())
    return {
        "name": sample.name,
        "true": run.name_of(sample.label),
        "predicted": None if sample.predicted is None else run.name_of(sample.predicted),
        "right": sample.predicted == sample.label,
        "height": images[0].shape[0],
        "width": images[0].shape[1],
        "frames": frames,
        "no_attention": none,
        "attention_max": None if largest is None else number_text(largest, 3),
        "timeline": _timeline(run, sample),
    }


def _frames_shown(steps: int) -> list[int]:
    """All steps, or some of them evenly chosen."""
    if steps <= MAX_FRAMES:
        return list(range(steps))
    return sorted({round(index * (steps - 1) / (MAX_FRAMES - 1)) for index in range(MAX_FRAMES)})


def _timeline(run: RunData, sample: Sample) -> str:
    """Softmax of the logits of each step: the true class, the predicted one and the next likely ones."""
    steps, classes = sample.shares.shape
    likely = sorted(range(classes), key=lambda index: -float(sample.shares[:, index].mean()))
    chosen = [sample.label] if 0 <= sample.label < classes else []
    chosen += [index for index in [sample.predicted, *likely] if index is not None]
    series = [
        Series(
            run.name_of(index) + (" (true)" if index == sample.label else ""),
            sample.shares[:, index].tolist(),
            tone,
            index != sample.label,
        )
        for tone, index in enumerate(list(dict.fromkeys(chosen))[:MAX_CLASSES_IN_TIMELINE], 1)
    ]
    note = "softmax of each step's logits" if steps > 1 else "this network classifies a clip once"
    x = [float(step) for step in range(1, steps + 1)]
    return line_chart("Probabilities", x, series, x_name="time step", percent=True, low=0, high=1, note=note)
