"""A stream's predictions are those of the network on each window, to the last bit, however the events arrive."""

import gc
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.toy_network import SMALL as OTHERS
from tests.toy_network import make_small

from raising import raises
from ripe_mambaspike import create_model
from ripe_mambaspike.deploy.fuse.convert import dual_kernel, fuse
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.errors import InputError, WeightsError
from ripe_mambaspike.events.binning import bin_events
from ripe_mambaspike.events.recording import Recording, make_events
from ripe_mambaspike.inference.classifier import Classifier
from ripe_mambaspike.inference.predict import predict
from ripe_mambaspike.inference.stream.window_batch import ClipBatch, WindowBatch, make_batch
from ripe_mambaspike.inference.streamer import Streamer, default_hop
from ripe_mambaspike.inference.unknown import probability_score
from ripe_mambaspike.models.base import clip_logits
from ripe_mambaspike.models.labels import UnknownRule
from ripe_mambaspike.models.observe import attention_contrast
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.ops.cpp.build import unavailable_reason

SENSOR = (20, 18)
SMALL = {"stage_channels": (8, 12, 16), "embed_dims": (8, 16, 24), "time_steps": 4, "in_size": 16, "num_classes": 3}
NAMES = ("clap", "wave", "roll")
OPERATORS = unavailable_reason() is None
needs_operators = pytest.mark.skipif(not OPERATORS, reason="the C++ operators cannot be built here")


def network(form="deployed", **fields):
    model = create_model("nmnist", seed=0, **{**SMALL, **fields}).eval()
    randomize(model, 0)
    return {"training": lambda m: m, "deployed": fuse, "dual-kernel": dual_kernel}[form](model)


@pytest.fixture(scope="module")
def classifier():
    return Classifier(network(), NAMES, 4, (16, 16), "time", False)


def make_stream(times, seed=0):
    rng = np.random.default_rng(seed)
    times = np.sort(np.asarray(times))
    columns = (rng.integers(0, side, len(times)) for side in SENSOR)
    return make_events(*columns, times, rng.integers(0, 2, len(times)))


@pytest.fixture(scope="module")
def stream():
    """A busy stretch, a silence of many windows, and another busy stretch."""
    rng = np.random.default_rng(1)
    return make_stream(np.concatenate((rng.integers(1000, 3000, 2500), rng.integers(9007, 10000, 1200))))


def whole(classifier, events, prediction, steps=None):
    """The network's own prediction for the part of a window that an prediction is for."""
    inside = events[(events["t"] >= prediction.start_us) & (events["t"] < prediction.stop_us)]
    clip = bin_events(
        Recording(inside, SENSOR),
        classifier.time_steps,
        grid=classifier.grid,
        binary=classifier.binary,
        start_us=prediction.start_us,
        stop_us=prediction.stop_us,
    )
    with torch.no_grad():
        logits = classifier.model(clip[:steps].unsqueeze(0).to(classifier.model.dtype))
    return tuple(torch.softmax(clip_logits(logits)[0], -1).tolist())


def in_packets(streamer, events, sizes, end):
    predictions, first = [], 0
    for size in sizes:
        predictions += streamer.push(events[first : first + size])
        first += size
    return predictions + streamer.push(events[first:]) + streamer.advance(end)


def facts(predictions):
    return [(one.start_us, one.stop_us, one.step, one.label, one.probabilities, one.rates) for one in predictions]


SPANS = [(400, 100), (400, None), (403, 150), (401, 87), (100, 300)]


