"""`ripe sim calibrate`: fit the simulated camera to real recordings, and report on others."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ripe_mambaspike.cli.data.sets import progress_bar
from ripe_mambaspike.cli.output import console, print_json, print_table
from ripe_mambaspike.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from ripe_mambaspike.events.recording import Events

SEED = 1_000_000  # of the first simulated twin


@dataclass
class CalibrateCommand:
    """Fit the pixel and the saccades on two thirds of 600 N-MNIST recordings, and compare on the other third."""

    real: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """The recordings: Train/DIGIT/NNNNN.bin, numbers 1 to 600."""
    images: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """MNIST's IDX files; recording NNNNN is training image NNNNN − 1."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("calibration")
    """Where the fitted parameters and the report go."""
    rounds: Annotated[int, tyro.conf.arg(metavar="N")] = 240
    """Steps of the fit."""
    keep: bool = False
    """Fit nothing: compare with the parameters that ship."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from ripe_mambaspike.events.simulate.calibrate import calibrate
        from ripe_mambaspike.events.simulate.compare import compare_recordings, unmet_targets
        from ripe_mambaspike.events.simulate.fitted import load_calibration, save_calibration, simulate_pictures
        from ripe_mambaspike.events.simulate.report import write_comparison
        from ripe_mambaspike.events.simulate.smooth import FitOptions

        if not 1 <= self.rounds <= 100_000:
            raise ConfigError(f"--rounds is {self.rounds}; a whole number from 1 to 100000 is wanted")
        fitted, held_out = read_pairs(self.real, self.images)
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.out} cannot be made ({error.strerror})") from error
        if self.keep:
            made = load_calibration()
        else:
            with progress_bar("calibrating") as report:
                made = calibrate(fitted.events, fitted.pictures, how=FitOptions(rounds=self.rounds), report=report)
        save_calibration(made, self.out / "calibration.json")
        seeds = [SEED + index for index in range(len(held_out.events))]
        twins = simulate_pictures(held_out.pictures, made, seeds)
        duration = made.saccades.duration_us
        compared = compare_recordings(held_out.events, twins, held_out.labels, (34, 34), duration)
        write_comparison(compared, held_out.events, twins, held_out.pictures, held_out.labels, self.out)
        document = {
            "calibration": str(self.out / "calibration.json"),
            **compared.document(),
            "missed": unmet_targets(compared),
        }
        print_json(document) if self.json else _show(document, self.out)
        return 0


@dataclass(frozen=True)
class Pairs:
    """Recordings and the pictures they are of."""

    events: "list[Events]"
    pictures: "Tensor"  # [N, 28, 28], values 0 to 1
    labels: list[int]


def read_pairs(real: Path, images: Path) -> tuple[Pairs, Pairs]:
    """(those to fit, those to report on) of the 600."""
    import numpy as np
    import torch

    from ripe_mambaspike.data.listing import TEST
    from ripe_mambaspike.data.pictures import find_pictures, read_pictures
    from ripe_mambaspike.data.sets import list_dataset
    from ripe_mambaspike.events.reading import read

    listing = list_dataset("nmnist-600", real)
    cut = next(iter(listing.cuts.values()))
    found = find_pictures(images)
    known = {picture.number: picture for picture in found.listed if picture.part == "train"}
    pairs: dict[bool, list[tuple[Any, Any, int]]] = {True: [], False: []}
    for source, part in zip(listing.sources, cut.parts, strict=True):
        clip = source.clips[0]
        picture = known.get(int(clip.name.rsplit("/", 1)[1]) - 1)
        if picture is None or picture.label != clip.label:
            said = "is not there" if picture is None else f"is a {picture.label}"
            raise DataError(f"{real / source.path} does not pair with {images}: its picture {said}")
        pairs[part == TEST].append((source.path, picture, clip.label))
    made = []
    for held_out in (False, True):
        chosen = pairs[held_out]
        if len(chosen) < 2:
            raise DataError(
                f"{real} has {len(chosen)} recordings to {'report on' if held_out else 'fit'}; 2 are wanted"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            events = [read(real / path, sensor_size=(34, 34)).events for path, _, _ in chosen]
        pictures = np.stack(read_pictures(found.source, [picture for _, picture, _ in chosen]))
        made.append(Pairs(events, torch.from_numpy(pictures), [label for _, _, label in chosen]))
    return made[0], made[1]


def _show(document: dict[str, Any], folder: Path) -> None:
    events, share = document["events"], document["on_share"]
    classes = [each["ratio"] for each in document["classes"].values()]
    rows = [
        ("mean events", f"{events['real']:,.0f}", f"{events['simulated']:,.0f}", "within 5 %"),
        ("  a class, simulated/real", "", f"{min(classes):.3f} … {max(classes):.3f}", "within 10 %"),
        ("ON share", f"{share['real']:.4f}", f"{share['simulated']:.4f}", "within 0.02"),
        ("event image, correlation", "", f"{document['image_correlation']['mean']:.4f}", "0.90"),
        ("ten-bin sequence, correlation", "", f"{document['sequence_correlation']['mean']:.4f}", "0.75"),
        ("told apart by trivial statistics", "", f"{document['separability']['accuracy']:.1%}", "below 75 % aimed at"),
    ]
    rows += [
        (f"interval, {name}", f"{each['real']:.1f} µs", f"{each['simulated']:.1f} µs", "")
        for name, each in document["intervals_us"].items()
    ]
    title = f"{document['recordings']} recordings that were not fitted, and their simulated twins"
    print_table(console(), title, ("", "real", "simulated", "wanted"), rows)
    for sentence in document["missed"]:
        print(f"missed: {sentence}")
    print(f"{folder}: calibration.json, comparison.json, comparison.png, twins.png")
