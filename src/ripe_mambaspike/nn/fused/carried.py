"""The state of a pass over the fused operators, whose layout is [B, P, C] instead of [B, C, H, W]."""

import torch
from torch import Tensor

from ripe_mambaspike.nn.state import State, Step
from ripe_mambaspike.ops.norm_fire import FireState


class Carried:
    """The initial state of a pass, and the final state that it collects."""

    def __init__(self, initial: State | None = None, first_step: Step = 0, *, wanted: bool = False) -> None:
        self.initial = initial or {}
        self.first_step = first_step  # index of the first step in the recording, an int or one per row [B]
        self.wanted = wanted  # whether the final state is requested
        self.final: State = {}

    def rows(self, name: str) -> Tensor:
        """A map [B, C, H, W] as rows [B, P, C]; a view if it is channels-last."""
        return self.initial[name].permute(0, 2, 3, 1).flatten(1, 2).contiguous()

    def spikes(self, name: str, relaxed: bool) -> Tensor:
        return self.rows(name).to(torch.float32 if relaxed else torch.uint8)

    def neuron(self, name: str, spikes_name: str | None, relaxed: bool) -> FireState | None:
        """The state of a neuron and of the filter after it, whose last input is stored under its own name."""
        if not self.initial:
            return None
        membrane = self.rows(f"{name}.membrane")
        imag = self.rows(f"{name}.membrane_imag") if f"{name}.membrane_imag" in self.initial else None
        if spikes_name is None:
            spikes = torch.zeros_like(membrane, dtype=torch.float32 if relaxed else torch.uint8)
        else:
            spikes = self.spikes(spikes_name, relaxed)
        return FireState(membrane, imag, spikes)

    def keep(self, name: str, rows: Tensor, grid: torch.Size) -> None:
        """Rows [B, P, C] as the map [B, C, H, W] of the final state."""
        self.final[name] = rows.unflatten(1, (grid[2], grid[3])).permute(0, 3, 1, 2)

    def keep_neuron(self, name: str, spikes_name: str | None, state: FireState | None, grid: torch.Size) -> None:
        if state is None:
            return
        self.keep(f"{name}.membrane", state.membrane, grid)
        if state.membrane_imag is not None:
            self.keep(f"{name}.membrane_imag", state.membrane_imag, grid)
        if spikes_name is not None:
            self.keep(spikes_name, state.last_spikes, grid)
