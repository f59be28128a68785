"""Callable packages: `ripe_mambaspike.train` is both the package and the function behind `ripe train`."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        module, name = self.__dict__["_called"]
        return getattr(import_module(module), name)(*arguments, **options)


def make_callable(package: str, module: str, name: str) -> None:
    """Let `package(...)` call the function `name` of `module`, imported when it is first called."""
    here = sys.modules[package]
    here.__dict__["_called"] = (f"{package}.{module}", name)
    here.__class__ = _CallablePackage