@pytest.mark.parametrize("binary", [False, True], ids=["counts", "binary"])
@pytest.mark.parametrize(("window", "hop"), SPANS, ids=lambda value: str(value))
def test_every_prediction_is_the_networks_on_that_window(classifier, stream, window, hop, binary):
    one = replace(classifier, binary=binary)
    streamer = Streamer(one, SENSOR, window_us=window, hop_us=hop)
    end = int(stream["t"][-1]) + window
    predictions = in_packets(streamer, stream, [1, 700, 3, 1500], end)
    first, times = int(stream["t"][0]), stream["t"]
    starts = [
        start
        for start in range(first, end - window + 1, streamer.hop_us)
        if ((times >= start) & (times < start + window)).any()
    ]
    assert [prediction.start_us for prediction in predictions] == starts
    assert all(prediction.final and prediction.stop_us == prediction.start_us + window for prediction in predictions)
    assert [prediction.probabilities for prediction in predictions] == [
        whole(one, stream, prediction) for prediction in predictions
    ]
    assert streamer.late == 0
    assert streamer.silent == (end - window - first) // streamer.hop_us + 1 - len(starts)


def test_a_prediction_is_that_of_predict(classifier):
    rng = np.random.default_rng(2)
    times = np.concatenate(([0, 399], rng.integers(0, 400, 600)))
    events = make_stream(times)
    streamer = Streamer(classifier, SENSOR, window_us=400)
    (prediction,) = streamer.push(events) + streamer.advance(400)
    offline = predict(classifier, Recording(events, SENSOR))
    assert prediction.label == offline.label
    assert prediction.probability == offline.probability
    assert prediction.probabilities == tuple(offline.probabilities.values())


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), max_size=25),
    hop=st.sampled_from([100, 70, 250]),
    early=st.booleans(),
)
def test_the_cut_into_packets_changes_nothing(classifier, sizes, hop, early):
    events = make_stream(np.random.default_rng(3).integers(0, 1500, 1500))
    streams = [Streamer(classifier, SENSOR, window_us=400, hop_us=hop, early=early) for _ in range(2)]
    assert facts(in_packets(streams[0], events, sizes, 1600)) == facts(in_packets(streams[1], events, [], 1600))


@needs_operators
@pytest.mark.parametrize(
    "fields",
    [
        {"neurons": "lif", "bridge": "stage3", "tdm": False},
        {"neurons": ("silif", "csilif", "lif"), "mixer": "gru"},
        {"head_hidden_size": 12, "pool_ratios": (2, 1, 3)},
        {"stage_channels": (16, 32, 48), "embed_dims": (16, 16, 16)},  # whole vectors: fewer products
        {"attention": "none"},
        {"num_tokens": 2},
        {"time_steps": 1},
        {"bridge_dim": 11, "d_state": 6, "detach_reset": True},
        {"mixer": "flat-matched", "attention_feature_map": "relu"},
        {"attention": "low-rank"},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_networks_of_other_parts(stream, fields):
    model = network(**fields)
    one = Classifier(model, NAMES, model.config.time_steps, (16, 16), "time", False)
    assert isinstance(make_batch(model, 1, (16, 16), one.time_steps), WindowBatch)
    predictions = Streamer(one, SENSOR, window_us=400, hop_us=170).push(stream[:2000])
    assert len(predictions) > 3
    assert [prediction.probabilities for prediction in predictions] == [
        whole(one, stream, prediction) for prediction in predictions
    ]


@needs_operators
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("stages.1.first_neuron.membrane", torch.Tensor.contiguous),
        ("stages.2.attention.spikes", torch.Tensor.float),
        ("stages.0.first_conv.input", lambda state: state.transpose(2, 3).contiguous().transpose(2, 3)),
        ("bridge.rates.1.count", torch.Tensor.contiguous),
    ],
)
def test_a_state_that_cannot_be_updated_in_place_is_refused(name, change):
    batch = make_batch(network(), 2, (16, 16), 4)
    batch._state[name] = change(batch._state[name])
    with raises(InputError, field=f"state.{name}"):
        batch.advance([1], [0], [torch.zeros(2, 16, 16)])


