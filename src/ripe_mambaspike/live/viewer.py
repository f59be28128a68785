"""One viewer: what it watches, and the loop that sends frames and predictions.

The loop draws the frame that is due by the wall clock, sends it and waits until it has been sent. A slow viewer skips
frames and gets their number; nothing is queued for it.
"""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.live.clock import PlaybackClock
from ripe_mambaspike.live.frames import MIN_SPAN_US, pack_frame
from ripe_mambaspike.live.limits import TRY_AGAIN_LATER_CODE, ServerLimits, TokenBucket
from ripe_mambaspike.live.messages import (
    Play,
    PlayUpload,
    SessionCommand,
    ShowAttention,
    ViewerCommand,
    WatchLive,
    encode,
    error_message,
    predictions_message,
    read_command,
)

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from ripe_mambaspike.live.broadcast import LiveStream
    from ripe_mambaspike.live.library import RecordingKey, RecordingLibrary
    from ripe_mambaspike.live.session import RecordingSession
    from ripe_mambaspike.live.watched import PredictionWorker, WatchedRecording

MAX_PREDICTIONS = 64  # of one message
POLICY_VIOLATION_CODE = 1008  # a code that a websocket is closed with
STATUS_SECONDS = 0.25  # between two status messages


class ViewerLeftError(Exception):
    """The viewer has left."""


