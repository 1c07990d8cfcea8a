"""Plain Python references: slow, short, and independent of the code that they check."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

__all__ = [
    "NaiveHeap",
    "NaivePages",
    "NaiveQueue",
    "Update",
    "conflated",
    "fragments_of",
    "hash_of",
    "key_words",
    "last_of_each",
    "row_bytes",
    "second_hash_of",
    "staleness_bin",
]

_64 = (1 << 64) - 1
NEVER = -(1 << 63)


def hash_of(words: Sequence[int]) -> int:
    """Return the 64-bit hash of a key's words."""
    multiplier = 0x9E3779B97F4A7C15
    h = len(words) * multiplier & _64
    for word in words:
        h = (h ^ word) * multiplier & _64
        h ^= h >> 30
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9 & _64
    h = (h ^ (h >> 27)) * 0x94D049BB133111EB & _64
    return h ^ (h >> 31)


def bucket_of(words: Sequence[int], buckets: int) -> int:
    """Return the bucket of a key."""
    return (hash_of(words) >> 32) * buckets >> 32


def key_words(*values: object) -> list[int]:
    """Return the words of a key with these columns; dates and times are given as integers."""
    words: list[int] = []
    for value in values:
        if isinstance(value, float):
            canonical = math.nan if math.isnan(value) else value + 0.0
            words += struct.unpack("<Q", struct.pack("<d", canonical))
        elif isinstance(value, int):
            words.append(value & _64)
        elif isinstance(value, Decimal):
            sign, digits, _ = value.as_tuple()
            unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
            words += [unscaled & _64, unscaled >> 64 & _64]
        else:
            assert isinstance(value, str | bytes)
            data = value.encode() if isinstance(value, str) else value
            padded = data + bytes(-len(data) % 8)
            words += [len(data), *struct.unpack(f"<{len(padded) // 8}Q", padded)]
    return words


class NaivePages:
    """The paged memory of (UpStream §7.1) with lists for the pools."""

    def __init__(self, page_rows: int) -> None:
        self.page_rows = page_rows
        self.available: dict[int, list[int]] = {}
        self.elp: list[int] = []
        self.nap: int | None = None

    def allocate(self) -> int:
        page = self.nap
        if page is None or not self.available[page]:
            if not self.elp:
                new = next(p for p in range(len(self.available) + 1) if p not in self.available)
                self.available[new] = list(range(new * self.page_rows, (new + 1) * self.page_rows))
                self.elp = [new]
            page = self.nap = self.elp[0]
        location = self.available[page].pop(0)
        if not self.available[page]:
            self.elp.remove(page)
        return location

    def free(self, location: int) -> None:
        page = location // self.page_rows
        if not self.available[page]:
            self.elp.insert(0, page)
        self.available[page].insert(0, location)
        if len(self.available[page]) == self.page_rows:
            self.elp.remove(page)
            del self.available[page]
            if self.nap == page:
                self.nap = None


@dataclass(frozen=True)
class Update:
    """One tuple of an update stream."""

    key: int
    time: int
    value: int
    arrival: int | None = None


@dataclass
class _Group:
    """The updates of one key in one micro-batch."""

    newest: Update
    last: int
    first: int
    count: int
    first_arrival: int | None


def conflated(updates: Iterable[Update]) -> dict[int, _Group]:
    """Return each key's newest update (of equal times the later one), with the updates that it replaces."""
    groups: dict[int, _Group] = {}
    for position, update in enumerate(updates):
        group = groups.get(update.key)
        if group is None:
            groups[update.key] = _Group(update, position, position, 1, update.arrival)
            continue
        group.count += 1
        if update.arrival is not None and group.first_arrival is not None:
            group.first_arrival = min(group.first_arrival, update.arrival)
        if update.time >= group.newest.time:
            group.newest, group.last = update, position
    return groups


@dataclass
class _KeyRecord:
    emitted: int = NEVER
    waiting: Update | None = None
    arrived_us: int = 0
    seen_us: int | None = None
    interval_us: float = 0.0


