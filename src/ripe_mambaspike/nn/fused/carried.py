"""The state of a pass over the fused operators, whose layout is [B, P, C] instead of [B, C, H, W]."""

import torch
from torch import Tensor

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.nn.state import State, Step, below
from ripe_mambaspike.ops.norm_fire import FireState


class Carried:
    """The initial state of a pass, and the final state that it collects.

    With `rows` [B], sample b has row rows[b] of the initial state, which is updated in place: by the operators
    themselves where they can (`in_place`), else by reading and writing those rows here.
    """

    def __init__(
        self,
        initial: State | None = None,
        first_step: Step = 0,
        *,
        wanted: bool = False,
        rows: Tensor | None = None,
        in_place: bool = False,
    ) -> None:
        self.initial = initial or {}
        self.first_step = first_step  # index of the first step in the recording, an int or one per row [B]
        self.wanted = wanted  # whether the final state is requested
        self.rows = rows
        self.operator_rows = rows if in_place else None
        self.final: State = {}

    @property
    def output_final_state(self) -> bool:
        """Whether the operators return their final states."""
        return self.wanted and self.operator_rows is None

    def value(self, name: str) -> Tensor:
        """An initial state as the operators read it: all rows if they update it in place."""
        found = self.initial[name]
        return found if self.rows is None or self.operator_rows is not None else take_rows(found, self.rows)

    def updatable(self, name: str, found: Tensor) -> Tensor:
        """`found`, an initial state in the operators' layout; raises if they would update a copy of it."""
        if self.operator_rows is not None and found.data_ptr() != self.initial[name].data_ptr():
            given = self.initial[name]
            raise InputError.expected(
                f"state.{name}",
                "the operators' layout and dtype, to be updated in place",
                f"{given.dtype} of shape {tuple(given.shape)} with strides {given.stride()}",
            )
        return found

    def part(self, name: str) -> State:
        """The initial state of a module that returns the next one."""
        found = below(self.initial, name)
        return found if self.rows is None else {key: take_rows(value, self.rows) for key, value in found.items()}

    def keep(self, name: str, value: Tensor) -> None:
        """A final state."""
        if self.rows is None:
            self.final[name] = value
        else:
            self.initial[name].index_copy_(0, self.rows, value)

    def neuron(self, name: str, spikes_name: str | None, relaxed: bool) -> FireState | None:
        """The state of a neuron and of the filter after it, whose last input is stored under its own name."""
        if not self.initial:
            return None
        imag = f"{name}.membrane_imag"
        return FireState(
            self.position_rows(f"{name}.membrane"),
            self.position_rows(imag) if imag in self.initial else None,
            None if spikes_name is None else self.spikes(spikes_name, relaxed),
            self.operator_rows,
        )

    def position_rows(self, name: str) -> Tensor:
        """A map [B, C, H, W] as [B, P, C]; a view if it is channels-last."""
        return self.updatable(name, self.value(name).permute(0, 2, 3, 1).flatten(1, 2).contiguous())

    def spikes(self, name: str, relaxed: bool) -> Tensor:
        return self.updatable(name, self.position_rows(name).to(torch.float32 if relaxed else torch.uint8))

    def keep_map(self, name: str, positions: Tensor, grid: torch.Size) -> None:
        """[B, P, C] as the map [B, C, H, W] of the final state."""
        self.keep(name, positions.unflatten(1, (grid[2], grid[3])).permute(0, 3, 1, 2))

    def keep_neuron(self, name: str, spikes_name: str | None, state: FireState | None, grid: torch.Size) -> None:
        if state is None:
            return
        self.keep_map(f"{name}.membrane", state.membrane, grid)
        if state.membrane_imag is not None:
            self.keep_map(f"{name}.membrane_imag", state.membrane_imag, grid)
        if spikes_name is not None and state.last_spikes is not None:
            self.keep_map(spikes_name, state.last_spikes, grid)


def take_rows(value: Tensor, rows: Tensor) -> Tensor:
    """These rows of a state, channels-last where it is."""
    if value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last):
        return value.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return value.index_select(0, rows)
