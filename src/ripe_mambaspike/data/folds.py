"""Cross-validation over a whole dataset: every clip is tested in one fold, which depends only on the clips' names."""

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.data.listing import NONE, SPLITS, TEST, TRAIN, UNSPLIT, Clip, hash_rank, hold_out_validation
from ripe_mambaspike.data.store import EventStore
from ripe_mambaspike.errors import ConfigError, DataError


def folds_of(store: EventStore, partition: str, folds: int, fold: int) -> dict[str, NDArray[np.int64]]:
    """The clips of each split when `fold` is tested, from all clips that the partition uses.

    The clips of each class are assigned to folds in the order of the hash of their names; the next class continues
    where the last one stopped, so that fold sizes differ as little as possible. A tenth of each class's other clips is
    for validation, at least one if there are several. A dataset without a split uses all its clips.
    """
    if partition not in store.partitions:
        raise DataError.expected(
            "data.partition", f"one of {', '.join(store.partitions)}", repr(partition), path=store.folder
        )
    used = [store.members(partition, split) for split in SPLITS] if partition != UNSPLIT else [np.arange(len(store))]
    members = np.sort(np.concatenate(used))
    if not 2 <= folds <= len(members):
        raise ConfigError.expected("data.folds", f"0, or from 2 to the {len(members)} clips", folds)
    if not 0 <= fold < folds:
        raise ConfigError.expected("data.fold", f"an int from 0 to {folds - 1}", fold)
    names, labels = store.index.clips.name, store.labels
    clips = [Clip(names[member], int(labels[member])) for member in members]
    # Sort by class, then by hash.
    ordered = sorted(
        range(len(clips)), key=lambda at: (clips[at].label, hash_rank(f"{store.name}/folds", clips[at].name))
    )
    parts = [NONE] * len(clips)
    for turn, at in enumerate(ordered):
        parts[at] = TEST if turn % folds == fold else TRAIN
    parts = hold_out_validation(f"{store.name}/folds/{fold}", clips, parts)
    return {split: members[[at for at, given in enumerate(parts) if given == split]] for split in SPLITS}
