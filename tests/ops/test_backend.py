"""Which implementation computes; a reference that computes instead of kernels is logged once and has the same bits."""

import subprocess
from types import SimpleNamespace

import pytest
import torch
from tests.raising import raises

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.models.synthetic import synthetic_clip
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.ops import backend as module
from ripe_mambaspike.ops.backend import CHOICES, backend, choice, implementation, kernels, kind_for, log_once, precision
from ripe_mambaspike.ops.cpp import build

SMALL = {
    "stage_channels": (8, 12, 16),
    "embed_dims": (8, 16, 24),
    "time_steps": 4,
    "num_classes": 7,
    "drop_path_rate": 0.0,
}
RELAXED = ForwardMode(relaxed=True, sharpness=3.0)
CACHED = (module._missing, log_once)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing is cached or logged yet."""
    monkeypatch.delenv("RIPE_KERNELS", raising=False)
    for cached in CACHED:
        cached.cache_clear()
    yield
    for cached in CACHED:
        cached.cache_clear()


@pytest.fixture
def logged(caplog):
    """The lines of the package's log so far."""
    return lambda: [record.getMessage() for record in caplog.records if record.name == "ripe_mambaspike"]


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr(build, "unavailable_reason", lambda: "no C++ compiler was found (g++ is not on the PATH)")


@pytest.fixture
def gpu(monkeypatch):
    """A tensor on a GPU that is not there, with what Triton finds on it."""

    def make(capability=(9, 0), triton=None, index=0):
        def get_current_target():
            if isinstance(triton, Exception):
                raise triton

        def import_module(name):
            if isinstance(triton, ImportError):
                raise triton
            return SimpleNamespace(runtime=SimpleNamespace(driver=SimpleNamespace(active=active)))

        active = SimpleNamespace(get_current_target=get_current_target)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
        monkeypatch.setattr(module, "importlib", SimpleNamespace(import_module=import_module))
        device = SimpleNamespace(type="cuda", index=index)
        return SimpleNamespace(device=device, dtype=torch.float32, is_cuda=True)

    return make


def on_cpu(dtype=torch.float32):
    return torch.zeros(2, dtype=dtype)


def test_the_switch_is_nested_and_put_back_even_after_an_error():
    assert choice() == "auto"
    with kernels("plain"):
        with kernels("off"):
            assert choice() == "off"
        assert choice() == "plain"
        with pytest.raises(KeyError), kernels("triton"):
            raise KeyError
        assert choice() == "plain"
    assert choice() == "auto"


def test_the_environment_decides_unless_the_switch_does(monkeypatch):
    monkeypatch.setenv("RIPE_KERNELS", "off")
    assert choice() == "off"
    assert backend(on_cpu()) is None
    with kernels("plain"):
        assert choice() == "plain"
    assert choice() == "off"


def test_a_wrong_choice_names_itself_and_what_is_wanted(monkeypatch):
    with raises(ConfigError, field="kernels") as caught:
        kernels("on").__enter__()
    assert all(word in str(caught.value) for word in ("'on'", *CHOICES))
    assert choice() == "auto"
    monkeypatch.setenv("RIPE_KERNELS", "fast")
    with raises(ConfigError, field="RIPE_KERNELS") as caught:
        backend(on_cpu())
    assert all(word in str(caught.value) for word in ("'fast'", *CHOICES))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_forced_choices_do_not_depend_on_the_machine(monkeypatch, logged, dtype):
    def never(*_):
        raise AssertionError("the machine was looked at")

    monkeypatch.setattr(module, "_missing", never)
    covered = dtype in (torch.float32, torch.bfloat16)
    for chosen in ("triton", "native"):
        with kernels(chosen):
            assert backend(on_cpu(dtype)) == (chosen if covered else None)
    with kernels("plain"):
        assert backend(on_cpu(dtype)) == "plain"
    with kernels("off"):
        assert backend(on_cpu(dtype)) is None
    assert len(logged()) == (dtype == torch.float16)


def test_native_kernels_are_not_forced_onto_a_gpu(gpu):
    with kernels("native"), raises(ConfigError, field="kernels") as caught:
        backend(gpu())
    assert all(word in str(caught.value) for word in ("'native'", "cuda"))


def test_a_requested_reference_is_not_logged(logged, no_compiler):
    with kernels("off"):
        assert backend(on_cpu()) is None
    assert backend(on_cpu(torch.float64)) is None
    assert backend(on_cpu(), torch.float64) is None
    assert logged() == []


def test_half_precision_is_logged_once(logged):
    for _ in range(3):
        assert backend(on_cpu(torch.float16)) is None
        assert backend(on_cpu(), torch.float16) is None
    assert logged() == ["no kernel computes in float16; using the reference path"]


def test_the_cpu_has_kernels_where_they_are_built(monkeypatch, logged):
    asked = []
    monkeypatch.setattr(build, "unavailable_reason", lambda: asked.append(1))
    assert [backend(on_cpu(dtype)) for dtype in (torch.float32, torch.bfloat16)] == ["native", "native"]
    assert backend(on_cpu(torch.float64), torch.bfloat16) == "native"
    assert asked == [1]
    assert logged() == []


