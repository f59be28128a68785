"""Detects modules that were hooked, subclassed or replaced.

Code that computes with the weights of modules instead of calling them checks this first. A table lists the modules it
replaces, each with the `forward` it expects and, if needed, a test of the settings and children it relies on. If
something was modified, modules are called one by one as usual.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules.module import _has_any_global_hook

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Fits = Callable[[Any], bool]


class Known(NamedTuple):
    forward: Any  # the class's own `forward` at registration
    fits: Fits | None = None


Table = Mapping[type[nn.Module], Known]
REGISTERED: dict[type[nn.Module], Known] = {}  # created through a registry; always called as modules


class Modification(NamedTuple):
    """One modification of a network."""

    name: str  # of the module; empty for the network itself
    what: str  # "has a hook", …

    def __str__(self) -> str:
        return f"{self.name or 'the network'} {self.what}"


def known(kinds: Iterable[type[nn.Module]], fits: Mapping[type[nn.Module], Fits] | None = None) -> dict[Any, Known]:
    """A table of these modules."""
    return {kind: Known(kind.forward, (fits or {}).get(kind)) for kind in kinds}


def find_modification(root: nn.Module, parts: Iterable[nn.Module], table: Table) -> Modification | None:
    """The first modification in these parts of a network, named from its root; None if there is none."""
    if _has_any_global_hook():
        return Modification("", "has a global module hook")
    stack = list(parts)
    seen = set()
    for module in stack:  # grows while iterating; fast, since it runs before every pass
        held = module.__dict__
        kind = type(module)
        entry = table.get(kind) or REGISTERED.get(kind)
        if (
            entry is None
            or held["_forward_hooks"]
            or held["_forward_pre_hooks"]
            or held["_backward_hooks"]
            or held["_backward_pre_hooks"]
            or "forward" in held
            or (entry.fits is not None and not _fits(entry.fits, module))
        ):
            return _describe(root, table, module)
        seen.add(kind)
        if (children := held["_modules"]) and kind in table:
            stack.extend(child for child in children.values() if child is not None)
    for kind in seen:
        if kind.forward is not (table.get(kind) or REGISTERED[kind]).forward:
            return _describe(root, table, next(module for module in stack if type(module) is kind))
    return None


def module_modification(module: nn.Module, methods: Mapping[str, Any]) -> str | None:
    """How a module itself is modified, given the methods it should have; None if it is not."""
    return "has a hook" if any(module.__dict__[hooks] for hooks in HOOKS) else overridden_method(module, methods)


def overridden_method(module: nn.Module, methods: Mapping[str, Any]) -> str | None:
    """The same without checking hooks, which PyTorch calls around `forward` anyway."""
    for name, method in methods.items():
        if getattr(type(module), name) is not method or name in module.__dict__:
            return f"has a {name} of its own"
    return None


def _fits(fits: Fits, module: nn.Module) -> bool:
    try:
        return fits(module)
    except (AttributeError, KeyError, TypeError, IndexError):  # an unexpected child
        return False


def _describe(root: nn.Module, table: Table, module: nn.Module) -> Modification:
    """Describe the modification; an unknown child is reported instead of the parent it does not fit."""
    found = next((one for one in module.modules() if type(one) not in table and type(one) not in REGISTERED), module)
    name = next((name for name, one in root.named_modules() if one is found), "")
    entry = table.get(type(found)) or REGISTERED.get(type(found))
    if entry is None:
        return Modification(name, f"is a {type(found).__name__}")
    own = module_modification(found, {"forward": entry.forward})
    return Modification(name, own or "has unsupported settings or children")
