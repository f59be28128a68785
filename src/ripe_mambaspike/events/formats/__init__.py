"""One module a format, each of which registers itself (`events/registry.py`); all of them are imported here.

The binary formats decode block by block with a pure function `decode(words, state) → (events, state)`, so that a whole
file and a file in pieces give the same events. A reader raises errors without the file's name, which `open_recording`
adds.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in sorted(found.name for found in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")
