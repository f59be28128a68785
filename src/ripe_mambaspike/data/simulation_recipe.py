"""What determines the recordings of a simulated dataset, except its pictures."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from ripe_mambaspike.data.sets.preparations import PREPARATIONS, Difficulty
from ripe_mambaspike.data.sets.simulated import VERSION
from ripe_mambaspike.events.simulate.difficulty import PictureDifficulty, SceneVariety
from ripe_mambaspike.events.simulate.exact.pictures import picture_clip_us
from ripe_mambaspike.events.simulate.fitted import STEP_US, CameraCalibration
from ripe_mambaspike.events.simulate.gestures import DURATION_US
from ripe_mambaspike.events.simulate.gestures.camera import GestureCamera
from ripe_mambaspike.events.simulate.gestures.other_motions import SHOWN_MOTIONS


@dataclass(frozen=True)
class SimulationRecipe:
    """Everything except the pictures that determines a dataset's recordings."""

    name: str
    side: int
    seed: int
    variation: float
    calibration: CameraCalibration
    duration_us: int = DURATION_US  # of a gesture's clip
    difficulty: Difficulty | None = None  # of an open set, or how lifelike scenes vary
    camera: GestureCamera | None = None  # that watches lifelike gestures, in place of the calibration

    @property
    def size(self) -> tuple[int, int]:
        return self.side, self.side

    @property
    def step_us(self) -> int:
        """Of gestures so short that lamps flicker as they do and hands move by about a pixel."""
        return STEP_US if PREPARATIONS[self.name].needs_pictures else max(500, min(4000, 256_000 // self.side))

    def group(self, pixels: int) -> int:
        """The number of clips with about this many pixels."""
        return max(1, pixels // self.side**2)


def describe_simulation(recipe: SimulationRecipe, pictures: str | None) -> dict[str, Any]:
    """The recipe as the index keeps it."""
    harder = {} if recipe.difficulty is None else {"difficulty": asdict(recipe.difficulty)}
    camera = recipe.camera or recipe.calibration
    return {
        "version": VERSION,
        "set": recipe.name,
        "sensor_size": list(recipe.size),
        "duration_us": recipe.duration_us if pictures is None else _saccades_us(recipe),
        "step_us": recipe.step_us,
        "seed": recipe.seed,
        "variation": recipe.variation,
        "calibration": json.loads(json.dumps(asdict(camera))),
        "pictures": pictures,
        **harder,
        **_motions(recipe),
    }


def _motions(recipe: SimulationRecipe) -> dict[str, Any]:
    """The named motions that a set shows, where it shows some."""
    if (shown := PREPARATIONS[recipe.name].motions) is not None:
        return {"motions": {part: list(names) for part, names in shown.items()}}
    return {"motions": list(SHOWN_MOTIONS)} if isinstance(recipe.difficulty, SceneVariety) else {}


def _saccades_us(recipe: SimulationRecipe) -> int:
    saccades, how = recipe.calibration.saccades, recipe.difficulty
    return picture_clip_us(saccades, how) if isinstance(how, PictureDifficulty) else saccades.duration_us