def test_no_compiler(logged, no_compiler):
    assert [backend(on_cpu(dtype)) for dtype in (torch.float32, torch.bfloat16)] == [None, None]
    expected = "no kernels: no C++ compiler was found (g++ is not on the PATH); using the reference path"
    assert logged() == [expected]


def test_a_gpu_with_triton(gpu, logged):
    assert backend(gpu()) == "triton"
    assert backend(gpu(capability=(8, 0), index=1)) == "triton"
    assert logged() == []


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"capability": (7, 5)}, "the GPU has compute capability 7.5, below 8.0"),
        ({"triton": ImportError("No module named 'triton'")}, "Triton cannot be imported (No module named 'triton')"),
        (
            {"triton": RuntimeError("Failed to find C compiler.\nPlease …")},
            "Triton cannot launch kernels (Failed to find C compiler.)",
        ),
        (
            {"triton": subprocess.CalledProcessError(1, "gcc")},
            "Triton cannot launch kernels (Command 'gcc' returned non-zero exit status 1.)",
        ),
        ({"triton": AssertionError()}, "Triton cannot launch kernels (AssertionError())"),
    ],
    ids=["old", "no triton", "no compiler", "compiler fails", "no driver"],
)
def test_a_gpu_that_kernels_cannot_use(gpu, logged, found, reason):
    x = gpu(**found)
    assert [backend(x) for _ in range(3)] == [None] * 3
    assert logged() == [f"no kernels: {reason}; using the reference path"]


def test_every_gpu_is_checked_separately(gpu, logged):
    assert backend(gpu(capability=(7, 0), index=0)) is None
    assert backend(gpu(capability=(9, 0), index=1)) == "triton"
    assert backend(gpu(capability=(9, 0), index=0)) is None
    assert len(logged()) == 1


def test_a_device_without_kernels(logged):
    x = torch.zeros(2, device="meta")
    assert [backend(x), backend(x)] == [None, None]
    assert logged() == ["no kernels: there are none for meta; using the reference path"]


def test_products_in_autocasts_precision():
    assert precision(on_cpu()) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert precision(on_cpu()) == torch.bfloat16
        assert precision(on_cpu(torch.float64)) == torch.float64  # which autocast leaves alone
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert precision(on_cpu()) == torch.float32
    assert module.computing_in(torch.bfloat16, on_cpu())._enabled
    assert not module.computing_in(torch.float32, on_cpu())._enabled


def test_an_operators_implementation():
    x, there = on_cpu(), SimpleNamespace(is_cuda=True)
    assert [kind_for(x), kind_for(there)] == ["native", "triton"]
    for chosen in ("triton", "native", "plain"):
        with kernels(chosen):
            assert kind_for(x) == chosen
    folder = "ripe_mambaspike.ops.norm_fire"
    assert implementation("native", folder, "norm_fire").__module__ == f"{folder}.cpu"
    assert implementation("plain", folder, "norm_fire").__module__ == f"{folder}.reference"


def network():
    """A network whose neurons fire, and clips for it."""
    model = create_model("nmnist", seed=0, **SMALL)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name.endswith("norm.weight") and tensor.ndim == 2:
            torch.nn.init.constant_(tensor, 3.0)
    return model, synthetic_clip(4, 18, 18, samples=2, seed=0)


def passes_and_gradients(model, x):
    """Everything that a network gives in training and in evaluation."""
    out = model.train().run_passes(x, [ForwardMode(), ForwardMode(relaxed=True, track_statistics=False)])
    sum(one.logits.square().sum() for one in out).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        evaluated = model.eval()(x)
    return [*(one.logits for one in out), *(one.rates for one in out), evaluated, *gradients, *model.buffers()]


def test_without_a_compiler_a_network_gives_the_references_bits(logged, no_compiler):
    given = passes_and_gradients(*network())
    assert len(logged()) == 1
    assert "no C++ compiler" in logged()[0]
    with kernels("off"):
        expected = passes_and_gradients(*network())
    assert expected[2].max() > 0.01  # there were spikes
    assert len(given) == len(expected)
    assert all(torch.equal(*pair) for pair in zip(given, expected, strict=True))
    assert len(logged()) == 1


def test_half_precision_gives_the_references_bits(logged):
    model, x = network()
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        given = model.eval()(x)
        with kernels("off"):
            assert torch.equal(given, model(x))
    assert logged() == ["no kernel computes in float16; using the reference path"]


def test_autocast_leaves_a_float64_network_to_the_reference(logged):
    model, x = network()
    model, x = model.double().eval(), x.double()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        given = model(x)
        with kernels("off"):
            assert torch.equal(given, model(x))
    assert logged() == []


def test_a_network_over_the_cpp_operators_agrees_with_the_reference(logged):
    if reason := build.unavailable_reason():
        pytest.skip(reason)
    model, x = network()
    with torch.no_grad():
        given = model.eval().run(x, RELAXED)
        with kernels("off"):
            expected = model.run(x, RELAXED)
    for name in ("logits", "attention", "rates"):
        found, wanted = getattr(given, name), getattr(expected, name)
        assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max(), name
    assert not torch.equal(given.attention, expected.attention)  # it was the operators that computed
    assert logged() == []
