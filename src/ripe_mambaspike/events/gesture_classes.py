"""The eleven classes of DVS-Gesture, in the order of their labels; recorded and simulated gestures share them."""

CLASSES: tuple[str, ...] = (
    "hand_clapping",
    "right_hand_wave",
    "left_hand_wave",
    "right_arm_clockwise",
    "right_arm_counter_clockwise",
    "left_arm_clockwise",
    "left_arm_counter_clockwise",
    "arm_roll",
    "air_drums",
    "air_guitar",
    "other_gestures",
)
DURATION_US = 1_500_000  # of a simulated gesture
UNSEEN_MOTIONS = {  # that other_gestures never shows, by the split of a set of their own
    "train": ("flap", "point"),
    "val": ("flap", "point"),
    "test": ("salute", "swim"),
}
