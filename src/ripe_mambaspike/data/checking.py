"""Whether a prepared set still is what its source would make."""

from pathlib import Path

from ripe_mambaspike.data.sets.registry import list_set
from ripe_mambaspike.data.store import EventStore, compare_source
from ripe_mambaspike.errors import RipeError


def source_state(store: EventStore, root: Path) -> str:
    """'unchanged', 'gone', or 'changed: …', by the files' content, their number and the splits they make."""
    state = compare_source(store, root)
    if state != "unchanged":
        return state
    try:
        listing = list_set(store.name, root, **store.index["options"])
    except RipeError as error:
        return f"changed: {error}"
    added = sorted({source.path for source in listing.sources} - set(store.index["sources"]))
    if added:
        return f"changed: {len(added)} more recordings are there, {added[0]} first"
    splits = {name: cut.checksum for name, cut in listing.cuts.items()}
    if splits != {name: cut["checksum"] for name, cut in store.index["cuts"].items()}:
        return "changed: it would be split otherwise now"
    return "unchanged"
