"""The starting point of a fit: the path of the pictures and the sign of the polarity, estimated without a model.

In a short window the events of a moving picture resemble its gradients, shifted. The shift that fits best is the
picture's position; whether ON or OFF events lead gives the sign.
"""

import numpy as np
import torch
from torch import Tensor

WINDOW_BINS = 4  # counts of 5 ms together
MAX_SHIFT_PIXELS = 7  # pixels looked at in each direction


def find_path(pictures: Tensor, counts: Tensor) -> tuple[Tensor, bool]:
    """(path [T + 1, 2] every 5 ms, inverted) of pictures [N, h, w] and counts [N, T, 2, H, W]."""
    height, width = counts.shape[-2:]
    canvas = torch.zeros(len(pictures), height + 2 * MAX_SHIFT_PIXELS, width + 2 * MAX_SHIFT_PIXELS)
    top, left = (
        (height - pictures.shape[1]) // 2 + MAX_SHIFT_PIXELS,
        (width - pictures.shape[2]) // 2 + MAX_SHIFT_PIXELS,
    )
    canvas[:, top : top + pictures.shape[1], left : left + pictures.shape[2]] = pictures
    down, across = torch.gradient(canvas, dim=(1, 2))
    shifts, slopes, weights = [], [], []
    for begin in range(0, counts.shape[1] - WINDOW_BINS + 1, WINDOW_BINS):
        window = counts[:, begin : begin + WINDOW_BINS]
        signed = (window[:, :, 1] - window[:, :, 0]).sum(1).flatten()
        best = (-1.0, (0, 0), torch.zeros(2))
        for dy in range(-MAX_SHIFT_PIXELS, MAX_SHIFT_PIXELS + 1):
            for dx in range(-MAX_SHIFT_PIXELS, MAX_SHIFT_PIXELS + 1):
                rows, columns = (
                    slice(MAX_SHIFT_PIXELS - dy, MAX_SHIFT_PIXELS - dy + height),
                    slice(MAX_SHIFT_PIXELS - dx, MAX_SHIFT_PIXELS - dx + width),
                )
                gradients = torch.stack([across[:, rows, columns].flatten(), down[:, rows, columns].flatten()])
                product = gradients @ signed
                slope = torch.linalg.solve(gradients @ gradients.T, product)
                explained = float(slope @ product)
                if explained > best[0]:
                    best = (explained, (dx, dy), slope)
        shifts.append(best[1])
        slopes.append(best[2])
        weights.append(float(window.sum()))
    path = torch.tensor(shifts, dtype=torch.float64)
    moved = path.diff(dim=0)
    # Light that moves by v changes by −v·∇, so with the right polarity slope and motion point in opposite directions.
    between = (torch.stack(slopes[1:]) + torch.stack(slopes[:-1])).double() / 2
    share = torch.tensor(weights)
    inverted = float((between * moved).sum(1) @ (share[1:] + share[:-1]).double()) > 0
    # A window with few events does not determine the position: the previous position is kept.
    active = share > 0.25 * share.max()
    known = torch.nonzero(active).squeeze(1)
    middles = (known.double() + 0.5) * WINDOW_BINS
    knots = np.arange(counts.shape[1] + 1)
    return torch.from_numpy(np.stack([np.interp(knots, middles, axis) for axis in path[known].T], 1)), inverted
