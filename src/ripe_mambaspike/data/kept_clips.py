"""Binned clips that the runs of one process share: binning thousands of clips takes seconds, which each would spend.

Nothing is shared unless `share_binned_clips` is called, as the workers of a study do.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable

from torch import Tensor

MOST_SHARED = 9  # of each process: the three splits of three sets
_shared: OrderedDict[Hashable, Tensor] | None = None


def share_binned_clips(on: bool = True) -> None:
    """From now on, clips that were binned are kept for later runs of this process, the last few ones; or no longer."""
    global _shared
    _shared = OrderedDict() if on else None


def shared_clips(key: Hashable, make: Callable[[], Tensor | None]) -> Tensor | None:
    """What `make` made for this key before, else what it makes now. Tensors are shared, so they must not be changed."""
    if _shared is None:
        return make()
    if key not in _shared:
        while len(_shared) >= MOST_SHARED:  # first, since what is made needs memory
            _shared.popitem(last=False)
        made = make()
        if made is None:  # there may be room for it another time
            return None
        _shared[key] = made
    _shared.move_to_end(key)
    return _shared[key]
