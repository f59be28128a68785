"""A user's own folder, prepared by the run that trains on it (`data.prepare`)."""

from collections import Counter
from typing import Any

from ripe_mambaspike.data.checking import source_state
from ripe_mambaspike.data.datasets import prepare_dataset, store_folder
from ripe_mambaspike.data.listing import UNSPLIT, Listing
from ripe_mambaspike.data.sets.registry import list_dataset
from ripe_mambaspike.data.settings import DataSettings, root_of
from ripe_mambaspike.data.store import EventStore, current_key, open_store
from ripe_mambaspike.errors import ConfigError

TEST_SHARE = 0.2  # of a class's recordings
MIN_RECORDINGS = 5  # of every class, so that one can be tested


def prepare_own_folder(data: DataSettings) -> list[str]:
    """Prepare the folder of CLASS/RECORDING if it was not, or if its recordings have changed; what there is to say.

    The options of an earlier preparation are kept. A folder without train/ and test/ is split if every class has at
    least five recordings; else it has no test split.
    """
    if data.root is None:
        raise ConfigError.expected("data.root", "the folder of your recordings, as CLASS/RECORDING", "none")
    root = root_of(data)
    home = store_folder(root) / data.dataset
    earlier = open_store(home.parent, data.dataset) if current_key(home) is not None else None
    if earlier is not None and source_state(earlier, root) in ("unchanged", "gone"):
        return _untested(earlier)
    options: dict[str, Any] = {} if earlier is None else dict(earlier.index.options)
    share = options.pop("test_share", None)
    listing = list_dataset(data.dataset, root, **options)
    unsplit = list(listing.partitions) == [UNSPLIT]
    if unsplit and fewest_recordings(listing) >= MIN_RECORDINGS:
        share, unsplit = share or TEST_SHARE, False
    else:
        share = None
    skipped = earlier is not None and bool(earlier.index.unreadable)
    made, _ = prepare_dataset(
        data.dataset, root, workers=1, test_share=share, unsplit=unsplit, skip_unreadable=skipped, **options
    )
    (sizes,) = (partition.sizes for partition in made.index.partitions.values())
    split = "no test split" if unsplit else ", ".join(f"{name} {count}" for name, count in sizes.items() if count)
    lines = [f"{root}: prepared {len(made)} recordings of {len(made.classes)} classes ({split})"]
    return [*lines, *(f"warning: {trouble}" for trouble in made.index.troubles[:3]), *_untested(made)]


def fewest_recordings(listing: Listing) -> int:
    """The number of recordings of the class with the fewest."""
    return min(Counter(clip.label for clip in listing.clips).values())


def _untested(store: EventStore) -> list[str]:
    """A warning where nothing will be tested."""
    sizes = store.index.partitions[store.partitions[0]].sizes
    if sizes.get("test"):
        return []
    return [
        "warning: there is no test split, so no accuracy will be reported: all recordings are trained on; record at "
        f"least {MIN_RECORDINGS} of every class, or put some into a folder test/CLASS beside train/CLASS"
    ]
