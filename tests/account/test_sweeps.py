"""The paper's cost tables, with the numbers as printed there, beside ours."""

import pytest
from tests.raising import raises

from ripe_mambaspike.account.plots import plot_sweep
from ripe_mambaspike.account.sweeps import SWEEPS, sweep
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.registry import model_config

PAPER = {  # setting: (deployed, GFLOPs), Table flops
    "num_tokens": {"k 32": (0.875, 8.11), "k 128": (0.875, 8.49), "all 256": (0.875, 9.00)},
    "time_steps": {"T 4": (0.864, 2.06), "T 8": (0.868, 4.12), "T 16": (0.875, 9.00), "T 32": (0.890, 16.47)},
    "width": {
        "[32, 64, 128]": (0.875, 9.00),
        "[64, 128, 256]": (3.361, 32.73),
        "[128, 256, 512]": (13.165, 130.49),
    },
    "in_size": {
        "34×34": (0.875, 0.78),
        "48×48": (0.875, 1.27),
        "128×128": (0.875, 9.00),
        "224×224": (0.875, 24.69),
    },
}
OURS = {  # setting: GFLOPs without the scan, all tokens
    "num_tokens": {"k 64": 8.2303, "k 128": 8.4830, "all 256": 8.9884},
    "time_steps": {"T 4": 2.2471, "T 8": 4.4942, "T 16": 8.9884, "T 32": 17.9769},
    "width": {"[32, 64, 128]": 8.9884, "[64, 128, 256]": 35.6013, "[128, 256, 512]": 141.7005},
    "in_size": {"48×48": 1.2640, "128×128": 8.9884, "224×224": 27.5270},
}
MAMBA_SPIKE = {"34×34": (4.79, 2.10, 43.8), "48×48": (7.41, 4.72, 63.6)}
MAMBA_SPIKE |= {"128×128": (36.25, 33.55, 92.6), "224×224": (105.46, 102.76, 97.4)}
NAMES = pytest.mark.parametrize("name", sorted(PAPER))


def rows(name, **overrides):
    return {row.setting: row for row in sweep(name, model_config("dvsgesture", **overrides)).rows}


def test_the_names():
    assert sorted(SWEEPS) == sorted(PAPER)


@NAMES
def test_the_papers_numbers_as_printed(name):
    made = rows(name)
    for setting, (deployed, gflops) in PAPER[name].items():
        assert made[setting].paper["deployed"] == deployed
        assert made[setting].paper["gflops"] == gflops


@NAMES
def test_our_numbers(name):
    made = rows(name)
    for setting, gflops in OURS[name].items():
        assert round(made[setting].ours["gflops"], 4) == gflops
        assert made[setting].ours["gflops_with_scan"] > made[setting].ours["gflops"]
    for setting, (deployed, _) in PAPER[name].items():
        assert made[setting].ours["deployed"] == pytest.approx(deployed, abs=5.1e-4)


@NAMES
def test_the_papers_rows_fit_sixty_four_tokens(name):
    for row in rows(name).values():
        printed = row.paper.get("gflops_64_tokens")
        if printed is not None:
            assert row.ours["gflops_64_tokens"] == pytest.approx(printed, rel=2e-3), row.setting


def test_the_baselines_columns():
    for setting, (total, projection, share) in MAMBA_SPIKE.items():
        row = rows("in_size")[setting]
        keys = ("mamba_spike", "its_projection", "projection_share")
        assert tuple(row.paper[key] for key in keys) == (total, projection, share)
        assert row.ours["mamba_spike"] == pytest.approx(total, abs=5.1e-3)
        assert row.ours["its_projection"] == pytest.approx(projection, abs=5.1e-3)
        assert row.ours["projection_share"] == pytest.approx(share, abs=0.051)


@NAMES
def test_units_and_columns_belong_together(name):
    document = sweep(name, model_config("dvsgesture")).to_dict()
    assert document["sweep"] == name
    for row in document["rows"]:
        assert list(row["ours"]) == list(row["paper"]) == list(document["units"])


@NAMES
def test_another_network_has_no_paper_column(name):
    for row in rows(name, num_classes=5).values():
        assert set(row.paper.values()) == {None}


def test_fewer_positions_than_tokens():
    assert list(rows("num_tokens", in_size=34)) == ["all 25"]


def test_the_baseline_cannot_be_swept():
    with raises(ConfigError, "model", mentions=("Mamba-Spike",)):
        sweep("time_steps", model_config("mamba-spike"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "start"), [("width.png", b"\x89PNG"), ("width.SVG", b"<?xml")])
def test_the_plot_of_a_sweep(tmp_path, name, start):
    plot_sweep(sweep("width", model_config("dvsgesture")), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["width.txt", "nowhere/width.png"])
def test_a_plot_that_cannot_be_written(tmp_path, name):
    with raises(InputError, "plot", mentions=(name,)):
        plot_sweep(sweep("width", model_config("dvsgesture")), tmp_path / name)
