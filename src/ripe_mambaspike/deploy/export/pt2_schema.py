"""What the JSON parts of a `.pt2` may say; each check gives the value back, rebuilt from what it understood.

PyTorch's own reader evaluates expressions, imports modules named in tree specs, looks functions up by dotted names and
writes names of values into Python source that it executes. Here every text is of a known form, every function one of
those that `ripe export` writes, and what is not understood is refused, so that nothing of it reaches PyTorch.
"""

import builtins
import json
import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any

from ripe_mambaspike.deploy.export import pt2_expression
from ripe_mambaspike.deploy.export.pt2_operators import OPERATORS, WORDS

Check = Callable[[Any, str], Any]
MAX_ENTRIES = 1_000_000  # of one list or mapping
LARGEST = 2**63 - 1
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,500}", re.ASCII)
DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*", re.ASCII)
# A value of such a name would stand in the way of what generated source calls.
RESERVED = {*dir(builtins), *keyword.kwlist, *keyword.softkwlist, "self", "torch", "device", "inf", "nan", "operator"}
RESERVED |= {"_operator", "math", "pytree", "fx_pytree"}
SCALARS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 12: 1, 13: 2}  # bytes, by the number PyTorch knows a type by
NO_NUMBERS = ("Infinity", "-Infinity", "NaN")  # as JSON has none
CONTAINERS = {"builtins.tuple": "null", "builtins.list": "null", "builtins.dict": "[]"}  # and what stands with each


class UnknownPartError(ValueError):
    """A part that is not one that `ripe export` writes; `field` says where."""

    def __init__(self, field: str, expected: str, given: object) -> None:
        super().__init__(f"{field}: expected {expected}, got {str(given)[:80]!r}")
        self.field = field


# Checks are made of checks.


def text(pattern: re.Pattern[str], expected: str) -> Check:
    def check(value: Any, field: str) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise UnknownPartError(field, expected, value)
        return value

    return check


def choice(*allowed: Any) -> Check:
    known = {(type(one), one) for one in allowed}

    def check(value: Any, field: str) -> Any:
        if not isinstance(value, bool | int | str | None) or (type(value), value) not in known:
            expected = ", ".join(map(str, allowed)) if len(allowed) <= 8 else "one that ripe export writes"
            raise UnknownPartError(field, expected or "nothing", value)
        return value

    return check


def optional(inner: Check) -> Check:
    return lambda value, field: None if value is None else inner(value, field)


def list_of(inner: Check) -> Check:
    def check(value: Any, field: str) -> list[Any]:
        if not isinstance(value, list) or len(value) > MAX_ENTRIES:
            raise UnknownPartError(field, "a list", value)
        return [inner(one, f"{field}[{index}]") for index, one in enumerate(value)]

    return check