@pytest.mark.parametrize("kind", ["training", "dual-kernel", "bfloat16", "float64"])
def test_networks_in_other_forms_and_precisions(stream, kind):
    precision = kind in ("bfloat16", "float64")
    model = network().to(getattr(torch, kind)) if precision else network(kind)
    assert isinstance(make_batch(model, 1, (16, 16), 4), WindowBatch if kind == "training" and OPERATORS else ClipBatch)
    one = Classifier(model, NAMES, 4, (16, 16), "time", False)
    predictions = Streamer(one, SENSOR, window_us=400, hop_us=400 if precision else 300).push(stream[:2000])
    assert len(predictions) > (2 if precision else 3)
    assert [each.probabilities for each in predictions] == [whole(one, stream, each) for each in predictions]


def test_another_reset_factor_runs_the_clip(stream):
    model = network(csilif_reset=0.2)
    assert isinstance(make_batch(model, 1, (16, 16), 4), ClipBatch)
    one = Classifier(model, NAMES, 4, (16, 16), "time", False)
    predictions = Streamer(one, SENSOR, window_us=400, hop_us=300).push(stream[:2000])
    assert len(predictions) > 3
    assert [each.probabilities for each in predictions] == [whole(one, stream, each) for each in predictions]
    default = Classifier(network(), NAMES, 4, (16, 16), "time", False)
    assert predictions[-1].probabilities != whole(default, stream, predictions[-1])


def test_without_operators_the_clip_is_run(classifier, stream):
    with kernels("off"):
        assert isinstance(make_batch(classifier.model, 1, (16, 16), 4), ClipBatch)
        streamer = Streamer(classifier, SENSOR, window_us=400, hop_us=300)
        predictions = streamer.push(stream[:2000])
        assert len(predictions) > 3
        assert [prediction.probabilities for prediction in predictions] == [
            whole(classifier, stream, a) for a in predictions
        ]


@pytest.mark.parametrize(
    ("backend", "fields"),
    [
        ("plain", {}),
        ("plain", {"attention": "none", "num_tokens": 2}),
        pytest.param("triton", {}, marks=pytest.mark.slow),
    ],
    ids=["plain", "other parts", "triton"],
)
def test_operators_that_do_not_update_states_in_place(stream, backend, fields):
    one = Classifier(network(**fields), NAMES, 4, (16, 16), "time", False)
    with kernels(backend):
        streamer = Streamer(one, SENSOR, window_us=400, hop_us=170)
        assert isinstance(streamer._processor._network, WindowBatch)
        predictions = streamer.push(stream[:1100])
        assert len(predictions) > 2
        for prediction in predictions:
            assert prediction.probabilities == pytest.approx(whole(one, stream, prediction), abs=1e-4)


@needs_operators
def test_early_predictions_are_those_of_the_steps_seen(classifier, stream):
    streamer = Streamer(classifier, SENSOR, window_us=400, hop_us=200, early=True, attention=True)
    predictions = streamer.push(stream[:1200])
    steps = {}
    for prediction in predictions:
        steps.setdefault(prediction.start_us, []).append(prediction.step)
    full = [seen for start, seen in steps.items() if start + 400 <= stream["t"][1199]]
    assert full == [[1, 2, 3, 4]] * len(full)
    assert len(full) > 2
    for prediction in predictions:
        assert prediction.probabilities == whole(classifier, stream, prediction, prediction.step)
        assert prediction.final == (prediction.step == prediction.time_steps == 4)


def test_rates_and_attention_are_the_networks(classifier, stream):
    prediction = Streamer(classifier, SENSOR, window_us=400, hop_us=400, attention=True).push(stream[:900])[0]
    inside = Recording(stream, SENSOR).crop(prediction.start_us, prediction.stop_us)
    clip = bin_events(inside, 4, grid=(16, 16), start_us=prediction.start_us, stop_us=prediction.stop_us)
    with torch.no_grad():
        out = classifier.model.run(clip.unsqueeze(0))
    assert prediction.rates == pytest.approx(out.rates[1::2].tolist(), abs=1e-6)
    assert min(prediction.rates) > 0
    torch.testing.assert_close(prediction.attention, attention_contrast(out.attention[0, -1]))
    assert Streamer(classifier, SENSOR, window_us=400).push(stream[:900])[0].attention is None


