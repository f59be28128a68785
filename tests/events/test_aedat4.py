"""AEDAT4 by a package: what it gives, what it raises, and what its Rust code does with damaged files."""

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from makers import EVENTS, aedat4, aedat4_events, read_or_not, refused

from raising import raises
from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events import read, read_chunks

EMPTY = aedat4()
THEIRS = [("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("on", "?")]


class PanicException(BaseException):
    """What a panic in Rust is in Python: no `Exception`."""


def package(packets, streams):
    """A package `aedat` that has read this."""

    class Decoder:
        def __init__(self, path):
            if isinstance(streams, BaseException):
                raise streams

        def id_to_stream(self):
            return streams

        def __iter__(self):
            for packet in packets:
                if isinstance(packet, BaseException):
                    raise packet
                yield packet

    return SimpleNamespace(Decoder=Decoder)


STREAMS = {0: {"type": "events", "width": 30, "height": 20}, 1: {"type": "imus"}}
PACKET = {"stream_id": 0, "events": np.array([(5, 1, 2, True), (9, 3, 4, False)], THEIRS)}


@pytest.fixture
def read_with(monkeypatch, in_process):
    def read_packets(path, packets, streams=STREAMS):
        monkeypatch.setitem(sys.modules, "aedat", package(packets, streams))
        return read(path)

    return read_packets


def test_events_of_the_first_stream_and_counts_of_the_rest(saved, read_with):
    streams = {2: STREAMS[0], **STREAMS}
    packets = [PACKET, {"stream_id": 1, "imus": []}, {**PACKET, "stream_id": 2}, PACKET]
    with pytest.warns(UserWarning, match="times run backwards|another stream"):
        recording = read_with(saved(EMPTY), packets, streams)
    assert recording.events.tolist() == [(1, 2, 5, 1), (3, 4, 9, 0)] * 2
    assert recording.sensor_size == (30, 20)
    assert recording.metadata["other_packets"] == 1
    assert recording.metadata["streams_of_events"] == 2
    assert "2 events that were of another stream left out" in recording.warnings


@pytest.mark.parametrize("error", [PanicException("range end index 9 out of range"), RuntimeError("range end index 9")])
@pytest.mark.parametrize("when", ["opened", "read"])
def test_errors_and_panics_of_the_package_name_the_file(saved, read_with, error, when):
    path = saved(EMPTY, "a.aedat4")
    with raises(ReadError, field="packets", path=path, mentions=["range end index 9"]):
        read_with(path, [PACKET, error], error if when == "opened" else STREAMS)


def test_a_user_may_still_interrupt(saved, read_with):
    with pytest.raises(KeyboardInterrupt):
        read_with(saved(EMPTY), [PACKET, KeyboardInterrupt()])


@pytest.mark.parametrize(
    ("packets", "streams", "field", "value"),
    [
        ([], {1: {"type": "imus"}}, "streams", "none"),
        ([], STREAMS, "events", "none"),
        ([PACKET], {0: {"type": "events", "width": 0, "height": 9}}, "sensor_size", "0×9"),
    ],
)
def test_a_file_without_events(saved, read_with, packets, streams, field, value):
    path = saved(EMPTY)
    with raises(ReadError, field=field, path=path, mentions=[value]):
        read_with(path, packets, streams)


def test_without_the_package(saved, monkeypatch, in_process):
    monkeypatch.setitem(sys.modules, "aedat", None)
    refused(saved(EMPTY), "format", "package aedat", "ripe-mambaspike[data]")


def test_a_file_put_together_by_hand(saved):
    pytest.importorskip("aedat")
    data = aedat4((0, aedat4_events(EVENTS)))
    whole = aedat4((0, aedat4_events(EVENTS)), table=len(data)) + bytes(50)
    for made in (data, whole):
        recording = read(saved(made), strict=True)
        np.testing.assert_array_equal(recording.events, EVENTS)
        assert recording.sensor_size == (40, 30)


@pytest.mark.parametrize(
    ("data", "field", "values"),
    [
        (EMPTY[:14] + b"\xff\xff\xff\xff" + EMPTY[18:], "size", ["header of 4294967295 bytes"]),
        (EMPTY + b"\0\0\0\0\xff\xff\xff\xff", "size", ["4294967295 bytes", f"at byte {len(EMPTY)}"]),
        (EMPTY + b"\0\0", "size", [f"cut off at byte {len(EMPTY) + 2}"]),
        (aedat4(table=10**9), "packets", []),
        (aedat4((7, aedat4_events(EVENTS))), "packets", ["unknown stream id"]),
    ],
)
def test_wrong_lengths(saved, data, field, values):
    """The package would allocate that much memory, and end the program if there is not enough."""
    pytest.importorskip("aedat")
    refused(saved(data), field, *values)


@pytest.fixture
def real(shared_data):
    pytest.importorskip("aedat")
    return shared_data / "formats" / "dvxplorer.aedat4"


def test_the_real_file_is_as_the_package_gives_it(real):
    import aedat

    recording = read(real, strict=True)
    theirs = np.concatenate([packet["events"] for packet in aedat.Decoder(real) if "events" in packet])
    for ours, name in (("x", "x"), ("y", "y"), ("t", "t"), ("p", "on")):
        np.testing.assert_array_equal(recording[ours], theirs[name])
    assert len(recording) == 111_954
    assert recording.sensor_size == (320, 240)
    assert (recording["x"].max(), recording["y"].max()) == (319, 239)
    assert recording.in_order()
    assert 589_000 < recording.duration_us < 590_000


def test_the_real_file_in_chunks(real):
    chunks = list(read_chunks(real, events=10_000))
    np.testing.assert_array_equal(np.concatenate([chunk.events for chunk in chunks]), read(real).events)


@pytest.mark.parametrize("length", [14, 15, 100, 2000, 2400, 30_000, 500_000])
def test_the_real_file_cut_off(real, saved, length):
    refused(saved(real.read_bytes()[:length], "a.aedat4"), "size", f"cut off at byte {length}")


@pytest.mark.parametrize("seed", range(40))
def test_the_real_file_damaged(real, saved, seed):
    """Its panics are errors like others: one of them every third time."""
    dice = random.Random(seed)
    data = bytearray(real.read_bytes()[: dice.choice([2400, 60_000])])
    for _ in range(dice.choice([1, 3, 20])):
        at = dice.randrange(12, min(len(data), dice.choice([200, 2400, 60_000])))
        data[at : at + 4] = dice.choice([dice.randbytes(4), b"\xff\xff\xff\x7f", b"\0\0\0\0", b""])
    recording, error = read_or_not(saved(bytes(data), "a.aedat4"))
    assert "a.aedat4" in error if recording is None else len(recording) > 0
