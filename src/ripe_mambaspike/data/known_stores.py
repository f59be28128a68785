"""Checksums of the open sets, as they are made everywhere.

A store's key says what was asked for (the recipe, the content of the pictures, the clips and splits); its checksum
says what came out. `python benchmarks/open_sets.py --checksums` prints these lines.
"""

from ripe_mambaspike.data.store import EventStore
from ripe_mambaspike.errors import DataError

KNOWN_STORES: dict[str, str] = {}  # key → checksum


def check_known(store: EventStore) -> bool:
    """Whether a checksum ships for this store; raises if the store has another one."""
    known = KNOWN_STORES.get(store.key)
    if known is not None and store.index.sha256 != known:
        hint = "this machine simulates other events than others do; please report it"
        raise DataError.expected("sha256", known, store.index.sha256, path=store.folder, hint=hint)
    return known is not None
