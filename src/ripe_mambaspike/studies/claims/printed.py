"""What the paper prints and other claims are computed from: results, seeds and ablations."""

from typing import NamedTuple


class Row(NamedTuple):
    """A line of Table 1 (state of the art)."""

    method: str
    millions: float | None  # parameters
    accuracy: float


OURS = "RIPE-MambaSpike"
LITE = "RIPE-MambaSpike lite"

GESTURE = (
    Row("TET", 3.66, 97.92),
    Row("SpikFormer", 2.57, 98.30),
    Row("SDT", 2.57, 99.30),
    Row("MS-ResNet", 11.20, 98.61),
    Row("RTFormer", None, 98.61),
    Row("SPARTA", 13.80, 98.78),
    Row("SpikMamba", 0.18, 99.01),
    Row("Mamba-Spike published", None, 97.80),
    Row("Mamba-Spike released", 36.25, 94.32),
    Row("Mamba-Spike", 36.25, 95.83),
    Row(OURS, 0.88, 98.48),
)
CIFAR = (
    Row("TET", 3.66, 83.17),
    Row("SpikFormer", 2.57, 80.90),
    Row("SDT V2", 4.34, 82.00),
    Row("SWformer", 2.05, 82.90),
    Row("RTFormer", None, 83.60),
    Row("QKFormer", 1.50, 84.00),
    Row("SPARTA", 13.80, 83.06),
    Row("STAtten", 2.57, 83.90),
    Row("SpikePool small", 0.55, 80.20),
    Row("SpikePool", 2.19, 82.70),
    Row("Mamba-Spike published", None, 92.50),
    Row("Mamba-Spike released", 36.25, 48.90),
    Row("Mamba-Spike", 36.25, 65.30),
    Row(OURS, 0.87, 81.40),
)
CALTECH = (
    Row("SDT", 2.57, 82.50),
    Row("SDT V2", 4.34, 83.70),
    Row("STAtten", 2.57, 84.25),
    Row("SWformer", 2.05, 88.45),
    Row("SpikePool small", 0.55, 81.62),
    Row("SpikePool", 2.19, 85.01),
    Row(OURS, 0.88, 85.54),
)
DAILY = (
    Row("C3D", 147.2, 21.99),
    Row("ESTF", 46.7, 24.68),
    Row("SDT", None, 35.43),
    Row("SpikFormer", None, 36.94),
    Row("TSM", 24.3, 40.87),
    Row("SlowFast", 33.6, 41.49),
    Row("TimeSformer", 121.2, 44.25),
    Row("Swin-T", 27.8, 48.06),
    Row("EvMamba", 76.5, 49.65),
    Row("DarkShake-DVS", None, 51.99),
    Row(OURS, 8.04, 45.74),
    Row(LITE, 3.82, 42.41),
)
MNIST = (
    Row("PLIF", 0.87, 99.61),
    Row("SpikFormer", 2.57, 99.61),
    Row("SDT", 2.57, 99.55),
    Row("Mamba-Spike released", 1.03, 99.36),
    Row("Mamba-Spike", 1.03, 99.49),
    Row(OURS, 0.87, 99.57),
)

# Per-seed accuracies of the appendix.
SEEDS = {
    "dvsgesture": (97.73, 98.11, 98.11, 98.48, 98.48),
    "cifar10dvs": (81.1, 81.3, 81.3, 81.3, 81.4),
    "dailydvs200": (45.91, 45.74, 45.91, 45.05, 46.08),
    "dailydvs200-top5": (69.38, 69.58, 69.73, 68.75, 70.07),
}

# Table 2: what removing a component costs on DVS-Gesture, CIFAR10-DVS and N-Caltech101 (pp), and Table 11 in σ.
ABLATION = {
    "DS-MPA": ((0.45, 0.80, 3.16), ("1.5", "7.3", "17.4")),
    "RepConv": ((0.45, 0.60, 1.94), ("1.5", "5.5", "10.7")),
    "TDM": ((0.07, 1.40, 2.43), ("0.2", "12.8", "13.4")),
    "MR-S3A": ((0.07, 1.10, 1.46), ("0.2", "10.0", "8.0")),
}


def row(table: tuple[Row, ...], method: str = OURS) -> Row:
    return next(entry for entry in table if entry.method == method)
