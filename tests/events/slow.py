"""Decoders that take one word at a time, written from the formats' descriptions and from nothing else.

Each takes the bytes after the header and gives the events, (x, y, t, p), and a count of what was none.
"""

import struct
from collections import Counter


def atis(data):
    events, added = [], 0
    for at in range(0, len(data), 5):
        x, y, high, middle, low = data[at : at + 5]
        if y == 240:
            added += 8192
        else:
            events.append((x, y, added + (high % 128) * 65536 + middle * 256 + low, high // 128))
    return events, Counter()


class Wrapping:
    """A counter of so many values: the nearest reading to the one before it is the right one."""

    def __init__(self, values, start=0):
        self.values, self.turns, self.last = values, start // values, None

    def __call__(self, raw):
        if self.last is not None:
            if raw - self.last < -self.values // 2:
                self.turns += 1
            elif raw - self.last > self.values // 2:
                self.turns -= 1
        self.last = raw
        return raw + self.turns * self.values


def aedat2(data, camera="DVS128", start=0):
    events, counts, clock = [], Counter(), Wrapping(2**32, start)
    for address, raw in struct.iter_unpack(">Ii", data):
        time = clock(raw)
        if camera == "DVS128":
            if address & 0x8000:
                counts["other"] += 1
            else:
                events.append((address // 2 % 128, address // 256 % 128, time, address % 2))
        elif address & 0x80000000 or address & 0x400:
            counts["other"] += 1
        else:
            events.append((address // 4096 % 1024, address // 4194304 % 512, time, address // 2048 % 2))
    return events, counts


def aedat3(data):
    events, counts, at = [], Counter(), 0
    while at < len(data):
        kind, _, size, _, overflow, _, number, _ = struct.unpack_from("<hhiiiiii", data, at)
        at += 28
        for first in range(at, at + size * number, size) if kind == 1 else ():
            bits, time = struct.unpack_from("<Ii", data, first)
            if bits % 2 == 0:
                counts["invalid"] += 1
            else:
                events.append((bits >> 17, (bits >> 2) % 32768, overflow * 2**31 + time, (bits >> 1) % 2))
        counts["other"] += number if kind != 1 else 0
        at += size * number
    return events, counts


def evt2(data):
    events, counts, clock, high = [], Counter(), Wrapping(2**28), None
    for (word,) in struct.iter_unpack("<I", data):
        kind = word >> 28
        if kind == 8:
            high = clock(word % 2**28)
        elif kind > 1:
            counts["other"] += 1
        elif high is None:
            counts["no time"] += 1
        else:
            events.append((word >> 11 & 2047, word & 2047, high * 64 + (word >> 22 & 63), kind))
    return events, counts


def evt21(data, upper_first=False):
    events, counts, clock, high = [], Counter(), Wrapping(2**28), None
    for first, second in struct.iter_unpack("<II", data):
        upper, lower = (first, second) if upper_first else (second, first)
        kind = upper >> 28
        if kind == 8:
            high = clock(upper % 2**28)
        elif kind > 1:
            counts["other"] += 1
        else:
            for pixel in range(32):
                if lower >> pixel & 1 and high is None:
                    counts["no time"] += 1
                elif lower >> pixel & 1:
                    time = high * 64 + (upper >> 22 & 63)
                    events.append(((upper >> 11 & 2047) + pixel, upper & 2047, time, kind))
    return events, counts


def evt3(data):
    events, counts, clock = [], Counter(), Wrapping(4096)
    high = row = base = None
    low = 0
    polarity = 0

    def fire(x, sign):
        if x is not None and x > 2047:
            counts["past the end"] += 1
        elif high is None:
            counts["no time"] += 1
        elif row is None:
            counts["no row"] += 1
        elif x is None:
            counts["no base"] += 1
        else:
            events.append((x, row, high * 4096 + low, sign))

    for (word,) in struct.iter_unpack("<H", data):
        kind, value = word >> 12, word & 0xFFF
        if kind == 0:
            row = value % 2048
        elif kind == 2:
            fire(value % 2048, value // 2048)
        elif kind == 3:
            base, polarity = value % 2048, value // 2048
        elif kind in (4, 5):
            length = 12 if kind == 4 else 8
            for pixel in range(length):
                if value >> pixel & 1:
                    fire(None if base is None else base + pixel, polarity)
            base = None if base is None else base + length
        elif kind == 6:
            low = value
        elif kind == 8:
            now = clock(value)
            if now != high:
                high, low = now, 0
        else:
            counts["other"] += 1
    return events, counts


def dat(data):
    events, clock = [], Wrapping(2**32)
    for time, address in struct.iter_unpack("<II", data):
        events.append((address % 16384, address // 16384 % 16384, clock(time), address >> 28 & 1))
    return events, Counter()
