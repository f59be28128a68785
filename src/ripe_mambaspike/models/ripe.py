"""RIPE-MambaSpike: entry norm → three spiking stages → bridge → hierarchy → mean over tokens → head.

One network runs whole clips, pieces of a recording with carried state, and endless streams of a causal network. It is
written here over its modules (the reference path, which exports trace) and in `models.fused` over the fused operators;
both give the same results, states and names.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.base import FrontEnd, Model, Output, modified_error, register_architecture
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.fused import (
    NetworkPlan,
    kernels_cover,
    prepared_plan,
    run_front_end,
    run_fused,
    run_head,
    run_tail,
    steps_covered,
)
from ripe_mambaspike.models.input_checks import check_input, check_observe, check_state, nan_where_not_finite
from ripe_mambaspike.models.memory import explain_model_memory
from ripe_mambaspike.nn.attention import make_attention
from ripe_mambaspike.nn.bridge import Bridge, FoldedMixture, ProjectedMixture, ScaleMixture
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.fused.coverage import PARTS, TABLE, WITH_DUAL_KERNELS
from ripe_mambaspike.nn.hierarchy import Hierarchy, make_head
from ripe_mambaspike.nn.modified import Modification, find_modification, overridden_method
from ripe_mambaspike.nn.neurons import make_neuron
from ripe_mambaspike.nn.norm import SharedAffine, SharedNorm, TimeAffine, TimeBatchNorm
from ripe_mambaspike.nn.repconv import DualKernelConv, FusedConv, RepConv
from ripe_mambaspike.nn.stage import SpikingStage
from ripe_mambaspike.nn.state import Names, State, Step, below, compact, prefixed
from ripe_mambaspike.nn.tokens import TokenSelection


@register_architecture(RipeConfig)
class RipeMambaSpike(Model):
    config: RipeConfig
    has_relaxed_pass = True

    def __init__(self, config: RipeConfig, name: str) -> None:
        super().__init__(config, name)
        widths = config.embed_dims
        self.entry = _norm(config, 2)
        self.stages = nn.ModuleList(_stage(config, level) for level in range(3))
        self.bridge = Bridge(_mixture(config), config.stage_channels[-1], config.bridge_width, config.rate_decay)
        self.tokens = TokenSelection(config.num_tokens)
        self.hierarchy = Hierarchy(
            widths,
            config.pool_ratios,
            config.mixer,
            config.drop_path_rate,
            causal=config.causal,
            entry=config.bridge_width,
            sizes=config.mamba_sizes,
        )
        self.head = make_head(widths[-1], config.num_classes, config.head_hidden_size)

    @property
    def num_features(self) -> int:
        return self.config.head_hidden_size or self.config.embed_dims[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Events binned to [B, T, 2, H, W] → per-step logits [B, T, num_classes]."""
        self._check_pass(x, None)
        if not kernels_cover(self, x):
            return self.run(x).logits
        with explain_model_memory(self, x):
            plan = prepared_plan(self, x)
            if torch.compiler.is_compiling() or torch.is_grad_enabled() or torch.is_inference_mode_enabled():
                return self._logits(plan, x)
            with torch.inference_mode():  # less overhead; the copy is a normal tensor
                logits = self._logits(plan, x)
            return logits.clone()

    def _logits(self, plan: NetworkPlan, x: Tensor) -> Tensor:
        return self.prepared_weights.graphs.run(plan, x, lambda x: run_fused(plan, x, want_rates=False).logits)

    def forward_features(self, x: Tensor) -> Tensor:
        """Events [B, T, 2, H, W] → tokens after the hierarchy [B, T, k, d]."""
        front = self.front_end(x)
        tokens = self._tail(front.features, front.attention, self.select(front.token_scores))
        return nan_where_not_finite(tokens, x)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Mean over the tokens of a step, then the head: [B, T, k, d] → [B, T, num_classes]."""
        if steps_covered(self, tokens, HARD):
            return run_head(prepared_plan(self, tokens), tokens, pre_logits)
        pooled = tokens.mean(2)
        if not pre_logits:
            return self.head(pooled)
        return self.head[:-1](pooled) if isinstance(self.head, nn.Sequential) else pooled

    def run(
        self,
        x: Tensor,
        mode: ForwardMode = HARD,
        token_indices: Tensor | None = None,
        state: State | None = None,
        observe: Names = (),
    ) -> Output:
        """A pass with all its outputs; pass the token indices of one pass to the next to keep the same tokens.

        A causal network continues from a `state` ({} at the start) and returns the next one: pieces of any length equal
        one call on the whole. `observe` names what to return by layer (`nn.stage.OBSERVABLE`).
        """
        self._check_pass(x, token_indices)
        if state is not None:
            self._check_causal()
        with explain_model_memory(self, x), torch.set_grad_enabled(torch.is_grad_enabled() and state is None):
            return self._run(x, mode, token_indices, state, observe)

    def _run(
        self,
        x: Tensor,
        mode: ForwardMode,
        token_indices: Tensor | None,
        state: State | None = None,
        observe: Names = (),
    ) -> Output:
        if steps_covered(self, x, mode, observe) or (state is None and not observe and kernels_cover(self, x, mode)):
            return run_fused(prepared_plan(self, x), x, mode, token_indices, state=state, observe=observe)
        front = self.front_end(x, mode, state, observe=observe)
        if token_indices is None:
            token_indices = self.select(front.token_scores)
        if state is None:
            logits = self.classify(front.features, front.attention, token_indices)
        else:
            tokens = self.bridge(front.features, front.attention)
            tokens, left = self.hierarchy.forward_with_state(tokens, below(state, "hierarchy"))
            state = compact(front.state | prefixed("hierarchy", left))
            logits = self.forward_head(tokens)
        logits = nan_where_not_finite(logits, x)
        return Output(logits, front.rates, front.attention, token_indices, state, front.observed)

    def num_spiking_layers(self) -> int:
        return 2 * len(self.stages)

    def run_passes(self, x: Tensor, modes: Sequence[ForwardMode]) -> list[Output]:
        """Several passes over the same clips, all with the first one's tokens; weights are prepared once for all."""
        self._check_pass(x, None)
        with explain_model_memory(self, x, len(modes)):
            planned = prepared_plan(self, x) if kernels_cover(self, x, modes[0]) else None
            outputs: list[Output] = []
            for mode in modes:
                indices = outputs[0].token_indices if outputs else None
                one = self._run(x, mode, indices) if planned is None else run_fused(planned, x, mode, indices)
                outputs.append(one)
            return outputs

    def front_end(
        self, x: Tensor, mode: ForwardMode = HARD, state: State | None = None, first_step: Step = 0, observe: Names = ()
    ) -> FrontEnd:
        """The part that runs as events come in: pieces of a recording with carried state equal one call.

        `first_step` is the index of x's first step in the recording: an int, or [B] where rows are at different steps.
        """
        seen = first_step if isinstance(first_step, int) else 0
        check_input(x, self.config.max_time_steps, self.dtype, seen=seen, training=self.training)
        check_state(state, x, self.config)
        check_observe(observe)
        if steps_covered(self, x, mode, observe):
            return run_front_end(prepared_plan(self, x), x, mode, state, first_step, observe)
        return self.reference_front_end(x, mode, state, first_step, observe)

    def reference_front_end(
        self, x: Tensor, mode: ForwardMode = HARD, state: State | None = None, first_step: Step = 0, observe: Names = ()
    ) -> FrontEnd:
        """`front_end` over the modules, without checks: what exports trace."""
        current = self.entry(x, mode, first_step)
        final: State = {}
        observed: dict[str, Tensor] = {}
        stages = []
        for level, stage in enumerate(self.stages):
            name = f"stages.{level}"
            out = stage(current, mode, below(state, name), first_step, observe)
            current = out.spikes
            final |= prefixed(name, out.state)
            observed |= prefixed(name, out.observed)
            stages.append(out)
        read = [out.spikes for out in stages][0 if self.config.bridge == "mr-s3a" else -1 :]
        grid = (current.shape[-2], current.shape[-1])
        features, left = self.bridge.features(read, grid, mode, below(state, "bridge"), first_step)
        final |= prefixed("bridge", left)
        scores, left = self.tokens(current, below(state, "tokens"), first_step)
        final |= prefixed("tokens", left)
        rates = torch.cat([out.rates() for out in stages])
        return FrontEnd(features, stages[-1].attention, rates, scores, final, observed)

    def classify(self, features: Tensor, attention: Tensor, token_indices: Tensor | None = None) -> Tensor:
        """Features [B, T, N, d] and attention [B, T, C, h, w] of a whole recording → per-step logits."""
        if token_indices is not None:
            self._check_indices(token_indices, features.shape[0], features.shape[2])
        return self.forward_head(self._tail(features, attention, token_indices)).to(attention.dtype)

    def _tail(self, features: Tensor, attention: Tensor, token_indices: Tensor | None) -> Tensor:
        if steps_covered(self, attention, HARD):
            return run_tail(prepared_plan(self, attention), features, attention, token_indices)
        return self.hierarchy(self.bridge(features, attention, token_indices))

    def select(self, token_scores: Tensor | None) -> Tensor | None:
        """The positions with the highest scores [B, k]; None if all are kept."""
        if token_scores is None or self.config.num_tokens is None:
            return None
        positions = token_scores.shape[-1]
        if self.config.num_tokens > positions:
            wanted = f"at most {positions}, the positions of this input's last grid"
            raise InputError.expected("num_tokens", wanted, self.config.num_tokens)
        return self.tokens.select(token_scores)

    def _check_causal(self) -> None:
        if not self.config.causal:
            got = f"'{self.name}', which reads whole clips"
            raise ConfigError.expected("causal", "a causal network to run with a state", got)
        if (found := find_modification(self, (self.hierarchy,), TABLE)) is not None:
            raise modified_error(found, "run with a state")

    def _check_pass(self, x: Tensor, indices: Tensor | None) -> None:
        check_input(x, self.config.max_time_steps, self.dtype, training=self.training)
        if indices is not None and not (indices.is_cuda and torch.cuda.is_current_stream_capturing()):
            height, width = self.config.grids(*x.shape[3:])[-1]
            self._check_indices(indices, x.shape[0], height * width)

    def _check_indices(self, indices: Tensor, samples: int, positions: int) -> None:
        if torch.compiler.is_compiling():
            return
        fits = indices.ndim == 2 and indices.shape[0] == samples and not indices.is_floating_point()
        if not fits or indices.numel() == 0 or int(indices.min()) < 0 or int(indices.max()) >= positions:
            wanted = f"ints below {positions} of shape (batch {samples}, k)"
            raise InputError.expected("token_indices", wanted, f"{indices.dtype} of shape {tuple(indices.shape)}")

    def modification(self) -> Modification | None:
        methods = {name: method for name, method in self.package_methods.items() if name != "forward"}
        if (own := overridden_method(self, methods)) is not None:
            return Modification("", own)
        parts = {name: getattr(self, name) for name in PARTS}
        for name, part in parts.items():
            if type(part) not in PARTS[name]:
                return Modification(name, f"is a {type(part).__name__}")
        table = WITH_DUAL_KERNELS if self.config.form == "dual-kernel" else TABLE
        return find_modification(self, (*parts.values(), self.head), table)

    def parts(self) -> dict[str, nn.Module]:
        """The network's parts in the order of computation."""
        stages = {f"stage{level + 1}": stage for level, stage in enumerate(self.stages)}
        rest = {"bridge": self.bridge, "tokens": self.tokens, "hierarchy": self.hierarchy, "head": self.head}
        return {"entry": self.entry, **stages, **rest}


RipeMambaSpike.package_methods = {
    name: getattr(RipeMambaSpike, name) for name in ("forward", "front_end", "classify", "select")
}


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
    factor, detached = config.csilif_reset, config.detach_reset
    neuron = partial(make_neuron, config.neurons[level], channels, csilif_reset=factor, detach_reset=detached)
    feature_map, epsilon = config.attention_feature_map, config.attention_epsilon
    return SpikingStage(
        first_conv=_conv(config, in_channels, channels, 2, binary_operand=level > 0),
        first_norm=_norm(config, channels),
        first_neuron=neuron(),
        second_conv=_conv(config, channels, channels, 1, binary_operand=True),
        second_norm=_norm(config, channels),
        attention=make_attention(config.attention, channels, feature_map=feature_map, epsilon=epsilon),
        second_neuron=neuron(),
    )


def _mixture(config: RipeConfig) -> ScaleMixture:
    scales = config.stage_channels if config.bridge == "mr-s3a" else config.stage_channels[-1:]
    kind = ProjectedMixture if config.form == "training" else FoldedMixture
    return kind(scales, config.bridge_width)