@dataclass
class NaiveQueue:
    """An update queue with a list as the queue of keys and a dictionary of records by key."""

    policy: str
    cost_us: float | None = None
    order: list[int] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)
    records: dict[int, _KeyRecord] = field(default_factory=dict)
    birth_us: int | None = None
    intervals: dict[int, float] = field(default_factory=dict)
    roots: dict[int, float] = field(default_factory=dict)

    def enqueue(self, updates: Sequence[Update], now_us: int) -> tuple[int, int, int]:
        """Return how many tuples came in, were conflated, and were late."""
        groups = list(conflated(updates).values())
        if self.policy == "fifo":
            groups.sort(key=lambda g: (g.newest.arrival or 0, g.last))
        else:
            groups.sort(key=lambda g: (g.first_arrival or 0, g.first))
        arrivals = {g.newest.key: now_us if g.first_arrival is None else g.first_arrival for g in groups}
        if self.birth_us is None and groups:
            self.birth_us = min(now_us, *arrivals.values())
        superseded = late = 0
        for group in groups:
            update = group.newest
            record = self.records.setdefault(update.key, _KeyRecord())
            if update.time < record.emitted:
                late += group.count
                continue
            self._observe_rate(record, group.count, now_us)
            waits = record.waiting is not None
            superseded += group.count - (not waits)
            if record.waiting is not None and update.time < record.waiting.time:
                continue
            if not waits:
                record.arrived_us = min(arrivals[update.key], now_us)
            record.waiting = update
            self._arrive(update.key, record)
        return len(updates), superseded, late

    def _observe_rate(self, record: _KeyRecord, count: int, now_us: int) -> None:
        assert self.birth_us is not None
        since = self.birth_us if record.seen_us is None else record.seen_us
        gap = max(now_us - since, 0) / count
        if record.interval_us == 0:  # unknown so far
            record.interval_us = gap
        else:
            record.interval_us += (1 - 0.9**count) * (gap - record.interval_us)
        record.seen_us = now_us

    def _arrive(self, key: int, record: _KeyRecord) -> None:
        waits = key in self.order
        self.intervals[key] = record.interval_us
        if self.policy == "fifo":
            if waits:
                self.order.remove(key)
            self.order.append(key)
        elif (
            self.policy == "linecutting"
            and self.cost_us is not None
            and record.interval_us > self.cost_us * (len(self.order) + (not waits))
        ):
            if key not in self.cut:
                if waits:
                    self.order.remove(key)
                self.order.insert(len(self.cut), key)
                self.cut.add(key)
        elif not waits:
            self.order.append(key)

    def dequeue(self, limit: int, now_us: int) -> list[tuple[Update, int]]:
        """Return the tuples served and their queue staleness."""
        served = []
        chosen = self._choose(limit, now_us)
        for key in chosen:
            record = self.records[key]
            assert record.waiting is not None
            served.append((record.waiting, max(now_us - record.arrived_us, 0)))
            record.emitted, record.waiting = record.waiting.time, None
        self.cut.difference_update(chosen)
        self.order = [key for key in self.order if key not in chosen]
        return served

    def _choose(self, limit: int, now_us: int) -> list[int]:
        if self.policy != "freshest":
            return self.order[:limit]

        def index(key: int) -> float:
            stale = max(now_us - self.records[key].arrived_us, 0)
            return self.roots.get(key, 1.0) ** 2 * stale * (0.5 * stale + self.intervals[key])

        best = set(sorted(self.order, key=index, reverse=True)[:limit])
        return [key for key in self.order if key in best]


def staleness_bin(value: float, bins: int) -> int:
    """Return the bin of a staleness in µs: bin i > 0 is [1.02**(i-1), 1.02**i)."""
    number = 0
    while number < bins and value >= math.exp(math.log(1.02) * number):
        number += 1
    return number


@dataclass
class NaiveHeap:
    """Bytes at locations: overwritten in place where they fit, appended otherwise."""

    content: bytearray = field(default_factory=bytearray)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.content)

    def missing(self, locations: Sequence[int], values: Sequence[bytes]) -> int:
        """Return the number of bytes that are larger than the old bytes at their locations."""
        pairs = zip(locations, values, strict=True)
        return sum(len(value) for at, value in pairs if len(value) > self.places.get(at, (0, 0))[1])

    def write(self, locations: Sequence[int], values: Sequence[bytes]) -> None:
        for at, value in zip(locations, values, strict=True):
            start, size = self.places.get(at, (0, 0))
            if len(value) > size:
                start = len(self.content)
                self.content += bytes(len(value))
            self.content[start : start + len(value)] = value
            self.places[at] = (start, len(value))


