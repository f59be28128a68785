"""The paper's claims: all are checked, those that must hold do, and a wrong network or number is noticed."""

import math
import re
import tomllib
from pathlib import Path

import pytest
from tests.raising import raises

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.nn.attention import ATTENTIONS, MembraneAttention
from ripe_mambaspike.nn.repconv import AveragePool
from ripe_mambaspike.ops.membrane_attention.reference import convex_attention
from ripe_mambaspike.studies.claims import GROUPS, Claim, distinct_causes, run_claims, verdict
from ripe_mambaspike.studies.claims import tdm as tdm_checks
from ripe_mambaspike.studies.claims.errata import errata_page, summarize_claims
from ripe_mambaspike.studies.claims.verdict import UNEXPLAINED, count, exact, millions, number, printed_value, rounds_to

# Integers that a right implementation must give, by the claim that shows them.
INTEGERS = {
    "params.training.dvsgesture": 1_521_586,
    "params.deployed.dvsgesture": 875_122,
    "params.deployed.cifar10dvs": 869_593,
    "params.table.nmnist": 869_593,
    "params.table.ncaltech101": 881_332,
    "params.table.dailydvs200": 8_038_359,
    "params.table.dailydvs200-lite": 3_817_527,
    "params.stage1.training": 42_434,
    "params.stage2.training": 195_104,
    "params.stage3.training": 771_136,
    "params.stage1.fused": 14_594,
    "params.stage2.fused": 70_816,
    "params.stage3.fused": 276_800,
    "params.entry.t10": 40,
    "params.convs": 286_720,
    "params.bridge": 133_411,
    "params.hierarchy": 372_640,
    "params.hierarchy.blocks": 361_760,
    "params.hierarchy.transitions": 10_816,
    "params.hierarchy.norm": 64,
    "params.head": 1_290,
    "params.core": 868_303,
    "params.steps.4": 864_322,
    "params.steps.8": 867_922,
    "params.steps.32": 889_522,
    "params.width.64.t16": 3_360_914,
    "params.width.128.t16": 13_164_754,
    "params.width.64.t10": 3_349_881,
    "params.width.128.t10": 13_142_713,
    "variants.attention.full": 64_736,
    "variants.attention.low-rank": 32_480,
    "variants.attention.grouped": 16_352,
    "variants.attention.gate": 21_728,
    "variants.total.low-rank": 842_866,
    "variants.total.grouped": 826_738,
    "resolution.baseline.total.34": 4_792_522,
    "resolution.baseline.total.48": 7_413_962,
    "resolution.baseline.total.128": 36_249_802,
    "resolution.baseline.total.224": 105_455_818,
    "resolution.released": 36_252_874,
    "resolution.baseline.nmnist": 1_026_506,
    "resolution.pooled.total": 4_795_594,
}
MUST_HOLD = (
    [f"fusion.stage{s}.conv{c}.{kind}" for s in (1, 2, 3) for c in (1, 2) for kind in ("float64", "float32")]
    + ["fusion.network.float64", "fusion.network.float32", "fusion.network.flips", "fusion.static"]
    + ["dual.commutation", "dual.first-step", "dual.network", "dual.five-of-six", "dual.operands"]
    + ["tdm.spectrum", "tdm.high-pass", "tdm.low-pass", "tdm.flat", "tdm.identity", "tdm.scalars"]
    + ["tdm.gradient.value", "tdm.gradient.surrogate-free", "attention.bound.all", "attention.bound.binary"]
    + ["attention.phi.safe", "attention.linear", "attention.quadratic", "attention.memory", "neurons.stable"]
    + ["neurons.pole", "neurons.lif", "neurons.csilif", "neurons.atan", "architecture.partition"]
    + [f"resolution.pass.{side}" for side in (34, 48, 128, 224)]
    + ["variants.flat.ratio", "variants.mixer.none.ncaltech101", "compute.deployed", "compute.linear-steps"]
)
# What the specification says the paper gets wrong.
MUST_DIFFER = (
    "attention.phi.literal",
    "neurons.csilif-adds",
    "architecture.branches.stage1.conv1",
    "compute.steps.8",
    "compute.side.224",
    "compute.sweep.16",
    "compute.scan-seen",
    "text.batch",
    "text.weight-decay",
    "text.machine",
    "text.five-seeds",
    "text.deviations",
    "text.top5",
    "text.throughput",
    "text.delta.tokens",
    "text.delta.steps",
)


