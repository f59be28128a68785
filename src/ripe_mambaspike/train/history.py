"""The training log: one row per epoch in `log.csv`, and the same numbers for TensorBoard."""

import csv
import importlib
import io
import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from ripe_mambaspike.errors import DataError
from ripe_mambaspike.files import write_file
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.train.objective import LossTerms

LOG = logging.getLogger("ripe_mambaspike")
Row = dict[str, float | None]
NUM_LAYERS = 6  # spiking layers of RIPE-MambaSpike; a network with more has more columns
COLUMNS = {  # of log.csv, with their meaning
    "epoch": "epoch, from 1",
    "lr": "learning rate",
    "sharpness": "α of surrogate and relaxation",
    "relaxed_share": "w, share of the relaxed pass in the loss",
    "loss": "the whole objective",
    "hard": "TET of the hard pass",
    "relaxed": "TET of the relaxed pass",
    "consistency": "mean squared difference of both passes' logits",
    "rate": "mean firing rate of all layers",
    "grad_norm": "norm of the whole gradient before clipping",
    **{f"rate_{layer}": f"mean firing rate of layer {layer}" for layer in range(1, NUM_LAYERS + 1)},
    **{f"tdm_{layer}": f"mean |λ| of layer {layer}" for layer in range(1, NUM_LAYERS + 1)},
    "train_top1": "top-1 on the training batches",
    "val_loss": "loss on the clips that select: validation, or test by the paper protocol",
    "val_top1": "top-1 on the clips that select",
    "seconds": "time since the run began, without interruptions",
    "samples_per_second": "clips per second",
    "memory_mib": "peak memory, MiB",
}
SUMMED = ("loss", "hard", "relaxed", "consistency", "rate", "right", "norm")  # of LossTerms, then the layers' rates


def summed_terms(terms: LossTerms) -> list[Tensor]:
    """The values of a step that an epoch averages, in the order of SUMMED and the layers; None counts as zero."""
    zero = terms.loss.new_zeros(())
    scalars = [getattr(terms, name) for name in SUMMED]
    return [zero if value is None else value.float() for value in scalars] + list(terms.rates.float().unbind())


def mean_columns(means: list[float]) -> Row:
    """The epoch's means, in the same order, as columns."""
    row: Row = dict(zip(SUMMED, means, strict=False))
    row["train_top1"], row["grad_norm"] = row.pop("right"), row.pop("norm")
    row |= {f"rate_{layer}": value for layer, value in enumerate(means[len(SUMMED) :], 1)}
    return row


def tdm_columns(model: Model) -> Row:
    """Mean |λ| of the temporal filter before every convolution, in order; none for other networks."""
    row: Row = {}
    if not isinstance(model, RipeMambaSpike):
        return row
    convs: list[Any] = [conv for stage in model.stages for conv in (stage.first_conv, stage.second_conv)]
    for layer, conv in enumerate(convs, 1):
        row[f"tdm_{layer}"] = None if conv.coefficient is None else float(conv.coefficient.detach().abs().mean())
    return row


def write_log(path: Path, rows: list[Row]) -> None:
    """Write all rows; None becomes an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [*COLUMNS, *(name for name in (rows[0] if rows else ()) if name not in COLUMNS)]  # rates of more layers
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    write_file(path, text.getvalue().encode(), DataError)


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"


class TensorBoardLog:
    """TensorBoard files in the run folder, if tensorboard is installed.

    A write error is logged once and does not stop the run, whose own files have the same numbers.
    """

    def __init__(self, folder: Path, first_epoch: int) -> None:
        self._writer: Any = None
        try:
            module: Any = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            return
        self._hook = threading.excepthook
        threading.excepthook = self._thread_failed
        with self._log_write_errors():
            self._writer = module.SummaryWriter(str(folder), purge_step=first_epoch)

    def write(self, row: Row) -> None:
        if self._writer is None:
            return
        with self._log_write_errors():
            for name, value in row.items():
                if name != "epoch" and value is not None and math.isfinite(value):
                    self._writer.add_scalar(name, value, int(row["epoch"] or 0))
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            with self._log_write_errors():
                self._writer.close()
        if hasattr(self, "_hook"):
            threading.excepthook = self._hook

    def _thread_failed(self, what: threading.ExceptHookArgs) -> None:
        """Ignore write errors in TensorBoard's thread; the next call here raises the same error."""
        if not (isinstance(what.exc_value, OSError) and type(what.thread).__name__ == "_AsyncWriterThread"):
            self._hook(what)

    @contextmanager
    def _log_write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writer = None
            LOG.warning(f"cannot write the TensorBoard file ({error.strerror or error}); continuing without it")
