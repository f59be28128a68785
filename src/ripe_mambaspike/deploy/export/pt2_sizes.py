"""Makes a `.pt2` with symbolic sizes quick to load.

PyTorch writes the sizes and strides of every intermediate result as formulas of the input's sizes, and its loader
parses each of them with SymPy: over 7,000 formulas, 20 of 22 seconds, for a network with three Mamba blocks. Running a
program needs none of them: a call computes its own sizes, and `run_decompositions` and the compilers trace again from
the inputs. So the file has the traced sizes of intermediate results, as plain ints; the formulas of the inputs, of the
outputs and of the sizes that operators read stay.
"""

import json
from typing import Any


def with_traced_sizes(model: bytes) -> bytes:
    """The JSON of a program, with the sizes of intermediate results as ints."""
    program = json.loads(model)
    graph = program["graph_module"]["graph"]
    kept = {argument["as_tensor"]["name"] for argument in (*graph["inputs"], *graph["outputs"])}
    for name, tensor in graph["tensor_values"].items():
        if name not in kept:
            tensor["sizes"], tensor["strides"] = ([_traced(one) for one in tensor[key]] for key in ("sizes", "strides"))
            tensor["storage_offset"] = _traced(tensor["storage_offset"])
    return json.dumps(program).encode()


def _traced(size: dict[str, Any]) -> dict[str, Any]:
    """A formula's value in the traced example; a formula without one stays."""
    hint = (size.get("as_expr") or {}).get("hint")
    return size if hint is None else {"as_int": hint["as_int"]}
