"""How each simulated dataset is made where no option says otherwise: its sensor, its number of clips, its difficulty.

The open sets (`sim-cifar10`, `sim-caltech101`, `gestures-hard`, each also as `…-small`) are made to be neither easy nor
hopeless: a study can tell its arms apart on them. Their difficulty is a few numbers that can be set. The values here
were chosen without a look at any test clip.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ripe_mambaspike.data.listing import TEST, TRAIN, VALIDATION
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.events.gesture_classes import CLASSES, DURATION_US, UNSEEN_MOTIONS
from ripe_mambaspike.events.simulate.difficulty import GestureDifficulty, PictureDifficulty, SceneVariety
from ripe_mambaspike.schema import convert
from ripe_mambaspike.yaml_text import parse_yaml

Difficulty = PictureDifficulty | GestureDifficulty | SceneVariety
Counts = dict[str, int | None]  # clips of each split; None is all that there are pictures for
ALL: Counts = {TRAIN: None, VALIDATION: None, TEST: None}


@dataclass(frozen=True)
class Preparation:
    """A simulated dataset as it is made by default."""

    shows: Literal["digits", "cifar", "caltech", "gestures"]
    side: int  # of the sensor
    counts: Counts = field(default_factory=lambda: dict(ALL))
    difficulty: Difficulty | None = None  # None: the camera as calibrated, computed in floating point
    duration_us: int = DURATION_US  # of a gesture
    min_pictures: int = 0  # classes with fewer pictures are left out
    motions: Mapping[str, tuple[str, ...]] | None = None  # that each split shows instead of the eleven gestures

    @property
    def gestures(self) -> tuple[str, ...]:
        """The classes of a set of gestures."""
        shown = self.motions
        return CLASSES if shown is None else tuple(dict.fromkeys(name for part in shown.values() for name in part))

    @property
    def needs_pictures(self) -> bool:
        return self.shows != "gestures"


UNSEEN_COUNTS: Counts = {TRAIN: 20, VALIDATION: 160, TEST: 320}
PREPARATIONS = {
    "synthgesture": Preparation("gestures", 64, {TRAIN: 1100, VALIDATION: 220, TEST: 440}),
    "sim-dvsgesture": Preparation(
        "gestures", 128, {TRAIN: 2200, VALIDATION: 330, TEST: 660}, SceneVariety(), duration_us=1_450_000
    ),
    "sim-dvsgesture-unseen": Preparation(
        "gestures", 128, UNSEEN_COUNTS, SceneVariety(), duration_us=1_450_000, motions=UNSEEN_MOTIONS
    ),
    "sim-nmnist": Preparation("digits", 34),
    "sim-cifar10": Preparation(
        "cifar", 34, difficulty=PictureDifficulty(pictures=6, contrast=2.0, noise_hz=0.5, shift=0.05, mirror=True)
    ),
    "sim-cifar10-small": Preparation(
        "cifar", 24, {TRAIN: 2000, VALIDATION: 500, TEST: 500},
        PictureDifficulty(pictures=9, contrast=4.0, noise_hz=0.1, mirror=True),
    ),
    "sim-caltech101": Preparation(
        "caltech", 34, difficulty=PictureDifficulty(pictures=6, contrast=2.0, noise_hz=0.5, shift=0.05, mirror=True)
    ),
    "sim-caltech101-small": Preparation(
        "caltech", 24, {TRAIN: 1560, VALIDATION: 182, TEST: 208},
        PictureDifficulty(pictures=6, contrast=4.0, noise_hz=0.1, mirror=True), min_pictures=80,
    ),
    "gestures-hard": Preparation(
        "gestures", 48, {TRAIN: 2200, VALIDATION: 660, TEST: 1100},
        GestureDifficulty(), duration_us=1_200_000,
    ),
    "gestures-hard-unseen": Preparation(
        "gestures", 48, UNSEEN_COUNTS, GestureDifficulty(), duration_us=1_200_000, motions=UNSEEN_MOTIONS
    ),
    "gestures-hard-small": Preparation(
        "gestures", 32, {TRAIN: 1540, VALIDATION: 220, TEST: 440},
        GestureDifficulty(speed=1.2, distance=1.2, angle=15.0, clutter=1, shake=0.0, noise_hz=0.3),
        duration_us=1_200_000,
    ),
}  # fmt: skip


def set_difficulty(name: str, given: Mapping[str, Any]) -> Difficulty | None:
    """The difficulty of a set with some of its fields changed."""
    default = PREPARATIONS[name].difficulty
    if default is None:
        if given:
            raise ConfigError.expected(next(iter(given)), f"no such field for {name}", given[next(iter(given))])
        return None
    return convert({**asdict(default), **given}, type(default), error=ConfigError)


def read_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Fields of a difficulty from strings such as `noise_hz=2`, values as in YAML."""
    found: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or not name:
            raise ConfigError.expected("set", "field=value, such as noise_hz=2", repr(setting))
        if name in found:
            raise ConfigError.expected(name, "one value", "a second one")
        found[name] = parse_yaml(text, name)
    return found
