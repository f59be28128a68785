"""Decoders in a process of their own: what becomes of the reader when that process dies, waits or is abandoned."""

import base64
import os
import signal
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest
from makers import EVENTS, aedat4, aedat4_events, as_events, columns, hdf5

from ripe_mambaspike.errors import ReadError
from ripe_mambaspike.events import isolated, open_recording, read, read_chunks

pytest.importorskip("h5py")
MANY = as_events([(i % 640, i % 480, 3 * i, i % 2) for i in range(300_000)])
LIMITS = "from ripe_mambaspike.events import isolated_reader as g; import time; "


def fill(events):
    def put(file):
        for name, column in columns(events).items():
            file[f"events/{name}"] = column

    return put


@pytest.fixture
def small_file(saved):
    return saved(hdf5(fill(EVENTS)), "small.h5")


@pytest.fixture
def large_file(saved):
    return saved(hdf5(fill(MANY)), "large.h5")


@pytest.fixture(autouse=True)
def none_idle():
    isolated.close_idle()


def test_one_process_reads_file_after_file(small_file, large_file):
    read(small_file)
    (first,) = isolated._idle
    np.testing.assert_array_equal(read(large_file).events, MANY)
    assert isolated._idle == [first]


def test_a_process_that_dies_while_it_reads_is_an_error_and_the_next_file_is_read(small_file, large_file):
    opened = open_recording(large_file)
    (process,) = isolated._idle
    pieces = opened.pieces()
    next(pieces)
    process.process.kill()
    with pytest.raises(ReadError) as caught:
        list(pieces)
    assert caught.value.path == large_file
    np.testing.assert_array_equal(read(small_file).events, EVENTS)


def test_a_process_that_died_while_it_waited_is_replaced(small_file):
    read(small_file)
    isolated._idle[0].process.kill()
    isolated._idle[0].process.wait()
    np.testing.assert_array_equal(read(small_file).events, EVENTS)


def test_a_process_that_never_answers_is_ended(large_file, monkeypatch):
    opened = open_recording(large_file)
    isolated._idle[0].process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(isolated, "MAX_WAIT_SECONDS", 0.2)
    with pytest.raises(ReadError) as caught:
        list(opened.pieces())
    assert caught.value.path == large_file


def test_a_recording_that_nobody_reads_to_its_end_leaves_no_process(small_file, large_file):
    chunks = read_chunks(large_file, events=1000)
    (process,) = isolated._idle
    next(chunks)
    chunks.close()
    assert process.process.poll() is not None
    np.testing.assert_array_equal(read(small_file).events, EVENTS)


def test_two_files_are_read_at_once(small_file, large_file):
    chunks = read_chunks(large_file, events=70_000)
    first = next(chunks)
    np.testing.assert_array_equal(read(small_file).events, EVENTS)
    np.testing.assert_array_equal(np.concatenate([first.events, *(chunk.events for chunk in chunks)]), MANY)


def test_threads_do_not_mix_up_their_files(small_file, large_file):
    found = {}

    def run(number):
        found[number] = [len(read(path)) for path in (small_file, large_file) * 3]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(found.values()) == [[len(EVENTS), len(MANY)] * 3] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_leaves_its_parents_alone(small_file):
    read(small_file)
    (process,) = isolated._idle
    child = os.fork()
    if child == 0:
        whole = len(read(small_file)) == len(EVENTS) and isolated._idle[0].process.pid != process.process.pid
        isolated.close_idle()
        os._exit(0 if whole else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert isolated._idle == [process]
    np.testing.assert_array_equal(read(small_file).events, EVENTS)


def test_what_lies_in_the_working_folder_is_not_imported(small_file, tmp_path, monkeypatch):
    (tmp_path / "h5py.py").write_text("raise SystemExit(3)")
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    recording = read(small_file.name)
    np.testing.assert_array_equal(recording.events, EVENTS)


def test_an_error_names_the_file_as_it_was_given(saved, tmp_path, monkeypatch):
    saved(hdf5(lambda file: None), "none.h5")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReadError) as caught:
        read("none.h5")
    assert str(caught.value).startswith("none.h5: ")


def ends(code):
    return subprocess.run([sys.executable, "-c", LIMITS + code], capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="bounds on memory are Linux's")
def test_the_process_has_only_so_much_memory():
    assert "MemoryError" in ends("g.limit_memory_growth(); bytearray(g.MAX_MEMORY_BYTES + (1 << 20))").stderr
    assert ends("g.limit_memory_growth(); bytearray(g.MAX_MEMORY_BYTES // 2)").returncode == 0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers here")