@pytest.fixture(scope="module")
def claims() -> dict[str, Claim]:
    found = run_claims()
    by_id = {claim.id: claim for claim in found}
    assert len(by_id) == len(found), "two claims share an id"
    return by_id


def test_every_claim_is_complete(claims):
    assert len(claims) >= 100
    assert {claim.group for claim in claims.values()} == set(GROUPS)
    for claim in claims.values():
        assert claim.verdict in ("holds", "differs")
        assert all((claim.id, claim.where, claim.statement, claim.paper, claim.ours)), claim.id
        assert claim.to_dict()["verdict"] == claim.verdict


def test_every_difference_has_a_known_reason(claims):
    unknown = [c.id for c in claims.values() if c.verdict == "differs" and c.reason in ("", UNEXPLAINED)]
    assert unknown == []


def test_every_difference_names_its_cause(claims):
    for claim in claims.values():
        assert bool(claim.cause) == (claim.verdict == "differs"), claim.id
        assert re.fullmatch(r"[a-z0-9-]*", claim.cause.replace("-of-A-", "-of-a-")), claim.id  # a slug, not the id


def test_errata_are_counted_apart_from_what_is_measured(claims):
    found = summarize_claims(list(claims.values()))
    assert (found["total"], found["holds"], found["differs"]) == (437, 363, 74)
    assert (found["causes"], found["errata_causes"], found["measured_causes"]) == (46, 33, 13)
    assert found["errata"] + found["measured"] == found["differs"]
    assert claims["comparisons.ratio.evmamba"].is_erratum  # 76.5 / 8.04, both printed
    assert not claims["compute.scan-seen"].is_erratum  # what a counter sees has to be run
    assert not claims["params.deployed.dvsgesture"].is_erratum


@pytest.mark.parametrize(
    ("id", "ours"),
    [
        ("text.batch", "32"),
        ("text.deviations", "2"),
        ("text.throughput", "9.857 samples/s"),
        ("text.delta.tokens", "−0.4520 pp"),
        ("text.delta.steps", "1.5920 pp"),
        ("text.delta.clips", "0.2 to 1.2 clips"),
        ("text.resolved", "4"),
    ],
)
def test_the_text_against_its_tables(claims, id, ours):
    assert claims[id].ours == ours
    assert claims[id].is_erratum


def test_claims_of_one_cause_share_it(claims):
    """How many claims differ for the causes that are behind several."""
    behind = {
        cause: sum(claim.cause == cause for claim in claims.values()) for cause in distinct_causes(claims.values())
    }
    assert behind["macs-of-another-network"] == 5
    assert behind["counted-with-64-tokens"] == 6
    assert behind["odd-token-dropped"] == 1
    assert behind["output-width-of-a-branch"] == 4
    assert behind["best-seed-as-reference"] == 3


def test_the_page_of_the_errata_is_current(claims):
    page = (Path(__file__).parents[2] / "docs" / "errata.md").read_text()
    assert page == errata_page(list(claims.values())), "ripe check --markdown > docs/errata.md"


@pytest.mark.parametrize("id", INTEGERS)
def test_integer_is_hit(claims, id):
    assert claims[id].verdict == "holds"
    assert claims[id].ours == f"{INTEGERS[id]:,}"


@pytest.mark.parametrize("id", MUST_HOLD)
def test_holds(claims, id):
    assert claims[id].verdict == "holds", claims[id]


@pytest.mark.parametrize("id", MUST_DIFFER)
def test_differs(claims, id):
    assert claims[id].verdict == "differs", claims[id]


def test_the_cost_of_dual_kernels_is_in_the_remark(claims):
    assert "285,696" in claims["dual.network"].reason
    assert "1,155,289" in claims["dual.network"].reason


def test_groups_can_be_chosen_and_are_reported():
    reported: list[str] = []
    found = run_claims(["energy", "comparisons"], reported.append)
    assert reported == ["energy", "comparisons"]
    assert {claim.group for claim in found} == {"energy", "comparisons"}
    assert found == run_claims(["energy", "comparisons"])
    with raises(InputError, field="groups", mentions=("'nonsense'", *GROUPS)):
        run_claims(["nonsense"])


@pytest.fixture
def checked(monkeypatch):
    """A comparison with what the paper says, as a claim."""

    def check(compare, paper, ours, **texts):
        entry = {"statement": "", "paper": paper, **texts}
        monkeypatch.setattr(verdict, "_statements", lambda: {"id": ("a place", entry)})
        return compare("id", ours)

    return check


