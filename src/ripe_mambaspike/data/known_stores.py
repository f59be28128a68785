"""Checksums of the open sets, as they are made everywhere.

A store's key says what was asked for (the recipe, the content of the pictures, the clips and splits); its checksum
says what came out. `python benchmarks/open_sets.py --checksums` prints these lines.
"""

from ripe_mambaspike.data.store import EventStore
from ripe_mambaspike.errors import DataError

KNOWN_STORES = {  # key → checksum
    "eea1f7c56ea2703c": "ab24008d9b0a6b3eea83af30558e5a15273c8f5ed6e251f9eea28f8bebaa791f",  # sim-cifar10
    "f6cae2578392c7a3": "52a22b4dc8be0dd37776f4755053eea4129a03ff02b76469493334caf8d0ea54",  # sim-caltech101
    "f3c31ab5e1c13510": "90eaac90e62c5344057d5e8c6697b7765ebb1d698db0d036ebc165a17aafc372",  # gestures-hard
    "ce289e749f6d50c7": "ab101bfd432f58fa42108418f8c3196fd115d10ef141d4b554f801385eef99d8",  # sim-cifar10-small
    "bf58c6cfd271b14d": "09f1e55697147230d58fdd321d728b02701def982c0ce630bc11768ef358e18f",  # sim-caltech101-small
    "a690672c17ca7e6a": "b60f172ec9abee77eff38e279062eb6b673505ea76c8ffc91ac81323d23e2877",  # gestures-hard-small
}


def check_known(store: EventStore) -> bool:
    """Whether a checksum ships for this store; raises if the store has another one."""
    known = KNOWN_STORES.get(store.key)
    if known is not None and store.index.sha256 != known:
        hint = "this machine decodes pictures or simulates events in another way; please report it"
        raise DataError.expected("sha256", known, store.index.sha256, path=store.folder, hint=hint)
    return known is not None
