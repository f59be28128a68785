"""Typed, frozen configs of the networks, checked on construction. `config.json` holds exactly these fields."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from ripe_mambaspike.errors import ConfigError, short_repr
from ripe_mambaspike.models.config_values import as_python, int_within, letters, number_within
from ripe_mambaspike.own_modules import unknown_name
from ripe_mambaspike.schema import suggest

if TYPE_CHECKING:
    from ripe_mambaspike.nn.levels import Level
    from ripe_mambaspike.nn.mamba import MambaSizes

Form = Literal["training", "deployed", "dual-kernel"]
BridgeKind = Literal["mr-s3a", "stage3"]

MIN_SIDE = 8  # three strides of two
MAX_SIDE = 4096
MAX_TIME_STEPS = 4096
MAX_WIDTH = 16384  # of any layer
MAX_COUNT = {
    "num_classes": 2**20, "time_steps": MAX_TIME_STEPS, "num_tokens": 2**20, "depth": 256,
    "d_state": 1024, "d_conv": 64, "expand": 64,
}  # fmt: skip
MAX_PARAMETERS = 2**30  # approximate; a larger network can be counted but not built
SWITCHES = {"attention": ("ds-mpa", "none"), "bridge": ("mr-s3a", "stage3")}  # what True and False mean


@dataclass(frozen=True)
class ModelConfig:
    """The fields that every network has."""

    architecture: ClassVar[str]

    num_classes: int = 11  # outputs of the head; 0 for embeddings without a head
    time_steps: int = 16  # T, the most time steps the network can take; a causal one takes any number
    in_size: tuple[int, int] = (128, 128)  # height and width it is meant for; an int means a square
    form: Form = "training"  # training (branches and norms), deployed (fused) or dual-kernel (accumulate-only)

    def __post_init__(self) -> None:
        for field in self.field_names():
            object.__setattr__(self, field, as_python(getattr(self, field)))
        self._check_count("num_classes", least=0)
        self._check_count("time_steps")
        self._check_in_size()
        self._choose("form", get_args(Form))

    @property
    def max_time_steps(self) -> int | None:
        """The most time steps the network can take; None for no limit."""
        return self.time_steps

    def deployed(self) -> Self:
        """The config of the fused network; the same where there is nothing to fuse."""
        return self

    def approximate_parameters(self) -> dict[str, int]:
        """The approximate number of parameters, by the config field that dominates it."""
        raise NotImplementedError

    def check_size(self) -> None:
        """Raise for a network that is too large to build."""
        parts = self.approximate_parameters()
        total = sum(parts.values())
        if total > MAX_PARAMETERS:
            largest = max(parts, key=lambda name: parts[name])
            wanted = f"a network of at most {MAX_PARAMETERS:,} parameters"
            raise ConfigError.expected(largest, wanted, f"about {total:,}")

    @classmethod
    def field_names(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def from_dict(cls, values: dict[str, Any], origin: str) -> Self:
        """A config from plain values; an unknown field raises and names the nearest known one."""
        from ripe_mambaspike.models.old_names import CONFIG_FIELDS

        for name in values:
            if name not in cls.field_names():
                meant = CONFIG_FIELDS.get(cls.architecture, {}).get(name, name)
                wanted = f"a field of {origin} ({', '.join(cls.field_names())})"
                raise ConfigError.expected(name, wanted, f"an unknown one{suggest(meant, cls.field_names())}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(self).items()}

    def replace(self, origin: str = "the model", **overrides: Any) -> Self:
        return self.from_dict({**{name: getattr(self, name) for name in self.field_names()}, **overrides}, origin)

    def _refuse(self, field: str, expected: str) -> None:
        raise ConfigError.expected(field, expected, short_repr(getattr(self, field)))

    def _check_in_size(self) -> None:
        given = self.in_size
        sides = (given, given) if isinstance(given, int) else given
        fits = isinstance(sides, tuple) and len(sides) == 2 and all(int_within(s, MIN_SIDE, MAX_SIDE) for s in sides)
        if not fits:
            self._refuse("in_size", f"one side or (height, width) from {MIN_SIDE} to {MAX_SIDE}")
        object.__setattr__(self, "in_size", sides)

    def _check_count(self, *fields: str, least: int = 1) -> None:
        for field in fields:
            most = MAX_COUNT.get(field, MAX_WIDTH)
            if not int_within(getattr(self, field), least, most):
                self._refuse(field, f"an int from {least} to {most}")

    def _check_counts(self, field: str, length: int) -> None:
        value = getattr(self, field)
        if not isinstance(value, tuple) or len(value) != length or not all(int_within(v, 1, MAX_WIDTH) for v in value):
            self._refuse(field, f"{length} ints from 1 to {MAX_WIDTH}")

    def _check_number(self, field: str, least: float, most: float) -> None:
        if not number_within(getattr(self, field), least, most):
            self._refuse(field, f"a number from {least:g} to {most:g}")

    def _choose(self, field: str, choices: Iterable[str], several: bool = False) -> None:
        """Set the field to one of the choices, ignoring case, hyphens and underscores.

        A mapping of choices is a registry, which a file of the user's own may add to.
        """
        given = getattr(self, field)
        names = given if several else (given,)
        spelled = {letters(choice): choice for choice in choices}
        unknown = [name for name in names if not isinstance(name, str) or letters(name) not in spelled]
        if unknown:
            if isinstance(choices, Mapping):
                raise unknown_name(field, unknown[0], choices)
            raise ConfigError.expected(field, f"one of {', '.join(choices)}", short_repr(unknown[0]))
        chosen = tuple(spelled[letters(name)] for name in names)
        object.__setattr__(self, field, chosen if several else chosen[0])

    def _check_flag(self, field: str) -> None:
        if not isinstance(getattr(self, field), bool):
            self._refuse(field, "true or false")


@dataclass(frozen=True)
class RipeConfig(ModelConfig):
    """RIPE-MambaSpike. No parameter depends on the input's size."""

    architecture: ClassVar[str] = "ripe-mambaspike"

    stage_channels: tuple[int, int, int] = (32, 64, 128)  # width of the three spiking stages
    embed_dims: tuple[int, int, int] = (32, 64, 128)  # token width of the three levels of the hierarchy
    pool_ratios: tuple[int, int, int] = (1, 2, 2)  # tokens averaged into one before each level
    neurons: tuple[str, str, str] = ("csilif", "silif", "silif")  # one per stage; a single name means all three
    csilif_reset: float = 0.5  # κ, what a spike takes off the membrane of a CSiLIF
    detach_reset: bool = False  # no gradient through what a spike takes off the membrane
    attention: str = "ds-mpa"  # DS-MPA or a variant; none is ablation A1
    attention_feature_map: str = "elu"  # φ of ds-mpa, low-rank and grouped: elu (ELU + 1), relu, softplus or exp
    attention_epsilon: float = 1e-5  # ε, added to their normalizer
    repconv: bool = True  # all branches; without, a plain 3×3 and its norm (A2)
    tdm: bool = True  # the temporal filter before every convolution; without, identity (A3)
    bridge: BridgeKind = "mr-s3a"  # all three scales, or the last stage alone (A4)
    bridge_dim: int | None = None  # d_m, the width of the bridge's tokens; the first of embed_dims by default
    mixer: str = "mamba"  # what mixes the tokens
    d_state: int = 16  # states of a channel in the hierarchy's Mamba
    d_conv: int = 4  # taps of its convolution
    expand: int = 2  # its inner channels for each of a level's width
    num_tokens: int | None = None  # keep the k most salient positions; all of them by default
    drop_path_rate: float = 0.1  # of the last level; it grows linearly from 0
    head_hidden_size: int | None = None  # hidden width of a two-layer head; a single Linear by default
    causal: bool = False  # each step sees only earlier ones, so the model can stream indefinitely

    def __post_init__(self) -> None:
        from ripe_mambaspike.nn.attention import ATTENTIONS
        from ripe_mambaspike.nn.mixers import MIXERS, causal_mixers
        from ripe_mambaspike.nn.neurons import NEURONS
        from ripe_mambaspike.ops.membrane_attention.feature_maps import FEATURE_MAPS

        super().__post_init__()
        for field in ("stage_channels", "embed_dims", "pool_ratios"):
            self._check_counts(field, 3)
        if isinstance(self.neurons, str):
            object.__setattr__(self, "neurons", (self.neurons,) * 3)
        if not isinstance(self.neurons, tuple) or len(self.neurons) != 3:
            self._refuse("neurons", f"one or three of {', '.join(NEURONS)}")
        self._choose("neurons", NEURONS, several=True)
        for field, (present, absent) in SWITCHES.items():
            if isinstance(getattr(self, field), bool):
                object.__setattr__(self, field, present if getattr(self, field) else absent)
        self._choose("attention", ATTENTIONS)
        self._choose("attention_feature_map", FEATURE_MAPS)
        self._choose("bridge", get_args(BridgeKind))
        self._choose("mixer", MIXERS)
        for field in ("repconv", "tdm", "causal", "detach_reset"):
            self._check_flag(field)
        for field in ("num_tokens", "head_hidden_size", "bridge_dim"):
            if getattr(self, field) is not None:
                self._check_count(field)
        for field, least in (("d_state", 1), ("d_conv", 2), ("expand", 1)):
            self._check_count(field, least=least)
        self._check_number("csilif_reset", 0, 100)
        self._check_number("attention_epsilon", 1e-12, 1)
        height, width = self.grids(*self.in_size)[-1]
        if self.num_tokens is not None and self.num_tokens > height * width:
            size = "×".join(map(str, self.in_size))
            self._refuse("num_tokens", f"at most {height * width}, the positions of the last grid at {size}")
        rate = self.drop_path_rate
        if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate < 1:
            self._refuse("drop_path_rate", "a number from 0 up to but not including 1")
        self._check_divisible()
        if self.causal:
            self._check_causal(causal_mixers())
        if self.form == "dual-kernel" and not self.tdm:
            self._refuse("form", "another form where tdm is false, since two kernels need the temporal filter")

    def approximate_parameters(self) -> dict[str, int]:
        from ripe_mambaspike.nn.levels import block_parameters, transition_parameters

        channels, widths = self.stage_channels, self.embed_dims
        levels = self.levels()
        hierarchy = sum(block_parameters(level.width, level.sizes) for level in levels if level.mixes)
        hierarchy += sum(transition_parameters(level.before, level.width) for level in levels if level.transition)
        bridge = 18 * self.bridge_width * sum(channels)
        return {
            "stage_channels": sum(
                18 * c * c + 9 * before * c for before, c in zip((2, *channels), channels, strict=False)
            ),
            "embed_dims": hierarchy + (bridge if self.bridge_dim is None else 0),
            "bridge_dim": 0 if self.bridge_dim is None else bridge,
            "time_steps": 4 * self.time_steps * sum(channels),
            "num_classes": self.num_classes * (self.head_hidden_size or widths[-1]),
            "head_hidden_size": (self.head_hidden_size or 0) * widths[-1],
        }

    def _check_divisible(self) -> None:
        if self.attention in ("low-rank", "grouped") and any(c % 4 for c in self.stage_channels):
            self._refuse("stage_channels", f"multiples of 4, as {self.attention} attention needs")
        if self.mixer == "transformer" and any(w % 4 for w in self.embed_dims):
            self._refuse("embed_dims", "multiples of 4, as the transformer's four heads need")

    def _check_causal(self, mixers: list[str]) -> None:
        if self.mixer not in mixers:
            self._refuse("mixer", f"{' or '.join(mixers)} for a causal network")
        if self.num_tokens is not None:
            self._refuse("num_tokens", "null for a causal network, since selecting tokens looks at every step")

    @property
    def max_time_steps(self) -> int | None:
        return None if self.causal else self.time_steps

    def deployed(self) -> Self:
        return self.replace(form="deployed")

    @property
    def rate_decay(self) -> float | None:
        """The decay per step of the causal bridge's leaky rates; None for cumulative rates.

        The time constant is the number of steps of a training clip.
        """
        return 1 - 1 / self.time_steps if self.causal else None

    @property
    def bridge_width(self) -> int:
        """The width of the bridge's tokens, d_m."""
        return self.embed_dims[0] if self.bridge_dim is None else self.bridge_dim

    @property
    def mamba_sizes(self) -> "MambaSizes":
        """The sizes of the hierarchy's Mamba."""
        from ripe_mambaspike.nn.mamba import MambaSizes

        return MambaSizes(self.d_state, self.d_conv, self.expand)

    def levels(self) -> "list[Level]":
        """The levels of the hierarchy."""
        from ripe_mambaspike.nn.levels import plan_levels

        return plan_levels(self.embed_dims, self.pool_ratios, self.mixer, self.bridge_width, self.mamba_sizes)

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Height and width after each stage."""
        out = []
        for _ in self.stage_channels:
            height, width = -(-height // 2), -(-width // 2)
            out.append((height, width))
        return out


@dataclass(frozen=True)
class MambaSpikeConfig(ModelConfig):
    """The baseline. Its input projection reads the whole feature map, so it supports one input size."""

    architecture: ClassVar[str] = "mamba-spike"

    num_classes: int = 10
    channels: tuple[int, int, int] = (32, 32, 128)  # of the three convolutions
    embed_dim: int = 256  # of the Mamba blocks
    depth: int = 6  # how many Mamba blocks
    pool_size: int | None = None  # average-pool to this many cells a side before the projection
    conv_bias: bool = False  # of Mamba's convolution: the paper's tables leave it out, the released model has it
    rate_window: int = 5  # steps of the windowed rate

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts("channels", 3)
        self._check_count("embed_dim", "depth", "rate_window")
        if self.pool_size is not None:
            self._check_count("pool_size")
        self._check_flag("conv_bias")
        if self.form != "training":
            self._refuse("form", "'training', since Mamba-Spike has nothing to fuse")

    def approximate_parameters(self) -> dict[str, int]:
        height, width = self.grid()
        return {
            "channels": sum(9 * before * c for before, c in zip((2, *self.channels), self.channels, strict=False)),
            "in_size" if self.pool_size is None else "pool_size": self.channels[-1] * height * width * self.embed_dim,
            "embed_dim": 7 * self.depth * self.embed_dim * self.embed_dim,
            "num_classes": self.num_classes * self.embed_dim,
        }

    def grid(self) -> tuple[int, int]:
        """The number of cells that the projection reads."""
        if self.pool_size is not None:
            return self.pool_size, self.pool_size
        height, width = self.in_size
        return height // 4, width // 4
