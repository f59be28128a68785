"""How an operator is registered with PyTorch: its inputs are one NamedTuple, and the rest follows from it.

    class ScaleInputs(NamedTuple):
        x: Tensor
        weight: Tensor | None

    Operator("scale", ScaleInputs, ("out",), fake=lambda i: torch.empty_like(i.x), gradients=("x", "weight"))

registers `torch.ops.ripe.scale(x, weight)`; calling the `Operator` with its inputs has less overhead. Its
implementations are functions of the same name beside it, in `reference.py` (plain PyTorch), `cpu.py` (C++) and
`triton.py`, that take the NamedTuple: `scale(i)` and, where there are gradients, `scale_backward(i, grads)`, which
returns one tensor for each name in `gradients` (an empty one where that input is None). The reference has no backward:
it is differentiated. Where `cpu.py` or `triton.py` is missing, the reference computes instead and one line is logged.

Spikes are stored as bytes, which have no gradient. So every spike tensor has a `grad_proxy` beside it: a tensor of the
same shape that stores nothing (all its strides are 0) and receives the spikes' gradient. An operator that reads spikes
takes both.
"""

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import UnionType
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor
from torch.nn import Parameter

from ripe_mambaspike.errors import InputError
from ripe_mambaspike.ops.backend import MODULES, implementation, kind_for, log_once
from ripe_mambaspike.ops.triton_launch import launch_beside

SCHEMA_TYPES: dict[Any, str] = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    list[Tensor]: "Tensor[]",
    list[int]: "int[]",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    torch.dtype: "ScalarType",
}


OPERATORS: dict[str, "Operator"] = {}  # by name


