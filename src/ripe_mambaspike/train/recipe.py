"""A training run as one typed tree: data, model, optimizer, loss, augmentation, schedule, run.

A recipe file in YAML has these fields; omitted ones keep the defaults below, and the comment after a field is its help
text. A run saves its recipe with all fields, and that file reproduces the run.
"""

import ast
import inspect
import io
import textwrap
import tokenize
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from msgspec import Meta

from ripe_mambaspike.data.augment.settings import Augmentation
from ripe_mambaspike.data.settings import Count, DataSettings, Positive

# Fields that affect where and how a run is computed, not what: they may differ when it is resumed.
RESUMABLE_FIELDS = (
    "data.root", "data.num_workers", "data.cache", "model.unused_fields", "run.device", "run.checkpoint_minutes",
    "run.cuda_graph",
)  # fmt: skip
MAX_SEED = 2**63 - 1
AUTO = "auto"  # of model.pretrained: the shipped network that is nearest to the recordings
MAX_THREADS = 1024
NonNegative = Annotated[float, Meta(ge=0)]
Checksum = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
AboveZero = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True)
class ModelSettings:
    """The network."""

    name: str = "dvsgesture"  # a registered model (see ripe models); num_classes, time_steps and in_size are the data's
    fields: dict[str, Any] = field(default_factory=dict)  # other fields of its config, such as {neurons: lif}
    unused_fields: tuple[str, ...] = ()  # fields of the recipe that another network has; set where model.name changes
    pretrained: str | None = None  # start from a shipped network, by name (auto: the nearest one), or from a saved one
    pretrained_checksum: Checksum | None = None  # of the weights it starts from; null, and then set by the run
    expand: bool = False  # train a deployed pretrained network in its training form: with branches and batch norms
    freeze: Literal["none", "stages", "all-but-head"] = "none"  # what of a pretrained network is not trained


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW."""

    learning_rate: NonNegative = 1e-3  # after the warm-up
    min_learning_rate: NonNegative = 1e-6  # where the warm-up begins and the cosine ends
    tdm_lr_scale: NonNegative = 1.0  # factor on the learning rate of TDM's λ, which starts at 0 and has far to go
    pretrained_lr_scale: NonNegative = 0.1  # factor on the learning rate of all but the head, with model.pretrained
    weight_decay: NonNegative = 0.05  # of matrices and kernels
    decay_rule: Literal["kernels", "release"] = "kernels"  # what decays: see train.step; "release" repeats its slip
    clip_grad_norm: AboveZero = 1.0  # largest norm of the whole gradient


@dataclass(frozen=True)
class LossSettings:
    """The terms of the loss; see train.objective."""

    form: Literal["release", "paper"] = "release"  # with w and TET of the relaxed pass, or without, as printed
    spread: NonNegative = 5e-3  # λ of TET
    consistency: NonNegative = 1.0  # λ_SGC, between the hard and the relaxed forward pass
    rates: NonNegative = 1e-4  # λ_L1 on the mean firing rate
    passes: Literal[1, 2] = 2  # 1 leaves the relaxed forward pass out; so does form=paper where consistency is 0

    @property
    def num_passes(self) -> Literal[1, 2]:
        """The forward passes of a step: as printed, the relaxed one serves the consistency term alone."""
        return 1 if self.form == "paper" and not self.consistency else self.passes


@dataclass(frozen=True)
class ScheduleSettings:
    """How long training takes, in which portions, and what changes on the way."""

    epochs: Count = 300  # passes over the training clips; 0, with model.pretrained: chosen by their number
    batch_size: Count = 32  # clips per process and batch; 0, with model.pretrained: chosen by their number
    grad_accum_steps: Positive = 1  # batches whose gradients are summed before a step
    warmup_epochs: Count = 10  # epochs in which the learning rate rises
    warmup_steps: Count = 0  # steps in which it rises, instead of epochs
    first_epochs: Count = 1  # epochs of the classes in data.first alone, where there are some
    sharpness_start: AboveZero = 2.0  # α of surrogate gradient and relaxation in the first epoch
    sharpness_end: AboveZero = 4.0  # and in the last


@dataclass(frozen=True)
class RunSettings:
    """The seed, and everything that should not change what is learned."""

    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] = 0  # of weights, order of clips, augmentation and drop-path
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where to compute; auto is CUDA where there is one
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of products; auto is bfloat16 on CUDA, else float32
    protocol: Literal["validation", "paper"] = "validation"  # paper: no clips held out, the best test epoch selected
    validate_every: Positive = 1  # epochs between validations; the last epoch always has one
    recalibrate_batches: Positive = 50  # clean training batches that batch norms are re-estimated on before evaluation
    ema_decay: Annotated[float, Meta(ge=0, lt=1)] = 0.0  # of averaged weights, evaluated and saved instead; 0 for none
    sync_batch_norm: bool = True  # whether batch norms of several processes share their statistics
    checkpoint_minutes: NonNegative = 10.0  # between checkpoints inside an epoch; each epoch ends with one
    cuda_graph: Literal["auto", "off"] = "auto"  # whether a step on CUDA is captured as a graph and replayed
    threads: Annotated[int, Meta(ge=0, le=MAX_THREADS)] = 0  # of the CPU, which decide the last bits; 0: PyTorch's own


@dataclass(frozen=True)
class Recipe:
    """One training run."""

    name: str = "recipe"  # of the run, and of its folder in runs/
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    augmentation: Augmentation = field(default_factory=Augmentation)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    run: RunSettings = field(default_factory=RunSettings)


@cache
def field_help() -> dict[str, str]:
    """Every dotted field of a recipe, in order, with its help text."""
    found: dict[str, str] = {}
    for name, kind in get_type_hints(Recipe).items():
        if is_dataclass(kind) and isinstance(kind, type):
            found |= {f"{name}.{one.name}": comments_of(kind).get(one.name, "") for one in fields(kind)}
        else:
            found[name] = comments_of(Recipe).get(name, "")
    return found


@cache
def comments_of(kind: type) -> dict[str, str]:
    """The comment after each field of a dataclass; empty if the source is not available."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        return {}
    by_line = {
        token.start[0]: token.string.lstrip("# ").rstrip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    return {
        node.target.id: by_line.get(node.end_lineno or node.lineno, "")
        for node in ast.parse(source).body[0].body  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
