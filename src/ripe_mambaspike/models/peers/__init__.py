"""Networks of other authors, written from their papers: one file each, found by itself.

A file defines the network's config, its class and the names under which it is registered. See `base` for what a class
must have, and CONTRIBUTING.md for a complete example.
"""

import importlib
import pkgutil


def import_peers() -> None:
    """Import every file of this package, which registers its networks."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
