"""`ripe send`: play a recording as a live source."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape

from ripe_mambaspike.cli.output import console, print_json, print_message, print_warnings, printable
from ripe_mambaspike.cli.signals import stop_on_signal
from ripe_mambaspike.command_options import Flag, FormatName, Json, SensorSize, option

if TYPE_CHECKING:
    from ripe_mambaspike.inference.stream.send import SendSummary


@dataclass(kw_only=True)
class SendCommand:
    """Play a recording as a live source for ripe stream or ripe serve.

    The events are sent by the clock of the recording, in the packets that docs/streaming.md describes. Start the
    receiver first: ripe stream CHECKPOINT --source tcp://127.0.0.1:9000. Ctrl-C ends it with a summary.
    """

    recording: Annotated[Path, tyro.conf.Positional, option("FILE")]
    """A recording of any format."""
    to: Annotated[str, option("udp://HOST:PORT|tcp://HOST:PORT")]
    """Where the receiver listens. TCP loses nothing and tells the receiver when the recording ends; UDP never waits."""
    speed: Annotated[float, option("X")] = 1.0
    """How fast: 2 plays twice as fast, 0.5 in slow motion."""
    loop: Flag = False
    """Start again at the end, until Ctrl-C; the times of the events go on."""
    sensor_size: SensorSize = None
    """Width and height of the sensor, whatever the recording says."""
    format: FormatName = None
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike.inference.stream.send import RecordingSender

        with stop_on_signal(quiet=True) as should_stop:
            with print_warnings():
                sender = RecordingSender(
                    self.recording, self.to, speed=self.speed, loop=self.loop, sensor_size=self.sensor_size,
                    format=self.format, on_message=print_message, should_stop=should_stop,
                )  # fmt: skip
            try:
                sender.run()
            finally:
                self._show(sender.summary)
            return 130 if should_stop() else 0

    def _show(self, summary: "SendSummary") -> None:
        if self.json:
            print_json({"file": printable(self.recording), "to": self.to, **summary.to_dict()})
            return
        speed = summary.events / summary.seconds if summary.seconds else 0.0
        out = console()
        out.print(
            f"[bold]{summary.events:,} events[/] in {summary.packets:,} packets to {escape(self.to)} in "
            f"{summary.seconds:.1f} s ({speed:,.0f} events/s), at most {1e3 * summary.behind_seconds:.0f} ms late",
            soft_wrap=True,
            highlight=False,
        )
        if summary.lost:
            parts = ", ".join(f"{reason} {count:,}" for reason, count in summary.lost.items())
            out.print(f"events lost: {parts}", soft_wrap=True, highlight=False)
