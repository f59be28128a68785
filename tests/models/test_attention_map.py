"""The map that is drawn: zero on the background, whatever value the background's attention has."""

import pytest
import torch

from ripe_mambaspike.models.observe import attention_contrast


@pytest.mark.parametrize("background", [0.0, 0.3, -2.0])
def test_the_background_is_zero_whatever_its_attention(background):
    attention = torch.full((3, 4, 5, 6), background)  # [T, C, h, w]
    attention[1, :, 2, 3] += torch.tensor([0.5, -0.5, 1.0, 0.0])
    found = attention_contrast(attention)
    assert found.shape == (3, 5, 6)
    assert found.count_nonzero() == 1
    assert found[1, 2, 3] == pytest.approx(0.5)  # mean over the channels, of which none cancels another


def test_small_contrast_counts_as_background():
    attention = 5 + 1e-3 * torch.rand(4, 8, 8)
    assert not attention_contrast(attention).any()


def test_non_finite_attention_stays_non_finite():
    attention = torch.zeros(2, 3, 3)
    attention[0, 1, 1] = torch.nan
    assert attention_contrast(attention).isnan().any()
