"""What the network got right and wrong: the matrix, the classes, and a few clips."""

from ripe_mambaspike.report.charts import Series, line_chart
from ripe_mambaspike.report.curves import missing_note
from ripe_mambaspike.report.formatting import count_text, escaped, number_text, percent_text
from ripe_mambaspike.report.frames import attention_images, data_uri, event_images, finite_maps
from ripe_mambaspike.report.headline import badge
from ripe_mambaspike.report.marks import NUMBERED, bar, matrix
from ripe_mambaspike.report.observe import Observed, Sample
from ripe_mambaspike.report.run_data import ClassScore, RunData

MOST_FRAMES = 16
MANY = 24  # classes from which the list gets its own scroll bar


def confusion(run: RunData) -> str:
    if not run.confusion:
        return missing_note("There is no confusion matrix: the result holds none, or not a square of counts.")
    names = [run.name_of(index) for index in range(len(run.confusion))]
    how = "The number is the count." if len(names) <= NUMBERED else "Point at a cell for its count."
    return (
        f"<p>True classes down, predicted ones across; colour is the share of the row. {how} {badge(run)}</p>"
        f'<div class="card">{matrix(run.confusion, names)}</div>{_slips(run, names)}'
    )


def _slips(run: RunData, names: list[str]) -> str:
    """The most frequent mistakes in words."""
    slips = sorted(
        (
            (count, row, column)
            for row, values in enumerate(run.confusion)
            for column, count in enumerate(values)
            if count and row != column
        ),
        key=lambda slip: (-slip[0], slip[1:]),
    )
    if not slips:
        return "<p>No clip was mistaken.</p>"
    words = [
        f"<b>{escaped(names[row], 40)}</b> taken for <b>{escaped(names[column], 40)}</b> "
        f"({count:,} of {sum(run.confusion[row]):,})"
        for count, row, column in slips[:3]
    ]
    return f"<p>Most often: {'; '.join(words)}.</p>"


def per_class(run: RunData) -> str:
    if not run.scores:
        return missing_note("There are no scores by class: the result holds none, or counts that do not fit.")
    rows = "".join(_class_row(score) for score in run.scores)
    total, correct = sum(s.n for s in run.scores), sum(s.correct for s in run.scores)
    foot = f"<tr><th>all</th><td></td><td>{percent_text(correct / total) if total else '–'}</td>"
    foot += f"<td>{count_text(correct)} / {count_text(total)}</td></tr>"
    tall = " tall" if len(run.scores) > MANY else ""
    return (
        f"<p>Share of each class's clips that were recognized. {badge(run)}</p>"
        f'<div class="card scroll{tall}"><table class="classes"><thead><tr><th>class</th><th></th><th>top-1</th>'
        f"<th>right / n</th></tr></thead><tbody>{rows}</tbody><tfoot>{foot}</tfoot></table></div>"
    )


def _class_row(score: ClassScore) -> str:
    if not score.n:
        return f'<tr><th>{escaped(score.name, 60)}</th><td></td><td>–</td><td class="dim">no clip</td></tr>'
    share = score.correct / score.n
    return (
        f"<tr><th>{escaped(score.name, 60)}</th><td>{bar(share)}</td><td>{percent_text(share)}</td>"
        f"<td>{count_text(score.correct)} / {count_text(score.n)}</td></tr>"
    )


def samples(run: RunData, observed: Observed | None) -> str:
    """Each clip's frames with the attention over them, and its answer step by step."""
    if run.model is None:
        return missing_note(f"No clips are shown. {run.notes.get('best', 'The picked network is not there.')}")
    if observed is None:
        return missing_note("No clips are shown: no held-out data was at hand when this page was made.")
    notes = "".join(missing_note(note) for note in observed.notes)
    if not observed.samples:
        return notes or missing_note("No clips are shown: none were handed over.")
    panels = "".join(_panel(run, sample) for sample in observed.samples)
    return (
        '<input type="checkbox" id="overlay" checked><label for="overlay">show attention</label>'
        '<p class="colours"><i class="on"></i>ON <i class="off"></i>OFF <i class="glow"></i>where the last stage '
        "attends: how far a place departs from the step's median place, on one scale for the whole clip, blank where "
        "it does not. The line below a frame is the frame's mean, from 0 to the clip's most</p>"
        f'<div class="samples">{panels}</div>{notes}'
    )


