"""A training run as one typed tree: data, model, optimizer, loss, augmentation, schedule, run.

A recipe file in YAML holds these fields; what it leaves out keeps the default written here. A run saves its recipe with
everything resolved, and that file gives the same run again.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from ripe_mambaspike.data.augment.settings import Augmentation

# Fields that say where and how a run is computed, not what: they may differ when it goes on.
RESUMABLE_FIELDS = (
    "data.root",
    "data.num_workers",
    "data.cache",
    "run.device",
    "run.checkpoint_minutes",
    "run.cuda_graph",
)


@dataclass(frozen=True)
class DataSettings:
    """What is learned from, and how recordings become tensors."""

    dataset: str = "synthgesture"  # a set by its name (see ripe data sets)
    root: str | None = None  # the folder it lies in; data/SET when not given
    cut: str | None = None  # how it is split, where there are several ways; the first when not given
    store: str | None = None  # the key of one of its preparations (see ripe data list); the current one when not given
    time_steps: int = 16  # T, time bins of a clip
    grid: tuple[int, int] | None = (64, 64)  # height and width of the bins; null for the sensor's, at most 64 a side
    by: Literal["time", "count"] = "time"  # bins of equal time or of equally many events
    binary: bool = False  # whether an event was there instead of how many
    extra: tuple[str, ...] = ()  # more to train on, SET=ROOT each: its training part; all but test without validation
    first: tuple[str, ...] = ()  # classes that are learned before the others, in schedule.first_epochs
    folds: int = 0  # cross-validation over the whole set in so many parts; 0 for the set's own split
    fold: int = 0  # which part is tested, from 0
    validation: bool = True  # whether clips are held out to pick the epoch by; without, all train and the last is taken
    cache: Literal["auto", "off", "memory", "device"] = "auto"  # where binned clips are kept once they were made
    num_workers: int = 0  # processes that bin clips; 0 for none but this one


@dataclass(frozen=True)
class ModelSettings:
    """The network."""

    name: str = (
        "dvsgesture"  # a registered network (see ripe models); num_classes, time_steps and in_size come from the data
    )
    fields: dict[str, Any] = field(
        default_factory=dict
    )  # other fields of its config, such as {neurons: [lif, lif, lif]}


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW."""

    learning_rate: float = 1e-3  # learning rate after the warm-up
    min_learning_rate: float = 1e-6  # where warm-up begins and the cosine ends
    tdm_lr_scale: float = 1.0  # learning rate of TDM's λ, times lr; λ starts at 0 and has far to go in a short run
    weight_decay: float = 0.05  # of matrices and kernels
    decay_rule: Literal["kernels", "release"] = "kernels"  # what decays: see train.step; "release" repeats its slip
    clip_grad_norm: float = 1.0  # largest norm of the whole gradient


@dataclass(frozen=True)
class LossSettings:
    """The objective's terms; see train.objective."""

    spread: float = 5e-3  # λ of TET
    consistency: float = 1.0  # λ_SGC, between the hard and the relaxed pass
    rates: float = 1e-4  # λ_L1 on the mean firing rate
    passes: Literal[1, 2] = 2  # 1 leaves the relaxed pass out


@dataclass(frozen=True)
class ScheduleSettings:
    """How long, how much at a time, and what changes on the way."""

    epochs: int = 300  # passes over the training part
    batch_size: int = 32  # clips a process and step
    grad_accum_steps: int = 1  # batches whose gradients are added up before a move
    warmup_epochs: int = 10  # epochs in which the learning rate rises
    warmup_steps: int = 0  # moves in which it rises, instead of epochs
    first_epochs: int = 1  # epochs of the classes in data.first alone, where there are some
    sharpness_start: float = 2.0  # α of surrogate and relaxation in the first epoch
    sharpness_end: float = 4.0  # and in the last


@dataclass(frozen=True)
class RunSettings:
    """Everything about a run that should not change what is learned, and its seed."""

    seed: int = 0  # of weights, order, augmentation and drop-path
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where it is computed; CUDA where there is one
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of products; bfloat16 on CUDA, float32 on the CPU
    protocol: Literal["validation", "paper"] = "validation"  # what picks the network: validation, or the test part
    validate_every: int = 1  # epochs between validations; the last epoch always has one
    recalibrate_batches: int = (
        50  # clean training batches that the norms' statistics are taken from, before each evaluation
    )
    ema_decay: float = 0.0  # decay of the averaged weights that are evaluated and saved; 0 for the weights themselves
    sync_batch_norm: bool = True  # whether batch norms of several processes share their statistics
    checkpoint_minutes: float = 10.0  # between checkpoints inside an epoch; each epoch ends with one
    cuda_graph: Literal["auto", "off"] = "auto"  # whether a step on CUDA is recorded and replayed
    threads: int = 0  # that the CPU computes with, whose number decides the last bits; 0: as many as PyTorch chooses


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
