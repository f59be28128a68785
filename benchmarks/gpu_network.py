"""The network on a GPU, ours alone: latency, throughput and memory, without timing the reference path beside it.

Shorter than `ripe bench`, for when time on the device is scarce. What is timed is first compared with the reference
path in a relaxed pass. Usage: python benchmarks/gpu_network.py [--only infer|train]
"""

import argparse
import statistics
from collections.abc import Callable

import torch

from ripe_mambaspike import create_model, fuse
from ripe_mambaspike.deploy.fuse.randomize import randomize
from ripe_mambaspike.inference.capture import capture
from ripe_mambaspike.models.probe import probe_events
from ripe_mambaspike.models.ripe import RipeMambaSpike
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.train.capture import capture_step
from ripe_mambaspike.train.step import StepSettings, make_optimizer, training_step

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
RECIPES = {"dvsgesture": (32, 2), "nmnist": (64, 2), "dailydvs200": (32, 1)}  # batch, passes


def milliseconds(job: Callable[[], object], repeats: int, warm_up: int = 5) -> float:
    """The median, by the device's own clock."""
    times = []
    for turn in range(warm_up + repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        job()
        end.record()
        torch.cuda.synchronize()
        if turn >= warm_up:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def peak(job: Callable[[], object]) -> int:
    """Bytes beyond what was held before, at the most."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    job()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@torch.inference_mode()
def infer() -> None:
    training = create_model("dvsgesture", seed=0)
    randomize(training, 0)
    assert isinstance(training, RipeMambaSpike)
    model = fuse(training.cuda().eval(), quiet=True)
    for dtype in (torch.bfloat16, torch.float32):
        for batch in (1, 8, 64):
            x = probe_events(16, 128, 128, samples=batch).cuda()
            with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
                with kernels("off"):
                    expected = model.run(x, ForwardMode(relaxed=True)).logits
                given = model.run(x, ForwardMode(relaxed=True)).logits
                error = float((given - expected).abs().max() / expected.abs().max())
                del given, expected
                used = peak(lambda x=x: model(x))  # type: ignore[misc]
            if not error <= TOLERANCE[dtype]:
                raise SystemExit(f"batch {batch}, {dtype}: logits differ by {error:.1e}; no time is given")
            run = capture(model, x, dtype)
            took = milliseconds(lambda run=run: run(run.example), 30)  # type: ignore[misc]
            print(
                f"deployed, {dtype}, B {batch}: {took:.3f} ms, {1e3 * batch / took:,.0f}/s, "
                f"{used / 2**20:.0f} MiB, error {error:.1e}"
            )


def train() -> None:
    for name, (batch, passes) in RECIPES.items():
        model = create_model(name, seed=0).cuda().train()
        assert isinstance(model, RipeMambaSpike)
        config = model.config
        optimizer = make_optimizer(model, 1e-3, 0.05)
        x = probe_events(config.time_steps, *config.in_size, samples=batch).cuda()
        y = torch.arange(batch, device="cuda") % config.num_classes
        settings = StepSettings(passes=passes, autocast=True)  # type: ignore[arg-type]
        arguments = (model, optimizer, x, y, settings)
        training_step(*arguments)
        used = peak(lambda a=arguments: training_step(*a))  # type: ignore[misc]
        eager = milliseconds(lambda a=arguments: training_step(*a), 5, 2)  # type: ignore[misc]
        step = capture_step(*arguments)
        took = milliseconds(step, 8, 2)
        print(f"training step, {name}, B {batch}: {took:.1f} ms ({eager:.1f} unrecorded), {used / 2**30:.2f} GiB")
        del model, optimizer, step, arguments
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("infer", "train"))
    only = parser.parse_args().only
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here; this script measures on one")
    if only != "train":
        infer()
    if only != "infer":
        train()


if __name__ == "__main__":
    main()
