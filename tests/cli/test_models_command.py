"""`ripe models`, and help."""

import json

import pytest

from ripe_mambaspike import list_models
from ripe_mambaspike.account import registered

TOTALS = {"dvsgesture": (1_521_586, 875_122), "dailydvs200": (13_823_895, 8_038_359)}


@pytest.fixture(scope="module")
def counted():
    """All networks, counted once: some are run on the meta device for it, which takes seconds."""
    return registered.describe_models()


@pytest.fixture
def quick(counted, monkeypatch):
    monkeypatch.setattr(registered, "describe_models", lambda **options: counted)


def test_the_list_as_json(ripe, quick):
    result = ripe("models", "--json")
    assert (result.code, result.err) == (0, "")
    rows = {row["model"]: row for row in json.loads(result.out)["models"]}
    assert list(rows) == list_models()
    for name, (training, deployed) in TOTALS.items():
        assert (rows[name]["training"], rows[name]["deployed"]) == (training, deployed)
        assert rows[name]["fp16_bytes"] == 2 * deployed
    assert rows["nmnist"]["in_size"] == [34, 34]
    assert "verified" not in rows["nmnist"]


def test_the_list_as_text(ripe, quick):
    result = ripe("models")
    assert result.code == 0
    for name in list_models():
        assert name in result.out
    for totals in TOTALS.values():
        for total in totals:
            assert f"{total:,}" in result.out


@pytest.mark.parametrize("name", ["nmnist", "mamba-spike-nmnist"])
def test_verifying(ripe, monkeypatch, name):
    monkeypatch.setattr("ripe_mambaspike.account.registered.list_models", lambda: [name])
    result = ripe("models", "--verify", "--json")
    assert result.code == 0
    (row,) = json.loads(result.out)["models"]
    if name == "nmnist":
        assert 0 < row["verified"]["fusion_error"] <= 1e-12
        assert 0 < row["verified"]["dual_kernel_error"] <= 1e-12
        assert row["verified"]["spikes_flipped"] == 0
        assert row["verified"]["spikes"] > 0
    else:
        assert row["verified"] is None
    assert name in ripe("models", "--verify").out


def test_a_network_that_does_not_verify_is_an_error(refused, monkeypatch):
    from ripe_mambaspike.errors import VerificationError

    def fail(name):
        raise VerificationError(f"the deployed form of '{name}' does not agree")

    monkeypatch.setattr(registered, "_verify", fail)
    refused(("models", "--verify"), "dvsgesture")


@pytest.mark.parametrize("words", [["--help"], ["account", "--help"], ["models", "-h"]])
def test_help(ripe, words):
    result = ripe(*words)
    assert (result.code, result.err) == (0, "")
    assert "ripe" in result.out
