"""The figures: what is drawn is what was counted, logged or stored."""

import numpy as np
import pytest
from tests.raising import raises
from tests.studies.stored_results import arm, store_costs, store_study, summary

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.inference.classifier import load_network
from ripe_mambaspike.models.peers.published import published_results
from ripe_mambaspike.report.figures import costs, network, pareto, studied
from ripe_mambaspike.report.figures.canvas import image_bytes
from ripe_mambaspike.report.figures.draw import FIGURES, draw_figure, list_figures
from ripe_mambaspike.report.observe import temporal_filters
from ripe_mambaspike.report.run_data import read_run


@pytest.fixture
def run_folder(make_run):
    return make_run()


def points(axes, marker):
    """All points that are drawn with a marker."""
    lines = [line for line in axes.lines if line.get_marker() == marker]
    return [(float(x), float(y)) for line in lines for x, y in zip(*line.get_data(), strict=True)]


def test_the_interface_is_counted_at_every_size():
    (axes,) = costs.draw_interface().axes
    weights = {side * side: 128 * (side // 4) ** 2 * 256 + 256 for side in (34, 48, 128, 224)}
    assert dict(points(axes, "o")) == weights
    assert points(axes, "D") == [(1280 * 720, 128 * 180 * 320 * 256 + 256)]
    assert {y for _, y in points(axes, "s")} == {869_593}
    curve = dict(zip(*axes.lines[0].get_data(), strict=True))
    assert all(curve[pixels] == count for pixels, count in weights.items())


def test_the_frontier():
    assert pareto.frontier([(1, 5), (2, 4), (3, 6), (3, 7), (2, 5)]) == [(1, 5), (3, 7)]
    rows = [(row.millions, row.accuracy) for row in published_results("ncaltech101")]
    assert pareto.frontier(rows) == [(0.55, 81.62), (0.88, 85.54), (2.05, 88.45)]


def test_five_panels_have_all_rows_with_a_count():
    panels = pareto.draw_pareto().axes
    for axes, dataset in zip(panels, pareto.TITLES, strict=False):
        counted = [row for row in published_results(dataset) if row.millions is not None]
        drawn = [point for marker in "os*v" for point in points(axes, marker)]
        assert len(drawn) == len(counted) + len(pareto.WIDENED.get(dataset, []))
        shown = {(row.millions, row.accuracy) for row in counted if row.accuracy >= pareto.FLOORS.get(dataset, 0)}
        assert shown <= set(drawn)
        assert {text.get_text() for text in axes.texts} >= {row.method for row in counted if row.mark == "published"}


def test_what_was_trained_here_has_panels_of_its_own(tmp_path):
    arms = [
        arm("ours", (70.0, 72.0), parameters={"training": 1, "deployed": 870_000}),
        arm("spikformer", (65.0, 66.0), parameters={"deployed": 2_570_000}),
        arm("mamba-spike", (50.0,), parameters={"deployed": 36_000_000}),
        arm("not-ended", (), parameters={}),
    ]
    store_study(tmp_path, "peers", {"sim-cifar10": arms})
    axes = pareto.draw_pareto((tmp_path,)).axes[5]
    assert points(axes, "*") == [(0.87, 71.0)]
    assert points(axes, "o") == [(2.57, 65.5)]
    assert points(axes, "s") == [(36.0, 50.0)]
    assert len(pareto.draw_pareto((tmp_path,)).axes) == 9
    assert len(pareto.draw_pareto().axes) == 6


def test_firing_rates_are_those_of_the_log(run_folder):
    (axes,) = network.draw_firing_rates(run_folder).axes
    logged = dict(read_run(run_folder).numbered("rate"))
    drawn = [line.get_ydata() for line in axes.lines if line.get_label().startswith("stage")]
    assert len(drawn) == len(logged) == 6
    for values, column in zip(drawn, logged.values(), strict=True):
        np.testing.assert_allclose(values, np.array(column, float))


def test_filters_are_the_networks(run_folder):
    figure = network.draw_filters(run_folder)
    found = temporal_filters(load_network(run_folder).model)
    top, *lower = figure.axes
    clouds = [line.get_ydata() for line in top.lines if line.get_marker() == "o"]
    for cloud, (_, values) in zip(clouds, found, strict=True):
        np.testing.assert_array_equal(cloud, values)
    assert len(lower) == len(found)
    for axes, (_, values) in zip(lower, found, strict=True):
        at_half = [line.get_ydata()[-1] for line in axes.lines[: len(values)]]
        np.testing.assert_allclose(at_half, np.abs(1 + 2 * values), rtol=1e-5)


@pytest.mark.slow
def test_attention_is_on_one_scale(run_folder, tmp_path):
    recording = network.simulated_gesture()
    assert recording.sensor_size == (128, 128)
    assert len(recording) > 1000
    figure = network.draw_attention(run_folder, None, (1, 3, 4))
    maps = [axes for axes in figure.axes if len(axes.images) == 2]
    assert len(maps) == 6
    for row in (maps[:3], maps[3:]):
        scales = {axes.images[1].get_clim() for axes in row}
        assert len(scales) == 1
        ((low, high),) = scales
        drawn = [axes.images[1].get_array() for axes in row]
        assert low <= min(image.min() for image in drawn)
        assert high >= max(image.max() for image in drawn)
    with raises(ConfigError, field="steps"):
        network.draw_attention(run_folder, None, (0,))
    with raises(ConfigError, field="steps"):
        network.draw_attention(run_folder, None, (5,))


def test_bars_of_classes(run_folder):
    (axes,) = network.draw_classes(run_folder).axes
    scores = read_run(run_folder).scores
    shares = sorted((100 * score.correct / score.n for score in scores), reverse=True)
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], shares)