def row_bytes(kinds: Sequence[str], row: Sequence[object]) -> bytes:
    """Return a row's bytes; a kind is "i8" (int64), "s" (string), "[i8" (list) or "n" (null)."""
    out = b""
    for kind, value in zip(kinds, row, strict=True):
        out += _column_bytes(kind, [value])
    return out


def _column_bytes(kind: str, values: Sequence[Any]) -> bytes:
    out = bytes(value is not None for value in values)
    if kind == "i8":
        return out + b"".join(struct.pack("<q", value or 0) for value in values)
    if kind == "s":
        texts = [(value or "").encode() for value in values]
        return out + b"".join(struct.pack("<i", len(text)) for text in texts) + b"".join(texts)
    if kind == "n":
        return out
    assert kind.startswith("[")
    lists = [value or [] for value in values]
    lengths = b"".join(struct.pack("<i", len(value)) for value in lists)
    return out + lengths + _column_bytes(kind[1:], [element for value in lists for element in value])


def last_of_each(numbers: Sequence[int]) -> list[bool]:
    """Return for each position whether its number does not occur later."""
    return [number not in numbers[i + 1 :] for i, number in enumerate(numbers)]


def second_hash_of(words: Sequence[int], secret: int) -> int:
    """Return the other hash of a key's words, by which a set of keys tells keys apart."""
    step = 0xD6E8FEB86659FD93
    h = secret
    for word in words:
        h = (h + word) * step & _64
        h = (h ^ h >> 29) + secret & _64
    h = (h ^ h >> 32) * step & _64
    return (h ^ h >> 29) | 1


def packed_run(values: Sequence[int], width: int) -> bytes:
    """Values one after the other, `width` bits each, bit 0 of the first byte first."""
    whole = sum((value & ((1 << width) - 1)) << (i * width) for i, value in enumerate(values))
    return whole.to_bytes((len(values) * width + 7) // 8, "little")


def packed_lanes(values: Sequence[int], width: int) -> bytes:
    """1,024 values in lanes of the narrowest words that hold `width` bits, as the format draws them."""
    word = next(size for size in (8, 16, 32, 64) if width <= size)
    lanes = 1024 // word
    columns = [
        packed_run([values[row * lanes + lane] for row in range(word)], width) for lane in range(lanes)
    ]
    size = word // 8
    return b"".join(column[k * size : (k + 1) * size] for k in range(width) for column in columns)


def runs_of(values: Sequence[int]) -> list[tuple[int, int]]:
    """Each run's value and length."""
    return [(value, len(list(run))) for value, run in itertools.groupby(values)]


def variable_bytes(values: Sequence[int]) -> bytes:
    """Values of 7 bits a byte, lowest first, the eighth bit set where more follow."""
    out = bytearray()
    for value in values:
        digits = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
        out += bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])
    return bytes(out)


def simple8b_words(values: Sequence[int], sub_block: int) -> list[int] | None:
    """Words that each hold as many values as fit, restarting at every sub-block; None if one is too large."""
    sizes = [(240, 0), (120, 0), (60, 1), (30, 2), (20, 3), (15, 4), (12, 5), (10, 6)]
    sizes += [(8, 7), (7, 8), (6, 10), (5, 12), (4, 15), (3, 20), (2, 30), (1, 60)]
    words = []
    for begin in range(0, len(values), sub_block):
        block = list(values[begin : begin + sub_block])
        while block:
            fitting = (
                (selector, width, block[:count])
                for selector, (count, width) in enumerate(sizes)
                if all(value < 1 << width for value in block[:count])
            )
            found = next(fitting, None)
            if found is None:
                return None
            selector, width, part = found
            words.append(selector << 60 | sum(value << i * width for i, value in enumerate(part)))
            block = block[len(part) :]
    return words


def fragments_of(
    rows: Iterable[tuple[int, tuple[int, ...], int]], steps: int
) -> dict[tuple[int, tuple[int, ...]], tuple[int, int, int, int, int]]:
    """Return the count, sum, least, greatest and newest value of the rows of each pane and group."""
    found: dict[tuple[int, tuple[int, ...]], list[tuple[int, int]]] = {}
    for time, group, value in rows:
        found.setdefault((time // steps * steps, group), []).append((time, value))
    return {
        where: (
            len(pairs),
            sum(value for _, value in pairs),
            min(value for _, value in pairs),
            max(value for _, value in pairs),
            max(enumerate(pairs), key=lambda pair: (pair[1][0], pair[0]))[1][1],
        )
        for where, pairs in found.items()
    }
