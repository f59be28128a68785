"""Where events come from, and the run that joins a source, a queue and a network."""

import socket
import time

import numpy as np
import pytest
from packets import SENSOR, make, same

from raising import raises
from ripe_mambaspike import write
from ripe_mambaspike.errors import InputError, ReadError
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.stream.packets import write_packet
from ripe_mambaspike.inference.stream.run import StreamRunner
from ripe_mambaspike.inference.stream.sources import FileSource, PipeSource, UdpSource, open_stream, split_events
from ripe_mambaspike.inference.stream.summary import StreamLimits
from ripe_mambaspike.inference.streamer import StreamPrediction


class Echo:
    """A streamer that predictions every packet at once."""

    def __init__(self, size=SENSOR):
        self.size, self.late, self.silent = size, 0, 0
        self.pushed, self.advanced, self.resets = [], [], 0

    def push(self, events):
        self.pushed.append(events["t"].tolist())
        return [StreamPrediction(0, 10, 4, 4, (1.0,), "one", 1.0, (0.1,) * 3, None, 0.01)]

    def advance(self, to_us):
        self.advanced.append(to_us)
        return []

    def finish_pending(self):
        pass

    def reset(self):
        self.resets += 1


class Given:
    """A source of ready packets."""

    def __init__(self, packets, live=False, pause=0.0, failure=None):
        self.live, self.invalid, self.last_invalid, self.size = live, 0, None, SENSOR
        self._packets, self._pause, self._failure = packets, pause, failure

    def packets(self, stopped):
        for packet in self._packets:
            yield packet
            if self._failure is not None:
                raise self._failure
            until = time.monotonic() + self._pause
            while not stopped() and time.monotonic() < until:
                time.sleep(0.005)


def run_with(source, limits=None, **options):
    echo, predictions, said = Echo(), [], []
    run = StreamRunner(
        source,
        lambda size: echo,
        limits or StreamLimits(),
        on_prediction=predictions.append,
        on_message=said.append,
        **options,
    )
    return echo, predictions, said, run


def test_everything_reaches_the_network():
    echo, predictions, said, run = run_with(Given([make([1, 2]), make([3]), make([4, 5, 6])]))
    summary = run.run()
    assert echo.pushed == [[1, 2], [3], [4, 5, 6]]
    assert (summary.events, summary.predictions, len(predictions), said) == (6, 3, 3, [])
    assert summary.latency_ms["p50"] == pytest.approx(10, rel=0.03)  # not live: what the prediction took
    assert summary.dropped == {"queue": 0, "rate": 0, "late": 0, "stray": 0}


def test_it_stops_after_max_predictions():
    _, predictions, _, run = run_with(Given([make([index]) for index in range(50)]), StreamLimits(max_predictions=7))
    assert run.run().predictions == len(predictions) == 7


def test_it_stops_when_should_stop_says_so():
    asked = []
    source = Given([make([1]), make([2])], live=True, pause=60)
    _, predictions, _, run = run_with(source, should_stop=lambda: bool(asked or predictions))
    assert run.run().predictions == 1


def test_a_stall_is_reported_and_time_goes_on():
    source = Given([make([1000]), make([1_500_000])], live=True, pause=0.3)
    echo, _, said, run = run_with(source, StreamLimits(stall_seconds=0.05))
    summary = run.run()
    assert summary.stalls >= 1
    assert said[0].startswith("no events for ")
    assert echo.advanced[:-1] == sorted(echo.advanced[:-1])
    assert echo.advanced[-1] == 1_500_001  # the end of the source
    assert echo.advanced[0] >= 51_000  # the newest event and the wall time since
    assert summary.events == 2


def test_a_restarted_clock_is_reported():
    source = Given([make([10**9]), make([5]), make([6])], live=True)
    echo, _, said, run = run_with(source)
    assert run.run().restarts == 1
    assert echo.resets == 1
    assert echo.pushed == [[10**9], [5, 6]]
    assert said == ["the source's clock restarted; open windows are dropped"]


