"""A model added by the recipe is created, listed and counted by its name."""

import pytest

from ripe_mambaspike import create_model, list_models
from ripe_mambaspike.cli.main import main
from ripe_mambaspike.models import registry
from ripe_mambaspike.models.synthetic import synthetic_clip


@pytest.mark.slow
def test_a_model(follow, restored, capsys):
    restored(registry._MODELS)
    follow("Add a model", "pocket")
    assert list_models("pock*") == ["pocket"]
    assert create_model("pocket", num_classes=2)(synthetic_clip(6, 32, 32)).shape == (1, 6, 2)
    assert main(["models"]) == 0
    assert "pocket" in capsys.readouterr().out
