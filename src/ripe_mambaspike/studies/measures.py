"""What a study measures of a run's network: accuracy again, under conditions, firing rates and cost.

`measures.json` stands beside the run's `result.json`. Several studies may share a run: each adds what is missing.
"""

import csv
import json
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from ripe_mambaspike.account.document import account_clip
from ripe_mambaspike.data.clips import EvalBatches
from ripe_mambaspike.data.training_data import TrainingData
from ripe_mambaspike.errors import DataError, VerificationError
from ripe_mambaspike.files import write_file
from ripe_mambaspike.inference.capture import CapturedShapes
from ripe_mambaspike.inference.checkpoint_data import data_settings_of, open_data_for
from ripe_mambaspike.models.accuracy import EVAL_BATCH, Evaluation, TrainingResult, evaluate_batches, read_result
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.labels import BEST, read_labels
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.nn.eval_mode import choose_device
from ripe_mambaspike.schema import read_json
from ripe_mambaspike.studies.conditions import changed_clips, parse_condition
from ripe_mambaspike.train.run_folder import LOG_FILE

MEASURES_FILE = "measures.json"
COST_CLIPS = 16  # on which operations and energy are measured
RATE_EPOCHS = 50  # the last of 300 epochs, over which the paper takes SR-var; in a shorter run, the same share of them
RATE_SHARE = 6


class RunCost(msgspec.Struct, frozen=True, kw_only=True):
    """Operations and energy of one clip, the mean over some test clips."""

    gflop: float
    synaptic_operations_m: float
    microjoules: float
    dense_microjoules: float


class RunRates(msgspec.Struct, frozen=True, kw_only=True):
    """Firing rates: of every layer on the test clips, and how the mean rate varied over the last epochs (SR-var)."""

    layers: list[float]
    mean: float | None
    sd_over_epochs: float | None
    epochs: int


class RunMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `measures.json`."""

    format: Literal["ripe-measures"] = "ripe-measures"
    version: Literal[1] = 1
    top1: float  # of the saved network, evaluated again
    n: int
    device: str
    torch: str
    measured: list[str] = []  # which of the below, also those that gave nothing
    rates: RunRates | None = None
    cost: RunCost | None = None
    clips_per_second: float | None = None  # None also where other runs used the device at the same time
    conditions: dict[str, float] = {}  # top-1 under each


def read_measures(folder: Path) -> RunMeasures | None:
    """What was measured of a run so far; None if nothing was."""
    path = folder / MEASURES_FILE
    if not path.exists():
        return None
    return read_json(path, RunMeasures, hint="without the file, the run is measured again")


def is_measured(found: RunMeasures | None, measures: Sequence[str], conditions: Sequence[str]) -> bool:
    """Whether nothing is left to measure."""
    if found is None:
        return False
    under = {str(parse_condition(one)) for one in conditions}
    return set(measures) <= set(found.measured) and under <= found.conditions.keys()


def measure_run(
    folder: Path,
    measures: Sequence[str] = (),
    conditions: Sequence[str] = (),
    *,
    root: str | Path | None = None,
    device: str = "auto",
    shared: bool = False,
) -> RunMeasures:
    """Measure what is missing, and write it down.

    The saved network has to classify as many test clips correctly as `result.json` says. The speed of a run that
    shared its device with others (`shared`) is not kept: it would be theirs.
    """
    found = read_measures(folder)
    if found is not None and is_measured(found, measures, conditions):
        return found
    result = read_result(folder)
    if result is None:
        raise DataError.expected("run", "one that has ended", "one without a result", path=folder)
    target = choose_device(device, "device")
    model = from_pretrained(folder / BEST).to(target)
    labels = read_labels(folder / BEST)
    data = open_data_for(folder, labels, data_settings_of(folder / BEST, labels, root=root))
    evaluate = _evaluator(model, data, target)
    again = evaluate(None)
    check_same_accuracy(folder, result, again)
    under = dict(found.conditions) if found is not None else {}
    for name in (str(parse_condition(one)) for one in conditions):
        if name not in under:
            under[name] = evaluate(name).top1
    done = sorted({*measures, *(found.measured if found is not None else ())})
    rates = _rates(folder, again) if "rates" in done else None
    speed = found.clips_per_second if found is not None else None
    if "speed" in done and (found is None or "speed" not in found.measured) and not shared:
        speed = _speed(folder)
    cost = found.cost if found is not None else None
    if "cost" in done and cost is None:
        cost = measure_cost(model, data)
    made = RunMeasures(
        top1=again.top1, n=again.n, device=describe_device(target), torch=str(torch.__version__), rates=rates,
        cost=cost, clips_per_second=speed, conditions=under, measured=done,
    )  # fmt: skip
    text = json.dumps(msgspec.to_builtins(made), indent=1) + "\n"
    write_file(folder / MEASURES_FILE, text.encode(), DataError)
    return made


def check_same_accuracy(folder: Path, result: TrainingResult, again: Evaluation) -> None:
    """Raise unless the network does as well as when it was tested."""
    expected, got = round(result.tested_top1 * result.n), again.correct
    if (expected, result.n) != (got, again.n):
        raise VerificationError.expected(
            "top1", f"{expected} of {result.n} clips, as in result.json", f"{got} of {again.n}", path=folder,
            hint="evaluate it on the kind of device it was trained on",
        )  # fmt: skip


def _evaluator(model: Model, data: TrainingData, device: torch.device) -> Callable[[str | None], Evaluation]:
    """Evaluates the test clips as they are, or under a condition."""
    run = CapturedShapes(model).run

    def evaluate(condition: str | None) -> Evaluation:
        batches: Any = EvalBatches(data.test, EVAL_BATCH, device)
        if condition is not None:
            batches = changed_clips(batches, parse_condition(condition), data.settings.binary)
        return evaluate_batches(model, batches, len(data.classes), run)

    return evaluate


def measure_cost(model: Model, data: TrainingData) -> RunCost:
    """Operations and energy for the first test clips, on the CPU, where they are counted."""
    count = min(COST_CLIPS, len(data.test))
    clips = torch.stack([data.test.clip(index)[0] for index in range(count)])
    on_cpu = model.to("cpu")
    document = account_clip(on_cpu, clips.to(on_cpu.dtype), f"{count} test clips")
    energy = document["energy"]
    return RunCost(
        gflop=document["flops"]["total"] / 1e9,
        synaptic_operations_m=energy["synaptic_operations"] / 1e6,
        microjoules=energy["network_event_microjoules"],
        dense_microjoules=energy["network_dense_microjoules"],
    )


def _rates(folder: Path, found: Evaluation) -> RunRates:
    mean = statistics.fmean(found.rates) if found.rates else None
    epochs = read_column(folder, "rate")
    last = epochs[-min(RATE_EPOCHS, max(2, round(len(epochs) / RATE_SHARE))) :]
    sd = statistics.stdev(last) if len(last) > 1 and found.rates else None
    return RunRates(layers=list(found.rates), mean=mean, sd_over_epochs=sd, epochs=len(last))


def _speed(folder: Path) -> float | None:
    """Median clips a second of all epochs but the first, in which kernels are compiled."""
    speeds = read_column(folder, "samples_per_second")
    return statistics.median(speeds[1:] or speeds) if speeds else None


def read_column(folder: Path, name: str) -> list[float]:
    """The values of a column of a run's log, by epoch; cells without a value are left out."""
    path = folder / LOG_FILE
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


def describe_device(device: torch.device) -> str:
    """The accelerator's name, or the processor's kind."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({platform.machine()}), {threads} thread{'s' * (threads != 1)}"
