"""The augmentation of a training run: one set of settings, and the paper's set for each benchmark (Table "hyper")."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ripe_mambaspike.data.augment.checks import check_flag, check_number, check_texts
from ripe_mambaspike.data.augment.flips import HorizontalFlip, PolarityFlip, TimeReversal
from ripe_mambaspike.data.augment.mixing import EventCutMix, Mixup, soft_targets
from ripe_mambaspike.data.augment.nda import NDA
from ripe_mambaspike.data.augment.relabel import MIRROR, REVERSE, LabelTables, check_names, label_table, relabel
from ripe_mambaspike.data.augment.warp import Warp
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.schema import suggest


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of training clips. The defaults are the paper's default column; 0 turns an augmentation off."""

    nda_operations: int = 1  # NDA operations a sample
    nda_magnitude: float = 0.3  # how strong they are, 0 to 1
    roll_cap: float = 0.25  # NDA's roll at magnitude 1, as a share of the frame's side
    cutout_cap: float = 0.25  # NDA's cutout at magnitude 1, as a share of the height (and of the steps)
    polarity_flip: float = 0.5  # probability that a sample's ON and OFF are exchanged
    horizontal_flip: float = 0.0  # probability that a sample's left and right are exchanged
    time_reversal: float = 0.0  # probability that a sample's steps are reversed
    swap_polarity: bool = False  # whether time reversal exchanges ON and OFF too, as physics would
    mixup_alpha: float = 0.2  # Mixup's λ ~ Beta(α, α)
    mixup_probability: float = 0.3  # probability that Mixup hits a batch
    cutmix_alpha: float = 0.0  # EventCutMix's λ ~ Beta(α, α)
    cutmix_probability: float = 0.5  # probability that EventCutMix hits a batch; the paper is silent, our choice
    label_smoothing: float = 0.1  # share of a target spread over all classes
    zoom: float = 0.0  # most that a sample is enlarged or shrunk: 0.2 is up to 1.2 times
    elastic: float = 0.0  # root mean square of smooth random displacements, as a share of the frame's side
    relabel: bool = False  # whether a mirrored or reversed sample is labelled as what it then shows
    mirror_pairs: tuple[str, ...] = ()  # what classes show in a mirror: A=B, or A where it stays A; others by name
    reverse_pairs: tuple[str, ...] = ()  # what classes show played backwards, likewise

    def __post_init__(self) -> None:
        self.clip_transforms()  # each checks its own settings
        self.mixers()
        check_number("label_smoothing", self.label_smoothing)
        check_flag("relabel", self.relabel)
        check_texts("mirror_pairs", self.mirror_pairs)
        check_texts("reverse_pairs", self.reverse_pairs)

    def clip_transforms(self) -> tuple[Warp, NDA, HorizontalFlip, PolarityFlip, TimeReversal]:
        """What changes a clip on its own, in order."""
        return (
            Warp(self.zoom, self.elastic),
            NDA(self.nda_operations, self.nda_magnitude, self.roll_cap, self.cutout_cap),
            HorizontalFlip(self.horizontal_flip),
            PolarityFlip(self.polarity_flip),
            TimeReversal(self.time_reversal, self.swap_polarity),
        )

    def mixers(self) -> tuple[Mixup, EventCutMix]:
        """What mixes the clips of a batch, in order. Both may hit the same batch."""
        return Mixup(self.mixup_alpha, self.mixup_probability), EventCutMix(self.cutmix_alpha, self.cutmix_probability)


BENCHMARKS = {
    "dvsgesture": Augmentation(),
    "cifar10dvs": Augmentation(
        nda_operations=2, nda_magnitude=0.5, horizontal_flip=0.5,
        mixup_alpha=0.4, mixup_probability=0.5, cutmix_alpha=0.4, label_smoothing=0.05,
    ),
    "ncaltech101": Augmentation(
        nda_operations=2, nda_magnitude=0.2, roll_cap=0.15, cutout_cap=0.15,
        mixup_alpha=0.4, mixup_probability=0.5, cutmix_alpha=0.2, label_smoothing=0.05,
    ),
    "nmnist": Augmentation(
        nda_operations=2, roll_cap=0.15, cutout_cap=0.20, horizontal_flip=0.5, time_reversal=0.5,
        mixup_alpha=0.4, mixup_probability=0.5, cutmix_alpha=0.2, label_smoothing=0.05,
    ),
    "dailydvs200": Augmentation(nda_operations=0, polarity_flip=0.0, horizontal_flip=0.5, mixup_probability=0.5),
}  # fmt: skip


def augmentation_for(name: str) -> Augmentation:
    """The paper's settings for a benchmark."""
    if name not in BENCHMARKS:
        hint = suggest(str(name).lower().replace("-", ""), BENCHMARKS)
        raise ConfigError.expected("augmentation", f"one of {', '.join(BENCHMARKS)}", f"{name!r}{hint}")
    return BENCHMARKS[name]


def augment_clips(x: Tensor, settings: Augmentation, generator: torch.Generator) -> Tensor:
    """Every clip [B, T, 2, H, W] on its own: warp, NDA, horizontal flip, polarity flip, time reversal."""
    for transform in settings.clip_transforms():
        x = transform(x, generator)
    return x


@lru_cache(maxsize=64)
def label_tables(settings: Augmentation, classes: tuple[str, ...]) -> LabelTables:
    """What clips of every class show once changed; settings under which clips would get wrong labels are refused.

    Without `relabel` nothing is looked up, and classes whose names say that they change are refused.
    """
    tables = []
    for change, probability, pairs in (
        (MIRROR, settings.horizontal_flip, settings.mirror_pairs),
        (REVERSE, settings.time_reversal, settings.reverse_pairs),
    ):
        if probability and not settings.relabel:
            check_names(classes, change, probability)
        tables.append(label_table(classes, pairs, change) if probability and settings.relabel else None)
    return LabelTables(*tables)


def augment_labeled(
    x: Tensor, labels: Tensor, settings: Augmentation, generator: torch.Generator, classes: tuple[str, ...]
) -> tuple[Tensor, Tensor]:
    """`augment_clips` with the labels [B]: with `relabel`, those of mirrored and reversed clips by `label_tables`."""
    tables = label_tables(settings, classes)
    if not settings.relabel:
        return augment_clips(x, settings, generator), labels
    for transform in settings.clip_transforms():
        if isinstance(transform, HorizontalFlip | TimeReversal):
            x, chosen = transform.choose(x, generator)
            table = tables.mirrored if isinstance(transform, HorizontalFlip) else tables.backwards
            labels = labels if table is None else relabel(labels, chosen, table)
        else:
            x = transform(x, generator)
    return x, labels


def mix(
    x: Tensor, targets: Tensor, settings: Augmentation, generator: torch.Generator, classes: int | None = None
) -> tuple[Tensor, Tensor]:
    """Label smoothing, always and once, then Mixup and EventCutMix, each with its probability.

    x [B, T, 2, H, W], targets labels [B] (with `classes`) or unsmoothed probabilities [B, classes]
    → the mixed clips and soft targets [B, classes].
    """
    targets = soft_targets(targets, classes, settings.label_smoothing)
    for mixer in settings.mixers():
        x, targets = mixer(x, targets, generator)
    return x, targets
