"""Modules and networks by name. Each registers itself where it is defined; nothing else has to be edited."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from ripe_mambaspike.errors import ConfigError
from ripe_mambaspike.nn.modified import REGISTERED, Known
from ripe_mambaspike.own_modules import unknown_name

Factory = TypeVar("Factory", bound=Callable[..., Any])


class Registry(dict[str, Any]):
    """Classes, or functions that create a module or a config, by their name in a config field."""

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = field

    def register(self, name: str) -> Callable[[Factory], Factory]:
        """A decorator that adds a class or function under this name."""

        def add(factory: Factory) -> Factory:
            if name in self:
                raise ConfigError.expected(self.field, "a name that is free", repr(name))
            self[name] = factory
            return factory

        return add

    def make(self, name: str, *sizes: Any) -> nn.Module:
        """Create the module of this name. Its class then no longer counts as a modification."""
        if name not in self:
            raise unknown_name(self.field, name, self)
        module: nn.Module = self[name](*sizes)
        REGISTERED.setdefault(type(module), Known(type(module).forward))
        return module
