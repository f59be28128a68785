"""What the paper measured of its network: DS-MPA alone (Table 16), latency and memory (17), cost by resolution (19)."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ripe_mambaspike.bench.agreement import compare_inference
from ripe_mambaspike.bench.machine import describe
from ripe_mambaspike.bench.measure import Measured, Subject, measure
from ripe_mambaspike.bench.memory import MEBIBYTE, bytes_of, explain_out_of_memory
from ripe_mambaspike.bench.network import (
    CALIBRATION_SIDE,
    Progress,
    autocast,
    baseline_network,
    captured,
    check_sizes,
    clips,
    deployed_network,
    direct,
    quiet,
    repeats_of,
    ripe_config,
    training_network,
)
from ripe_mambaspike.bench.options import PaperCostOptions, TrainOptions
from ripe_mambaspike.bench.step import StepBatch, StepChoice, choose_step, step_subjects
from ripe_mambaspike.models.base import Model
from ripe_mambaspike.models.config import RipeConfig
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.attention import make_attention
from ripe_mambaspike.nn.calibrate import recalibrate
from ripe_mambaspike.nn.eval_mode import choose_device
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.ops.backend import kernels

MODEL, BASELINE = "dvsgesture", "mamba-spike"
ATTENTIONS = ("ds-mpa", "gate", "none")
WIDTHS = ((32, 64, 128), (64, 128, 256), (128, 256, 512))
RATIO_BATCHES = (1, 2, 4, 8)
LATENCY_BATCHES = (1, 8)
LITERAL = ForwardMode(literal=True)


def bench_paper(options: PaperCostOptions, progress: Progress = quiet) -> dict[str, Any]:
    """The three tables at the paper's sizes, on this machine."""
    device = choose_device(options.device)
    repeats = repeats_of(options.repeats, device)
    check_sizes(
        in_sizes=(*options.in_sizes, options.in_size), time_steps=(options.time_steps,), batches=(options.batch,),
        repeats=repeats,
    )  # fmt: skip
    runner = _Runner(options, device, repeats, progress)
    return {
        "bench": "paper",
        "machine": describe(device),
        "model": MODEL,
        "precision": options.precision,
        "time_steps": options.time_steps,
        "in_size": options.in_size,
        "batch": options.batch,
        **runner.agreement(),
        "attention": runner.attention(),
        "deployment": runner.deployment(),
        "resolution": runner.resolution(),
    }


