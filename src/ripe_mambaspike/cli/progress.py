"""Progress on standard error, shown on a terminal only."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class ProgressUpdate(Protocol):
    """Called with what is being done and, if it can be counted, the progress."""

    def __call__(self, description: str, done: int | None = None, total: int | None = None, /) -> None: ...


@contextmanager
def progress_bar(description: str = "", unit: str = "") -> Iterator[ProgressUpdate]:
    """A bar that disappears at the end; `unit` is "bytes" for sizes."""
    if not sys.stderr.isatty():
        yield lambda description, done=None, total=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    counter = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), counter, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda text, done=None, total=None: bar.update(task, description=text, completed=done, total=total)
