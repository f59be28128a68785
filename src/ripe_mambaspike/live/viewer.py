"""One viewer: what it asked for, and the loop that shows it.

The loop draws what the clock on the wall says, sends it and waits until it is taken. A viewer that takes long is shown
the next frame that is due then, and told how many it missed; nothing is kept for it meanwhile.
"""

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ripe_mambaspike.errors import InputError, RipeError
from ripe_mambaspike.live.answers import answers_message
from ripe_mambaspike.live.clock import PlaybackClock
from ripe_mambaspike.live.connection_counter import TOO_BUSY
from ripe_mambaspike.live.frames import MIN_SPAN_US, pack
from ripe_mambaspike.live.limits import ServerLimits, TokenBucket
from ripe_mambaspike.live.messages import ViewerCommand, read_command

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from ripe_mambaspike.live.broadcast import LiveStream
    from ripe_mambaspike.live.engine import PredictionWorker
    from ripe_mambaspike.live.library import Key, RecordingLibrary
    from ripe_mambaspike.live.watched import WatchedRecording

MAX_PREDICTIONS_PER_MESSAGE = 64  # told in one message
TOO_MANY = 1008  # a code that a connection is closed with
STATUS_EVERY = 0.25  # s


class ViewerLeftError(Exception):
    """The viewer has left."""


