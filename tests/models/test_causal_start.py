"""A causal network made from a bidirectional one."""

import pytest
import torch

from raising import raises
from ripe_mambaspike import create_model, fuse
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.causal import make_causal
from ripe_mambaspike.models.labels import Labels


def small(**fields):
    sizes = {"stage_channels": [4, 8, 8], "embed_dims": [4, 8, 8], "in_size": 16, "time_steps": 4, "num_classes": 3}
    return create_model("dvsgesture", seed=0, **{**sizes, **fields})


@torch.no_grad()
def test_its_tokens_are_those_of_a_network_without_a_backward_direction():
    model = small().eval()
    for block in model.hierarchy.blocks:
        block.merge.weight[:, block.merge.in_features // 2 :] = 0
        block.merge.bias.zero_()
    tokens = torch.randn(2, 4, 4, 4)
    made = make_causal(model)
    torch.testing.assert_close(made.hierarchy(tokens), model.hierarchy(tokens), rtol=1e-5, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("form", ["training", "deployed"])
def test_everything_else_is_kept(form):
    model = small().train()
    model(torch.rand(2, 4, 2, 16, 16))  # statistics that differ between the steps
    model = fuse(model.eval(), quiet=True) if form == "deployed" else model.eval()
    model.labels = Labels(("a", "b", "c"), None, None, 4, (16, 16), "time", binary=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = make_causal(model)
    assert (made.config.causal, made.config.form, made.training, made.class_names) == (
        True,
        form,
        False,
        ("a", "b", "c"),
    )
    changed = set()
    for name, value in made.state_dict().items():
        if before[name].shape != value.shape:
            torch.testing.assert_close(value, before[name].mean(0, keepdim=True))
        elif not torch.equal(value, before[name]):
            changed.add(name)
    assert changed == {f"hierarchy.blocks.{number}.forward_mamba.out_proj.weight" for number in range(3)}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    made.get_parameter("head.weight").zero_()
    assert torch.equal(model.head.weight, before["head.weight"])


@torch.no_grad()
def test_it_sees_no_later_step():
    made = make_causal(small().eval())
    x = torch.rand(1, 4, 2, 16, 16)
    later = x.clone()
    later[:, 2:] += 1
    torch.testing.assert_close(made(x)[:, :2], made(later)[:, :2], rtol=0, atol=0)
    assert not torch.equal(made(x)[:, 2:], made(later)[:, 2:])


def test_a_mixer_without_a_causal_form_is_refused():
    with raises(ConfigError, "mixer"):
        make_causal(small(mixer="transformer"))
