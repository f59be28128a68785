"""Sizes of intermediate results in a `.pt2`: ints, while the program still serves every size."""

import io
import json

import torch
from torch import nn

from ripe_mambaspike.deploy.export.pt2_archive import MODEL, SAMPLES, members_of, written
from ripe_mambaspike.deploy.export.pt2_sizes import with_traced_sizes


class Pooled(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        halves = x[: rows // 2 * 2].reshape(rows // 2, 2, columns)
        return torch.relu(halves.sum(1)) * 2 + columns


def test_only_intermediate_sizes_become_ints_and_every_size_is_served():
    dynamic = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(Pooled(), (torch.rand(6, 5),), dynamic_shapes=dynamic)
    held = io.BytesIO()
    torch.export.save(program, held)
    members = members_of(held.getvalue())
    before = json.loads(members[MODEL])["graph_module"]["graph"]
    members[MODEL] = with_traced_sizes(members[MODEL])
    after = json.loads(members[MODEL])["graph_module"]["graph"]

    ends = {one["as_tensor"]["name"] for one in (*before["inputs"], *before["outputs"])}
    inner = before["tensor_values"].keys() - ends
    assert any("as_expr" in size for name in inner for size in before["tensor_values"][name]["sizes"])
    for name in inner:
        value = after["tensor_values"][name]
        assert all("as_int" in size for size in (*value["sizes"], *value["strides"], value["storage_offset"]))
    for name in ends:
        assert after["tensor_values"][name] == before["tensor_values"][name]
    assert after["sym_int_values"] == before["sym_int_values"]

    loaded = torch.export.load(io.BytesIO(written({**members, SAMPLES: b""})))
    decomposed = loaded.run_decompositions()  # traced again from the inputs
    for shape in ((6, 5), (11, 3), (4, 9)):
        x = torch.randn(shape)
        assert torch.equal(loaded.module()(x), Pooled()(x))
        assert torch.equal(decomposed.module()(x), Pooled()(x))
