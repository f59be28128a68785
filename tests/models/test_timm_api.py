"""The methods that a timm user expects."""

import pytest
import torch
from tests.raising import raises
from torch import nn

from ripe_mambaspike import create_model, list_models
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.ops.backend import kernels


@pytest.mark.parametrize("choice", ["off", "plain", "auto"])
@pytest.mark.parametrize("hidden", [None, 12])
@torch.no_grad()
def test_features_and_head_equal_the_network(small, events, choice, hidden):
    model, x = small(head_hidden_size=hidden).eval(), events()
    with kernels(choice):
        tokens = model.forward_features(x)
        assert tokens.shape == (2, 5, 3, 24)
        assert torch.equal(model.forward_head(tokens), model(x))
        pooled = model.forward_head(tokens, pre_logits=True)
        assert pooled.shape == (2, 5, hidden or 24) == (2, 5, model.num_features)
        torch.testing.assert_close(model.get_classifier()(pooled), model(x), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_features_and_head_of_the_baseline(tiny_baseline, events):
    model = tiny_baseline().eval()
    x = events(13, 18)
    tokens = model.forward_features(x)
    assert tokens.shape == (2, 5, 16)
    assert torch.equal(model.forward_head(tokens), model(x))
    assert torch.equal(model.get_classifier()(model.forward_head(tokens, pre_logits=True)), model(x))


@pytest.mark.parametrize("hidden", [None, 12])
@torch.no_grad()
def test_embeddings_without_a_head(small, events, hidden, tmp_path):
    model, x = small(head_hidden_size=hidden).eval(), events()
    wanted = model.forward_head(model.forward_features(x), pre_logits=True)
    model.reset_classifier(0)
    assert isinstance(model.get_classifier(), nn.Identity)
    assert model.num_classes == model.config.num_classes == 0
    assert torch.equal(model(x), wanted)
    with raises(ConfigError, "num_classes"):
        model.predict(x)
    model.save_pretrained(tmp_path)
    assert torch.equal(from_pretrained(tmp_path)(x), wanted)
    model.reset_classifier(4)
    assert model(x).shape == (2, 5, 4)


def test_made_without_a_head(small, events):
    assert small(num_classes=0)(events()).shape == (2, 5, 24)


def test_names_by_pattern():
    assert list_models("*lite*") == ["dailydvs200-lite"]
    assert set(list_models("mamba-spike*")) < set(list_models())
    assert create_model("dailydvs200-lite", num_classes=3, in_size=32, time_steps=2).config.in_size == (32, 32)
