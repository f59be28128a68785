"""RIPE-MambaSpike: entry norm → three spiking stages → bridge → hierarchy → mean over tokens → head."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.base import Model, Output, modified_error
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.fused import kernels_cover, plan, run_fused
from ripe_mambaspike.models.input_checks import check_input, nan_where_not_finite
from ripe_mambaspike.models.memory import explain_model_memory
from ripe_mambaspike.nn.attention import ATTENTIONS
from ripe_mambaspike.nn.bridge import Bridge, BridgeState, FoldedMixture, Mixture, ProjectedMixture
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.fused.coverage import PARTS, TABLE, WITH_DUAL_KERNELS
from ripe_mambaspike.nn.hierarchy import Hierarchy, HierarchyState, make_head
from ripe_mambaspike.nn.modified import Modification, find_modification, overridden_method
from ripe_mambaspike.nn.neurons import NEURONS
from ripe_mambaspike.nn.norm import SharedAffine, SharedNorm, TimeAffine, TimeBatchNorm
from ripe_mambaspike.nn.repconv import DualKernelConv, FusedConv, RepConv
from ripe_mambaspike.nn.stage import SpikingStage, StageOutput, StageState
from ripe_mambaspike.nn.tokens import TokenSelection


class FrontEndState(NamedTuple):
    """What the spiking part and the bridge remember between two pieces of one recording."""

    step: int
    stages: tuple[StageState, ...]
    bridge: BridgeState


class FrontEnd(NamedTuple):
    """What the spiking part and the bridge give."""

    features: Tensor  # the bridge's mixture [B, T, N, d]
    stages: list[StageOutput]
    state: FrontEndState

    @property
    def attention(self) -> Tensor:
        """The last stage's map [B, T, C, h, w]."""
        return self.stages[-1].attention


class CausalState(NamedTuple):
    """All that a causal network remembers of a stream; of one size, however long it has been."""

    front: FrontEndState
    hierarchy: HierarchyState

    def compact(self) -> "CausalState":
        """The same in memory of its own: a piece of many steps is not kept alive by its last."""
        return CausalState(*_compact(tuple(self)))


class CausalRun(NamedTuple):
    """What a causal network says about the steps it was given."""

    logits: Tensor  # [B, T', classes]
    front: FrontEnd  # spikes, rates and attention of these steps
    state: CausalState


