"""What a network is made of: typed, frozen, checked when made. `config.json` holds exactly these fields."""

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

from ripe_mambaspike.errors import ConfigError

Form = Literal["training", "deployed", "dual-kernel"]
Neuron = Literal["lif", "silif", "csilif"]
Mixer = Literal["mamba", "transformer", "gru", "conv1d", "none", "flat"]
Attention = Literal["ds-mpa", "low-rank", "grouped", "sigmoid", "gate", "none"]
BridgeKind = Literal["mr-s3a", "stage3"]

SMALLEST_SIDE = 8  # three strides of two
# Beyond these, a slip and not a wish.
LARGEST = {"classes": 2**20, "steps": 4096, "resolution": 4096, "tokens": 2**20, "blocks": 256}
LARGEST_WIDTH = 16384
MAX_PARAMETERS = 2**30  # about; a network of more is counted and not built
CAUSAL_MIXERS = ("mamba", "none")  # Mamba then runs forwards alone
SWITCHES = {"attention": ("ds-mpa", "none"), "bridge": ("mr-s3a", "stage3")}  # what True and False mean


@dataclass(frozen=True)
class ModelConfig:
    """What every network has."""

    architecture: ClassVar[str]

    classes: int = 11  # outputs of the head
    steps: int = 16  # T, the most time steps the network can take; a causal one takes any number
    resolution: tuple[int, int] = (128, 128)  # height and width it is meant for; an int means a square
    form: Form = "training"  # training (branches and norms), deployed (fused) or dual-kernel (accumulate-only)

    def __post_init__(self) -> None:
        for field in self.field_names():
            object.__setattr__(self, field, _plain(getattr(self, field)))
        for field in ("classes", "steps"):
            self._check_count(field)
        self._check_resolution()
        self._choose("form", Form)

    @property
    def most_steps(self) -> int | None:
        """How many steps the network can take; None for any number."""
        return self.steps

    def parameters_about(self) -> dict[str, int]:
        """How many parameters the network has, about, by the field that has most to do with them."""
        raise NotImplementedError

    def check_size(self) -> None:
        """Refuse a network that no machine should try to build."""
        parts = self.parameters_about()
        total = sum(parts.values())
        if total > MAX_PARAMETERS:
            largest = max(parts, key=lambda name: parts[name])
            raise ConfigError(
                f"{largest}: expected a network of at most {MAX_PARAMETERS:,} parameters, got about {total:,}",
                field=largest,
            )

    @classmethod
    def field_names(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def from_dict(cls, values: dict[str, Any], origin: str) -> Self:
        """A config from plain values; unknown fields are named, with the nearest known one."""
        for name in values:
            if name not in cls.field_names():
                close = difflib.get_close_matches(name, cls.field_names(), 1)
                hint = f"; did you mean '{close[0]}'?" if close else ""
                known = ", ".join(cls.field_names())
                raise ConfigError(f"{origin} has no field '{name}'{hint} (its fields are {known})")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(self).items()}

    def replace(self, origin: str = "the model", **overrides: Any) -> Self:
        return self.from_dict({**{name: getattr(self, name) for name in self.field_names()}, **overrides}, origin)

    def _check_resolution(self) -> None:
        given = self.resolution
        sides = (given, given) if isinstance(given, int) else given
        most = LARGEST["resolution"]
        if not isinstance(sides, tuple) or len(sides) != 2 or not all(_is_count(s, 1, most) for s in sides):
            raise ConfigError(f"resolution is {given!r}; one side or (height, width) from 8 to {most} is wanted")
        if min(sides) < SMALLEST_SIDE:
            raise ConfigError(f"resolution is {given!r}; the network's three strides need at least 8 a side")
        object.__setattr__(self, "resolution", sides)

    def _check_count(self, field: str, least: int = 1) -> None:
        value = getattr(self, field)
        most = LARGEST.get(field, LARGEST_WIDTH)
        if not _is_count(value, least, most):
            raise ConfigError(f"{field} is {value!r}; a whole number from {least} to {most} is wanted")

    def _check_counts(self, field: str, length: int) -> None:
        value = getattr(self, field)
        most = LARGEST.get(field, LARGEST_WIDTH)
        if not isinstance(value, tuple) or len(value) != length or not all(_is_count(v, 1, most) for v in value):
            raise ConfigError(f"{field} is {value!r}; {length} whole numbers from 1 to {most} are wanted")

    def _choose(self, field: str, kind: Any, several: bool = False) -> None:
        """Make the field one of the kind's names; capitals, hyphens and underscores do not matter."""
        given = getattr(self, field)
        names = given if several else (given,)
        spelled = {_letters(choice): choice for choice in get_args(kind)}
        for name in names:
            if not isinstance(name, str) or _letters(name) not in spelled:
                raise ConfigError(f"{field} is {given!r}; one of {', '.join(spelled.values())} is wanted")
        chosen = tuple(spelled[_letters(name)] for name in names)
        object.__setattr__(self, field, chosen if several else chosen[0])

    def _check_flag(self, field: str) -> None:
        if not isinstance(getattr(self, field), bool):
            raise ConfigError(f"{field} is {getattr(self, field)!r}; true or false is wanted")


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _plain(value: Any) -> Any:
    """Lists and arrays as tuples, numpy's numbers as Python's."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _is_count(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


@dataclass(frozen=True)
class RipeConfig(ModelConfig):
    """RIPE-MambaSpike. No parameter depends on the resolution."""

    architecture: ClassVar[str] = "ripe-mambaspike"

    stage_channels: tuple[int, int, int] = (32, 64, 128)  # width of the three spiking stages
    hierarchy_widths: tuple[int, int, int] = (32, 64, 128)  # token width of the three levels
    pool_ratios: tuple[int, int, int] = (1, 2, 2)  # tokens averaged into one before each level
    neurons: tuple[Neuron, Neuron, Neuron] = ("csilif", "silif", "silif")  # one a stage; a single name means all three
    attention: Attention = "ds-mpa"  # DS-MPA or a variant; none is ablation A1
    repconv: bool = True  # all branches; without, a plain 3×3 and its norm (A2)
    tdm: bool = True  # the temporal filter before every convolution; without, identity (A3)
    bridge: BridgeKind = "mr-s3a"  # all three scales, or the last stage alone (A4)
    mixer: Mixer = "mamba"  # what mixes the tokens
    tokens: int | None = None  # keep the k most salient positions; all of them by default
    drop_path: float = 0.1  # of the last level; it grows linearly from 0
    head_width: int | None = None  # a widening head of this width before the classes
    causal: bool = False  # no step hears of a later one: it streams for ever, and steps is the training clip's length

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("stage_channels", "hierarchy_widths", "pool_ratios"):
            self._check_counts(field, 3)
        if isinstance(self.neurons, str):
            object.__setattr__(self, "neurons", (self.neurons,) * 3)
        if not isinstance(self.neurons, tuple) or len(self.neurons) != 3:
            raise ConfigError(
                f"neurons is {self.neurons!r}; one name or three of {', '.join(get_args(Neuron))} are wanted"
            )
        self._choose("neurons", Neuron, several=True)
        for field, (present, absent) in SWITCHES.items():
            if isinstance(getattr(self, field), bool):
                object.__setattr__(self, field, present if getattr(self, field) else absent)
        self._choose("attention", Attention)
        self._choose("bridge", BridgeKind)
        self._choose("mixer", Mixer)
        self._check_flag("repconv")
        self._check_flag("tdm")
        self._check_flag("causal")
        for field in ("tokens", "head_width"):
            if getattr(self, field) is not None:
                self._check_count(field)
        height, width = self.grids(*self.resolution)[-1]
        if self.tokens is not None and self.tokens > height * width:
            size = "×".join(map(str, self.resolution))
            raise ConfigError(f"tokens is {self.tokens}; at {size} the last grid has only {height * width} positions")
        rate = self.drop_path
        if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate < 1:
            raise ConfigError(f"drop_path is {rate!r}; a number from 0 up to but not 1 is wanted")
        self._check_divisible()
        self._check_causal()
        if self.form == "dual-kernel" and not self.tdm:
            raise ConfigError("form is 'dual-kernel' and tdm is false; two kernels need the temporal filter")

    def parameters_about(self) -> dict[str, int]:
        channels, widths = self.stage_channels, self.hierarchy_widths
        return {
            "stage_channels": sum(
                18 * c * c + 9 * before * c for before, c in zip((2, *channels), channels, strict=False)
            ),
            "hierarchy_widths": 18 * widths[0] * sum(channels) + sum(20 * width * width for width in widths),
            "steps": 4 * self.steps * sum(channels),
            "classes": self.classes * (self.head_width or widths[-1]),
            "head_width": (self.head_width or 0) * widths[-1],
        }

    def _check_divisible(self) -> None:
        if self.attention in ("low-rank", "grouped") and any(c % 4 for c in self.stage_channels):
            raise ConfigError(
                f"stage_channels is {self.stage_channels}; {self.attention} attention needs multiples of 4"
            )
        if self.mixer == "transformer" and any(w % 4 for w in self.hierarchy_widths):
            raise ConfigError(
                f"hierarchy_widths is {self.hierarchy_widths}; the transformer's four heads need multiples of 4"
            )

    def _check_causal(self) -> None:
        if not self.causal:
            return
        if self.mixer not in CAUSAL_MIXERS:
            wanted = " or ".join(CAUSAL_MIXERS)
            raise ConfigError(f"causal is true and mixer is {self.mixer!r}; {wanted} is wanted, which wait for no step")
        if self.tokens is not None:
            raise ConfigError(
                f"causal is true and tokens is {self.tokens}; all tokens (null) are wanted, since the choice of some "
                "looks at every step"
            )

    @property
    def most_steps(self) -> int | None:
        return None if self.causal else self.steps

    @property
    def rate_keep(self) -> float | None:
        """The share of its memory that the bridge's rate keeps a step; None where it forgets nothing.

        The memory fades over as many steps as a training clip has.
        """
        return 1 - 1 / self.steps if self.causal else None

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Height and width after each stage."""
        out = []
        for _ in self.stage_channels:
            height, width = -(-height // 2), -(-width // 2)
            out.append((height, width))
        return out


@dataclass(frozen=True)
class MambaSpikeConfig(ModelConfig):
    """The baseline, whose join is a dense projection of the whole feature map: made for one resolution."""

    architecture: ClassVar[str] = "mamba-spike"

    classes: int = 10
    channels: tuple[int, int, int] = (32, 32, 128)  # of the three convolutions
    width: int = 256  # of the Mamba blocks
    blocks: int = 6
    pooled: int | None = None  # average-pool to this many cells a side before the projection
    conv_bias: bool = False  # of Mamba's convolution: the paper's tables leave it out, the released model has it
    window: int = 5  # steps of the windowed rate

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts("channels", 3)
        for field in ("width", "blocks", "window"):
            self._check_count(field)
        if self.pooled is not None:
            self._check_count("pooled")
        self._check_flag("conv_bias")
        if self.form != "training":
            raise ConfigError(f"form is {self.form!r}; Mamba-Spike has nothing to fuse, so only 'training' is known")

    def parameters_about(self) -> dict[str, int]:
        height, width = self.grid()
        return {
            "channels": sum(9 * before * c for before, c in zip((2, *self.channels), self.channels, strict=False)),
            "resolution" if self.pooled is None else "pooled": self.channels[-1] * height * width * self.width,
            "width": 7 * self.blocks * self.width * self.width,
            "classes": self.classes * self.width,
        }

    def grid(self) -> tuple[int, int]:
        """Cells the projection reads."""
        if self.pooled is not None:
            return self.pooled, self.pooled
        height, width = self.resolution
        return height // 4, width // 4