def _panel(run: RunData, sample: Sample) -> str:
    true = run.name_of(sample.label)
    if sample.predicted is None:
        verdict = '<span class="verdict wrong">no answer: the logits are not finite</span>'
    else:
        right = sample.predicted == sample.label
        sign, kind = ("✓", "right") if right else ("✗", "wrong")
        verdict = f'<span class="verdict {kind}">{sign} {escaped(run.name_of(sample.predicted), 60)}</span>'
    return (
        f'<article class="card sample"><h3>{escaped(sample.name, 80)}</h3><p>true <b>{escaped(true, 60)}</b> · '
        f'predicted {verdict}</p><div class="panel">{_strip(sample)}{_timeline(run, sample)}</div></article>'
    )


def _strip(sample: Sample) -> str:
    """At most sixteen frames, evenly chosen, each with its map on top."""
    steps = len(sample.frames)
    shown = sorted({round(index * (steps - 1) / max(1, MOST_FRAMES - 1)) for index in range(MOST_FRAMES)})
    if steps <= MOST_FRAMES:
        shown = list(range(steps))
    images = event_images(sample.frames)
    maps = None if sample.attention is None else attention_images(sample.attention)
    means = _strength(sample)
    height, width = images[0].shape[:2]
    frames = []
    for step in shown:
        over = amount = ""
        if maps is not None and step < len(maps):
            over = f'<img class="attention" alt="" src="{data_uri(maps[step])}">'
            amount = bar(float(means[step]), "glow")
        frames.append(
            f'<figure><div class="frame"><img alt="events of step {step + 1}" width="{width}" height="{height}" '
            f'src="{data_uri(images[step])}">{over}</div>{amount}<figcaption>{step + 1}</figcaption></figure>'
        )
    note = ""
    if sample.attention is None:
        note = missing_note("This network has no attention map.")
    elif maps is None:
        note = missing_note("The attention is the same everywhere.")
    else:
        most = number_text(float(finite_maps(sample.attention).max()), 3)
        note = f'<p class="dim">attention, from blank at 0 to full colour at {most} (mean over the channels)</p>'
    return f'<div><div class="strip">{"".join(frames)}</div>{note}</div>'


def _strength(sample: Sample) -> list[float]:
    """Mean attention of each step as a share of the clip's most."""
    if sample.attention is None:
        return []
    means = finite_maps(sample.attention).mean((1, 2))
    return (means / (means.max() or 1)).tolist()


def _timeline(run: RunData, sample: Sample) -> str:
    """Softmax of the logits of each step: the true class, the predicted one and the next likely ones."""
    steps, classes = sample.shares.shape
    likely = sorted(range(classes), key=lambda index: -float(sample.shares[:, index].mean()))
    wanted = [sample.label] if 0 <= sample.label < classes else []
    wanted += [index for index in [sample.predicted, *likely] if index is not None and index not in wanted]
    wanted = list(dict.fromkeys(wanted))[:4]
    series = [
        Series(
            run.name_of(index) + (" (true)" if index == sample.label else ""),
            sample.shares[:, index].tolist(),
            place + 1,
            index != sample.label,
        )
        for place, index in enumerate(wanted)
    ]
    note = "softmax of each step's logits" if steps > 1 else "this network gives one answer a clip"
    places = [float(step) for step in range(1, steps + 1)]
    return line_chart("Answer", places, series, x_name="time step", percent=True, low=0, high=1, note=note)