def test_late_events_are_counted_and_change_nothing(classifier, stream):
    clean, dirty = (Streamer(classifier, SENSOR, window_us=400, hop_us=100) for _ in range(2))
    expected = facts(clean.push(stream[:2000]))
    found = facts(dirty.push(stream[:1000]))
    assert dirty.push(stream[:50]) == []
    assert found + facts(dirty.push(stream[1000:2000])) == expected
    assert (clean.late, dirty.late) == (0, 50)


def test_a_leap_of_a_hundred_years_takes_no_longer(classifier):
    streamer = Streamer(classifier, SENSOR, window_us=400, hop_us=100)
    century = 100 * 365 * 86_400_000_000
    assert len(streamer.push(make_stream([5, 6, 7, century]))) == 1  # later windows have no event
    predictions = streamer.advance(century + 400)
    assert [prediction.start_us <= century < prediction.stop_us for prediction in predictions] == [True] * 4
    assert streamer.silent == (century - 5) // 100 - 4


def test_reset_drops_windows_that_are_not_full(classifier, stream):
    streamer = Streamer(classifier, SENSOR, window_us=400, hop_us=100)
    streamer.push(stream[:300])
    streamer.reset()
    again = Streamer(classifier, SENSOR, window_us=400, hop_us=100)
    assert facts(streamer.push(stream[300:1500])) == facts(again.push(stream[300:1500]))


def test_the_default_hop_is_a_bin(classifier):
    assert default_hop(classifier, 1600) == 400
    assert default_hop(classifier, 1601) == 401
    assert Streamer(classifier, SENSOR, window_us=1600).hop_us == 400


@pytest.mark.parametrize(
    ("field", "changes", "options", "mentions"),
    [
        ("bin_by", {"bin_by": "count"}, {}, ("count", "time")),
        ("window_us", {}, {"window_us": 3}, (3, 4)),
        ("window_us", {}, {"window_us": 10**12}, (10**12,)),
        ("window_us", {}, {"window_us": 240000.0}, (240000.0,)),
        ("hop_us", {}, {"hop_us": 0}, (0, 1)),
        ("hop_us", {}, {"hop_us": "5"}, ("'5'",)),
        ("hop_us", {}, {"window_us": 10**6, "hop_us": 10}, (100000, 1024)),
        ("grid", {"grid": (32, 16)}, {}, ("20×18", "16×32")),
        ("model", {"model": torch.nn.Linear(1, 1)}, {}, ("'Linear'",)),
        ("sensor_size", {}, {"sensor_size": (128.5, 128)}, ((128.5, 128),)),
        ("sensor_size", {}, {"sensor_size": 128}, (128,)),
    ],
    ids=str,
)
def test_what_cannot_stream_is_refused(classifier, field, changes, options, mentions):
    with raises(InputError, field=field, mentions=mentions):
        Streamer(replace(classifier, **changes), **{"sensor_size": SENSOR, "window_us": 400, **options})


FLOATS = np.array([(1.0, 2.0, 3, 1)], [("x", "f8"), ("y", "f8"), ("t", "i8"), ("p", "u1")])


@pytest.mark.parametrize(
    ("given", "field", "mentions"),
    [
        ([1, 2], "events", ("list", "x, y, t, p")),
        (None, "events", ("NoneType",)),
        (Recording(make_stream([1, 2]), SENSOR), "events", ("Recording", ".events")),
        (FLOATS, "x", ("float64",)),
        (np.zeros(3), "events", ("x, y, t, p",)),
    ],
    ids=["list", "none", "recording", "floats", "plain"],
)
def test_what_is_no_packet_is_refused(classifier, given, field, mentions):
    with raises(InputError, field=field, mentions=mentions):
        Streamer(classifier, SENSOR, window_us=400).push(given)


