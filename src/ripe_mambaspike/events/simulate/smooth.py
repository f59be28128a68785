"""A differentiable model of the average pixel, for fitting the saccade's path, optics, thresholds and bandwidth.

An event corresponds to one threshold, and after a change of direction the level has to move some way back before the
first event (hysteresis). So the remembered level follows the light with some slack, and the expected number of events
is how far it moves, in thresholds. The slack is fitted too; without pixel noise it would be one threshold in total.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ripe_mambaspike.events.simulate.pixel import Pixel
from ripe_mambaspike.events.simulate.saccades import Saccades, interpolate, seen_pictures

STEP_US = 2500
KNOT_US = 5000


@dataclass(frozen=True)
class FitOptions:
    """Options of the fit."""

    rounds: int = 240
    batch: int = 32
    rate: float = 0.03
    seed: int = 0


class SmoothSaccades(nn.Module):
    """Expected counts of pictures under saccades; all fitted quantities are parameters."""

    def __init__(self, path: Tensor, duration_us: int, size: tuple[int, int], inverted: bool, noise_hz: Tensor) -> None:
        super().__init__()
        self.size, self.duration_us, self.inverted = size, duration_us, inverted
        self.path = nn.Parameter(path.double().clone())  # [knots, 2]
        self.log_scale = nn.Parameter(torch.zeros(2))
        self.log_blur = nn.Parameter(torch.tensor(-1.0))
        self.log_contrast = nn.Parameter(torch.tensor(-0.5))
        self.log_cutoff = nn.Parameter(torch.tensor(math.log(30.0)))
        self.log_threshold = nn.Parameter(torch.full((2,), -2.5))  # ON, OFF
        self.log_slack = nn.Parameter(torch.tensor(-4.0))
        self.noise_hz = noise_hz  # OFF, ON: of the border, where no picture is

    def forward(self, pictures: Tensor) -> Tensor:
        """Pictures [B, h, w] → expected counts [B, T, 2, H, W] of 5 ms each."""
        steps = self.duration_us // STEP_US
        times = torch.arange(steps + 1, dtype=torch.float64) * STEP_US
        middle = interpolate(self.path, times[None] / KNOT_US)
        seen = seen_pictures(pictures, middle, self.size, self.log_scale.exp(), self.log_blur.exp())
        light = torch.log1p(self.log_contrast.exp() * seen) * (-1 if self.inverted else 1)
        share = -torch.expm1(-2 * math.pi * STEP_US * 1e-6 * self.log_cutoff.exp())
        on, off = self.log_threshold.exp()
        slack = self.log_slack.exp()
        level = remembered = light[:, 0]
        pulled = []
        for frame in light[:, 1:].unbind(1):
            level = torch.lerp(level, frame, share)
            follows = torch.maximum(torch.minimum(remembered, level + slack), level - slack)
            pulled.append(follows - remembered)
            remembered = follows
        change = torch.stack(pulled, 1)
        change = change[:, : steps // 2 * 2].unflatten(1, (-1, 2))
        counts = torch.stack([F.relu(-change).sum(2) / off, F.relu(change).sum(2) / on], 2)
        return counts + self.noise_hz[:, None, None] * (2 * STEP_US * 1e-6)

    def saccades(self) -> Saccades:
        path = tuple((round(float(x), 3), round(float(y), 3)) for x, y in self.path.detach())
        scale = self.log_scale.detach().exp().tolist()
        return Saccades(
            path,
            KNOT_US,
            self.duration_us,
            (round(scale[0], 4), round(scale[1], 4)),
            round(float(self.log_blur.detach().exp()), 4),
            round(float(self.log_contrast.detach().exp()), 4),
            self.inverted,
        )

    def pixel(self) -> Pixel:
        on, off = self.log_threshold.detach().exp().tolist()
        off_hz, on_hz = self.noise_hz.tolist()
        cutoff = float(self.log_cutoff.detach().exp())
        return Pixel(on, off, leak_hz=max(0.0, on_hz - off_hz), shot_hz=2 * off_hz, cutoff_hz=cutoff)


def fit(model: SmoothSaccades, pictures: Tensor, counts: Tensor, how: FitOptions, report: Any = None) -> SmoothSaccades:
    """Maximize the likelihood of the counts [N, T, 2, H, W] under a 3×3 box, which tolerates shifts of one pixel."""
    generator = torch.Generator().manual_seed(how.seed)
    optimizer = torch.optim.Adam(model.parameters(), how.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, how.rounds, how.rate / 100)
    for number in range(how.rounds):
        chosen = torch.randperm(len(pictures), generator=generator)[: how.batch]
        expected, real = box(model(pictures[chosen])), box(counts[chosen])
        loss = (expected - real * torch.log(expected + 1e-6)).mean() * 100
        bend = model.path.diff(dim=0).diff(dim=0).square().sum()
        optimizer.zero_grad()
        (loss + 0.01 * bend).backward()
        optimizer.step()
        schedule.step()
        if report is not None:
            report(number + 1, how.rounds, float(loss.detach()))
    return model


def box(counts: Tensor) -> Tensor:
    """A 3×3 mean over the picture."""
    return F.avg_pool2d(counts.flatten(0, -3), 3, 1, 1).unflatten(0, counts.shape[:-2])
