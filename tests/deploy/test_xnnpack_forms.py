"""Programs rewritten for XNNPACK: the same results, in operators that it has."""

import pytest
import torch
from torch import nn

pytest.importorskip("executorch")

from ripe_mambaspike.deploy.export.xnnpack_forms import rewrite_for_xnnpack

pytestmark = pytest.mark.slow  # importing ExecuTorch takes seconds

aten = torch.ops.aten


def rewritten(module, *inputs):
    with torch.no_grad():
        program = torch.export.export(module.eval(), inputs, strict=False)
        for node in program.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default):
            program.graph.erase_node(node)  # as `trace_graph` does
        return rewrite_for_xnnpack(program)


def targets(program):
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def test_spikes_are_exact_at_and_next_to_the_threshold():
    class Spikes(nn.Module):
        def forward(self, potential, threshold):
            return (potential >= threshold).to(torch.float32)

    threshold = torch.tensor([0.02, 0.3, 1.0, 1.7, 1e-20, 0.0, -0.4, 3e4])
    around = [threshold, *(torch.nextafter(threshold, threshold.new_tensor(side)) for side in (-torch.inf, torch.inf))]
    potential = torch.stack([*around, -threshold, threshold * 1e4, threshold - 1e30, threshold + 1e30])
    potential = potential[:, threshold != 0]  # next to zero there are only denormal numbers
    threshold = threshold[threshold != 0]
    program = rewritten(Spikes(), potential, threshold)
    assert aten.ge.Tensor not in targets(program)
    assert torch.equal(program.module()(potential, threshold), (potential >= threshold).float())


def test_comparisons_of_whole_numbers_stay():
    class Counts(nn.Module):
        def forward(self, count):
            return (count >= count.flip(0)).to(torch.float32)

    program = rewritten(Counts(), torch.arange(5))
    assert aten.ge.Tensor in targets(program)


@pytest.mark.parametrize("value", [1, -1, 0.5])
def test_products_are_added_with_their_factor(value):
    class Recurrence(nn.Module):
        def forward(self, x, a, b):
            return torch.addcmul(x, a, b, value=value)

    inputs = torch.rand(3, 4), torch.rand(4), torch.rand(3, 1)
    program = rewritten(Recurrence(), *inputs)
    assert aten.addcmul.default not in targets(program)
    torch.testing.assert_close(program.module()(*inputs), torch.addcmul(*inputs, value=value))


def test_a_matrix_for_all_steps_is_stored_once_as_a_convolution():
    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(5, 3))

        def forward(self, x):
            return torch.bmm(self.matrix.expand(len(x), -1, -1), x)

    module, x = Projected(), torch.rand(4, 3, 7)
    program = rewritten(module, x)
    assert targets(program).count(aten.conv2d.default) == 1
    assert aten.bmm.default not in targets(program)
    assert max(one.numel() for one in (*program.state_dict.values(), *program.constants.values())) == 15
    torch.testing.assert_close(program.module()(x), module(x))


def test_constants_are_folded_but_small_weights_stay_small():
    class Folded(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel, self.scale = nn.Parameter(torch.randn(4, 2, 3, 3)), nn.Parameter(torch.rand(4))
            self.register_buffer("stored", torch.randint(-127, 127, (4, 4), dtype=torch.int8))

        def forward(self, x):
            out = torch.conv2d(x, self.kernel * self.scale.softmax(0)[:, None, None, None])
            return out.flatten(1).reshape(-1, 4) @ self.stored.float()

    module, x = Folded(), torch.rand(1, 2, 6, 6)
    program = rewritten(module, x)
    convolution = next(node for node in program.graph.nodes if node.target is aten.conv2d.default)
    assert convolution.args[1].op == "placeholder"
    held = [*program.state_dict.values(), *program.constants.values()]
    assert [one.dtype for one in held if one.shape == (4, 4)] == [torch.int8]
    torch.testing.assert_close(program.module()(x), module(x))
