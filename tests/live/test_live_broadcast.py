"""A live source: computed once for all, its trouble told, its clock followed, slow viewers skipped."""

import json
import socket
import threading

import numpy as np
import pytest

from ripe_mambaspike import create_model, write
from ripe_mambaspike.errors import InputError
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.predict import predict
from ripe_mambaspike.inference.stream.packets import write_packet
from ripe_mambaspike.inference.stream.send import RecordingSender
from ripe_mambaspike.inference.stream.sources import UdpSource, open_stream
from ripe_mambaspike.live.broadcast import MAX_KEPT_PREDICTIONS, LiveStream
from ripe_mambaspike.live.frames import MAX_DRAWN_EVENTS
from ripe_mambaspike.live.network import make_served_network
from ripe_mambaspike.live.watched import WatchedRecording

SENSOR = (24, 20)


class Given:
    """A source of packets that a test hands over."""

    live, invalid, last_invalid = True, 0, None

    def __init__(self, packets=(), size=SENSOR, error=None, ends=False):
        self.size, self._packets, self._error, self._ends = size, packets, error, ends
        self.taken = threading.Event()

    def packets(self, stopped):
        yield from self._packets
        if self._error:
            raise self._error
        self.taken.set()
        while not self._ends and not stopped():
            threading.Event().wait(0.005)


@pytest.fixture
def broadcast(network):
    made = []

    def make(source):
        made.append(LiveStream("udp://test", source, lambda size: network.for_stream(size)[0], 20))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def split(events, parts):
    return np.array_split(events, parts)


def test_predictions_are_those_of_the_streamer(broadcast, wait_until, random_events, network):
    events = random_events(4000, 0.7, seed=3, start_us=5_000_000)
    live = broadcast(Given(split(events, 17)))
    live.start()
    wait_until(lambda: sum(told.final for told in live.predictions(0, MAX_KEPT_PREDICTIONS)[0]) == 3, "three windows")
    finals = [told for told in live.predictions(0, MAX_KEPT_PREDICTIONS)[0] if told.final]
    assert [told.at_us for told in finals] == [400_000, 500_000, 600_000]
    wanted = [answer for answer in network.for_stream(SENSOR)[0].push(events) if answer.final]
    for told, answer in zip(finals, wanted, strict=True):
        assert json.loads(told.json)["p"] == pytest.approx(answer.probabilities, abs=1e-5)


def test_a_tcp_source_takes_one_sender_after_another(broadcast, wait_until, random_events, network, tmp_path):
    """Recordings that `ripe send` plays; the second one's clock goes on a minute later."""
    source = open_stream("tcp://127.0.0.1:0", keep_listening=True)
    live = broadcast(source)
    live.start()
    wanted = []
    for number in range(2):
        events = random_events(3000, 0.45, seed=number, start_us=60_000_000 * number)
        write(Recording(events, SENSOR), tmp_path / "clip.npz")
        RecordingSender(tmp_path / "clip.npz", f"tcp://127.0.0.1:{source.address[1]}", speed=2).run()
        wanted.append(next(one for one in network.for_stream(SENSOR)[0].push(events) if one.final))

    def finals():
        return [told for told in live.predictions(0, MAX_KEPT_PREDICTIONS)[0] if told.final]

    def told(answer):
        shares = [json.loads(one.json)["p"] for one in finals()]
        return any(share == pytest.approx(answer.probabilities, abs=1e-5) for share in shares)

    wait_until(lambda: all(map(told, wanted)), "the first window of both")
    assert source.invalid == 0


@pytest.mark.slow
def test_all_viewers_see_one_computation(broadcast, serve, watch, wait_until, random_events):
    release = threading.Event()
    events = random_events(3000, 0.45, seed=4)

    class Late(Given):
        def packets(self, stopped):
            release.wait(60)
            yield from super().packets(stopped)

    running = serve(live=broadcast(Late(split(events, 9))))
    with watch(running) as first, watch(running) as second:
        assert first.hello["live"] == "udp://test"
        for viewer in (first, second):
            viewer.ask("attention", True)
            viewer.ask("live")
            opened = viewer.until("opened")
            assert (opened["live"], opened["width"], opened["height"]) == (True, 24, 20)
        release.set()
        for viewer in (first, second):
            viewer.until(lambda said, viewer=viewer: len(viewer.answers) == 4)
            viewer.until(lambda said, viewer=viewer: viewer.frames)
        assert first.answers == second.answers
        assert [one["step"] for one in first.answers] == [1, 2, 3, 4]
        assert first.answers[-1]["attention"]["width"] == 2
        status = first.until(lambda said: said["kind"] == "status" and said["viewers"] == 2)
        assert status["dropped"] == 0
        first.ask("play", 1)  # from the live source to a recording, and the other goes on
        opened = first.until("opened")
        assert (opened["live"], opened["round"]) == (False, 2)  # what is on its way from the source has 1
        second.until(lambda said: said["kind"] == "status" and said["viewers"] == 1)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (Given(error=InputError("the cable is out")), "udp://test: the cable is out"),
        (Given(error=OSError("odd")), "udp://test: the source failed (OSError: odd)"),
        (Given(ends=True), "udp://test: the source has ended"),
    ],
    ids=["refused", "failed", "ended"],
)
def test_a_problem_of_the_source_is_reported_and_the_page_goes_on(broadcast, serve, watch, source, sentence):
    running = serve(live=broadcast(source))
    with watch(running) as viewer:
        viewer.ask("live")
        status = viewer.until(lambda said: said["kind"] == "status" and said["problem"])
        assert status["problem"] == sentence
        viewer.ask("play", 1)
        assert viewer.until("predictions")["predictions"]


