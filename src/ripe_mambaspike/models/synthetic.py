"""Synthetic event clips for use without recordings: a sweeping bar and noise."""

import torch
from torch import Tensor

NOISE = 0.05  # events a pixel, polarity and step
EDGE = 1.5  # events a pixel of an edge


def synthetic_clip(steps: int, height: int, width: int, samples: int = 1, seed: int = 0) -> Tensor:
    """Event counts [samples, T, 2, H, W] in float32: the bar's leading edge fires ON, its trailing edge OFF.

    Every sample has its own direction, speed and width; the same seed gives the same clip.
    """
    generator = torch.Generator().manual_seed(seed)
    angle, phase, speed, thickness = torch.rand(4, samples, 1, 1, 1, generator=generator)
    rows = torch.linspace(-1, 1, height)[:, None]
    columns = torch.linspace(-1, 1, width)
    time = torch.arange(steps).reshape(1, -1, 1, 1) / max(1, steps - 1)
    distance = columns * torch.cos(6.2832 * angle) + rows * torch.sin(6.2832 * angle)
    position = torch.sin(6.2832 * (phase + (0.5 + speed) * time))
    half, edge = 0.1 + 0.3 * thickness, 0.08
    leading = ((distance - position - half).abs() < edge).float()
    trailing = ((distance - position + half).abs() < edge).float()
    rate = NOISE + EDGE * torch.stack((leading, trailing), 2)
    return torch.poisson(rate, generator=generator)
