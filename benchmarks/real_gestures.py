"""What networks answer to real clips of gestures: each clip as a whole, and in windows of 0.5 and 1 s.

A network that ships has been made with a camera fitted to the statistics of the five clips in our development data, so
its answers to these say less than those of `left_out_gestures.py`. Clips are NN_NAME.bin of a DVS128, NN the class.

Usage: python -m benchmarks.real_gestures --real DIR NETWORK …
"""

import argparse
from pathlib import Path

from benchmarks.left_out_gestures import WINDOWS_MS, classify
from ripe_mambaspike import load
from ripe_mambaspike.data.gesture_calibration import read_gestures
from ripe_mambaspike.errors import RipeError
from ripe_mambaspike.inference.classifier import Classifier


def table(name: str, classifier: Classifier, folder: Path) -> str:
    lengths = [f"windows of {length / 1000:g} s" for length in WINDOWS_MS]
    head = ["clip", "answer", "probability of its class", *lengths]
    rows, right, totals = [head, ["---"] * len(head)], 0, [[0, 0] for _ in WINDOWS_MS]
    for clip in read_gestures(folder):
        found = classify(classifier, clip)
        is_right = found["answer"] == found["class"]
        right += is_right
        for total, each in zip(totals, found["windows"], strict=True):
            total[0] += each["correct"]
            total[1] += each["n"]
        windows = [f"{each['correct']} of {each['n']}" for each in found["windows"]]
        share = f"{100 * found['probabilities'][found['class']]:.1f} %"
        rows.append([clip.name, found["answer"] + " ✗" * (not is_right), share, *windows])
    sums = [f"**{correct} of {n}**" for correct, n in totals]
    rows.append([f"**{name}**", f"**{right} of {len(rows) - 2} right**", "", *sums])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", help="names of shipped networks, or folders")
    parser.add_argument("--real", type=Path, required=True)
    given = parser.parse_args()
    try:
        for name in given.networks:
            print(table(name, load(name), given.real), end="\n\n")
    except RipeError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
