"""PyTorch's compiler and exporter take the whole network with its fused operators."""

import pytest
import torch

from ripe_mambaspike.ops.backend import kernels

pytestmark = pytest.mark.slow


def operators(program):
    """Names of our operators in an exported program, those in its inner graphs too."""
    modules = [module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    targets = {str(node.target) for module in modules for node in module.graph.nodes}
    return {target.split(".")[1] for target in targets if target.startswith("ripe.")}


@torch.no_grad()
def test_compiled_in_one_graph(small, louder, events):
    model, x = louder(small(form="deployed")).eval(), events(16)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)


def test_compiled_training_has_the_same_gradients(small, louder, events):
    x = events(16)
    gradients = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")):
        model = louder(small()).train()
        wrap(lambda clips, model=model: model.run(clips).logits.square().mean())(x).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    for name, expected in gradients[0].items():
        scale = max(1e-4, float(expected.abs().max()))
        assert float((gradients[1][name] - expected).abs().max()) <= 1e-3 * scale, name


@torch.no_grad()
def test_exported(small, louder, events):
    model, x = louder(small(form="deployed")).eval(), events(16)
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-5, atol=1e-6)
    assert operators(program) == {
        "enter_fire",
        "attend_fire",
        "norm_fire",
        "pooled_rates",
        "row_norm",
        "mamba_inner",
        "winograd_conv",
        "winograd_weights",
    }
    with kernels("off"):  # a program for elsewhere has PyTorch's own operators alone
        plain = torch.export.export(model, (x,))
    assert operators(plain) == set()
    torch.testing.assert_close(plain.module()(x), model(x), rtol=1e-3, atol=1e-4)
