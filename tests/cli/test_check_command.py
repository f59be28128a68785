"""`ripe check RUN`, on the test clips of the run's own dataset, and options that do not go together."""

import json

import pytest


def test_a_finished_run_is_checked_on_its_test_clips(ripe, finished):
    result = ripe("check", finished, "--clips", "3", "--device", "cpu", "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    ids = [claim["id"] for claim in document["claims"]]
    assert document["clips"] == "3 test clips of synthgesture"
    assert {"trained.tdm.depth", "trained.gap.end", "trained.hull.3", "trained.energy.range"} <= set(ids)
    assert document["summary"]["total"] == len(ids)
    differing = ripe("check", finished, "--clips", "3", "--device", "cpu", "--json", "--differing")
    shown = json.loads(differing.out)
    assert [claim["id"] for claim in shown["claims"]] == [
        claim["id"] for claim in document["claims"] if claim["verdict"] == "differs"
    ]
    assert shown["summary"] == document["summary"]


def test_the_same_as_a_table(ripe, finished):
    result = ripe("check", finished, "--clips", "1", "--device", "cpu")
    assert result.code == 0, result.err
    assert "1 test clip of synthgesture" in result.out
    assert " hold, " in result.out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--clips", "3"], "--clips"),
        (["--root", "data"], "--root"),
        (["--store", "current"], "--store"),
        (["--recordings", "a.bin"], "--recordings"),
        (["--markdown", "--json"], "--markdown"),
        (["nowhere"], "nowhere"),
    ],
)
def test_options_that_cannot_be_used(refused, words, named):
    refused(["check", *words], named)


def test_clips_are_counted_from_one(refused, finished):
    refused(["check", finished, "--clips", "0"], "--clips")