class RipeMambaSpike(Model):
    config: RipeConfig

    def __init__(self, config: RipeConfig, name: str) -> None:
        super().__init__(config, name)
        widths = config.embed_dims
        self.entry = _norm(config, 2)
        self.stages = nn.ModuleList(_stage(config, level) for level in range(3))
        self.bridge = Bridge(_mixture(config), config.stage_channels[-1], widths[0], config.rate_decay)
        self.tokens = TokenSelection(config.num_tokens)
        self.hierarchy = Hierarchy(
            widths, config.pool_ratios, config.mixer, config.drop_path_rate, causal=config.causal
        )
        self.head = make_head(widths[-1], config.num_classes, config.head_hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Events binned to [B, T, 2, H, W] → per-step logits [B, T, classes]."""
        self._check_pass(x, None)
        if not kernels_cover(self, x):
            return self.run(x).logits
        with explain_model_memory(self, x):
            return run_fused(plan(self, x), x, want_rates=False).logits

    def run(self, x: Tensor, mode: ForwardMode = HARD, token_indices: Tensor | None = None) -> Output:
        """A pass with all it gives; hand the indices of one pass to the next to keep the same tokens."""
        self._check_pass(x, token_indices)
        with explain_model_memory(self, x):
            return self._run(x, mode, token_indices)

    def _run(self, x: Tensor, mode: ForwardMode, token_indices: Tensor | None) -> Output:
        if kernels_cover(self, x, mode):
            return run_fused(plan(self, x), x, mode, token_indices)
        front = self.front_end(x, mode)
        if token_indices is None:
            token_indices = self.select(front.stages[-1].spikes)
        logits = self.classify(front.features, front.attention, token_indices)
        rates = torch.cat([stage.rates() for stage in front.stages])
        return Output(nan_where_not_finite(logits, x), rates, front.attention, token_indices)

    def run_passes(self, x: Tensor, modes: Sequence[ForwardMode]) -> list[Output]:
        """Several passes over the same clips, all with the first one's tokens; weights are prepared once for all."""
        self._check_pass(x, None)
        with explain_model_memory(self, x, len(modes)):
            planned = plan(self, x) if kernels_cover(self, x, modes[0]) else None
            outputs: list[Output] = []
            for mode in modes:
                indices = outputs[0].token_indices if outputs else None
                one = self._run(x, mode, indices) if planned is None else run_fused(planned, x, mode, indices)
                outputs.append(one)
            return outputs

    def front_end(self, x: Tensor, mode: ForwardMode = HARD, initial_state: FrontEndState | None = None) -> FrontEnd:
        """The part that can run as events come in: pieces of a recording with carried state equal one call."""
        step, states, bridge_state = initial_state or FrontEndState(0, (None,) * 3, None)  # type: ignore[arg-type]
        check_input(x, self.config.max_time_steps, self.dtype, seen=step, training=self.training)
        if initial_state is not None and states[0].first_input.shape != x[:, 0].shape:
            given, wanted = tuple(x[:, 0].shape), tuple(states[0].first_input.shape)
            raise InputError(f"the input's steps have shape {given}; the state it goes on from has {wanted}")
        current = self.entry(x, mode, step)
        stages = []
        for stage, state in zip(self.stages, states, strict=True):
            out = stage(current, mode, state, step)
            current = out.spikes
            stages.append(out)
        read = stages if self.config.bridge == "mr-s3a" else stages[-1:]
        grid = (current.shape[-2], current.shape[-1])
        features, bridge_state = self.bridge.features([stage.spikes for stage in read], grid, mode, bridge_state)
        final = FrontEndState(step + x.shape[1], tuple(stage.state for stage in stages), bridge_state)
        return FrontEnd(features, stages, final)

    @torch.no_grad()
    def run_causal(self, x: Tensor, state: CausalState | None = None) -> CausalRun:
        """The next steps [B, T', 2, H, W] of a stream, in evaluation, after the state of those before them.

        Pieces of any length equal one call on the whole, up to rounding; the state's size does not depend on how many
        steps there were. Of a causal network alone.
        """
        if not self.config.causal:
            raise ConfigError(f"'{self.name}' looks at whole clips; run_causal wants a network whose causal is true")
        if (found := find_modification(self, (self.hierarchy,), TABLE)) is not None:
            raise modified_error(found, "run_causal")
        with explain_model_memory(self, x):
            front = self.front_end(x, HARD, None if state is None else state.front)
            tokens = self.bridge(front.features, front.attention)
            mixed, hierarchy = self.hierarchy.advance(tokens, None if state is None else state.hierarchy)
            return CausalRun(
                nan_where_not_finite(self.head(mixed.mean(2)), x), front, CausalState(front.state, hierarchy).compact()
            )

    def classify(self, features: Tensor, attention: Tensor, token_indices: Tensor | None = None) -> Tensor:
        """Features [B, T, N, d] and attention [B, T, C, h, w] of a whole recording → per-step logits."""
        if token_indices is not None:
            self._check_indices(token_indices, features.shape[0], features.shape[2])
        tokens = self.bridge(features, attention, token_indices)
        return self.head(self.hierarchy(tokens).mean(2))

    def select(self, spikes: Tensor) -> Tensor | None:
        """Positions [B, k] that the last stage's spikes call for, None when all are kept."""
        positions = spikes.shape[-2] * spikes.shape[-1]
        keep = self.config.num_tokens
        if keep is not None and keep > positions:
            raise InputError(f"tokens is {keep}; this input's last grid has only {positions} positions")
        return self.tokens(spikes)

    def _check_pass(self, x: Tensor, indices: Tensor | None) -> None:
        check_input(x, self.config.max_time_steps, self.dtype, training=self.training)
        if indices is not None and not (indices.is_cuda and torch.cuda.is_current_stream_capturing()):
            height, width = self.config.grids(*x.shape[3:])[-1]
            self._check_indices(indices, x.shape[0], height * width)

    def _check_indices(self, indices: Tensor, samples: int, positions: int) -> None:
        fits = indices.ndim == 2 and indices.shape[0] == samples and not indices.is_floating_point()
        if not fits or indices.numel() == 0 or int(indices.min()) < 0 or int(indices.max()) >= positions:
            raise InputError(
                f"token_indices has shape {tuple(indices.shape)} and dtype {indices.dtype}; whole numbers "
                f"(batch {samples}, k) below {positions} are wanted"
            )

    def modification(self) -> Modification | None:
        own = overridden_method(
            self, {name: self.package_methods[name] for name in ("front_end", "classify", "select")}
        )
        if own is not None:
            return Modification("", own)
        for name, kinds in PARTS.items():
            if type(part := getattr(self, name)) not in kinds:
                return Modification(name, f"is a {type(part).__name__}")
        table = WITH_DUAL_KERNELS if self.config.form == "dual-kernel" else TABLE
        return find_modification(
            self, (self.entry, self.stages, self.bridge, self.tokens, self.hierarchy, self.head), table
        )

    def parts(self) -> dict[str, nn.Module]:
        """The network in the order an event sees it."""
        stages = {f"stage{level + 1}": stage for level, stage in enumerate(self.stages)}
        rest = {"bridge": self.bridge, "tokens": self.tokens, "hierarchy": self.hierarchy, "head": self.head}
        return {"entry": self.entry, **stages, **rest}


RipeMambaSpike.package_methods = {
    name: getattr(RipeMambaSpike, name) for name in ("forward", "front_end", "classify", "select")
}


def _compact(state: Any) -> Any:
    """A state with its tensors copied out of larger ones."""
    if isinstance(state, Tensor):
        return state.clone(memory_format=torch.contiguous_format)
    if isinstance(state, tuple):
        parts = map(_compact, state)
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def _norm(config: RipeConfig, channels: int) -> nn.Module:
    training = config.form == "training"
    if config.causal:
        return SharedNorm(channels) if training else SharedAffine(channels)
    return (TimeBatchNorm if training else TimeAffine)(config.time_steps, channels)


def _conv(config: RipeConfig, in_channels: int, channels: int, stride: int, binary_operand: bool) -> nn.Module:
    if config.form == "training":
        return RepConv(in_channels, channels, stride, tdm_enabled=config.tdm, branches=config.repconv)
    if config.form == "dual-kernel" and binary_operand:
        return DualKernelConv(in_channels, channels, stride)
    return FusedConv(in_channels, channels, stride, tdm_enabled=config.tdm)


def _stage(config: RipeConfig, level: int) -> SpikingStage:
    in_channels = (2, *config.stage_channels)[level]
    channels = config.stage_channels[level]
    neuron = NEURONS[config.neurons[level]]
    return SpikingStage(
        first_conv=_conv(config, in_channels, channels, 2, binary_operand=level > 0),
        first_norm=_norm(config, channels),
        first_neuron=neuron(channels),
        second_conv=_conv(config, channels, channels, 1, binary_operand=True),
        second_norm=_norm(config, channels),
        attention=ATTENTIONS[config.attention](channels),
        second_neuron=neuron(channels),
    )


def _mixture(config: RipeConfig) -> Mixture:
    scales = config.stage_channels if config.bridge == "mr-s3a" else config.stage_channels[-1:]
    kind = ProjectedMixture if config.form == "training" else FoldedMixture
    return kind(scales, config.embed_dims[0])
