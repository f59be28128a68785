"""The simulated camera on a CUDA device: bins are its events, and the CPU's to rounding. Run by `make test-gpu`."""

import torch

from ripe_mambaspike.events.simulate.calibrate import count_events
from ripe_mambaspike.events.simulate.fitted import load_calibration, simulate_picture_bins, simulate_pictures
from ripe_mambaspike.events.simulate.gestures import draw_clip, render


def test_saccades():
    camera = load_calibration()
    coarse = torch.rand(16, 1, 5, 5, generator=torch.Generator().manual_seed(0)).sub(0.6).clamp(min=0)
    pictures = torch.nn.functional.interpolate(coarse, size=28, mode="bilinear")[:, 0] * 2.5
    there = simulate_picture_bins(pictures, camera, range(16), time_steps=10, device="cuda")
    assert there.is_cuda
    events = simulate_pictures(pictures, camera, range(16), device="cuda")
    assert torch.equal(count_events(events, (34, 34), camera.saccades.duration_us, 10), there.cpu())
    here = simulate_picture_bins(pictures, camera, range(16), time_steps=10)
    # Rounding moves an event across a threshold or a bin's edge now and then.
    assert (here - there.cpu()).abs().sum() < 0.01 * here.sum()


def test_gestures():
    clips = [draw_clip(label, label, "train") for label in range(11)]
    times = torch.arange(0, 1_500_000, 20_000, dtype=torch.float64)
    here, there = render(clips, times, (64, 64)), render(clips, times.cuda(), (64, 64), device="cuda")
    assert (here - there.cpu()).abs().max() < 1e-4