class _Runner(NamedTuple):
    options: PaperCostOptions
    device: torch.device
    repeats: int
    progress: Progress

    def agreement(self) -> dict[str, Any]:
        """Whether the deployed network's kernels give what its plain PyTorch gives."""
        config = self._config(self.options.in_size)
        self.progress("comparing the kernels with plain PyTorch …")
        with explain_out_of_memory(self.device, "the comparison"):
            model = deployed_network(MODEL, config, self.device)
            agreement = compare_inference(model, clips(config, 1, self.device), self.options.precision)
        return {"agreement": agreement.to_dict(), "summary": agreement.sentence}

    def attention(self) -> dict[str, Any]:
        """Table 16: modules alone in plain PyTorch, as the paper ran them, and the share of whole training steps."""
        batch = self.options.batch
        alone = [self._operator(kind, batch, WIDTHS[0]) for kind in ATTENTIONS]
        widths = [self._operator("ds-mpa", 1, widths) for widths in WIDTHS]
        ratios = []
        for few in RATIO_BATCHES:
            full, gate = (self._operator(kind, few, WIDTHS[0])["backward_ms"] for kind in ("ds-mpa", "gate"))
            ratios.append({"batch": few, "over_gate": round(full / gate, 4)})
        steps = {kind: self._step(self.options.in_size, attention=kind) for kind in ATTENTIONS}
        return {"rows": alone, "widths": widths, "ratios": ratios, "steps": steps}

    def _operator(self, kind: str, batch: int, widths: tuple[int, int, int]) -> dict[str, Any]:
        """One attention at the sizes of the three stages, summed; memory of forward and backward."""
        self.progress(f"{kind}, batch {batch}, widths {widths[0]} to {widths[2]} …")
        config = self._config(self.options.in_size)
        sums = dict.fromkeys(("parameters", "forward_ms", "backward_ms", "activation_mib"), 0.0)
        for channels, (height, width) in zip(widths, config.grids(*config.in_size), strict=True):
            module = make_attention(kind, channels).to(self.device)
            shape = (batch, self.options.time_steps, channels, height, width)
            generator = torch.Generator().manual_seed(0)
            potential, features = (torch.randn(shape, generator=generator).to(self.device) for _ in range(2))
            spikes = (torch.rand(shape, generator=generator) < 0.1).float().to(self.device)
            inputs = [tensor.requires_grad_() for tensor in (potential, spikes, features)]
            held = sum(tensor.nbytes for tensor in inputs)
            jobs = {"forward": self._forward(module, inputs), "backward": self._backward(module, inputs)}
            with explain_out_of_memory(self.device, f"{kind} of batch {batch}"):
                found, _ = measure({name: Subject(job, held) for name, job in jobs.items()}, self.device, self.repeats)
            forward, backward = found["forward"], found["backward"]
            assert isinstance(forward, Measured)
            assert isinstance(backward, Measured)
            sums["parameters"] += sum(parameter.numel() for parameter in module.parameters())
            sums["forward_ms"] += forward.times.median
            sums["backward_ms"] += backward.times.median
            sums["activation_mib"] += backward.memory.beyond / MEBIBYTE
        rounded = {name: round(value, 4) for name, value in sums.items()} | {"parameters": int(sums["parameters"])}
        return {"kind": kind, "batch": batch, "widths": list(widths), **rounded}

    def _forward(self, module: nn.Module, inputs: list[Tensor]) -> Callable[[], object]:
        @torch.no_grad()
        def job() -> object:
            with autocast(self.device, self.options.precision):
                return module(*inputs)

        return job

    def _backward(self, module: nn.Module, inputs: list[Tensor]) -> Callable[[], object]:
        learned = [*inputs, *module.parameters()]

        def job() -> object:
            with autocast(self.device, self.options.precision):
                (out, attention), _ = module(*inputs)
            return torch.autograd.grad((out + attention).sum(), learned, allow_unused=True)

        return job

    def deployment(self) -> list[dict[str, Any]]:
        """Table 17: latency at two batch sizes, weights and memory."""
        config = self._config(self.options.in_size)
        training: Any = training_network(MODEL, config, torch.device("cpu"))
        clip = synthetic_clip(config.time_steps, CALIBRATION_SIDE, CALIBRATION_SIDE, samples=2, seed=1)
        with kernels("off"):
            recalibrate(training, [clip], run=training.front_end)
        deployed = deployed_network(MODEL, config, self.device)
        baseline = baseline_network(BASELINE, config, self.device)
        training = training.to(self.device).eval()
        precision = self.options.precision

        @torch.inference_mode()
        def literal(x: Tensor) -> object:
            with kernels("off"), autocast(self.device, precision):
                return training.run(x, LITERAL).logits

        networks: dict[str, tuple[Model, Callable[[Tensor], object] | None]] = {
            "mamba-spike": (baseline, direct(baseline, self.device, precision, "auto")),
            "training": (training, literal),
            "deployed": (deployed, direct(deployed, self.device, precision, "off")),
            "deployed-kernels": (deployed, direct(deployed, self.device, precision, "auto")),
            "deployed-captured": (deployed, None),
        }
        return [self._latency(name, model, call) for name, (model, call) in networks.items()]

    def _latency(self, name: str, model: Model, call: Callable[[Tensor], object] | None) -> dict[str, Any]:
        row: dict[str, Any] = {"path": name, "weights_mib": round(bytes_of(model) / MEBIBYTE, 3)}
        for batch in LATENCY_BATCHES:
            self.progress(f"{name}, batch {batch} …")
            x = clips(self._config(self.options.in_size), batch, self.device)
            with explain_out_of_memory(self.device, f"{name}, batch {batch}"):
                if call is None:
                    graph, x = captured(model, x, self.options.precision)
                    memory_of = partial(direct(model, self.device, self.options.precision, "auto"), x)
                    subject = Subject(partial(graph, x), bytes_of(model, x), memory_of)
                else:
                    subject = Subject(partial(call, x), bytes_of(model, x))
                found, _ = measure({"ours": subject}, self.device, self.repeats)
            row[f"batch_{batch}"] = found["ours"].to_dict()
        return row

    def resolution(self) -> list[dict[str, Any]]:
        """Table 19: training and inference at every side; peak memory is that of the training step."""
        rows = []
        for side in self.options.in_sizes:
            config, batch = self._config(side), self.options.batch
            step = self._step(side)
            self.progress(f"inference at {side}×{side} …")
            model = deployed_network(MODEL, config, self.device)
            x = clips(config, batch, self.device)
            call = partial(direct(model, self.device, self.options.precision, "auto"), x)
            with explain_out_of_memory(self.device, f"inference at {side}×{side}"):
                found, _ = measure({"ours": Subject(call, bytes_of(model, x))}, self.device, self.repeats)
            made = found["ours"].to_dict()
            made["samples_per_second"] = round(1e3 * batch / made["median_ms"], 2)
            rows.append({"side": side, "training": step, "inference": made})
        return rows

    def _step(self, side: int, **fields: Any) -> dict[str, Any]:
        """A training step of the recipe's two passes, called as it is."""
        batch = self.options.batch
        self.progress(f"training step at {side}×{side}{''.join(f', {value}' for value in fields.values())} …")
        chosen = self._choice()
        config = self._config(side).replace(**fields)
        with explain_out_of_memory(self.device, f"a training step at {side}×{side}"):
            model = training_network(MODEL, config, self.device, **fields).train()
            targets = torch.arange(batch, device=self.device) % config.num_classes
            settings = chosen.settings(chosen.recipe.passes)
            step = StepBatch(clips(config, batch, self.device), targets, settings, chosen.recipe)
            subjects = step_subjects(model, step, "ours", reference=False)
            found, _ = measure({"ours": subjects["ours"]}, self.device, self.repeats)
        made = found["ours"].to_dict()
        return {**made, "samples_per_second": round(1e3 * batch / made["median_ms"], 2)}

    def _choice(self) -> StepChoice:
        given = TrainOptions(
            recipe="dvsgesture", batch=self.options.batch, precision=self.options.precision, repeats=self.repeats
        )
        return choose_step(given)._replace(device=self.device)

    def _config(self, side: int) -> RipeConfig:
        return ripe_config(MODEL, self.options.time_steps, side)