def test_measured_figures(tmp_path):
    store_costs(tmp_path)
    bars = costs.draw_latency((tmp_path,)).axes[1].patches
    assert [bar.get_width() for bar in bars] == [8, 12, 8, 2, 1.5]
    time, _, width = costs.draw_attention_cost((tmp_path,)).axes
    assert [bar.get_height() for bar in time.patches[:3]] == pytest.approx([6, 1.5, 0.3])
    assert list(width.lines[0].get_ydata()) == [3, 6, 12]
    training = costs.draw_resolution((tmp_path,)).axes[0]
    assert list(training.lines[0].get_ydata()) == [25.4, 25.4, 10.3, 0.8]  # as printed
    assert list(training.lines[1].get_ydata()) == [100] * 4


@pytest.mark.parametrize("name", ["attention-cost", "latency", "resolution", "rate-loss"])
def test_what_was_not_measured_is_not_drawn(name, tmp_path):
    with raises(InputError, field="results", mentions="ripe "):
        draw_figure(name, tmp_path / "x.png", results=tmp_path)
    assert not (tmp_path / "x.png").exists()


def test_the_rate_loss_by_its_weight(tmp_path):
    arms = [
        arm(name, values, x=x, rate=summary(rate))
        for name, values, x, rate in (
            ("1e-2", (60.0, 62.0), 1e-2, 0.05),
            ("default", (70.0, 71.0), 1e-4, 0.1),
            ("1e-6", (65.0,), 1e-6, 0.12),
        )
    ]
    store_study(tmp_path, "rate-loss", {"gestures-hard": arms})
    axes, rates = studied.draw_rate_loss((tmp_path,)).axes
    assert list(axes.lines[0].get_ydata()) == [65.0, 70.5, 61.0]
    assert list(rates.lines[0].get_ydata()) == [0.12, 0.1, 0.05]


@pytest.mark.parametrize("ending", ["svg", "pdf", "png"])
def test_a_file_of_every_kind(ending, run_folder, tmp_path):
    path = draw_figure("classes", tmp_path / f"x.{ending}", run=run_folder)
    heads = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}
    assert path.read_bytes().startswith(heads[ending])


def test_the_same_bytes_every_time(run_folder):
    for ending in ("svg", "pdf", "png"):
        one, two = (image_bytes(network.draw_classes(run_folder), ending) for _ in range(2))
        assert one == two


def test_wrong_arguments(tmp_path, run_folder):
    with raises(ConfigError, field="name"):
        draw_figure("schematic", tmp_path / "x.png")
    with raises(InputError, field="out"):
        draw_figure("pareto", tmp_path / "x.jpg")
    with raises(InputError, field="out"):
        draw_figure("pareto", tmp_path / "missing" / "x.png")
    with raises(ConfigError, field="run"):
        draw_figure("classes", tmp_path / "x.png")
    with raises(ConfigError, field="network"):
        draw_figure("filters", tmp_path / "x.png")
    with raises(ConfigError, field="run"):
        draw_figure("pareto", tmp_path / "x.png", run=run_folder)
    assert list_figures() == list(FIGURES)
