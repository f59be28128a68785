"""How many recordings a second are simulated: saccades over 34×34 pixels, gestures of 1.5 s over 64×64.

On the CPU two processes of one thread each make recordings as events; on a CUDA device saccades are made as bins.
Bins are compared with events before anything is timed. Usage: python benchmarks/simulate.py [--device cuda]
"""

import argparse
import json
import multiprocessing
import time
from typing import Any

import torch

MIN_RATE = {"saccades": 200, "gestures": 20}
SET_RECORDINGS = 60_000


def pictures(count: int) -> torch.Tensor:
    """Random strokes, about as many as a digit has."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 1, 5, 5, generator=generator).sub(0.62).clamp(min=0)
    fine = torch.nn.functional.interpolate(coarse, size=20, mode="bilinear")[:, 0]
    return torch.nn.functional.pad(fine / fine.amax((1, 2), keepdim=True).clamp(min=1e-6), (4, 4, 4, 4))


def saccades(count: int) -> int:
    from ripe_mambaspike.events.simulate.fitted import load_calibration, simulate_pictures

    torch.set_num_threads(1)
    shown, camera = pictures(count), load_calibration()
    return sum(
        len(events)
        for first in range(0, count, 64)
        for events in simulate_pictures(shown[first : first + 64], camera, range(first, min(first + 64, count)))
    )


def gestures(count: int) -> int:
    from ripe_mambaspike.events.simulate.gestures import CLASSES, draw_clip, render
    from ripe_mambaspike.events.simulate.pixel import Pixel, simulate_events

    torch.set_num_threads(1)
    total = 0
    for first in range(0, count, 8):
        clips = [draw_clip(number % len(CLASSES), number, "train") for number in range(first, min(first + 8, count))]

        def scene(times: torch.Tensor, clips: Any = clips) -> torch.Tensor:
            return render(clips, times, (64, 64))

        made = simulate_events(scene, Pixel(), (64, 64), 1_500_000, range(len(clips)), step_us=4000, frames=256)
        total += sum(map(len, made))
    return total


def on_cpu(repeats: int) -> dict[str, Any]:
    """Recordings per second of two processes, after a warm-up round."""
    jobs = {"saccades": (saccades, 256), "gestures": (gestures, 32)}
    measured: dict[str, Any] = {}
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for name, (job, count) in jobs.items():
            pool.map(job, [16, 16])
            best, events = 0.0, 0
            for _ in range(repeats):
                start = time.perf_counter()
                events = sum(pool.map(job, [count, count]))
                best = max(best, 2 * count / (time.perf_counter() - start))
            measured[name] = {
                "a_second": round(best, 1),
                "events_each": events // (2 * count),
                "wanted": MIN_RATE[name],
            }
    return measured


def on_device(device: str) -> dict[str, Any]:
    from ripe_mambaspike.events.simulate.calibrate import count_events
    from ripe_mambaspike.events.simulate.fitted import load_calibration, simulate_picture_bins, simulate_pictures

    camera, shown = load_calibration(), pictures(4096).to(device)
    duration = camera.saccades.duration_us
    bins = simulate_picture_bins(shown[:32], camera, range(32), time_steps=10, device=device)
    events = simulate_pictures(shown[:32], camera, range(32), device=device)
    if not torch.equal(bins.cpu(), count_events(events, (34, 34), duration, 10)):
        raise SystemExit("bins and events do not agree: no time is given")
    simulate_picture_bins(shown, camera, range(4096), time_steps=10, device=device)
    torch.cuda.synchronize()
    start = time.perf_counter()
    total = 0.0
    for first in range(0, SET_RECORDINGS, 4096):
        count = min(4096, SET_RECORDINGS - first)
        made = simulate_picture_bins(shown[:count], camera, range(first, first + count), time_steps=10, device=device)
        total += float(made.sum())
    seconds = time.perf_counter() - start
    return {
        "recordings": SET_RECORDINGS,
        "seconds": round(seconds, 1),
        "events_each": round(total / SET_RECORDINGS),
        "wanted_seconds": 60,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    measured = on_cpu(arguments.repeats) if arguments.device == "cpu" else on_device(arguments.device)
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
