"""The numbers of datagrams: which are missing, late or doubled.

A sender counts its packets modulo 2¹⁶, as RTP does. A number that is skipped is missing; if it comes after all, it was
late and is no longer missing.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

PERIOD = 1 << 16
MAX_SENDERS = 64  # of which the counts go on; those that were silent longest are forgotten
MAX_MISSING = 4096  # numbers of a sender that may still come late
MAX_LATE = 1 << 13  # packets; further back the sender has restarted


@dataclass
class _Sender:
    newest: int
    missing: OrderedDict[int, None] = field(default_factory=OrderedDict)


class SequenceCounter:
    """Counts over all senders."""

    def __init__(self) -> None:
        self.missing = self.late = self.doubled = 0
        self._senders: OrderedDict[Any, _Sender] = OrderedDict()

    def count(self, sender: Any, number: int) -> bool:
        """Count a packet of this sender; whether it came before."""
        known = self._senders.get(sender)
        if known is None:
            self._senders[sender] = _Sender(number)
            while len(self._senders) > MAX_SENDERS:
                self._senders.popitem(last=False)
            return False
        self._senders.move_to_end(sender)
        ahead = (number - known.newest) % PERIOD
        if 0 < ahead < PERIOD // 2:
            self._skip(known, ahead - 1)
            known.newest = number
            return False
        if number in known.missing:
            del known.missing[number]
            self.missing -= 1
            self.late += 1
            return False
        if PERIOD - ahead <= MAX_LATE or not ahead:
            self.doubled += 1
            return True
        self._senders[sender] = _Sender(number)  # it has restarted
        return False

    def losses(self) -> Counter[str]:
        """The counts, by what they mean."""
        found = {
            "datagrams missing in the sequence": self.missing,
            "datagrams that came late": self.late,
            "datagrams that came twice": self.doubled,
        }
        return Counter({name: count for name, count in found.items() if count})

    def _skip(self, known: _Sender, count: int) -> None:
        self.missing += count
        for back in range(min(count, MAX_MISSING), 0, -1):
            known.missing[(known.newest + 1 + count - back) % PERIOD] = None
        while len(known.missing) > MAX_MISSING:
            known.missing.popitem(last=False)