class Viewer:
    """Plays a recording of its own choice, at its own pace, or watches the live source with all others."""

    def __init__(
        self,
        socket: "WebSocket",
        library: "RecordingLibrary",
        engine: "PredictionWorker",
        live: "LiveStream | None",
        limits: ServerLimits,
    ) -> None:
        self._socket, self._library, self._engine, self._live, self._limits = socket, library, engine, live, limits
        self._track: WatchedRecording | None = None
        self._clock: PlaybackClock | None = None
        self._watching_live = False
        self._round = 0  # of what was opened last; what is still on its way from before has a smaller one
        self._attention = False
        self._told = 0  # answers so far of this round, or the live source's
        self._last_frame = 0
        self._skipped = 0
        self._troubled = False
        self._heard = 0  # messages: a page that said more since knows that what it is told is of before
        self._status_at = 0.0
        self._changed = asyncio.Event()

    async def run(self, hello: dict[str, Any]) -> int | None:
        """Until the viewer leaves, or is to be let go: then the code to close with."""
        tasks: list[asyncio.Task[int | None]] = []
        try:
            await self._send(json.dumps({"kind": "hello", **hello}))
            tasks += [asyncio.create_task(self._listen()), asyncio.create_task(self._show())]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(task.result() for task in done)
        except ViewerLeftError:
            return None
        except TimeoutError:
            return TOO_BUSY
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._leave()

    async def _listen(self) -> int | None:
        allowance = TokenBucket(self._limits.messages_a_second, 2 * self._limits.messages_a_second)
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return None
            if not allowance.take(_now()):
                await self._send(_error("too many messages in a short time; the connection is closed"))
                return TOO_MANY
            try:
                text = message.get("text")
                if text is None:
                    raise InputError("the message is of bytes; text is wanted")
                await self._obey(read_command(text))
            except RipeError as error:
                await self._send(_error(str(error)))
            self._heard += 1
            self._changed.set()

    async def _obey(self, command: ViewerCommand) -> None:
        if command.do in ("play", "upload"):
            await self._play(command.value)
        elif command.do == "live":
            if self._live is None:
                raise InputError("there is no live source; ripe serve is given one with --source")
            self._leave()
            self._watching_live, self._told, self._last_frame, self._skipped = True, self._live.newest(), 0, 0
            self._live.viewers += 1
            self._begin_round()
            await self._send(json.dumps({"kind": "opened", **self._live.facts(), "round": self._round}))
        elif command.do == "attention":
            self._attention = command.value
            if command.value and self._track is not None:
                self._told = 0  # what was told without it is told again
        elif self._clock is None or self._track is None:
            raise InputError(f"nothing is being played; '{command.do}' is wanted while something is")
        else:
            self._turn(self._clock, command)

    def _turn(self, clock: PlaybackClock, command: ViewerCommand) -> None:
        now = _now()
        if command.do == "pause":
            clock = clock.hold(now)
        elif command.do == "resume":
            clock = clock.go(now)
        elif command.do == "seek":
            clock = clock.seek(now, command.value)
        elif command.do == "speed":
            clock = clock.change(now, speed=float(command.value))
        else:
            clock = clock.change(now, loop=command.value)
        self._set_clock(clock)

    async def _play(self, key: "Key") -> None:
        self._leave()  # first, which may make room
        await self._send(json.dumps({"kind": "opening"}))
        track = await self._library.open(key)
        self._begin_round()
        clock = PlaybackClock(track.duration_us, _now(), round=self._round)
        if self._clock is not None:  # the pace stays as it was
            clock = replace(clock, speed=self._clock.speed, loop=self._clock.loop)
        self._track, self._troubled, self._skipped = track, False, 0
        self._set_clock(clock)
        width, height = track.recording.sensor_size
        facts = {
            "kind": "opened",
            "name": track.name,
            "live": False,
            "width": width,
            "height": height,
            "events": len(track.recording),
            "seconds": track.duration_us / 1e6,
            "format": track.recording.format,
            "warnings": list(track.recording.warnings[:4]),
            "round": clock.round,
        }
        await self._send(json.dumps(facts))

    def _begin_round(self) -> None:
        self._round = max(self._round, 0 if self._clock is None else self._clock.round) + 1

    def _set_clock(self, clock: PlaybackClock) -> None:
        """Another place or pace; after a jump the answers are told anew."""
        if self._clock is None or clock.round != self._clock.round:
            self._told, self._last_frame = 0, -1
        self._clock = clock

    def _leave(self) -> None:
        """Give back what was being watched."""
        if self._track is not None:
            self._library.leave(self._track)
        if self._watching_live and self._live is not None:
            self._live.viewers -= 1
        self._track, self._watching_live = None, False

    async def _show(self) -> int | None:
        while True:
            for message in self._tick():
                await self._send(message)
            await asyncio.sleep(self._wait())

    def _wait(self) -> float:
        """Seconds until the next frame is due. What was missed meanwhile is skipped, not made up for."""
        period = 1 / self._limits.frames
        if self._track is None or self._clock is None or self._clock.held:
            return period
        step = self._step(self._clock)
        place = self._clock.at(_now()).place_us
        return min(period, (step - place % step) / 1e6 / self._clock.speed + 0.0005)

    def _step(self, clock: PlaybackClock) -> int:
        """How much of the recording passes from frame to frame, in µs."""
        return max(1, round(1e6 * clock.speed / self._limits.frames))

    def _tick(self) -> list[str | bytes]:
        """What there is to show now."""
        if self._watching_live and self._live is not None:
            return self._live_tick(self._live)
        if self._track is not None and self._clock is not None:
            return self._recording_tick(self._track, self._clock.at(_now()))
        return []

    def _recording_tick(self, track: "WatchedRecording", clock: PlaybackClock) -> list[str | bytes]:
        self._set_clock(clock)
        messages: list[str | bytes] = []
        place = clock.watched_us
        self._engine.want(track, place)
        step = self._step(clock)
        number = int(clock.place_us) // step
        if number != self._last_frame:
            if 0 <= self._last_frame < number:
                self._skipped += number - self._last_frame - 1
            self._last_frame = number
            span, stop = max(step, MIN_SPAN_US), min(number * step, track.duration_us)
            drawn = track.frame(stop - span, stop)
            messages.append(pack(drawn, clock.round, place / 1e6, span / 1e6, self._skipped))
        told = track.answers(self._told, place, MAX_PREDICTIONS_PER_MESSAGE)
        if told:
            self._told += len(told)
            messages.append(answers_message(told, clock.round, self._attention))
        if track.trouble and not self._troubled:
            self._troubled = True
            messages.append(_error(f"{track.name}: {track.trouble}"))
        status = {
            "held": clock.held,
            "place": place / 1e6,
            "behind": track.lag_us(place) / 1e6,
            "skipped": self._skipped,
            "viewers": track.viewers,
        }
        return messages + self._status(status)

    def _live_tick(self, live: "LiveStream") -> list[str | bytes]:
        messages: list[str | bytes] = []
        number, drawn, place, span = live.frame(_now())
        if drawn is not None and number != self._last_frame:
            if self._last_frame:
                self._skipped += number - self._last_frame - 1
            self._last_frame = number
            messages.append(pack(drawn, self._round, place, span, self._skipped))
        told, self._told = live.answers(self._told, MAX_PREDICTIONS_PER_MESSAGE)
        if told:
            messages.append(answers_message(told, self._round, self._attention))
        status = {"held": False, "place": place, "skipped": self._skipped, **live.status()}
        return messages + self._status(status)

    def _status(self, status: dict[str, Any]) -> list[str | bytes]:
        now = _now()
        if now - self._status_at < STATUS_EVERY and not self._changed.is_set():
            return []
        self._status_at = now
        self._changed.clear()
        return [json.dumps({"kind": "status", "heard": self._heard, **status})]

    async def _send(self, message: str | bytes) -> None:
        """Wait until it is on its way; who takes nothing for long is let go."""
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


def _error(sentence: str) -> str:
    return json.dumps({"kind": "error", "sentence": sentence})


def _now() -> float:
    return asyncio.get_running_loop().time()
