"""How much memory a pass needs, and the error if there is less."""

import pytest
import torch

from ripe_mambaspike import create_model
from ripe_mambaspike.errors import InputError, MemoryNeededError
from ripe_mambaspike.inference.capture import capture
from ripe_mambaspike.models import memory
from ripe_mambaspike.models.memory import (
    activation_bytes,
    explain_model_memory,
    free_memory,
    is_memory_error,
    out_of_memory_error,
)
from ripe_mambaspike.models.registry import model_config
from ripe_mambaspike.nn.forward_mode import ForwardMode
from ripe_mambaspike.ops.backend import kernels
from ripe_mambaspike.train.step import StepSettings, make_optimizer, training_step

MIB, GIB = 1 << 20, 1 << 30
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.00 GiB. GPU 0 has …")
FULL_CPU = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
MODES = [ForwardMode(), ForwardMode(relaxed=True, track_statistics=False)]


# Peaks beyond weights and input, measured on a GPU.
@pytest.mark.parametrize(
    ("name", "batch", "itemsize", "passes", "measured"),
    [
        ("dvsgesture", 1, 2, 0, 26 * MIB),
        ("dvsgesture", 8, 2, 0, 162 * MIB),
        ("dvsgesture", 64, 2, 0, 1284 * MIB),
        ("dvsgesture", 1, 4, 0, 47 * MIB),
        ("dvsgesture", 8, 4, 0, 291 * MIB),
        ("dvsgesture", 32, 2, 2, 4.75 * GIB),
        ("nmnist", 64, 2, 2, 0.61 * GIB),
        ("nmnist", 2, 2, 2, 119.6 * MIB),  # on a CPU; most of it does not depend on the batch
    ],
)
def test_the_estimate_is_near_what_was_measured(name, batch, itemsize, passes, measured):
    config = model_config(name)
    shape = (batch, config.time_steps, 2, *config.in_size)
    given = activation_bytes(config, shape, itemsize, training=passes > 0, passes=passes)
    assert measured / 1.5 < given < measured * 1.5


def test_the_estimate_grows_with_the_request():
    config = model_config("dvsgesture")

    def estimate(batch=2, steps=8, side=64, itemsize=2, training=False, passes=1, **fields):
        shape = (batch, steps, 2, side, side)
        return activation_bytes(config.replace(**fields), shape, itemsize, training=training, passes=passes)

    least = estimate()
    assert estimate(batch=4) == 2 * least
    assert estimate(steps=16) == 2 * least
    assert estimate(side=128) == 4 * least
    assert estimate(side=65) > least
    assert least < estimate(itemsize=4) < 2 * least  # spikes are bytes
    one, two = (estimate(training=True, passes=passes) for passes in (1, 2))
    assert 3 * least < one < two
    assert estimate(training=True, bridge="stage3") < one
    assert estimate(training=True, num_tokens=4) < one
    few, many = (estimate(64, training=True, itemsize=itemsize) for itemsize in (2, 4))
    assert 1.5 * few < many < 2 * few


@pytest.fixture
def left(monkeypatch):
    """As if 3 GiB were free."""
    monkeypatch.setattr(memory, "free_memory", lambda device: 3 * GIB)


@pytest.fixture
def fail(monkeypatch):
    """From here on, both paths fail with this error."""

    def replace(error):
        def failing(*_, **__):
            raise error

        monkeypatch.setattr("ripe_mambaspike.models.ripe.run_fused", failing)
        monkeypatch.setattr("ripe_mambaspike.inference.capture.run_fused", failing)
        monkeypatch.setattr("ripe_mambaspike.models.ripe.FrontEnd", failing)

    return replace


def call(model, x):
    return model(x)


def run(model, x):
    return model.run(x)


def run_passes(model, x):
    return model.run_passes(x, MODES)


@pytest.mark.parametrize("error", [FULL, FULL_CPU, MemoryError()], ids=["cuda", "cpu", "python"])
@pytest.mark.parametrize("choice", ["off", "plain"])
@pytest.mark.parametrize("way", [call, run, run_passes])
def test_a_pass_that_ran_out(small, events, left, fail, choice, way, error):
    model, x = small().eval(), events(18, 20, samples=3)
    fail(error)
    with torch.no_grad(), kernels(choice), pytest.raises(MemoryNeededError) as caught:
        way(model, x)
    assert caught.value.__cause__ is error
    sentence = str(caught.value)
    needed = activation_bytes(model.config, x.shape, 4, training=False) / MIB
    about = "about" if choice == "plain" else "more than"
    assert sentence == (
        f"a pass of batch 3, 5 steps of 18×20, needs {about} {needed:.1f} MiB beyond the weights and "
        "ran out of memory on cpu with 3.00 GiB left; reduce the batch"
    )


@pytest.mark.parametrize("choice", ["off", "plain"])
def test_all_the_passes_of_training_are_counted(small, events, left, fail, choice):
    model, x = small().train(), events(samples=8)
    fail(FULL)
    needed = activation_bytes(model.config, x.shape, 4, training=True, passes=2) / MIB
    with kernels(choice), pytest.raises(MemoryNeededError, match=rf"a training pass .* {needed:.1f} MiB beyond"):
        model.run_passes(x, MODES)


