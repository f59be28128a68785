"""Two processes that share their statistics have those of one batch of everything, in float64, gradients and all."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from ripe_mambaspike import create_model
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import HARD, ForwardMode
from ripe_mambaspike.nn.fused.layers import BatchLayer
from ripe_mambaspike.nn.norm import BatchNorm, SharedNorm, TimeBatchNorm
from ripe_mambaspike.nn.repconv import RepConv
from ripe_mambaspike.nn.sync_stats import joint_count, joint_moments, joint_spread, stats_sync, sync_batch_stats
from ripe_mambaspike.ops.backend import kernels

SHARES = {"half": (2, 2), "unequal": (1, 3), "none": (0, 3)}  # clips of the two processes
STEPS, CHANNELS, SIDE = 3, 4, 6
SEEDED = threading.Lock()  # PyTorch's generator is shared by all threads
RELAXED = ForwardMode(relaxed=True, sharpness=3.0, track_statistics=False)


class Spread(torch.nn.Module):
    """Normalizes by `joint_spread`, and says what it found."""

    def forward(self, x):
        self.found = joint_spread(x.mean((0, 3, 4)), x.var((0, 3, 4), correction=0))
        mean, variance = (value[..., None, None] for value in self.found)
        return (x - mean) / variance.sqrt()

    def measured(self):
        return list(self.found)


class Moments(torch.nn.Module):
    """Multiplies by `joint_moments`, of different shapes."""

    def forward(self, x):
        flat = x.permute(0, 1, 3, 4, 2).flatten(0, 3)
        self.found = joint_moments(flat.mean(0), flat.T @ flat / len(flat))
        return x * self.found[0][:, None, None] + (self.found[1] @ x.flatten(3)).view_as(x)

    def measured(self):
        return list(self.found)


class Flat(torch.nn.Module):
    """A norm that sees no steps, as in a branch or in the bridge."""

    def __init__(self):
        super().__init__()
        self.norm = BatchNorm(CHANNELS)

    def forward(self, x):
        return self.norm(x.flatten(0, 1)).view_as(x)


class Fused(torch.nn.Module):
    """All branches and the norm behind them by the moments of patches."""

    def __init__(self, stride):
        super().__init__()
        self.conv, self.norm = RepConv(CHANNELS, CHANNELS, stride), TimeBatchNorm(STEPS, CHANNELS)

    def forward(self, x):
        values, scale, shift = BatchLayer(self.conv, self.norm)(x.permute(0, 1, 3, 4, 2).contiguous(), HARD)
        return scale[:, None, None] * values + shift[:, None, None]


class Reference(Fused):
    """The same, branch by branch."""

    def forward(self, x):
        return self.norm(self.conv(x)[0])


class Network(torch.nn.Module):
    """Both passes of training."""

    def __init__(self, causal=False):
        super().__init__()
        fields = {"stage_channels": (3, 4, 4), "embed_dims": (4, 4, 4), "drop_path_rate": 0.0, "num_classes": 3}
        self.model = create_model("nmnist", seed=0, time_steps=STEPS, causal=causal, **fields)
        for name, parameter in self.model.named_parameters():
            if name.endswith("norm.weight") and parameter.ndim == 2:
                parameter.data.mul_(3)  # so that every layer fires

    def forward(self, x):
        hard, relaxed = self.model.run_passes(x, [HARD, RELAXED])
        return torch.cat([hard.logits, relaxed.logits], -1)


CASES = {
    "joint_spread": Spread,
    "joint_moments": Moments,
    "BatchNorm": Flat,
    "TimeBatchNorm": lambda: TimeBatchNorm(STEPS, CHANNELS),
    "SharedNorm": lambda: SharedNorm(CHANNELS),
    "branches": lambda: Reference(1),
    "patches": lambda: Fused(1),
    "patches, stride 2": lambda: Fused(2),
    "reference network": Network,
    "fused network": Network,
    "reference network, causal": lambda: Network(causal=True),
    "fused network, causal": lambda: Network(causal=True),
}


PAIRS = [(case, share) for case in CASES for share in SHARES if share == "unequal" or "network" not in case]


def clips(case, count):
    if "network" in case:
        return synthetic_clip(STEPS, 16, 16, count, 0).double()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, STEPS, CHANNELS, SIDE, SIDE, generator=generator, dtype=torch.float64)
    return 2 * x + torch.arange(count, dtype=torch.float64)[:, None, None, None, None]  # no two clips have one mean


def made(case):
    with SEEDED:
        torch.manual_seed(0)
        return CASES[case]().double().train()


def run(module, x, numbers, share=1.0):
    """(output, gradient of x, those of the parameters, statistics) by a loss with its own weights for every clip."""
    x = x.clone().requires_grad_()
    out = module(x)
    weights = torch.randn(4, *out.shape[1:], generator=torch.Generator().manual_seed(2), dtype=out.dtype)
    (share * (out * weights[numbers]).sum()).backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
    statistics = module.measured() if hasattr(module, "measured") else list(module.buffers())
    return out.detach(), x.grad, gradients, [value.detach() for value in statistics]


def apart(given, wanted):
    """The largest difference, as a share of the largest value."""
    return float((given - wanted).abs().max() / wanted.abs().max().clamp(min=0.1)) if wanted.numel() else 0.0


def compare(case, shares, rank):
    """The largest difference from one batch of everything."""
    total, first = sum(shares), sum(shares[:rank])
    x, mine = clips(case, total), slice(first, first + shares[rank])
    out, of_input, of_parameters, statistics = run(made(case), x, slice(total))
    wanted = [out[mine], of_input[mine], *of_parameters, *statistics]
    counted = shares[rank] > 0
    own = x[mine] if counted else torch.full_like(x[:2], 7.0)  # takes part, but must not count
    with sync_batch_stats(len(own), total, counted=counted):
        assert joint_count(10 * len(own)) == 10 * total
        numbers = mine if counted else slice(2)
        out, of_input, of_parameters, statistics = run(made(case), own, numbers, float(counted))
    if not counted:
        assert not of_input.any()
        out, of_input = out[:0], of_input[:0]
    for gradient in of_parameters:
        dist.all_reduce(gradient)
    return max(map(apart, [out, of_input, *of_parameters, *statistics], wanted))


def compare_all(rank):
    found = {}
    for case, share in PAIRS:
        with kernels("off" if case.startswith("reference network") else "plain"):  # backward passes too
            found[f"{case}: {share}"] = compare(case, SHARES[share], rank)
    assert stats_sync() is None
    return found


def in_process(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = compare_all(rank)
    dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def in_threads():
    """Two threads with a sum over both as `all_reduce`: quick to start."""
    barrier, parts = threading.Barrier(2, timeout=60), {}

    def all_reduce(tensor, group=None):
        parts[threading.get_ident()] = tensor.clone()
        barrier.wait()
        total = sum(parts.values())
        barrier.wait()
        tensor.copy_(total)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(dist, "all_reduce", all_reduce)
        return list(pool.map(compare_all, range(2)))


@pytest.fixture(scope="module", params=["threads", pytest.param("processes", marks=pytest.mark.slow)])
def differences(request, tmp_path_factory):
    if request.param == "threads":
        return request.getfixturevalue("in_threads")
    folder = tmp_path_factory.mktemp("together")
    multiprocessing.spawn(in_process, (str(folder),), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(("case", "share"), PAIRS)
def test_synced_statistics_equal_those_of_one_batch(differences, case, share):
    # What joins the moments is exact; a network multiplies their rounding on its way.
    most = 1e-9 if "network" in case else 1e-12
    for found in differences:
        assert found[f"{case}: {share}"] < most


def test_without_sync_moments_are_unchanged():
    mean, variance = torch.randn(3), torch.rand(3)
    assert stats_sync() is None
    assert joint_count(5) == 5
    assert joint_moments(mean, variance) == (mean, variance)
    assert joint_spread(mean, variance) == (mean, variance)
