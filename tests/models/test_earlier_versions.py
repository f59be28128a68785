"""Networks saved by an earlier version, with its names for fields and tensors, load and give the same logits."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ripe_mambaspike.models.pretrained import from_pretrained
from ripe_mambaspike.ops.backend import kernels

SAVED = Path(__file__).parent / "saved_before"


@pytest.mark.parametrize("name", ["training", "causal-int8", "mamba-spike"])
@torch.no_grad()
def test_networks_of_earlier_versions_give_the_same_logits(name, tmp_path):
    answers = load_file(SAVED / "answers.safetensors")
    model = from_pretrained(SAVED / name)
    model.save_pretrained(tmp_path)
    again = from_pretrained(tmp_path)
    assert '"version": 2' in (tmp_path / "config.json").read_text()
    for choice in ("auto", "off"):
        with kernels(choice):
            torch.testing.assert_close(model(answers["x"]), answers[name], rtol=1e-4, atol=1e-5)
            assert torch.equal(again(answers["x"]), model(answers["x"]))