@pytest.mark.parametrize("choice", ["off", "plain"])
@pytest.mark.parametrize("way", [call, run, run_passes])
def test_other_errors_stay_as_they_are(small, events, fail, choice, way):
    error = RuntimeError("the kernel's shapes do not fit")
    fail(error)
    with kernels(choice), pytest.raises(RuntimeError) as caught:
        way(small().eval(), events())
    assert caught.value is error


def test_precision_gradients_and_passes_count(small, events, left):
    model, x = small(), events(samples=32)

    def message(passes=1, dtype=None):
        return str(out_of_memory_error(FULL, model, x, passes, dtype))

    def needed(itemsize, training, passes=1):
        count = activation_bytes(model.config, x.shape, itemsize, training=training, passes=passes)
        return f" {count / MIB:.1f} MiB beyond"

    assert message().startswith("a training pass of batch 32,")
    assert needed(4, True) in message()
    assert needed(4, True, 2) in message(2)
    assert needed(2, True, 2) in message(2, torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert needed(2, False) in message()
    assert len({needed(size, grad, n) for size in (2, 4) for grad in (True, False) for n in (1, 2)}) == 6


def test_for_a_single_clip_the_hint_names_its_size(small, events, left):
    assert str(out_of_memory_error(FULL, small(), events(samples=1), 1)).endswith(
        "reduce the side or the number of steps"
    )


def test_the_baseline_has_no_estimate(tiny_baseline, events, left):
    message = str(out_of_memory_error(FULL, tiny_baseline(), events(13, 18, steps=7)))
    assert message.endswith(
        "of batch 2, 7 steps of 13×18, ran out of memory on cpu with 3.00 GiB left; reduce the batch"
    )


def test_the_message_without_known_free_memory(small, events, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: None)
    assert "ran out of memory on cpu; reduce" in str(out_of_memory_error(FULL, small(), events()))


def test_free_memory(monkeypatch):
    assert free_memory(torch.device("cpu")) > MIB
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: GIB)
    assert free_memory(torch.device("cuda")) == 7 * GIB  # memory that PyTorch keeps unused is free too
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert free_memory(torch.device("cuda")) is None


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        FULL_CPU,
        MemoryError(),
        MemoryNeededError("a pass …"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=["cuda", "cpu", "python", "ours", "windows", "triton", "cublas"],
)
def test_out_of_memory_messages_are_recognized(error):
    assert is_memory_error(error)


@pytest.mark.parametrize("error", [RuntimeError("out of resource: shared memory"), KeyError("memory")], ids=repr)
def test_other_messages_are_not_memory_errors(error):
    assert not is_memory_error(error)


@pytest.mark.parametrize("choice", ["off", "auto"])
def test_a_real_failure(small, choice):
    """Far more clips than any machine holds; the clips themselves take no memory."""
    x = torch.zeros(1, 1, 1, 1, 1).expand(1 << 32, 5, 2, 18, 18)
    with torch.no_grad(), kernels(choice), pytest.raises(MemoryNeededError, match=f"batch {1 << 32}, .* GiB beyond"):
        small().eval()(x)


def test_other_errors_pass_through_the_context_manager(small, events):
    error = InputError("the input is wrong")
    with pytest.raises(InputError) as caught, explain_model_memory(small(), events()):
        raise error
    assert caught.value is error


@pytest.mark.parametrize(("choice", "dtype"), [("off", torch.bfloat16), ("plain", torch.float32)], ids=str)
def test_a_captured_network_that_ran_out(small, events, left, fail, choice, dtype):
    model, x = small(form="deployed").eval(), events()
    with kernels(choice):
        captured = capture(model, x, dtype)
        fail(FULL)
        needed = activation_bytes(model.config, x.shape, dtype.itemsize, training=False) / MIB
        for attempt in (lambda: captured(x), lambda: capture(model, x, dtype)):
            with pytest.raises(MemoryNeededError, match=rf"a pass of .* {needed:.1f} MiB beyond") as caught:
                attempt()
            assert caught.value.__cause__ is FULL


def test_a_captured_baseline_computes(tiny_baseline, events):
    model, x = tiny_baseline().eval(), events(13, 18, steps=7)
    with torch.no_grad():
        assert torch.equal(capture(model, x)(x), model(x))


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_training_step_whose_backward_ran_out(small, events, left, monkeypatch, autocast, passes):
    def failing(*_, **__):
        raise FULL

    model, x = small().train(), events()
    weights = [p.detach().clone() for p in model.parameters()]
    monkeypatch.setattr(torch.Tensor, "backward", failing)
    settings = StepSettings(autocast=autocast, passes=passes)
    with kernels("off"), pytest.raises(MemoryNeededError) as caught:
        training_step(model, make_optimizer(model, 1e-3, 0.05), x, torch.tensor([0, 1]), settings)
    assert caught.value.__cause__ is FULL
    needed = activation_bytes(model.config, x.shape, 2 if autocast else 4, training=True, passes=passes) / MIB
    assert f"a training pass of batch 2, 5 steps of 18×18, needs more than {needed:.1f} MiB" in str(caught.value)
    assert all(map(torch.equal, weights, model.parameters()))


def test_the_network_runs_after_memory_was_freed(small, events, fail, monkeypatch):
    model, x = create_model("nmnist", seed=0, time_steps=3).eval(), events(16, steps=3)
    with torch.no_grad():
        expected = model(x)
        with monkeypatch.context():
            fail(FULL)
            with pytest.raises(MemoryNeededError):
                model(x)
        monkeypatch.undo()
        assert torch.equal(model(x), expected)
