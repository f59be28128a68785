"""Gesture scenes: an articulated upper body performs the eleven classes of DVS-Gesture.

`draw_clip` draws everything about a clip, `render` makes its frames at any times and resolution.
"""

from ripe_mambaspike.events.gesture_classes import CLASSES, DURATION_US
from ripe_mambaspike.events.simulate.gestures.clip import GestureClip, reversed_clip
from ripe_mambaspike.events.simulate.gestures.people import PARTS, PEOPLE, draw_clip
from ripe_mambaspike.events.simulate.gestures.render import render

__all__ = ["CLASSES", "DURATION_US", "PARTS", "PEOPLE", "GestureClip", "draw_clip", "render", "reversed_clip"]