class Viewer:
    """Plays a recording at its own pace, or watches the live stream with all others."""

    def __init__(
        self,
        socket: "WebSocket",
        library: "RecordingLibrary",
        worker: "PredictionWorker",
        live: "LiveStream | None",
        limits: ServerLimits,
        session: "RecordingSession | None" = None,
    ) -> None:
        self._socket, self._library, self._worker, self._live, self._limits = socket, library, worker, live, limits
        self._session, self._networks = session, library.networks
        self._seen: dict[str, object] = {}  # versions of what the session has told
        self._recording: WatchedRecording | None = None
        self._clock: PlaybackClock | None = None
        self._watching_live = False
        self._round = 0  # of what was opened last; messages from before have a smaller one
        self._attention = False
        self._sent = 0  # predictions of this round, or of the live stream
        self._last_frame = 0
        self._skipped = 0
        self._problem_sent = False
        self._received = 0  # messages: a page that sent more since knows that a status is outdated
        self._status_at = 0.0
        self._changed = asyncio.Event()

    async def run(self, hello: dict[str, Any]) -> int | None:
        """Run until the viewer leaves (None) or must be disconnected (the close code)."""
        tasks: list[asyncio.Task[int | None]] = []
        try:
            await self._send(encode("hello", **hello))
            tasks += [asyncio.create_task(self._listen()), asyncio.create_task(self._show())]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(task.result() for task in done)
        except ViewerLeftError:
            return None
        except TimeoutError:
            return TRY_AGAIN_LATER_CODE
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._stop_watching()

    async def _listen(self) -> int | None:
        rate = self._limits.messages_a_second
        bucket = TokenBucket(rate, 2 * rate)
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return None
            if not bucket.take(_now()):
                await self._send(error_message(f"messages: expected at most {rate} a second, got more; disconnected"))
                return POLICY_VIOLATION_CODE
            try:
                text = message.get("text")
                if text is None:
                    raise InputError.expected("message", "text", "bytes")
                await self._execute(read_command(text))
            except RipeError as error:
                await self._send(error_message(str(error)))
            self._received += 1
            self._changed.set()

    async def _execute(self, command: ViewerCommand) -> None:
        match command:
            case Play() | PlayUpload():
                await self._play(command.value)
            case WatchLive():
                await self._watch_live()
            case ShowAttention():
                self._attention = command.value
                if command.value and self._recording is not None:
                    self._sent = 0  # predictions that were sent without it are sent again
            case _ if isinstance(command, SessionCommand):
                if self._session is None:
                    raise InputError.expected("record", "a server that records (ripe serve --record-to)", "another")
                await self._session.execute(command)
            case _ if self._clock is None or self._recording is None:
                raise InputError.expected("recording", "one that is being played", "none")
            case _:
                self._set_clock(self._clock.execute(command, _now()))

    async def _watch_live(self) -> None:
        if self._live is None:
            raise InputError.expected("live", "a server with a live source (ripe serve --source)", "none")
        self._stop_watching()
        self._watching_live, self._sent, self._last_frame, self._skipped = True, self._live.next_number(), 0, 0
        self._live.viewers += 1
        self._begin_round()
        await self._send(encode("opened", **self._live.describe(), round=self._round))

    async def _play(self, key: "RecordingKey") -> None:
        self._stop_watching()  # first, since it may free memory
        await self._send(encode("opening"))
        recording = await self._library.open(key)
        self._begin_round()
        clock = PlaybackClock(recording.duration_us, _now(), round=self._round)
        if self._clock is not None:  # speed and loop stay as they were
            clock = replace(clock, speed=self._clock.speed, loop=self._clock.loop)
        self._recording, self._problem_sent, self._skipped = recording, False, 0
        self._set_clock(clock)
        width, height = recording.recording.sensor_size
        opened = encode(
            "opened",
            name=recording.name,
            live=False,
            width=width,
            height=height,
            events=len(recording.recording),
            seconds=recording.duration_us / 1e6,
            format=recording.recording.format,
            warnings=recording.recording.warnings[:4],
            round=clock.round,
        )
        await self._send(opened)

    def _begin_round(self) -> None:
        self._round = max(self._round, 0 if self._clock is None else self._clock.round) + 1

    def _set_clock(self, clock: PlaybackClock) -> None:
        """Another position or speed; after a jump the predictions are sent again."""
        if self._clock is None or clock.round != self._clock.round:
            self._sent, self._last_frame = 0, -1
        self._clock = clock

    def _stop_watching(self) -> None:
        """Stop watching."""
        if self._recording is not None:
            self._library.release(self._recording)
        if self._watching_live and self._live is not None:
            self._live.viewers -= 1
        self._recording, self._watching_live = None, False

    async def _show(self) -> int | None:
        while True:
            if self._networks != self._library.networks:
                await self._change_network()
            for message in self._messages() if self._session is None else self._session_messages(self._session):
                await self._send(message)
            await asyncio.sleep(self._wait())

    async def _change_network(self) -> None:
        """Another network is served: a live source goes on with it, and a recording has to be chosen again."""
        self._networks = self._library.networks
        await self._send(encode("network", network=self._library.describe_network()))
        if self._watching_live:
            await self._watch_live()
        else:
            self._stop_watching()

    def _session_messages(self, session: "RecordingSession") -> list[str | bytes]:
        return [*session.messages(self._seen), *self._messages()]

    def _wait(self) -> float:
        """Seconds until the next frame is due. Frames that were missed meanwhile are skipped."""
        period = 1 / self._limits.frames
        if self._recording is None or self._clock is None or self._clock.paused:
            return period
        step = self._step(self._clock)
        position = self._clock.at(_now()).position_us
        return min(period, (step - position % step) / 1e6 / self._clock.speed + 0.0005)

    def _step(self, clock: PlaybackClock) -> int:
        """How much of the recording passes from frame to frame, in µs."""
        return max(1, round(1e6 * clock.speed / self._limits.frames))

    def _messages(self) -> list[str | bytes]:
        """What is to be sent now."""
        if self._watching_live and self._live is not None:
            return self._live_messages(self._live)
        if self._recording is not None and self._clock is not None:
            return self._recording_messages(self._recording, self._clock.at(_now()))
        return []

    def _recording_messages(self, recording: "WatchedRecording", clock: PlaybackClock) -> list[str | bytes]:
        self._set_clock(clock)
        messages: list[str | bytes] = []
        position = clock.shown_us
        self._worker.request(recording, position)
        step = self._step(clock)
        number = int(clock.position_us) // step
        if number != self._last_frame:
            if 0 <= self._last_frame < number:
                self._skipped += number - self._last_frame - 1
            self._last_frame = number
            span, stop = max(step, MIN_SPAN_US), min(number * step, recording.duration_us)
            frame = recording.frame(stop - span, stop)
            messages.append(pack_frame(frame, clock.round, position / 1e6, span / 1e6, self._skipped))
        predictions = recording.predictions(self._sent, position, MAX_PREDICTIONS)
        if predictions:
            self._sent += len(predictions)
            messages.append(predictions_message(predictions, clock.round, self._attention))
        if recording.problem and not self._problem_sent:
            self._problem_sent = True
            messages.append(error_message(f"{recording.name}: {recording.problem}"))
        lag = recording.lag_us(position) / 1e6
        status = {"paused": clock.paused, "position": position / 1e6, "lag": lag, "viewers": recording.viewers}
        return messages + self._status(status)

    def _live_messages(self, live: "LiveStream") -> list[str | bytes]:
        messages: list[str | bytes] = []
        number, frame, position, span = live.frame(_now())
        if frame is not None and number != self._last_frame:
            if self._last_frame:
                self._skipped += number - self._last_frame - 1
            self._last_frame = number
            messages.append(pack_frame(frame, self._round, position, span, self._skipped))
        predictions, self._sent = live.predictions(self._sent, MAX_PREDICTIONS)
        if predictions:
            messages.append(predictions_message(predictions, self._round, self._attention))
        return messages + self._status({"paused": False, "position": position, **live.status()})

    def _status(self, status: dict[str, Any]) -> list[str | bytes]:
        now = _now()
        if now - self._status_at < STATUS_SECONDS and not self._changed.is_set():
            return []
        self._status_at = now
        self._changed.clear()
        return [encode("status", received=self._received, skipped=self._skipped, **status)]

    async def _send(self, message: str | bytes) -> None:
        """Send a message; raises TimeoutError if the viewer does not read for too long."""
        from starlette.websockets import WebSocketDisconnect, WebSocketState

        if self._socket.application_state != WebSocketState.CONNECTED:
            raise ViewerLeftError
        try:
            async with asyncio.timeout(self._limits.stalled_seconds):
                if isinstance(message, str):
                    await self._socket.send_text(message)
                else:
                    await self._socket.send_bytes(message)
        except (WebSocketDisconnect, RuntimeError):  # gone, or closed meanwhile for what it sent
            raise ViewerLeftError from None


def _now() -> float:
    return asyncio.get_running_loop().time()