def test_every_statement_is_checked(claims):
    used = {claim.id for claim in claims.values()}
    for id in verdict.statements_of("paper.yaml"):
        pattern = re.sub(r"\\\{\w+\\\}", ".+", re.escape(id))
        assert any(re.fullmatch(pattern, one) for one in used), id


def test_the_papers_words_ship_in_a_wheel():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["package-data"]["ripe_mambaspike.studies.claims"] == ["*.yaml"]


def test_printed_value_is_read():
    assert printed_value("92.6 %") == (92.6, 1, " %")
    assert printed_value("−2.75 pp") == (-2.75, 2, " pp")
    assert printed_value("1,008,674") == (1008674, 0, "")
    with pytest.raises(ValueError, match="'none'"):
        printed_value("none")


@pytest.mark.parametrize(
    ("ours", "paper", "holds"),
    [
        (0.875122, "0.875 M", True),
        (0.8757, "0.875 M", False),
        (0.8744, "0.875 M", False),
        (92.565, "92.6 %", True),
        (92.565, "92 %", False),
        (-2.74, "−2.75 pp", False),
        (math.nan, "1.0", False),
        (math.inf, "1.0", False),
    ],
)
def test_rounding_decides(checked, ours, paper, holds):
    assert rounds_to(ours, paper) is holds
    assert checked(number, paper, ours).verdict == ("holds" if holds else "differs")


@pytest.mark.parametrize(
    ("compare", "paper", "holding", "differing"),
    [
        (count, 10, 10, 11),
        (millions, "0.870 M", 869_593, 875_122),
        (exact, "exact", 1e-13, 1e-11),
        (exact, "exact", 1e-12, math.nan),
    ],
)
def test_verdicts_can_fail(checked, compare, paper, holding, differing):
    assert checked(compare, paper, holding).verdict == "holds"
    assert checked(compare, paper, differing).verdict == "differs"


def test_reason_and_remark_follow_the_verdict(checked):
    texts = {"reason": "why", "remark": "by the way"}
    assert checked(count, 1, 1, **texts).reason == "by the way"
    assert checked(count, 1, 2, **texts).reason == "why"
    assert checked(count, 1, 2).reason == UNEXPLAINED
    assert checked(count, 1, 2).cause == "id"  # by itself, since nobody has found its cause
    assert checked(count, 1, 2, cause="a-cause").cause == "a-cause"
    assert checked(count, 1, 1, cause="a-cause").cause == ""
    assert (checked(count, 1, 2).where, checked(count, 1, 2).paper) == ("a place", "1")


def test_wrong_fusion_is_caught(monkeypatch):
    right = AveragePool.kernel
    monkeypatch.setattr(AveragePool, "kernel", lambda self, channels: right(self, channels) * 1.001)
    found = {claim.id: claim for claim in run_claims(["fusion", "dual-kernel"])}
    for level in (1, 2, 3):
        assert found[f"fusion.stage{level}.conv1.float64"].verdict == "holds"  # no average pool there
        assert found[f"fusion.stage{level}.conv2.float64"].verdict == "differs"
        assert found[f"fusion.stage{level}.conv2.float32"].verdict == "differs"
    for id in ("fusion.network.float64", "fusion.network.float32", "fusion.network.flips", "dual.network"):
        assert found[id].verdict == "differs"
        assert "largest relative error" in found[id].reason


def test_wrong_filter_is_caught(monkeypatch):
    right = tdm_checks.tdm
    monkeypatch.setattr(tdm_checks, "tdm", lambda x, coefficient: right(x, coefficient * 1.01))
    found = {claim.id: claim for claim in run_claims(["tdm"])}
    assert found["tdm.spectrum"].verdict == "differs"
    assert found["tdm.gradient.value"].verdict == "differs"
    assert found["tdm.identity"].verdict == "holds"


def test_attention_outside_the_hull_is_caught(monkeypatch):
    right = convex_attention

    def full(channels):
        return MembraneAttention(channels, ((channels, channels),), lambda q, k, v: 2 * right(q, k, v))

    monkeypatch.setitem(ATTENTIONS, "ds-mpa", full)
    found = {claim.id: claim for claim in run_claims(["attention"])}
    assert found["attention.bound.full.32"].verdict == "differs"
    assert found["attention.bound.low-rank.32"].verdict == "holds"
    assert found["attention.bound.all"].verdict == "differs"
