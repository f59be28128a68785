"""The allowed content of the JSON parts of a `.pt2`; each check returns the value, rebuilt from its checked parts.

PyTorch's own loader evaluates expressions, imports modules named in tree specs, looks functions up by dotted names and
writes names of values into Python source that it executes. Here every string must have a known form and every function
must be one that `ripe export` writes; anything else is rejected before it reaches PyTorch.
"""

import builtins
import json
import keyword
import re
from typing import Any

from ripe_mambaspike.deploy.export import pt2_expression
from ripe_mambaspike.deploy.export.pt2_checks import (
    MAX_ENTRIES,
    Check,
    UnknownPartError,
    any_of,
    flag,
    int64,
    left_out,
    list_of,
    map_of,
    matching,
    natural,
    object_of,
    one_of,
    optional,
    real,
)

# The operators that a file may call without `--trust`: those that the graphs of this package are made of. Each computes
# a tensor or a size from its arguments and does nothing else: none opens a file, calls back into Python or reads memory
# that is not a tensor's. A new kind of layer that needs another one adds it here.
SIZE_OPERATORS = {f"_operator.{name}" for name in ("add", "sub", "mul", "floordiv", "mod", "neg")}
OPERATOR_NAMES = """
    __and__.Tensor __or__.Tensor _assert_tensor_metadata.default add.Tensor addcmul.default alias.default
    amax.default amin.default arange.default arange.start bmm.default cat.default chunk.default clamp.default
    clone.default conv1d.default conv2d.default cumsum.default detach.default detach_.default div.Tensor
    div.Tensor_mode eq.Scalar
    eq.Tensor exp.default expand.default flatten.using_ints flip.default gather.default ge.Scalar ge.Tensor
    gelu.default gru.input gt.Scalar gt.Tensor index_select.default layer_norm.default le.Scalar le.Tensor
    lift_fresh_copy.default linear.default logsumexp.default lt.Scalar lt.Tensor matmul.default maximum.default mean.dim
    minimum.default mul.Tensor neg.default new_ones.default new_zeros.default pad.default permute.default
    relu.default reshape.default rsub.Scalar scaled_dot_product_attention.default select.int sigmoid.default
    silu.default slice.Tensor softmax.int softplus.default split.Tensor split_with_sizes.default squeeze.dim
    stack.default sub.Tensor sum.dim_IntList sym_size.int to.dtype topk.default transpose.int unbind.int
    unflatten.int unsqueeze.default view_as.default where.ScalarOther where.self zeros_like.default
"""
TENSOR_OPERATORS = {f"torch.ops.aten.{name}" for name in OPERATOR_NAMES.split()}
OPERATORS = SIZE_OPERATORS | TENSOR_OPERATORS
WORDS = ("trunc", "floor", "constant")  # allowed string arguments: rounding modes and padding modes

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,500}", re.ASCII)
DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*", re.ASCII)
# Values with these names would shadow what the generated source calls.
RESERVED = {*dir(builtins), *keyword.kwlist, *keyword.softkwlist, "self", "torch", "device", "inf", "nan", "operator"}
RESERVED |= {"_operator", "math", "pytree", "fx_pytree"}
SCALARS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 12: 1, 13: 2}  # bytes per scalar type
CONTAINERS = {"builtins.tuple": "null", "builtins.list": "null", "builtins.dict": "[]"}  # with their contexts


def name(value: Any, field: str) -> str:
    """The name of a value in the graph, which PyTorch writes into source code."""
    if not isinstance(value, str) or not NAME.fullmatch(value) or value.startswith("__") or value in RESERVED:
        raise UnknownPartError(field, "a name of letters, digits and underscores", value)
    return value


def expression(value: Any, field: str) -> str:
    try:
        return pt2_expression.checked(value)
    except ValueError as error:
        raise UnknownPartError(field, "arithmetic of sizes", value) from error


def looked_up(value: Any, field: str) -> str:
    """An expression that PyTorch compares as text, so it is kept unchanged."""
    expression(value, field)
    return str(value)


