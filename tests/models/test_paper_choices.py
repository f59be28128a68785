"""The paper's free choices as fields: what the kernels cover, what is saved, and files from before the fields."""

import json

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike.errors import ConfigError, WeightsError
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.fused import kernels_cover
from ripe_mambaspike.models.old_names import ADDED_FIELDS
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.nn.fused.coverage import without_kernels
from ripe_mambaspike.ops.backend import kernels, log_once

ADDED = ADDED_FIELDS["ripe-mambaspike"]
CHOICES = {
    "csilif_reset": 0.2,
    "detach_reset": True,
    "attention_feature_map": "exp",
    "attention_epsilon": 0.1,
    "bridge_dim": 13,
    "d_state": 6,
    "d_conv": 3,
    "expand": 3,
}


def test_every_added_field_has_its_default():
    assert {name: getattr(RipeConfig(), name) for name in ADDED} == ADDED
    assert set(CHOICES) == set(ADDED)


@pytest.mark.parametrize("field", CHOICES)
@torch.no_grad()
def test_a_choice_is_saved_and_changes_the_network(small, louder, events, tmp_path, field):
    model = louder(small(**{field: CHOICES[field]})).eval()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["config"][field] == CHOICES[field]
    again = from_pretrained(tmp_path)
    assert getattr(again.config, field) == CHOICES[field]
    x = events()
    assert torch.equal(again(x), model(x))
    assert torch.equal(louder(small()).eval()(x), model(x)) == (field == "detach_reset")


def rewrite(folder, change):
    path = folder / "config.json"
    document = json.loads(path.read_text())
    change(document["config"])
    path.write_text(json.dumps(document))


@torch.no_grad()
def test_a_config_from_before_the_fields_loads(saved, events):
    before = from_pretrained(saved)
    rewrite(saved, lambda config: [config.pop(name) for name in ADDED])
    after = from_pretrained(saved)
    assert after.config == before.config
    assert torch.equal(after(events()), before(events()))


def test_fields_that_were_never_missing_must_be_there(saved):
    rewrite(saved, lambda config: config.pop("mixer"))
    with raises(WeightsError, field="config.mixer", path=saved / "config.json"):
        from_pretrained(saved)


@pytest.mark.parametrize(
    ("layer", "name", "value"),
    [("stages.0.first_neuron", "reset_factor", 0.3), ("stages.1.attention", "feature_map", "relu"),
     ("stages.2.attention", "epsilon", 0.1), ("stages.2.second_neuron", "detach_reset", True)],
)  # fmt: skip
def test_a_layer_that_differs_from_the_config_is_not_saved(small, tmp_path, layer, name, value):
    model = small()
    setattr(model.get_submodule(layer), name, value)
    with raises(WeightsError, field=layer):
        model.save_pretrained(tmp_path)


def test_kernels_cover_all_but_another_reset(small, events):
    x = events()
    for field, value in CHOICES.items():
        with kernels("plain"), torch.no_grad():
            assert kernels_cover(small(**{field: value}).eval(), x) == (field != "csilif_reset"), field
    with kernels("plain"):
        assert not kernels_cover(small(detach_reset=True).eval(), x)
        assert kernels_cover(small(csilif_reset=0.2, neurons="silif").eval(), x)


@pytest.mark.parametrize("fields", [{"csilif_reset": 0.2}, {"detach_reset": True}], ids=str)
def test_what_they_do_not_cover_is_the_reference_path_with_one_log_line(small, louder, events, caplog, fields):
    log_once.cache_clear()
    model, x = louder(small(**fields)).double().train(), events(dtype=torch.float64)
    results = []
    for choice in ("off", "plain"):
        model.zero_grad()
        with kernels(choice):
            logits = model.run(x, ForwardMode(relaxed=True, track_statistics=False)).logits
            logits.square().sum().backward()
        results.append([logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert len([line for line in caplog.messages if "stages.0.first_neuron" in line and "reference path" in line]) == 1


@pytest.mark.parametrize(("states", "covered"), [(1, True), (8, True), (64, True), (12, False), (128, False)])
def test_triton_scans_powers_of_two_alone(small, states, covered):
    model = small(d_state=states)
    assert (without_kernels(model, "triton") is None) == covered
    assert without_kernels(model, "native") is None
    assert without_kernels(small(d_state=states, mixer="gru"), "triton") is None


@pytest.mark.parametrize(
    "fields", [{"d_state": 6, "d_conv": 3}, {"expand": 3}, {"bridge_dim": 11, "d_state": 8}], ids=str
)
def test_a_training_step_on_the_machines_kernels(small, louder, events, fields):
    """Float32 kernels against the reference in float64, gradients included."""
    x, results = events(samples=2), []
    for choice, dtype in (("off", torch.float64), ("auto", torch.float32)):
        model = louder(small(**fields)).to(dtype).train()
        with kernels(choice):
            out = model.run(x.to(dtype), ForwardMode(relaxed=True))
            out.logits.square().mean().backward()
        results.append((out.logits, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (expected, wanted), (given, got) = results
    torch.testing.assert_close(given.double(), expected, rtol=1e-3, atol=1e-4)
    for name in (one for one in wanted if one.startswith(("hierarchy", "bridge.attention", "head"))):
        scale = max(1e-3, float(wanted[name].abs().max()))
        assert float((got[name] - wanted[name]).abs().max()) <= 2e-3 * scale, name


@torch.no_grad()
def test_a_causal_network_of_other_sizes_runs_in_pieces(small, louder, events):
    fields = {"causal": True, "bridge_dim": 11, "d_state": 6, "d_conv": 3, "expand": 1, "attention_feature_map": "relu"}
    model, x = louder(small(**fields)).eval(), events(steps=7)
    for choice in ("auto", "off"):
        with kernels(choice):
            whole, state, parts = model.run(x, state={}).logits, {}, []
            for piece in x.split((1, 4, 2), 1):
                out = model.run(piece, state=state)
                parts.append(out.logits)
                state = out.state
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)
        assert state["hierarchy.blocks.0.conv"].shape == (2, 2, 8)
        assert state["hierarchy.blocks.2.ssm"].shape == (2, 24, 6)


def test_a_neuron_with_its_own_forward_cannot_detach_its_reset(small, monkeypatch):
    from ripe_mambaspike.nn.neurons import LIF, NEURONS

    class Own(LIF):
        def forward(self, *given, **options):
            return super().forward(*given, **options)

    monkeypatch.setitem(NEURONS, "own", Own)
    small(neurons="own")
    with raises(ConfigError, field="detach_reset"):
        small(neurons="own", detach_reset=True)
