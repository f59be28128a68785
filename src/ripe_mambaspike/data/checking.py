"""Check whether a prepared dataset still matches its source."""

from pathlib import Path

from ripe_mambaspike.data.listing import without_files
from ripe_mambaspike.data.sets.registry import list_dataset
from ripe_mambaspike.data.sets.simulated import VERSION, recipe_key
from ripe_mambaspike.data.store import EventStore, compare_source
from ripe_mambaspike.errors import RipeError


def source_state(store: EventStore, root: Path) -> str:
    """'unchanged', 'gone', or 'changed: …', by the files' content, their number and the splits they make.

    'simulated' for a set whose source is its recipe, which is the one that the store was made by.
    """
    if store.index.simulated:
        return _recipe_state(store)
    state = compare_source(store, root)
    if state != "unchanged":
        return state
    try:
        listing = list_dataset(store.name, root, **store.index.options)
        listing = without_files(listing, store.index.unreadable)
    except RipeError as error:
        return f"changed: {error}"
    except (TypeError, ValueError, AttributeError) as error:  # options that the dataset does not have
        return f"changed: its options cannot be used ({error})"
    added = sorted({source.path for source in listing.sources} - set(store.index.sources))
    if added:
        return f"changed: {len(added)} new recordings, the first is {added[0]}"
    splits = {name: partition.checksum for name, partition in listing.partitions.items()}
    # A partition that is known by now, and was not when the store was made, changes nothing for those it has.
    if any(splits.get(name) != partition.checksum for name, partition in store.index.partitions.items()):
        return "changed: the split would differ now"
    return "unchanged"


def _recipe_state(store: EventStore) -> str:
    index = store.index
    recipe = index.recipe or {}
    clips = list(zip(index.clips.name, index.clips.label, strict=True))
    partitions = {name: [partition.checksum, partition.published] for name, partition in index.partitions.items()}
    if recipe_key(recipe, index.classes, clips, partitions) != store.folder.name:
        return "changed: the recipe does not match the store's key"
    if (version := recipe["version"]) != VERSION:
        return f"changed: made by version {version} of the simulator, the current one is {VERSION}"
    return "simulated"