def tree_spec(value: Any, field: str) -> str:
    """How inputs and outputs are nested: tuples and lists only."""

    def check(part: Any, depth: int) -> dict[str, Any]:
        fields = part if isinstance(part, dict) and part.keys() == {"type", "context", "children_spec"} else {}
        kind, children = fields.get("type"), fields.get("children_spec")
        known = isinstance(kind, str | None) and kind in (None, *CONTAINERS) and depth <= 8
        if not (known and fields.get("context") == CONTAINERS.get(kind or "") and isinstance(children, list)):
            raise UnknownPartError(field, "tuples and lists of values", part)
        if len(children) > MAX_ENTRIES or (children and kind in (None, "builtins.dict")):
            raise UnknownPartError(field, "tuples and lists of values", part)
        return {**part, "children_spec": [check(one, depth + 1) for one in children]}

    try:
        protocol, spec = json.loads(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnknownPartError(field, "tuples and lists of values", value) from error
    return json.dumps([any_of(1)(protocol, field), check(spec, 0)])


def first_call(value: Any, field: str) -> list[Any]:
    """The call signature of the whole graph; those of its parts are debug information."""
    if not isinstance(value, list) or not value:
        raise UnknownPartError(field, "the call of the whole graph", value)
    return [CALL(value[0], f"{field}[0]")]


EMPTY_LIST, EMPTY_MAP = list_of(any_of()), map_of(any_of(), any_of())
DEVICE = object_of({"type": any_of("cpu"), "index": any_of(None)})
FIXED_SIZE = one_of({"as_int": natural})
HINT = optional(one_of({"as_int": int64}))
SIZE = one_of({"as_int": int64, "as_expr": object_of({"expr_str": expression, "hint": HINT}, {"hint": None})})
NAMED = object_of({"name": name})
SIZE_ARGUMENT = one_of({"as_name": name, "as_int": int64})


def _tensor(side: Check) -> Check:
    fields = {"dtype": any_of(*SCALARS), "sizes": list_of(side), "requires_grad": flag, "device": DEVICE}
    return object_of({**fields, "strides": list_of(side), "storage_offset": side, "layout": any_of(7)})


TENSOR, FIXED_TENSOR = _tensor(SIZE), _tensor(FIXED_SIZE)
ARGUMENT = one_of(
    {
        "as_none": flag,
        "as_tensor": NAMED,
        "as_tensors": list_of(NAMED),
        "as_optional_tensors": list_of(one_of({"as_tensor": NAMED, "as_none": flag})),
        "as_int": int64,
        "as_ints": list_of(int64),
        "as_float": real,
        "as_floats": list_of(real),
        "as_bool": flag,
        "as_bools": list_of(flag),
        "as_string": any_of(*WORDS),
        "as_sym_int": SIZE_ARGUMENT,
        "as_sym_ints": list_of(SIZE_ARGUMENT),
        "as_scalar_type": any_of(*SCALARS),
        "as_memory_format": any_of(1, 2, 3, 4),
        "as_layout": any_of(7),
        "as_device": DEVICE,
    }
)
ARGUMENT_NAME = matching(re.compile(r"[A-Za-z0-9_]{0,80}", re.ASCII), "a name")  # looked up among the operator's own
NODE = object_of(
    {
        "target": any_of(*OPERATORS),
        "inputs": list_of(
            object_of({"name": ARGUMENT_NAME, "arg": ARGUMENT, "kind": any_of(None, 0, 1, 2)}, {"kind": None})
        ),
        "outputs": list_of(ARGUMENT),
        "metadata": left_out({}),
        "is_hop_single_tensor_return": any_of(None),
        "name": optional(name),
    },
    {"metadata": {}, "is_hop_single_tensor_return": None, "name": None},
)
GRAPH = object_of(
    {
        "inputs": list_of(one_of({"as_tensor": NAMED})),
        "outputs": list_of(one_of({"as_tensor": NAMED})),
        "nodes": list_of(NODE),
        "tensor_values": map_of(name, TENSOR),
        "sym_int_values": map_of(name, SIZE),
        "sym_bool_values": EMPTY_MAP,
        "is_single_tensor_return": flag,
        "custom_obj_values": EMPTY_MAP,
        "sym_float_values": EMPTY_MAP,
    },
    {"is_single_tensor_return": False, "custom_obj_values": {}, "sym_float_values": {}},
)
FULL_NAME = matching(DOTTED, "names joined by dots")
ONE_TENSOR = object_of({"arg": one_of({"as_tensor": NAMED})})
SIGNATURE = object_of(
    {
        "input_specs": list_of(
            one_of(
                {
                    "user_input": ONE_TENSOR,
                    "parameter": object_of({"arg": NAMED, "parameter_name": FULL_NAME}),
                    "buffer": object_of({"arg": NAMED, "buffer_name": FULL_NAME, "persistent": flag}),
                    "tensor_constant": object_of({"arg": NAMED, "tensor_constant_name": FULL_NAME}),
                }
            )
        ),
        "output_specs": list_of(one_of({"user_output": ONE_TENSOR})),
    }
)
CALL = object_of(
    {
        "fqn": any_of(""),
        "signature": object_of(
            {
                "inputs": EMPTY_LIST,
                "outputs": EMPTY_LIST,
                "in_spec": tree_spec,
                "out_spec": tree_spec,
                "forward_arg_names": optional(list_of(name)),
            },
            {"forward_arg_names": None},
        ),
    }
)
PROGRAM = object_of(
    {
        "graph_module": object_of(
            {
                "graph": GRAPH,
                "signature": SIGNATURE,
                "module_call_graph": first_call,
                "metadata": left_out({}),
                "treespec_namedtuple_fields": EMPTY_MAP,
            },
            {"metadata": {}, "treespec_namedtuple_fields": {}},
        ),
        "opset_version": map_of(any_of("aten"), natural),
        "range_constraints": map_of(looked_up, object_of({"min_val": optional(int64), "max_val": optional(int64)})),
        "schema_version": object_of({"major": natural, "minor": natural}),
        "verifiers": list_of(any_of("TRAINING", "ATEN")),
        "torch_version": matching(re.compile(r"[0-9A-Za-z.+<=_-]{1,80}", re.ASCII), "a version"),
        "guards_code": left_out([]),  # source code that PyTorch executes; it only compares sizes, as the operators do
    },
    {"guards_code": []},
)


def payload(file: str) -> Check:
    """The tensors of one folder of the archive: raw bytes, never pickled."""
    entry = {
        "path_name": matching(re.compile(rf"{file}_\d{{1,7}}", re.ASCII), f"{file}_ and a number"),
        "is_param": flag,
        "use_pickle": any_of(False),
        "tensor_meta": FIXED_TENSOR,
    }
    return object_of({"config": map_of(FULL_NAME, object_of(entry))})
