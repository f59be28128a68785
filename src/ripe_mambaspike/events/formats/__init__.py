"""One module per format. Each registers itself (`events/registry.py`), and all of them are imported here.

The binary formats decode block by block with a pure function `decode(words, state) → (events, state)`, so reading a
file whole or in chunks gives the same events. Readers raise errors without the file's name; `open_recording` adds it.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in sorted(found.name for found in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")
