"""The state of a network between two pieces of one recording: a flat dictionary of tensors with dotted names.

    {"stages.0.first_neuron.membrane": [B, C, H, W], "bridge.rates.2.count": [B, C, h, w], ...}

Every tensor has the batch first; feature maps are [B, C, H, W]. An empty dictionary, or None, is the start of a
recording. A state is not changed in place, but for streams of windows, which ask for it (`rows` of `run_front_end`).
"""

from collections.abc import Collection

from torch import Tensor

State = dict[str, Tensor]
Step = int | Tensor  # index of the first step in its recording: one for all samples, or one each [B]
Names = Collection[str]  # what to observe in a run (`nn.stage.OBSERVABLE`)


def below(state: State | None, name: str) -> State:
    """The part of a state that belongs to the module of this name, under the module's own names."""
    start = f"{name}."
    return {key[len(start) :]: value for key, value in (state or {}).items() if key.startswith(start)}


def prefixed(name: str, state: State | None) -> State:
    """The inverse: a module's own state with its name as prefix."""
    return {f"{name}.{key}": value for key, value in (state or {}).items()}


def compact(state: State) -> State:
    """Copies, so that a state does not keep a whole clip in memory."""
    copies: dict[int, Tensor] = {}
    for value in state.values():
        if id(value) not in copies:
            whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
            copies[id(value)] = value if whole else value.clone()
    return {key: copies[id(value)] for key, value in state.items()}
