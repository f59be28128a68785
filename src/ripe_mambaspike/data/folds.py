"""Cross-validation over a whole set: every clip is tested in one fold, drawn by names alone."""

import numpy as np
from numpy.typing import NDArray

from ripe_mambaspike.data.listing import NONE, PARTS, TEST, TRAIN, Clip, hash_rank, hold_out_validation
from ripe_mambaspike.data.store import EventStore
from ripe_mambaspike.errors import ConfigError, DataError

UNSPLIT = "unsplit"  # the cut of a folder that has no parts


def folds_of(store: EventStore, cut: str, folds: int, fold: int) -> dict[str, NDArray[np.int64]]:
    """The clips of each part when `fold` of so many is tested: all that the cut uses, class by class.

    Clips of a class are dealt out by the hash of their names; the next class goes on where the last one stopped, so
    that folds are as equal as can be. Of what is not tested, a tenth of each class is for validation, at least one of
    several. A set without a split has all its clips dealt out.
    """
    if cut not in store.cuts:
        raise DataError.expected("data.cut", f"one of {', '.join(store.cuts)}", repr(cut), path=store.folder)
    used = [store.members(cut, part) for part in PARTS] if cut != UNSPLIT else [np.arange(len(store))]
    members = np.sort(np.concatenate(used))
    if not 2 <= folds <= len(members):
        raise ConfigError.expected("data.folds", f"0, or from 2 to the {len(members)} clips", folds)
    if not 0 <= fold < folds:
        raise ConfigError.expected("data.fold", f"an int from 0 to {folds - 1}", fold)
    names, labels = store.index.clips.name, store.labels
    clips = [Clip(names[member], int(labels[member])) for member in members]
    # The class first: within it, names as if drawn by lot.
    dealt = sorted(
        range(len(clips)), key=lambda at: (clips[at].label, hash_rank(f"{store.name}/folds", clips[at].name))
    )
    parts = [NONE] * len(clips)
    for turn, at in enumerate(dealt):
        parts[at] = TEST if turn % folds == fold else TRAIN
    parts = hold_out_validation(f"{store.name}/folds/{fold}", clips, parts)
    return {part: members[[at for at, given in enumerate(parts) if given == part]] for part in PARTS}
