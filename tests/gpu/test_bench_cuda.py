"""Networks of any kind on a GPU: captured passes and steps equal those that are called, by the benchmark's check."""

import pytest
from tests.toy_network import TOY

from ripe_mambaspike.bench.infer import bench_infer
from ripe_mambaspike.bench.options import InferOptions, TrainOptions
from ripe_mambaspike.bench.train import bench_train

NAMES = [TOY, "event-mlp", "mamba-spike-pooled", "nmnist"]
SMALL = {"device": "cuda", "repeats": 2, "in_size": 34, "time_steps": 4, "models": NAMES}
pytestmark = pytest.mark.usefixtures("toy")


def test_captured_passes():
    document = bench_infer(InferOptions(**SMALL, batches=[1, 3]))
    assert len(document["rows"]) == len(NAMES) * 2 * 2
    for row in document["rows"]:
        assert row["agreement"]["agrees"], row["summary"]
        assert row["captured"]["activation_mib"] == row["plain"]["activation_mib"] > 0
        assert row["captured"]["median_ms"] > 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_captured_steps(precision):
    document = bench_train(TrainOptions(**SMALL, batch=4, precision=precision))
    for row in document["rows"]:
        assert row["agreement"]["agrees"], row["summary"]
        assert row["plain_over_captured"] > 0
        assert row["passes"] == (2 if row["model"] == "nmnist" else 1)