def test_times_out_of_range_are_refused(classifier):
    far = make_stream([2**62, 5])
    far["t"] += 1
    streamer = Streamer(classifier, SENSOR, window_us=400)
    with raises(InputError, field="t", mentions=(6, 2**62 + 1)):
        streamer.push(far)
    with raises(InputError, field="to_us", mentions=(1.5,)):
        streamer.advance(1.5)


def test_logits_that_are_not_finite_are_an_error(classifier, stream):
    model = network()
    with torch.no_grad():
        model.head.bias[0] = float("nan")
    streamer = Streamer(replace(classifier, model=model), SENSOR, window_us=400)
    with raises(WeightsError, field="logits"):
        streamer.push(stream[:1000])


@pytest.mark.slow
def test_nothing_grows_over_thousands_of_hops():
    """A soak: an object kept for every hop would be 50 bytes of each."""
    fields = {"stage_channels": (4, 4, 4), "embed_dims": (4, 4, 4), "time_steps": 2, "in_size": 8}
    one = Classifier(network(**fields), NAMES, 2, (8, 8), "time", False)
    streamer = Streamer(one, SENSOR, window_us=20, hop_us=10)
    packet = make_stream(np.random.default_rng(0).integers(0, 500, 200))
    pushed = [0]

    def hops(count):
        predictions = 0
        for _ in range(count // 50):
            shifted = packet.copy()
            shifted["t"] += 500 * pushed[0]
            predictions += len(streamer.push(shifted))
            pushed[0] += 1
        gc.collect()
        return predictions

    hops(300)
    objects = len(gc.get_objects())
    assert hops(1500) == 1500
    assert len(gc.get_objects()) - objects < 150
    tracemalloc.start()
    hops(300)
    before = tracemalloc.get_traced_memory()[0]
    hops(400)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 25_000


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("name", OTHERS)
def test_networks_without_steps_read_whole_windows(stream, name):
    one = Classifier(make_small(name, num_classes=3, time_steps=4, in_size=16), NAMES, 4, (16, 16), "time", False)
    assert isinstance(make_batch(one.model, 2, (16, 16), 4), ClipBatch)
    streamer = Streamer(one, SENSOR, window_us=400, hop_us=150, attention=True)
    predictions = in_packets(streamer, stream, [1, 700, 3, 1500], int(stream["t"][-1]) + 400)
    assert len(predictions) > 10
    assert all(prediction.final and prediction.attention is None for prediction in predictions)
    assert [prediction.probabilities for prediction in predictions] == [
        whole(one, stream, prediction) for prediction in predictions
    ]
    assert all(len(prediction.rates) == one.model.num_spiking_layers() for prediction in predictions)
    with raises(InputError, "early", mentions=name):
        Streamer(one, SENSOR, window_us=400, early=True)


def test_a_window_is_unknown_where_its_score_is_below_the_threshold(classifier, stream):
    plain = Streamer(classifier, SENSOR, window_us=400, hop_us=100).push(stream)
    assert all((one.score, one.unknown) == (None, False) for one in plain)
    middle = float(np.median([one.probability for one in plain]))
    judging = replace(classifier, unknown=UnknownRule(score="probability", threshold=middle, keep=0.5))
    found = Streamer(judging, SENSOR, window_us=400, hop_us=100).push(stream)
    assert {one.unknown for one in found} == {True, False}
    assert facts(found) == facts(plain)
    for one in found:
        assert (one.score, one.unknown) == (one.probability, one.probability < middle)
        inside = stream[(stream["t"] >= one.start_us) & (stream["t"] < one.stop_us)]
        bounds = {"start_us": one.start_us, "stop_us": one.stop_us}
        clip = bin_events(Recording(inside, SENSOR), 4, grid=(16, 16), **bounds)
        with torch.no_grad():
            logits = clip_logits(judging.model(clip[None]))
        assert float(probability_score(logits)) == pytest.approx(one.score, abs=1e-6)
