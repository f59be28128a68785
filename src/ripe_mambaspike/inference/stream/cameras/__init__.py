"""Live sources, one module a kind. Each registers itself (`source_registry.py`), and all of them are imported here.

A driver is imported when its source is opened, so that the package works without the extra `camera`.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in sorted(found.name for found in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")