def test_the_end_closes_the_last_bin():
    echo, _, _, run = run_with(Given([make([1, 9]), make([4])]))
    run.run()
    assert echo.advanced == [10]
    broken, _, _, run = run_with(Given([make([1, 9])], failure=ReadError("one.npz is cut off")))
    with raises(ReadError):
        run.run()
    assert broken.advanced == []  # the rest is unknown


def frames_over_a_port(frames, make_streamer, limits, **options):
    source = UdpSource("127.0.0.1", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in frames:
            sender.sendto(data, source.address)
    said = []
    run = StreamRunner(source, make_streamer, limits, on_prediction=lambda one: None, on_message=said.append, **options)
    return source, said, run


def refuse_small(size):
    if min(size) < 10:
        raise InputError(f"the sensor of {size[0]}×{size[1]} is too small", field="sensor_size")


@pytest.mark.parametrize("asked", [True, False], ids=["asked first", "made"])
def test_packets_of_an_unusable_sensor_are_left_out_and_the_stream_goes_on(asked):
    echo = Echo()

    def make_streamer(size):
        refuse_small(size)
        return echo

    small, empty = write_packet(make_events([1], [1], [1], [0]), (8, 8)), write_packet(make([]), (1, 1))
    frames = [empty, small, small, write_packet(make([1, 2]), SENSOR), small, write_packet(make([3]), SENSOR)]
    options = {"check_sensor": refuse_small} if asked else {}
    source, said, run = frames_over_a_port(
        frames, make_streamer, StreamLimits(max_predictions=2), report_invalid=True, **options
    )
    summary = run.run()
    assert echo.pushed == [[1, 2], [3]]
    assert source.size == SENSOR
    assert (summary.invalid_packets, summary.last_invalid) == (3, "a sensor of 8×8 in a stream of 20×18")
    assert len(said) == 1
    assert "invalid packet" in said[0]


def test_an_unusable_sensor_given_by_the_caller_is_an_error(tmp_path):
    path = tmp_path / "frames"
    path.write_bytes(write_packet(make([1]), SENSOR))
    with path.open("rb") as file:
        source = PipeSource(file, sensor_size=(8, 8))
        with raises(InputError, field="sensor_size", mentions="8×8 is too small"):
            StreamRunner(source, refuse_small, StreamLimits(), on_prediction=print, on_message=print)


@pytest.mark.parametrize(
    "data", [b"x" * 100, write_packet(make_events([1], [1], [1], [0]), (8, 8))], ids=["no", "small"]
)
def test_a_source_of_invalid_packets_alone_is_an_error(data, tmp_path):
    path, said = tmp_path / "frames", []
    path.write_bytes(data)
    with path.open("rb") as file:
        run = StreamRunner(
            PipeSource(file),
            refuse_small,
            StreamLimits(),
            on_prediction=print,
            on_message=said.append,
            report_invalid=True,
        )
        with raises(InputError, field="source", mentions=(1, "the last: ")):
            run.run()
    assert run.summary.invalid_packets == 1
    assert [one.split(" (")[0] for one in said] == ["1 invalid packet"]


def test_invalid_packets_are_reported_at_intervals(monkeypatch):
    monkeypatch.setattr("ripe_mambaspike.inference.stream.run.MESSAGE_INTERVAL_SECONDS", 0.0)
    source = Given([make([1]), make([2]), make([3])], live=True, pause=0.2)
    _, predictions, said, run = run_with(source, report_invalid=True)

    def more(prediction):
        predictions.append(prediction)
        source.invalid, source.last_invalid = 1000 * len(predictions) - 999, f"reason {len(predictions)}"

    run._on_prediction = more
    run.run()
    assert said[:2] == ["1 invalid packet (the last: reason 1)", "1,001 invalid packets (the last: reason 2)"]
    assert len(said) == 3


def test_a_closed_standard_input_is_an_error(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with raises(InputError, field="source", mentions="standard input"):
        open_stream("-")


def test_drops_are_counted_by_kind():
    source = Given([make(range(100))], live=True)
    echo, _, _, run = run_with(source, StreamLimits(max_rate=30))
    summary = run.run()
    assert echo.pushed == [list(range(30))]
    assert summary.dropped["rate"] == 70


def test_a_source_that_fails_is_an_error_after_what_came():
    echo, _, _, run = run_with(Given([make([1])], failure=ReadError("one.npz is cut off at byte 7")))
    with raises(ReadError, mentions="cut off at byte 7"):
        run.run()
    assert echo.pushed == [[1]]
    assert run.summary.events == 1


def test_datagrams_and_garbage_over_a_port():
    source = UdpSource("127.0.0.1", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in (b"", b"hello", write_packet(make([1, 2]), SENSOR), b"REVT", write_packet(make([3]), SENSOR)):
            sender.sendto(data, source.address)
    echo, _, _, run = run_with(source, StreamLimits(max_predictions=2))
    summary = run.run()
    assert echo.pushed == [[1, 2], [3]]
    assert (summary.invalid_packets, summary.last_invalid) == (3, "4 bytes are shorter than a header")
    taken = UdpSource("127.0.0.1", 0)
    with raises(InputError, field="source", mentions=f"udp://127.0.0.1:{taken.address[1]}"):
        UdpSource("127.0.0.1", taken.address[1])


def test_a_rate_at_the_pace_fast_is_refused():
    with raises(InputError, field="max_rate", mentions=(5, "fast")):
        run_with(Given([]), StreamLimits(max_rate=5))


# Sources


def test_a_recording_comes_in_packets(tmp_path):
    times = np.sort(np.random.default_rng(0).integers(0, 60_000, 3000))
    path = tmp_path / "one.npz"
    write(Recording(make(times), SENSOR), path)
    for pace in ("fast", "real"):
        source = open_stream(str(path), pace=pace)
        assert isinstance(source, FileSource)
        packets = list(source.packets(lambda: False))
        assert same(np.concatenate(packets), make(times))
        assert source.size == SENSOR
        assert source.live == (pace == "real")
        spans = [int(packet["t"][-1] - packet["t"][0]) for packet in packets]
        assert max(spans) < (10_000 if pace == "real" else 60_000)


def test_a_format_without_a_size_has_the_readers(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("".join(f"{index} {index % 20} 5 1\n" for index in range(1000)))
    from ripe_mambaspike.events.reading import read

    assert open_stream(str(path), pace="fast").size == read(path).sensor_size


def test_the_order_of_a_file_is_kept():
    events = make([5, 3, 25_000, 24_000, 60_000, 1])
    parts = list(split_events(events, 10_000, max_events=2))
    assert same(np.concatenate(parts), events)
    assert [len(part) for part in parts] == [2, 2, 2]


def test_a_pipe_is_read_to_its_end(tmp_path):
    path = tmp_path / "frames"
    other = write_packet(make_events([1], [1], [5], [0]), (30, 30))
    path.write_bytes(write_packet(make([1, 2]), SENSOR) + b"noise" * 9 + other + write_packet(make([3]), SENSOR))
    with path.open("rb") as file:
        source = PipeSource(file)
        assert [packet["t"].tolist() for packet in source.packets(lambda: False)] == [[1, 2], [3]]
    assert source.size == SENSOR
    assert source.invalid == 2
    assert source.last_invalid == "a sensor of 30×30 in a stream of 20×18"


@pytest.mark.parametrize(
    "given",
    ["http://host:1", "tcp://host", "tcp://host:70000", "udp://host", "udp://host:70000", "udp://:5", "udp://[::1:5"],
)
def test_addresses_that_are_no_source(given):
    with raises(InputError, field="source", mentions=("udp://HOST:PORT", given)):
        open_stream(given)


def test_a_file_that_is_not_there(tmp_path):
    with raises(ReadError, path=tmp_path / "none.npz"):
        open_stream(str(tmp_path / "none.npz"))