class Operator:
    """`torch.ops.ripe.<name>`, its shapes and its gradient; called with its inputs it gives the same result.

    `inputs`: the NamedTuple of its arguments, which may hold another one (the arguments are then those of both);
    `outputs`: names of the tensors that it returns (`counts[]` for a list of them); `fake(i)`: empty outputs of the
    right shapes; `gradients`: arguments that have one; `saved`: outputs that `<name>_backward(i, grads, *saved)` reads;
    `state`: arguments that do not support gradients.
    """

    def __init__(
        self,
        name: str,
        inputs: Any,
        outputs: tuple[str, ...],
        fake: Callable[[Any], Any],
        *,
        gradients: tuple[str, ...] = (),
        saved: tuple[str, ...] = (),
        state: tuple[str, ...] = (),
    ) -> None:
        self.name, self.inputs, self.outputs, self.fake = name, inputs, outputs, fake
        self.gradients, self.saved, self.state = gradients, saved, state
        self.folder: str = inputs.__module__
        OPERATORS[name] = self
        self.groups: list[Any] = []  # for each field, the NamedTuple that it holds, or None
        types: dict[str, str] = {}
        for field, hint in get_type_hints(inputs).items():
            group, optional = _named_tuple(hint)
            self.groups.append(group)
            for one, kind in ({field: hint} if group is None else get_type_hints(group)).items():
                types[one] = SCHEMA_TYPES[kind | None if optional else kind]
        self.names = list(types)
        self.tensors = [one for one, kind in types.items() if kind in ("Tensor", "Tensor?")]
        arguments = [f"{kind} {one}" for one, kind in types.items()]
        self.registered = _register(
            name, arguments, outputs, lambda *v: self.forward(self.pack(v)), lambda *v: fake(self.pack(v))
        )
        if gradients:
            arguments += [f"Tensor? grad_{output}" for output in outputs] + [f"Tensor saved_{one}" for one in saved]
            _register(f"{name}_backward", arguments, gradients, self._backward, self._backward_fake)
            self.registered.register_autograd(self._gradient, setup_context=self._context)

    def __call__(self, i: Any) -> Any:
        """The registered operator; without its dispatch where nothing but the result is asked for."""
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            return getattr(torch.ops.ripe, self.name)(*self.flatten(i))
        return self.forward(i) if _is_eager(first_tensor(i)) else self.registered(*self.flatten(i))

    def flatten(self, i: Any) -> list[Any]:
        """The arguments one by one."""
        values: list[Any] = []
        for group, part in zip(self.groups, i, strict=True):
            if group is None:
                values.append(part)
            else:
                values += [None] * len(group._fields) if part is None else part
        return values

    def named(self, i: Any) -> dict[str, Any]:
        """The arguments by name."""
        return dict(zip(self.names, self.flatten(i), strict=True))

    def pack(self, values: Iterable[Any]) -> Any:
        """The inverse of `flatten`."""
        rest = iter(values)
        parts: list[Any] = []
        for group in self.groups:
            if group is None:
                parts.append(next(rest))
            else:
                given = [next(rest) for _ in group._fields]
                parts.append(None if given[0] is None else group(*given))
        return self.inputs(*parts)

    def reference(self, i: Any) -> Any:
        """The reference's outputs: differentiable, spikes as floats, None for outputs that were not requested."""
        return implementation("plain", self.folder, self.name)(i)

    def _kind(self, i: Any) -> str:
        kind = kind_for(first_tensor(i))
        if kind == "plain" or _has_module(self.folder, MODULES[kind]):
            return kind
        log_once(f"{self.name} has no {MODULES[kind]}.py; using the reference implementation")
        return "plain"

    def forward(self, i: Any) -> Any:
        """Run the operator with the implementation for its device."""
        kind = self._kind(i)
        rows = getattr(getattr(i, "initial_state", None), "rows", getattr(i, "state_rows", None))
        if rows is not None and (kind != "native" or i.output_final_state):
            wanted = "the C++ operators, which update the state in place and return none"
            got = f"{kind} operators and output_final_state={i.output_final_state}"
            raise InputError.expected("state_rows", wanted, got)
        if kind == "native":
            return implementation(kind, self.folder, self.name)(i)
        if kind == "triton":
            return launch_beside(first_tensor(i), implementation(kind, self.folder, self.name), i)
        return _as_operator_outputs(self.reference(i), self.fake(i))

    def backward(self, i: Any, grads: tuple[Any, ...], saved: tuple[Any, ...]) -> Any:
        """Run the operator's backward with the implementation for its device."""
        kind = self._kind(i)
        if kind == "plain":
            values = self.named(i)

            def reference(*leaves: Any) -> Any:
                return self.reference(self.pack({**values, **dict(zip(self.gradients, leaves, strict=True))}.values()))

            found = differentiate(reference, [values[one] for one in self.gradients], grads)
            found = [_owned(grad, grads) for grad in found]  # as the kernels return them and the fake one promises
        else:
            run = implementation(kind, self.folder, f"{self.name}_backward")
            found = launch_beside(first_tensor(i), run, i, grads, *saved)  # autograd's thread may have another device
        return _unwrap_single(found)

    def _backward(self, *values: Any) -> Any:
        first, second = len(self.names), len(self.names) + len(self.outputs)
        return self.backward(self.pack(values[:first]), values[first:second], values[second:])

    def _backward_fake(self, *values: Any) -> Any:
        named = dict(zip(self.names, values, strict=False))
        like = first_tensor(values)
        given = [named[one] for one in self.gradients]
        return _unwrap_single([nothing_like(like) if x is None else x.new_empty(x.shape) for x in given])

    def _context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        values = dict(zip(self.names, inputs, strict=True))
        for one in self.state:
            if values[one] is not None and values[one] is not False:
                raise InputError.expected(one, "none where gradients are computed", "one")
        ctx.set_materialize_grads(False)
        results = dict(zip(self.outputs, _as_tuple(output), strict=True))
        ctx.save_for_backward(*(values[one] for one in self.tensors), *(results[one] for one in self.saved))
        ctx.values = {**values, **dict.fromkeys(self.tensors)}

    def _gradient(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        count, kept = len(self.tensors), ctx.saved_tensors
        values = {**ctx.values, **dict(zip(self.tensors, kept[:count], strict=True))}
        backward = getattr(torch.ops.ripe, f"{self.name}_backward")
        found = _as_tuple(backward(*values.values(), *grads, *kept[count:]))
        by_name = dict(zip(self.gradients, found, strict=True))
        return tuple(None if value is None else by_name.get(one) for one, value in values.items())


def _owned(grad: Tensor, given: Iterable[Tensor | None]) -> Tensor:
    """A gradient in memory order that shares no memory with those that were given, as PyTorch demands."""
    pointer = grad.untyped_storage().data_ptr()
    if any(one is not None and one.untyped_storage().data_ptr() == pointer for one in given):
        return grad.clone(memory_format=torch.contiguous_format)
    return grad.contiguous()


def _named_tuple(hint: Any) -> tuple[Any, bool]:
    """(the NamedTuple of a type hint or None, whether it may be left out)."""
    optional = isinstance(hint, UnionType)
    found = next((one for one in (get_args(hint) if optional else (hint,)) if hasattr(one, "_fields")), None)
    return found, optional and found is not None


def _is_eager(x: Tensor) -> bool:
    """Whether no tracer, mode or tensor subclass needs to see the call."""
    return (
        type(x) in (Tensor, Parameter)
        and x.device.type in ("cpu", "cuda")
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def grad_proxy_of(x: Tensor) -> Tensor:
    """A tensor of x's shape and precision that stores nothing; gradients flow through it."""
    return x.new_empty(()).expand(x.shape)


def nothing_like(x: Tensor) -> Tensor:
    """An empty tensor in place of an output that is not computed: operators cannot return None."""
    return x.new_empty(0)


def empty_if(wanted: bool, x: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialized output, in x's dtype by default; without elements unless `wanted`."""
    return x.new_empty(shape if wanted else (0,), dtype=dtype or x.dtype)


def gradient_like(grad: Tensor | None, parameter: Tensor | None, like: Tensor) -> Tensor:
    """A gradient in its parameter's shape and dtype: zeros if None, empty without a parameter."""
    if parameter is None:
        return nothing_like(like)
    return torch.zeros_like(parameter) if grad is None else grad.to(parameter.dtype).reshape(parameter.shape)


def first_tensor(i: Any) -> Tensor:
    """The first input that is a tensor; its device selects the implementation."""
    for one in i:
        if isinstance(one, Tensor):
            return one
        if isinstance(one, list) and isinstance(one[0], Tensor):
            return one[0]
    raise InputError("expected an operator's inputs with a tensor, got none")


def differentiate(
    function: Callable[..., Any], inputs: Sequence[Tensor | None], grads: Sequence[Tensor | None]
) -> list[Tensor]:
    """Gradients of a function's inputs, empty for None; outputs whose gradient is None are ignored."""
    with ThreadPoolExecutor(1) as executor:  # autograd is off inside an operator, but on in a new thread
        return executor.submit(_differentiate, function, inputs, grads).result()


def _differentiate(
    function: Callable[..., Any], inputs: Sequence[Tensor | None], grads: Sequence[Tensor | None]
) -> list[Tensor]:
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    outputs = _as_tuple(function(*leaves))
    pairs = [(out, grad.to(out.dtype)) for out, grad in zip(outputs, grads, strict=True) if grad is not None]
    given = [leaf for leaf in leaves if leaf is not None]
    cotangents = [grad for _, grad in pairs]
    found = iter(
        torch.autograd.grad([out for out, _ in pairs], given, cotangents, materialize_grads=True, allow_unused=True)
    )
    return [nothing_like(given[0]) if leaf is None else next(found) for leaf in leaves]


class _SpikesAsFloat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spikes: Tensor, grad_proxy: Tensor) -> Tensor:
        return spikes.to(grad_proxy.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad


def spikes_as(spikes: Tensor, grad_proxy: Tensor) -> Tensor:
    """Spikes as floats of the proxy's dtype, differentiable, for modules without an operator."""
    return _SpikesAsFloat.apply(spikes, grad_proxy)


def select_steps(table: Tensor | None, first_step: int | Tensor, steps: int) -> Tensor | None:
    """Rows of a per-step table [S, C], or [1, C] for all steps, from `first_step` on.

    [T, C], or [B, T, C] where every sample has a first step of its own [B].
    """
    if table is None:
        return None
    if table.shape[0] == 1:
        return table.expand(steps, -1).contiguous()
    if isinstance(first_step, Tensor):
        if steps == 1:
            return table.index_select(0, first_step).unsqueeze(1)
        rows = first_step[:, None] + torch.arange(steps, device=first_step.device)
        return table.index_select(0, rows.flatten()).unflatten(0, rows.shape)
    if first_step + steps > len(table):
        wanted = f"first_step + steps up to {len(table)}"
        raise InputError.expected("first_step", wanted, f"{first_step} + {steps}")
    return table[first_step : first_step + steps].contiguous()


def _register(name: str, arguments: list[str], outputs: tuple[str, ...], call: Any, fake: Any) -> Any:
    returned = ["Tensor[]" if one.endswith("[]") else "Tensor" for one in outputs]
    result = returned[0] if len(returned) == 1 else f"({', '.join(returned)})"
    schema = f"({', '.join(arguments)}) -> {result}"
    registered = torch.library.custom_op(f"ripe::{name}", call, mutates_args=(), schema=schema)
    registered.register_fake(fake)
    return registered


def _as_operator_outputs(found: Any, like: Any) -> Any:
    """A reference's outputs as an operator returns them: spikes as bytes, unrequested outputs empty, no aliasing."""
    if isinstance(like, Tensor):
        stored = found is not None and like.numel() and any(like.stride())  # a proxy stores nothing
        return torch.empty_like(like).copy_(found) if stored else like
    return type(like)(_as_operator_outputs(one, other) for one, other in zip(found, like, strict=True))


def _as_tuple(found: Any) -> Any:
    return (found,) if isinstance(found, Tensor) else found


def _unwrap_single(found: Any) -> Any:
    return found[0] if len(found) == 1 else tuple(found)


@lru_cache
def _has_module(folder: str, module: str) -> bool:
    return importlib.util.find_spec(f"{folder}.{module}") is not None
