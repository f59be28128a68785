"""Every fused operator has a case, its reference runs at it, and a wrong operator gets no speed-up."""

import pytest
import torch

from raising import raises
from ripe_mambaspike.bench.operators import cases
from ripe_mambaspike.bench.ops import TIMED_OPERATORS, bench_ops
from ripe_mambaspike.bench.options import OperatorOptions
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.ops import backend
from ripe_mambaspike.ops.operator import OPERATORS

CPU = torch.device("cpu")
UNTIMED = {  # parts of other operators, copies without arithmetic, or a few numbers of every layer
    "joined_tokens", "merge_branches", "pooled_rates_backward", "pooled_spikes", "stack_branches", "step_affine",
    "winograd_conv", "winograd_weights",
}  # fmt: skip
SMALL = {"batch": 1, "time_steps": 3, "side": 16}


def options(*only):
    sizes = {"batch": 1, "time_steps": 3, "in_size": 16}
    return OperatorOptions(**sizes, precision="float32", only=list(only), repeats=1, device="cpu")


def test_every_operator_has_a_case():
    made = {case.operator for case in cases(CPU, "float32", **SMALL)}
    assert made == set(TIMED_OPERATORS)
    assert made | UNTIMED == set(OPERATORS)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_references_run_at_every_case(precision):
    for case in cases(CPU, precision, **SMALL):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            outputs = case.reference(**case.tensors)
        assert all(out.isfinite().all() for out in outputs), case.name
        for index in case.spikes:
            assert 0.005 < float(outputs[index].float().mean()) < 0.9, case.name


def test_the_papers_sizes():
    made = cases(torch.device("meta"), "float32", 32, 16, 128)
    with pytest.raises(RuntimeError):  # random numbers need a device that has some
        next(made)
    sizes = {case.setting for case in cases(CPU, "float32", 1, 2, 128) if case.operator == "mamba_inner"}
    assert sizes == {"level 1, L 512", "level 2, L 256", "level 3, L 128"}


@pytest.mark.slow
def test_right_operators_get_a_speed_up():
    rows = bench_ops(options())["rows"]
    assert len(rows) == 1 + 3 + 3 + 6 + 6 + 1 + 6
    for row in rows:
        assert row["agreement"]["agrees"], row
        assert row["forward"]["speedup"] > 0
        assert ("backward" in row) == (row["operator"] not in ("attend_fire", "enter_fire"))


@pytest.mark.parametrize("name", sorted(TIMED_OPERATORS))
def test_wrong_operators_get_none(monkeypatch, name):
    right = OPERATORS[name].forward

    def scaled(part):
        return part * 1.01 if isinstance(part, torch.Tensor) and part.is_floating_point() else part

    def wrong(i):
        out = right(i)
        return scaled(out) if isinstance(out, torch.Tensor) else tuple(map(scaled, out))

    monkeypatch.setattr(OPERATORS[name], "forward", wrong)
    row = bench_ops(options(name))["rows"][0]
    assert not row["agreement"]["agrees"]
    assert row["forward"]["speedup"] is None
    assert row["forward"]["ours"]["median_ms"] > 0


@pytest.mark.parametrize("name", sorted(set(TIMED_OPERATORS) - {"attend_fire", "enter_fire"}))
def test_a_wrong_gradient_is_seen(monkeypatch, name):
    operator, method = OPERATORS[name], "backward"
    if name == "pooled_rates":
        operator, method = OPERATORS["pooled_rates_backward"], "forward"
    right = getattr(operator, method)

    def half(*given):
        out = right(*given)
        return out / 2 if isinstance(out, torch.Tensor) else type(out)(part / 2 for part in out)

    monkeypatch.setattr(operator, method, half)
    row = bench_ops(options(name))["rows"][0]
    checks = row["agreement"]["checks"]
    assert checks["output differs by"]["found"] <= checks["output differs by"]["allowed"]
    assert checks["gradients differ by"]["found"] == pytest.approx(0.5, abs=1e-3)
    assert row["backward"]["speedup"] is None


@pytest.mark.parametrize("error", [0.0, 0.1])
def test_bfloat16_is_compared_with_what_storing_it_costs(monkeypatch, error):
    """For potentials that are driven by stored numbers; the reference rounds those too."""
    right = OPERATORS["enter_fire"].forward

    def shifted(i):
        spikes, *rest = right(i)
        return spikes + error if spikes.is_floating_point() else spikes, *rest

    monkeypatch.setattr(OPERATORS["enter_fire"], "forward", shifted)
    sizes = {"batch": 1, "time_steps": 16, "in_size": 64}
    row = bench_ops(OperatorOptions(**sizes, precision="bfloat16", only=["enter_fire"], repeats=1, device="cpu"))[
        "rows"
    ][0]
    checks = row["agreement"]["checks"]
    assert list(checks) == ["difference of spikes", "difference of potential", "difference of operand"]
    assert 0.02 < checks["difference of spikes"]["allowed"] < 0.08
    assert checks["difference of potential"]["allowed"] == 0.02
    assert row["agreement"]["agrees"] is not bool(error)


def test_flipped_spikes_are_seen(monkeypatch):
    right = OPERATORS["norm_fire"].forward

    def silent(i):
        spikes, *rest = right(i)
        return torch.zeros_like(spikes) if spikes.dtype == torch.uint8 else spikes, *rest

    monkeypatch.setattr(OPERATORS["norm_fire"], "forward", silent)
    row = bench_ops(options("norm_fire"))["rows"][0]
    checks = row["agreement"]["checks"]
    assert checks["share of spikes flipped"]["found"] > 0.01
    assert row["forward"]["speedup"] is None


def test_no_kernels_no_row_of_times(monkeypatch):
    monkeypatch.setattr(backend, "choice", lambda: "off")
    rows = bench_ops(options("step_moments"))["rows"]
    assert len(rows) == 3
    assert all("reference" in row["unavailable"] and "forward" not in row for row in rows)
    monkeypatch.undo()


def test_an_unknown_operator():
    with raises(ConfigError, field="--only", mentions=("'norm_fyre'", *TIMED_OPERATORS)):
        bench_ops(options("norm_fyre"))