def map_of(key: Check, inner: Check) -> Check:
    def check(value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
            raise UnknownPartError(field, "a mapping", value)
        return {key(name, field): inner(one, f"{field}.{str(name)[:80]}") for name, one in value.items()}

    return check


def record(fields: Mapping[str, Check], defaults: Mapping[str, Any] | None = None) -> Check:
    """Exactly these fields; those with a default may be missing, and others may be there only if they say nothing."""

    def check(value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise UnknownPartError(field, "fields and their values", value)
        for name, one in value.items():
            if name not in fields and one:
                raise UnknownPartError(f"{field}.{str(name)[:80]}", "no such field", one)
        given = {**(defaults or {}), **value}
        if lacking := [name for name in fields if name not in given]:
            raise UnknownPartError(f"{field}.{lacking[0]}", "a value", "none")
        return {name: inner(given[name], f"{field}.{name}") for name, inner in fields.items()}

    return check


def one_of(kinds: Mapping[str, Check]) -> Check:
    def check(value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in kinds:
            raise UnknownPartError(field, "one kind of value that ripe export writes", value)
        ((kind, inner),) = value.items()
        return {kind: kinds[kind](inner, f"{field}.{kind}")}

    return check


def left_out(instead: Any) -> Check:
    """Of use to a debugger alone; PyTorch gets an empty one."""
    return lambda value, field: instead


def flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise UnknownPartError(field, "true or false", value)
    return value


def whole(value: Any, field: str) -> int:
    if type(value) is not int or not -LARGEST <= value <= LARGEST:
        raise UnknownPartError(field, "a whole number below 2^63", value)
    return value


def size(value: Any, field: str) -> int:
    if whole(value, field) < 0:
        raise UnknownPartError(field, "0 or more", value)
    return value


def number(value: Any, field: str) -> float | str:
    if isinstance(value, bool) or not (isinstance(value, int | float) or value in NO_NUMBERS):
        raise UnknownPartError(field, "a number", value)
    return value


def name(value: Any, field: str) -> str:
    """Of a value in the graph: PyTorch writes it into source as it is."""
    if not isinstance(value, str) or not NAME.fullmatch(value) or value.startswith("__") or value in RESERVED:
        raise UnknownPartError(field, "a name of letters, digits and underscores", value)
    return value


def expression(value: Any, field: str) -> str:
    try:
        return pt2_expression.checked(value)
    except ValueError as error:
        raise UnknownPartError(field, "arithmetic of sizes", value) from error


def looked_up(value: Any, field: str) -> str:
    """An expression that is compared, letter by letter, and so is kept as it is."""
    expression(value, field)
    return str(value)


def tree_spec(value: Any, field: str) -> str:
    """How inputs and outputs are nested: tuples, lists and nothing that is named."""

    def check(part: Any, depth: int) -> dict[str, Any]:
        if not isinstance(part, dict) or part.keys() != {"type", "context", "children_spec"} or depth > 8:
            raise UnknownPartError(field, "tuples and lists of values", part)
        kind, children = part["type"], part["children_spec"]
        if not isinstance(kind, str | None) or not isinstance(children, list) or len(children) > MAX_ENTRIES:
            raise UnknownPartError(field, "tuples and lists of values", part)
        if part["context"] != CONTAINERS.get(kind or "") or kind not in (None, *CONTAINERS):
            raise UnknownPartError(field, "tuples and lists of values", part)
        if children and kind in (None, "builtins.dict"):
            raise UnknownPartError(field, "tuples and lists of values", part)
        return {**part, "children_spec": [check(one, depth + 1) for one in children]}

    try:
        protocol, spec = json.loads(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnknownPartError(field, "tuples and lists of values", value) from error
    return json.dumps([choice(1)(protocol, field), check(spec, 0)])


def first_call(value: Any, field: str) -> list[Any]:
    """How the whole is called; how its parts once were is of use to a debugger alone."""
    if not isinstance(value, list) or not value:
        raise UnknownPartError(field, "the call of the whole graph", value)
    return [CALL(value[0], f"{field}[0]")]


EMPTY_LIST, EMPTY_MAP = list_of(choice()), map_of(choice(), choice())
DEVICE = record({"type": choice("cpu"), "index": choice(None)})
FIXED_SIZE = one_of({"as_int": size})
HINT = optional(one_of({"as_int": whole}))
SIZE = one_of({"as_int": whole, "as_expr": record({"expr_str": expression, "hint": HINT}, {"hint": None})})
NAMED = record({"name": name})
SIZE_ARGUMENT = one_of({"as_name": name, "as_int": whole})


def _tensor(side: Check) -> Check:
    fields = {"dtype": choice(*SCALARS), "sizes": list_of(side), "requires_grad": flag, "device": DEVICE}
    return record({**fields, "strides": list_of(side), "storage_offset": side, "layout": choice(7)})


TENSOR, FIXED_TENSOR = _tensor(SIZE), _tensor(FIXED_SIZE)
ARGUMENT = one_of(
    {
        "as_none": flag,
        "as_tensor": NAMED,
        "as_tensors": list_of(NAMED),
        "as_optional_tensors": list_of(one_of({"as_tensor": NAMED, "as_none": flag})),
        "as_int": whole,
        "as_ints": list_of(whole),
        "as_float": number,
        "as_floats": list_of(number),
        "as_bool": flag,
        "as_bools": list_of(flag),
        "as_string": choice(*WORDS),
        "as_sym_int": SIZE_ARGUMENT,
        "as_sym_ints": list_of(SIZE_ARGUMENT),
        "as_scalar_type": choice(*SCALARS),
        "as_memory_format": choice(1, 2, 3, 4),
        "as_layout": choice(7),
        "as_device": DEVICE,
    }
)
ARGUMENT_NAME = text(re.compile(r"[A-Za-z0-9_]{0,80}", re.ASCII), "a name")  # looked up among the operator's own
NODE = record(
    {
        "target": choice(*OPERATORS),
        "inputs": list_of(
            record({"name": ARGUMENT_NAME, "arg": ARGUMENT, "kind": choice(None, 0, 1, 2)}, {"kind": None})
        ),
        "outputs": list_of(ARGUMENT),
        "metadata": left_out({}),
        "is_hop_single_tensor_return": choice(None),
        "name": optional(name),
    },
    {"metadata": {}, "is_hop_single_tensor_return": None, "name": None},
)
GRAPH = record(
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
FULL_NAME = text(DOTTED, "names joined by dots")
ONE_TENSOR = record({"arg": one_of({"as_tensor": NAMED})})
SIGNATURE = record(
    {
        "input_specs": list_of(
            one_of(
                {
                    "user_input": ONE_TENSOR,
                    "parameter": record({"arg": NAMED, "parameter_name": FULL_NAME}),
                    "buffer": record({"arg": NAMED, "buffer_name": FULL_NAME, "persistent": flag}),
                    "tensor_constant": record({"arg": NAMED, "tensor_constant_name": FULL_NAME}),
                }
            )
        ),
        "output_specs": list_of(one_of({"user_output": ONE_TENSOR})),
    }
)
CALL = record(
    {
        "fqn": choice(""),
        "signature": record(
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
PROGRAM = record(
    {
        "graph_module": record(
            {
                "graph": GRAPH,
                "signature": SIGNATURE,
                "module_call_graph": first_call,
                "metadata": left_out({}),
                "treespec_namedtuple_fields": EMPTY_MAP,
            },
            {"metadata": {}, "treespec_namedtuple_fields": {}},
        ),
        "opset_version": map_of(choice("aten"), size),
        "range_constraints": map_of(looked_up, record({"min_val": optional(whole), "max_val": optional(whole)})),
        "schema_version": record({"major": size, "minor": size}),
        "verifiers": list_of(choice("TRAINING", "ATEN")),
        "torch_version": text(re.compile(r"[0-9A-Za-z.+<=_-]{1,80}", re.ASCII), "a version"),
        "guards_code": left_out([]),  # source that PyTorch executes; it compares sizes, which the operators do too
    },
    {"guards_code": []},
)


def payload(file: str) -> Check:
    """The tensors of one folder of the archive: stored as they lie in memory, never pickled."""
    entry = {
        "path_name": text(re.compile(rf"{file}_\d{{1,7}}", re.ASCII), f"{file}_ and a number"),
        "is_param": flag,
        "use_pickle": choice(False),
        "tensor_meta": FIXED_TENSOR,
    }
    return record({"config": map_of(FULL_NAME, record(entry))})
