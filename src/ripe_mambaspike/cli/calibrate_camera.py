"""`ripe sim calibrate`: fit the simulated camera to real recordings, and report on others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ripe_mambaspike.cli.output import console, print_json, print_table
from ripe_mambaspike.cli.progress import progress_bar
from ripe_mambaspike.command_options import Flag, Json, Number, option


@dataclass
class CalibrateCameraCommand:
    """Fit the simulated camera on two thirds of 600 N-MNIST recordings, and compare it on the other third."""

    real: Annotated[Path, option("DIR")]
    """The recordings: Train/DIGIT/NNNNN.bin, numbers 1 to 600."""
    images: Annotated[Path, option("DIR")]
    """MNIST's IDX files; recording NNNNN shows training image NNNNN − 1."""
    out: Annotated[Path, option("DIR")] = Path("calibration")
    """Where the fitted parameters and the report go."""
    rounds: Number = 240
    """Steps of the fit."""
    keep: Flag = False
    """Do not fit; compare the parameters that ship."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import calibrate_camera

        with progress_bar("calibrating") as update:
            document = calibrate_camera(
                self.real, self.images, self.out, rounds=self.rounds, keep=self.keep, progress=update
            )
        print_json(document) if self.json else _show(document, self.out)
        return 0


def _show(document: dict[str, Any], folder: Path) -> None:
    events, share = document["events"], document["on_share"]
    classes = [each["ratio"] for each in document["classes"].values()]
    rows = [
        ("mean events", f"{events['real']:,.0f}", f"{events['simulated']:,.0f}", "within 5 %"),
        ("  a class, simulated/real", "", f"{min(classes):.3f} … {max(classes):.3f}", "within 10 %"),
        ("ON share", f"{share['real']:.4f}", f"{share['simulated']:.4f}", "within 0.02"),
        ("event image, correlation", "", f"{document['image_correlation']['mean']:.4f}", "0.90"),
        ("ten-bin sequence, correlation", "", f"{document['sequence_correlation']['mean']:.4f}", "0.75"),
        (
            "recognized by simple statistics",
            "",
            f"{document['separability']['accuracy']:.1%}",
            "below 75 %",
        ),
    ]
    rows += [
        (f"interval, {name}", f"{each['real']:.1f} µs", f"{each['simulated']:.1f} µs", "")
        for name, each in document["intervals_us"].items()
    ]
    title = f"{document['recordings']} recordings that were not fitted, and their simulated twins"
    print_table(console(), title, ("", "real", "simulated", "target"), rows)
    for sentence in document["missed"]:
        print(f"missed: {sentence}")
    print(f"{folder}: calibration.json, comparison.json, comparison.png, twins.png")


@dataclass
class CalibrateGesturesCommand:
    """Fit the camera of simulated gestures to real clips by their statistics, and compare each with clips that a camera
    fitted to the others gives."""

    real: Annotated[Path, option("DIR")]
    """The clips: NN_NAME.bin of a DVS128, NN the class of DVS-Gesture, 01 to 11."""
    out: Annotated[Path, option("DIR")] = Path("gesture-camera")
    """Where the fitted cameras and the comparison go."""
    rounds: Number = 40
    """Cameras tried in each fit."""
    json: Json = False

    def run(self) -> int:
        from ripe_mambaspike import calibrate_gestures

        with progress_bar("calibrating") as update:
            document = calibrate_gestures(self.real, self.out, rounds=self.rounds, progress=update)
        if self.json:
            print_json(document)
            return 0
        real, simulated = document["mean"]["real"], document["mean"]["simulated"]
        rows = [
            (name, f"{real[name]:,.3f}", f"{simulated[name]:,.3f}", f"{simulated[name] / max(real[name], 1e-9):.2f}")
            for name in real
        ]
        title = f"{len(document['held_out'])} clips, each beside clips of a camera fitted to the others (means)"
        print_table(console(), title, ("", "real", "simulated", "ratio"), rows)
        print(f"{self.out}: camera.json, comparison.json, and a camera for each clip left out")
        return 0