def test_a_sensor_that_is_too_small_is_reported(broadcast, wait_until, random_events):
    class Small(Given):
        def packets(self, stopped):
            self.size = (8, 8)  # as its first packet says
            yield from super().packets(stopped)

    live = broadcast(Small([random_events(100, 0.1, sensor=(8, 8))], size=None))
    live.start()
    wait_until(lambda: live.status()["problem"], "being told")
    assert "grid: expected at most the 8×8 pixels" in live.status()["problem"]


def test_invalid_packets_on_a_port_are_counted_and_the_others_read(broadcast, wait_until, random_events):
    source = UdpSource("127.0.0.1", 0)
    live = broadcast(source)
    events = random_events(2000, 0.45, seed=5)
    live.start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in (b"", b"garbage", write_packet(events[:5], (9, 9))[:-1]):
            sender.sendto(data, source.address)
        for packet in split(events, 5):
            sender.sendto(write_packet(packet, SENSOR), source.address)
    wait_until(lambda: any(told.final for told in live.predictions(0, MAX_KEPT_PREDICTIONS)[0]), "an answer")
    assert live.status()["problem"].startswith("3 invalid packets (the last: a packet of 81 bytes came as 80)")
    assert live.describe()["width"] == 24


def test_times_continue_after_a_clock_restart(broadcast, wait_until, random_events):
    first = random_events(2000, 0.45, seed=6, start_us=900_000_000)
    second = random_events(2000, 0.45, seed=7, start_us=0)
    live = broadcast(Given([*split(first, 5), *split(second, 5)]))
    live.start()
    wait_until(
        lambda: sum(told.final for told in live.predictions(0, MAX_KEPT_PREDICTIONS)[0]) == 2, "an answer of each"
    )
    dues = [told.at_us for told in live.predictions(0, MAX_KEPT_PREDICTIONS)[0]]
    assert dues == sorted(dues)
    assert dues[-1] == 800_000


def test_slow_viewers_get_the_latest_predictions(broadcast):
    from ripe_mambaspike.live.messages import PredictionMessage

    live = broadcast(Given())
    for number in range(MAX_KEPT_PREDICTIONS + 100):
        live._predictions.append(PredictionMessage(number, True, str(number).encode(), b""))
        live._count += 1
    found, following = live.predictions(0, 64)
    assert (found[0].at_us, len(found), following) == (100, 64, 164)
    assert live.predictions(MAX_KEPT_PREDICTIONS + 100, 64) == ([], MAX_KEPT_PREDICTIONS + 100)
    assert live.next_number() == MAX_KEPT_PREDICTIONS + 100


def test_one_frame_for_all_viewers_and_bounded_events_without_any(broadcast):
    live = broadcast(Given())
    packet = make_events(np.zeros(60_000), np.zeros(60_000), np.arange(60_000), np.ones(60_000))
    for _ in range(20):
        live._on_events(packet)
    assert sum(map(len, live._recent)) < MAX_DRAWN_EVENTS + len(packet)
    number, drawn, place, span = live.frame(100.0)
    assert (number, drawn.width, drawn.height, drawn.events) == (1, 24, 20, 20 * 60_000)
    assert live.frame(100.01)[0] == 1  # the next viewer of this moment
    assert live.frame(100.1)[0] == 2
    assert live.frame(100.1)[1].events == 0
    assert Recording(packet, SENSOR).duration_us == 59_999
    assert place >= 0
    assert span > 0


def test_predict_is_what_a_window_of_its_own_length_says(classifier, network, random_events):
    clip = Recording(random_events(1500, 0.4, seed=8), SENSOR)
    streamer, bin_us = network.for_recording(SENSOR, clip.duration_us + 1)
    answers = streamer.push(clip.events) + streamer.advance(clip.last_us + 1)
    assert answers[-1].probabilities == pytest.approx(list(predict(classifier, clip).probabilities.values()), abs=1e-6)
    assert bin_us == 100_000


def test_a_causal_network_predicts_whenever_a_bin_closes(random_events):
    fields = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": 16}
    model = create_model("nmnist", seed=0, causal=True, **fields).eval()
    network = make_served_network(Classifier(model, tuple("0123456789"), 4, (16, 16), "time", False), 400)
    assert network.hop_us == 100_000
    track = WatchedRecording(Recording(random_events(3000, 1.0), SENSOR), "clip", network.for_recording)
    track.viewers = 1
    track.request(track.duration_us)
    while track.ready():
        track.step()
    assert track.problem is None
    assert [told.at_us for told in track.predictions(0, track.duration_us, 99)] == [100_000 * n for n in range(1, 11)]
