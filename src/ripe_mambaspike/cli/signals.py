"""Stop a command after its current step."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_on_signal(quiet: bool = False) -> Iterator[Callable[[], bool]]:
    """A function that returns whether SIGINT or SIGTERM was received; a second signal stops at once."""
    received: list[int] = []

    def note(kind: int, _: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(kind)
        if not quiet:
            print("stopping after this step …", file=sys.stderr, flush=True)

    before = {kind: signal.signal(kind, note) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
