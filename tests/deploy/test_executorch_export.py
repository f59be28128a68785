"""Graphs as ExecuTorch programs, run by ExecuTorch: the same logits; other sizes and damaged files are refused."""

import pytest
import torch

pytest.importorskip("executorch")

from tests.deploy.networks import as_int8
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.deploy.export.formats import executorch
from ripe_mambaspike.deploy.export.graph import make_graph
from ripe_mambaspike.deploy.export.registry import export_format
from ripe_mambaspike.errors import ConfigError, InputError
from ripe_mambaspike.models.stored import restore
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.norm import TimeAffine

pytestmark = pytest.mark.slow

executorch_file = export_format("executorch")

KERNEL = "stages.1.second_conv.weight"


@pytest.fixture(scope="module")
def model():
    """A small deployed network in which all layers fire, with one int8 kernel.

    Without a mixer, whose hundreds of operations are of the same kinds and take long to lower.
    """
    torch.manual_seed(0)
    small = {"stage_channels": (4, 8, 8), "embed_dims": (4, 8, 8), "time_steps": 2, "form": "deployed"}
    network = create_model("nmnist", seed=0, mixer="none", bridge="stage3", **small).eval()
    with torch.no_grad():
        for part in network.modules():
            if isinstance(part, TimeAffine):
                part.scale.uniform_(3, 8)
                part.shift.uniform_(0, 0.6)
            if getattr(part, "coefficient", None) is not None:
                part.coefficient.uniform_(-0.4, 0.4)
            if hasattr(part, "threshold"):
                part.threshold.uniform_(0.02, 0.2)
        kernel = network.get_parameter(KERNEL)
        network.stored = {KERNEL: as_int8(kernel)}
        kernel.copy_(restore(network.stored[KERNEL]))
    return network


@pytest.fixture(scope="module")
def program(model, tmp_path_factory):
    """Written once, since lowering is slow."""
    path = tmp_path_factory.mktemp("executorch") / "clip.pte"
    executorch_file.save(make_graph("clip", model, 10, 12, model.stored), path, dynamic=False)
    return path


def test_the_runtime_gives_pytorchs_logits(model, program):
    run = executorch_file.load(program, trust=True)
    for seed in range(3):
        x = synthetic_clip(2, 10, 12, seed=seed)
        with torch.no_grad():
            expected, fired = model(x), model.front_end(x, observe=("spikes",)).observed
        assert fired["stages.2.second_neuron.spikes"].sum() > 0
        (logits,) = run(x)
        assert logits.shape == (1, 2, 10)
        assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_spikes_and_constant_convolutions_are_xnnpacks(program):
    """What is left for ExecuTorch's own kernels has no comparison, and only the convolution of int8 weights."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    (plan,) = deserialize_pte_binary(program.read_bytes()).program.execution_plan
    names = [operator.name for operator in plan.operators]
    assert "aten::ge" not in names
    assert "aten::bmm" not in names
    assert {delegate.id for delegate in plan.delegates} == {"XnnpackBackend"}


def test_a_later_call_leaves_the_outputs_of_an_earlier_one(program):
    run = executorch_file.load(program, trust=True)
    first = run(synthetic_clip(2, 10, 12, seed=0))[0]
    kept = first.clone()
    second = run(synthetic_clip(2, 10, 12, seed=1))[0]
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1, 2, 2, 12, 10), torch.float32), ((2, 2, 2, 10, 12), torch.float32), ((1, 2, 2, 10, 12), torch.float64)],
)
def test_inputs_of_another_size_or_precision_are_refused(program, shape, dtype):
    given, expected = f"{dtype} {shape}", "torch.float32 (1, 2, 2, 10, 12)"
    with raises(InputError, "inputs", program, (f"expected {expected}", f"got {given}")):
        executorch_file.load(program, trust=True)(torch.zeros(shape, dtype=dtype))


def test_free_sizes_are_refused_before_anything_is_written(model, tmp_path):
    with raises(ConfigError, "static", mentions="batch, height, width"):
        executorch_file.save(make_graph("clip", model, 10, 12), tmp_path / "clip.pte")
    assert list(tmp_path.iterdir()) == []


def test_damaged_files_are_refused(program, tmp_path):
    whole = program.read_bytes()
    path = tmp_path / "clip.pte"
    for content in (b"", b"nothing of the kind", whole[:100], whole[: len(whole) // 3], bytes(len(whole))):
        path.write_bytes(content)
        with raises(InputError, path=path):
            executorch_file.load(path, trust=True)
    with raises(InputError, path=tmp_path / "absent.pte"):
        executorch_file.load(tmp_path / "absent.pte", trust=True)


def test_nothing_is_printed(program, capfd):
    executorch_file.load(program, trust=True)(torch.zeros(1, 2, 2, 10, 12))
    assert capfd.readouterr() == ("", "")


def test_an_operation_without_a_kernel_is_named(model, tmp_path, monkeypatch):
    class Lowered:
        class executorch_program:  # noqa: N801
            execution_plan = ()

    monkeypatch.setattr(executorch, "lower", lambda graph: Lowered())
    monkeypatch.setattr(executorch, "_missing_kernels", lambda program: ["aten::strange.out"])
    with raises(ConfigError, "to", mentions=("aten::strange.out", "clip graph")):
        executorch_file.save(make_graph("clip", model, 10, 12), tmp_path / "clip.pte", dynamic=False)
    assert list(tmp_path.iterdir()) == []


def test_the_missing_package_is_named(model, tmp_path, monkeypatch):
    assert executorch_file.unavailable_reason() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    graph = make_graph("clip", model, 10, 12)
    for attempt in (
        lambda: executorch_file.save(graph, tmp_path / "clip.pte", dynamic=False),
        lambda: executorch_file.load(tmp_path / "clip.pte", trust=True),
    ):
        with raises(ConfigError, "to", mentions='pip install "ripe-mambaspike[edge]"'):
            attempt()
