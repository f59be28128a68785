"""How hard simulated clips are, apart from the simulators, so that it can be read without PyTorch."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True)
class PictureDifficulty:
    """How hard clips of pictures are; each field is one reason."""

    pictures: Annotated[int, Meta(ge=1, le=30)] = 1  # of the class in a clip, one after the other, a saccade each
    recordings: Annotated[int, Meta(ge=1, le=100)] = 1  # training clips of each picture, each seen in another way
    contrast: Annotated[float, Meta(gt=0, le=100)] = 1.0  # of the screen, 1 for the calibrated one
    noise_hz: Annotated[float, Meta(ge=0, le=1000)] = 0.0  # noise events a pixel and second
    shift: Annotated[float, Meta(ge=0, le=0.5)] = 0.0  # by which a picture is off the middle, at most, of the side
    mirror: bool = False  # whether the camera of every other clip goes from right to left


@dataclass(frozen=True)
class GestureDifficulty:
    """How hard the gestures are; each field is one reason."""

    people: Annotated[int, Meta(ge=1, le=1000)] = 40  # who train; 24 others validate and 36 test
    speed: Annotated[float, Meta(ge=1, le=10)] = 1.4  # speeds of a class are multiplied by from 1 / speed to speed
    distance: Annotated[float, Meta(ge=1, le=10)] = 1.5  # the farthest person is so many times as far as the nearest
    angle: Annotated[float, Meta(ge=0, le=90)] = 30.0  # degrees that people are turned to either side, at most
    clutter: Annotated[int, Meta(ge=0, le=10)] = 3  # things that drift or swing before the person, at most
    shake: Annotated[float, Meta(ge=0, le=10)] = 0.2  # pixels by which the camera trembles
    noise_hz: Annotated[float, Meta(ge=0, le=1000)] = 1.0  # noise events a pixel and second


@dataclass(frozen=True)
class SceneVariety:
    """How much the scenes of lifelike gestures vary; the defaults give clips with the statistics of real ones."""

    people: Annotated[int, Meta(ge=1, le=1000)] = 200  # who train; 24 others validate and 36 test
    texture: Annotated[float, Meta(ge=0, le=2)] = 1.0  # depth of stripes and folds of the clothes
    sway: Annotated[float, Meta(ge=0, le=10)] = 1.0  # motion of trunk and head
    distance: Annotated[float, Meta(ge=1, le=10)] = 1.6  # the farthest person is so many times as far as the nearest
    angle: Annotated[float, Meta(ge=0, le=90)] = 20.0  # degrees that people are turned to either side, at most
    speed: Annotated[float, Meta(ge=1, le=10)] = 1.3  # speeds of a class are multiplied by from 1 / speed to speed
    background: Annotated[float, Meta(ge=0, le=1)] = 0.15  # share of the clips in which something else moves