def test_the_process_has_only_so_much_time():
    assert ends("g.limit_cpu_time(time.process_time() + 0.1); [None for _ in iter(int, 1)]").returncode < 0


# What ends the process that reads HDF5

# Found by mutation: the library (2.0.0, of h5py 3.16) reads memory that is not its own.
CRASHING = zlib.decompress(
    base64.b85decode(
        "c-rlmF;Buk6vwYus%MD-"
        ";zHDcMZ;tq7~CudNGCPu;Ao;G4u)tXMoml{@tZjNDV+TT#!umf9QUs6C2bYc5Rm_m;c@i!4(=XzzreHKXf3;|E|Unsa;(Ur42ajQ"
        "upPaA%F?lh4@sHYCF;LV?H8`%al6@MlpDu~qoQD79`T#?Lm5w~t*i8nn|YnvPPccHR!QTLRKLEh+8566>UT$&?;Ff_{Z=XV9W(Ea"
        ";yuM4#jBtm$Kz=Kpdo8m@0%4HYw@>zV8K`bi*^LdGWQ1^ZF*L!6d0#(zUwfzK-"
        "V2w5pMHQ2YKeH{`7wKD28JsFP5FKlL#8u=KN_%y_A!~gc)8Y^P%c0$12p`+epvX^YXryo~P@yx|p7)KmAu}w(Cls8$oRW00000Or"
        "_86lB0R7mS?qrJu#mZE1}PdtbG<91^@s6fLZ12Tw073Yj&p5Ma@fIDh9WRz`dfsHcO+kVvO$cA<5|2Pe%8-"
        "9vWR_C_mE~(Pn4<Z}}gM9smFU0F&XmJHBsKN2z75ZYhe;yIOVaET%D;XS<ilSs(GR_GYYyZNs+!0000m6?_9!d^=?"
    )
)


def test_a_file_that_crashes_the_library_does_not_end_the_program(saved, small_file):
    path = saved(CRASHING, "a.h5")
    with pytest.raises(ReadError) as caught:
        read(path)
    assert caught.value.path == path
    np.testing.assert_array_equal(read(small_file).events, EVENTS)


# What aborts, or takes the memory of, the process that reads AEDAT4


@pytest.mark.parametrize("byte", [0xC3, 0xE2, 0xF0, 0xFF])
def test_a_description_that_is_no_text_does_not_end_the_program(saved, byte):
    """The package aborts on some of these, and passes over others."""
    pytest.importorskip("aedat")
    data = aedat4((0, aedat4_events(EVENTS)))
    for place in (b"><node", b'"0" path', b"EVTS", b"</dv>"):
        at = data.index(place)
        path = saved(data[:at] + bytes([byte]) + data[at + 1 :], "a.aedat4")
        with pytest.raises(ReadError) as caught:
            read(path)
        assert caught.value.field == "header"
        assert caught.value.path == path


def zstandard_zeros(head, count):
    """`head` and then so many zeros, as a Zstandard frame: a run of 128 KiB takes four bytes."""
    made = b"\x28\xb5\x2f\xfd\x00\x58" + (len(head) << 3).to_bytes(3, "little") + head
    for at in range(0, count, 1 << 17):
        size = min(1 << 17, count - at)
        made += (size << 3 | 1 << 1 | (at + size == count)).to_bytes(3, "little") + b"\0"
    return made


def packed(events):
    """A packet of so many events, all zeros."""
    head = aedat4_events(EVENTS[:0])
    head = head[:-4] + events.to_bytes(4, "little")
    return zstandard_zeros((len(head) - 4 + 16 * events).to_bytes(4, "little") + head[4:], 16 * events)


def compressed(*packets):
    data = bytearray(aedat4(*packets))
    at = data.index(b"IOHE") + 4 + 4 + 2 + 10 + 4
    assert data[at : at + 4] == bytes(4)
    data[at] = 3  # Zstandard
    return bytes(data)


def test_packed_events_are_read(saved):
    pytest.importorskip("aedat")
    recording = read(saved(compressed((0, packed(100_000))), "a.aedat4"))
    assert len(recording) == 100_000
    assert not recording["t"].any()


@pytest.mark.parametrize(
    "packets", [[60_000_000], pytest.param([7_000_000] * 3, marks=pytest.mark.slow)], ids=["one", "many"]
)
def test_few_bytes_that_unpack_to_gigabytes(saved, packets):
    pytest.importorskip("aedat")
    path = saved(compressed(*((0, packed(events)) for events in packets)), "a.aedat4")
    assert path.stat().st_size < 100_000
    with pytest.raises(ReadError) as caught:
        list(read_chunks(path))
    assert caught.value.path == path
