"""The panes of one bucket: what windows are assembled from, as state between micro-batches."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.operators.aggregates.wide import schema_like
from penstock.operators.update_stream.stream import Integers
from penstock.operators.windows.append import sliding_kernels
from penstock.operators.windows.append.pane_partials import Found, PanePartials, sorted_by
from penstock.operators.windows.append.sliding import slide
from penstock.operators.windows.append.sorted_runs import (
    SortedRuns,
    combine_duplicates,
    merge_sorted,
    merge_unsorted,
)
from penstock.operators.windows.append.stacks import Stacks
from penstock.operators.windows.emitters import PassThrough, WindowEmitter
from penstock.operators.windows.groups import GroupCodec
from penstock.operators.windows.layout import ENTRY_PANE, Closed, FinalPanes, PanesResult, WindowLayout
from penstock.operators.windows.map_ordered import map_ordered
from penstock.state_store.keys.key_index import KeyIndex
from penstock.state_store.keys.key_words import Keys

__all__ = ["Panes"]

_UNIT_ENTRIES = 1 << 20
_CHUNK_WINDOWS = 1 << 17
_THREADS = min(2, len(os.sched_getaffinity(0)))
"""How many threads make windows: where few groups have all of them, other tasks leave cores idle."""
_FEW = 1024
_LEAST = np.iinfo(np.int64).min
_ROOM = 4
"""Room may be made for so many times as many windows as there are entries, without counting them."""
_SHARED = 4
"""Stacks are made where windows are so many times as long as what a micro-batch moves on."""
_SILENT = 2
"""Groups are numbered anew once there were so many for each that has entries."""


class Panes:
    """The entries that an open window needs. Used by one task at a time; not thread-safe.

    Windows close as the watermark passes their end, all groups' at once, so groups that went silent close as
    others do and leave nothing behind. An entry belongs to each window of its pane that is still open; one
    of which none is open is late. What is open does not depend on what is here: the buckets of a micro-batch
    agree on it, also those that had nothing to close.

    Parameters
    ----------
    layout : WindowLayout
        What windows are made of.
    finalizes : bool
        Whether the caller takes final panes (`finalize_panes`) rather than closed windows (`run`). Then
        groups keep their numbers.
    """

    def __init__(self, layout: WindowLayout, *, finalizes: bool = False) -> None:
        self._layout = layout
        self._settles = finalizes
        self._codec = GroupCodec(list(layout.groups))
        self._index = KeyIndex()
        self._held = SortedRuns(layout)
        self._stacks: Stacks | None = None
        self._arrived: list[PanePartials] = []
        """What came since the last `delta`."""
        self.watermark: int | None = None
        """All panes before it have arrived, but for late ones; None before the first entry."""
        self._next: int | None = None

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._held) + (0 if self._stacks is None else len(self._stacks))

    @property
    def size_bytes(self) -> int:
        """How much memory the state holds, roughly."""
        stacks = 0 if self._stacks is None else self._stacks.nbytes
        return self._held.nbytes + stacks + self._index.size_bytes

    def close(self) -> None:
        """Do nothing: memory goes with the object."""

    def run(
        self,
        arriving: Iterable[pa.RecordBatch],
        watermark: int | None,
        closing: WindowEmitter | None = None,
    ) -> PanesResult:
        """Let entries in, then close the windows before a watermark.

        Parameters
        ----------
        arriving : iterable of pyarrow.RecordBatch
            Of `WindowLayout.entry`, in order of arrival.
        watermark : int, optional
            All panes before it have arrived; the greatest one ever given counts.
        closing : Closing, optional
            What is done with windows; its results stand in their place.
        """
        closing = closing or PassThrough(self._layout)
        rows_in, late = self._enter(list(arriving), watermark)

        partials = closing.partials

        def made(found: Found) -> tuple[int, Any]:
            closed = self._closed(found, partials)
            return len(closed.of), closing(closed)

        found = self._close()
        done = [] if found is None else list(map_ordered(made, found, _THREADS))
        if found is not None:
            self._let_go()
        windows = closing.collect([part for _, part in done])
        return PanesResult(windows, rows_in, late, self._live(), sum(count for count, _ in done))

    def _enter(self, arriving: list[pa.RecordBatch], watermark: int | None) -> tuple[int, int]:
        """Add entries, then note the watermark; return how many rows came, and how many of these are late."""
        layout, rows, late, parts = self._layout, 0, 0, []
        oldest = self._oldest
        for batch in arriving:
            counts = batch.column(layout.rows).to_numpy()
            rows += int(counts.sum())
            behind = None if oldest is None else batch.column(ENTRY_PANE).to_numpy() < oldest
            if behind is None or not behind.any():
                parts.append(self._entries_of(batch))
            else:
                late += int(counts[behind].sum())
                parts.append(self._entries_of(batch.filter(pa.array(~behind))))
        if parts:
            self._arrive(parts)
        self._pass(watermark)
        return rows, late

    def _pass(self, watermark: int | None) -> None:
        if watermark is not None:
            self.watermark = watermark if self.watermark is None else max(self.watermark, watermark)

    @property
    def _oldest(self) -> int | None:
        """The first pane that is not late; None while none is."""
        if self._settles:
            return self.watermark
        return None if self._next is None else self._layout.spec.start(self._next)

    def finalize_panes(
        self, arriving: Iterable[pa.RecordBatch], watermark: int | None
    ) -> tuple[FinalPanes, int, int]:
        """Let entries in, then hand over the panes before a watermark, each pane of a group once.

        Returns
        -------
        settled : Settled
            In the order of panes, and of groups by their numbers.
        rows_in, late : int
            Rows that came, and those of panes that were handed over before.
        """
        rows_in, late = self._enter(list(arriving), watermark)
        if not any(self._done(part).any() for part in self._held.parts):
            none = PanePartials.none(self._layout)
            return FinalPanes(none.ids, none.panes, none.values), rows_in, late
        held = self._held.whole()
        done = self._done(held)
        self._held.replace(held.where(~done))
        settled = self._in_time(combine_duplicates(self._layout, held.where(done), always=True))
        return FinalPanes(settled.ids, settled.panes, settled.values), rows_in, late

    def _done(self, entries: PanePartials) -> npt.NDArray[np.bool_]:
        """Return which entries are of panes of which nothing more comes."""
        return entries.panes < (_LEAST if self.watermark is None else self.watermark)

    def _in_time(self, settled: PanePartials) -> PanePartials:
        """Return entries, which are sorted by group and pane, in the order in which they settled."""
        return settled.take(sorted_by(settled.panes, np.arange(len(settled))))

    @property
    def border(self) -> int | None:
        """The pane before which all panes of all groups have settled; None if there is no such."""
        return self.watermark

    @property
    def groups(self) -> int:
        """How many groups have a number."""
        return len(self._index)

    def numbers_of(self, keys: Keys) -> Integers:
        """Return the numbers of groups, -1 for one that was never seen."""
        return self._index.find(keys)

    def groups_of(self, ids: Integers) -> list[pa.Array[Any]]:
        """Return the columns of groups by their numbers."""
        return self._codec.decode(self._index.words, self._index.starts(ids))

    def number(self, columns: list[pa.Array[Any]], rows: int) -> Integers:
        """Give groups their numbers, in this order; return them."""
        return self._index.find_or_add(self._codec.encode(columns, rows))

    def _entries_of(self, batch: pa.RecordBatch) -> PanePartials:
        """Return what arrives, or is read, as entries; groups that are new get their numbers."""
        layout = self._layout
        groups = [batch.column(name) for name in layout.groups.names]
        ids = self._codec.numbers(self._index, groups, batch.num_rows)
        panes = batch.column(ENTRY_PANE).to_numpy()
        columns = [batch.column(name) for name in layout.values.names]
        return PanePartials(
            ids, panes, pa.RecordBatch.from_arrays(columns, schema=schema_like(layout.values, batch.schema))
        )

    def _arrive(self, parts: list[PanePartials]) -> None:
        """Let entries in, in any order."""
        if self._stacks is None and len(self._held) < sum(map(len, parts)):
            # Sorted with them, so that what is more is not copied once more.
            self._arrived.append(PanePartials.concat(parts))
            self._held.replace(merge_unsorted([*self._held.parts, *parts]))
            return
        self._arrived.append(merge_unsorted(parts))
        self._held.add(self._arrived[-1])

    def _close(self) -> Iterator[Found] | None:
        """Return the windows that the watermark closes; None if there are none."""
        spec = self._layout.spec
        if self.watermark is None:
            return None
        last, before = spec.last_complete(self.watermark), self._next
        self._next = last + 1 if before is None else max(last + 1, before)
        if not len(self):
            return None
        first = before
        if first is None:
            first = spec.first_with(min(int(part.panes.min()) for part in self._held.parts if len(part)))
        if last < first:
            return None
        self._stack(first, last)
        needed = self._held.whole()
        if self._stacks is not None:
            needed, left = self._stacks.close(needed, first, last)
            self._held.replace(left)
        return self._found(needed, needed.panes, first, last)

    def _let_go(self) -> None:
        """Let go of the entries that no open window needs, once those that closed are made."""
        held = self._held.whole()
        self._held.replace(held.where(self._needed(held)))
        self._forget_silent()

    def _stack(self, first: int, last: int) -> None:
        """Have stacks for the windows that close, if these have much in common, or none."""
        spec, stacks = self._layout.spec, self._stacks
        if stacks is not None and spec.start(last) < stacks.border:
            return
        # What suffixes of sets come to would be larger by far than these.
        shared = _SHARED * (last - first + 1) * spec.slide <= spec.size and self._layout.fixed_size
        if stacks is not None and (not shared or self._many_silent()):
            self._held.replace(merge_sorted([*stacks.parts(), *self._held.parts]))
            self._stacks = stacks = None
            self._forget_silent()
        if not shared:
            return
        border = spec.start(first) + spec.size
        # Those of the stacks were in windows that ended before.
        below = [] if stacks is None else stacks.parts()
        below += [part.where(part.panes < border) for part in self._held.parts]
        if stacks is not None or sum(map(len, below)) >= _FEW:
            self._held.restrict(lambda part: part.panes >= border)
            self._stacks = Stacks(self._layout, merge_sorted(below), border, len(self._index))

    def _live(self) -> int:
        """Return how many groups have an entry."""
        known = np.zeros(len(self._index), np.bool_)
        for part in self._held.parts:
            known[part.ids] = True
        if self._stacks is not None:
            known[self._stacks.live()] = True
        return int(np.count_nonzero(known))

    def _needed(self, entries: PanePartials) -> npt.NDArray[np.bool_]:
        """Return which entries an open window needs."""
        return entries.panes >= (_LEAST if self._oldest is None else self._oldest)

    def _many_silent(self) -> bool:
        """Say whether there are many groups without entries."""
        return not self._settles and len(self._index) > _SILENT * self._live() + _FEW

    def _forget_silent(self) -> None:
        """Forget groups without entries, where there are many; only where there are no stacks."""
        if self._stacks is None and self._many_silent():
            self._forget()

    def _forget(self) -> None:
        """Give groups new numbers, leaving out those without entries."""
        held = self._held.whole()
        known, again = np.unique(held.ids, return_inverse=True)
        groups = self._codec.decode(self._index.words, self._index.starts(known))
        self._index = KeyIndex()
        numbers = self._index.find_or_add(self._codec.encode(groups, len(known)))
        self._held.replace(PanePartials(numbers[again], held.panes, held.values))
        # Those that are still needed are held, and so are their groups.
        fresh = [part.where(self._needed(part)) for part in self._arrived]
        self._arrived = [
            PanePartials(numbers[np.searchsorted(known, part.ids)], part.panes, part.values) for part in fresh
        ]

    def _found(self, entries: PanePartials, panes: Integers, first: int, last: int) -> Iterator[Found]:
        """Return the windows from `first` to `last`, of sorted entries, in batches of bounded size.

        `panes` are those of the entries, from which windows are numbered.
        """
        spec, ids = self._layout.spec, entries.ids
        if not len(ids):
            return
        count = self._room(ids, panes, first, last)
        for begin, end, low, high in self._pieces(ids, panes, first, last, -(-count // _CHUNK_WINDOWS)):
            piece = slice(begin, end)
            if (begin, end, low, high) != (0, len(ids), first, last):
                count = self._room(ids[piece], panes[piece], low, high)
            known, *found = (np.empty(room, np.int64) for room in (min(count, end - begin), *[count] * 4))
            groups, count = sliding_kernels.find_windows(
                ids[piece], panes[piece], spec.size, spec.slide, low, high, known, *found
            )
            if count:
                yield Found(entries.piece(begin, end), known[:groups], *(one[:count] for one in found))

    def _pieces(
        self, ids: Integers, panes: Integers, first: int, last: int, count: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """Divide windows into about so many pieces: ranges of entries, and of windows.

        Groups are kept whole but for large ones, whose pieces share the entries where windows overlap; so
        these are no shorter than half a window.
        """
        spec, most = self._layout.spec, -(-len(ids) // max(count, 1))
        cuts = {0, len(ids)}
        for at in range(most, len(ids), most):
            begin, end = (int(np.searchsorted(ids, ids[at], side)) for side in ("left", "right"))
            cuts |= {begin, end} if end - begin > most else {begin}
        for begin, end in pairwise(sorted(cuts)):
            if end - begin <= most or ids[begin] != ids[end - 1]:
                yield begin, end, first, last
                continue
            mine = panes[begin:end]
            # The last windows that have the last entry of each piece.
            step = max(most, spec.size // 2)
            panes_at = [*mine[step:-1:step], mine[-1]]
            ends = [max(first - 1, min(int(pane) // spec.slide, last)) for pane in panes_at]
            for before, window in pairwise([first - 1, *ends]):
                bounds = spec.start(before + 1), spec.start(window) + spec.size
                low, high = (begin + int(np.searchsorted(mine, pane)) for pane in bounds)
                if before < window and low < high:
                    yield low, high, before + 1, window

    def _room(self, ids: Integers, panes: Integers, first: int, last: int) -> int:
        """Return how many windows there are at most; they are counted only where these may be many fewer."""
        most = (int(ids[-1] - ids[0]) + 1) * (last - first + 1)
        if most <= _ROOM * len(ids):
            return most
        return int(
            sliding_kernels.count_windows(
                ids, panes, self._layout.spec.size, self._layout.spec.slide, first, last
            )
        )

    def _closed(self, found: Found, reads: Container[str] | None) -> Closed:
        layout, entries = self._layout, found.entries
        partials = [one for one in layout.partials if reads is None or one.name in reads]
        values = slide(
            partials, layout.times, entries.panes, entries.values, found.low, found.high, closing=True
        )
        known = self.groups_of(found.known)
        slide_by = layout.spec.slide
        starts = found.windows if slide_by == 1 else found.windows * slide_by
        return Closed(known, pa.array(found.of), pa.array(starts), values)

    def _groups(self, ids: Integers) -> tuple[list[pa.Array[Any]], pa.Array[Any]]:
        """Return the groups of ids, of which equal ones stand together, and of each id the place in them."""
        begins = np.flatnonzero(np.diff(ids, prepend=-1))
        of = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(ids)))
        return self.groups_of(ids[begins]), pa.array(of)

    # --------------------------------------------------------------------------------------- state

    def delta(self) -> PUnit:
        """Return the entries that came since the last call and are still needed, to be stored."""
        fresh = PanePartials.concat([PanePartials.none(self._layout), *self._arrived])
        self._arrived = []
        return self._unit("delta", fresh.where(self._needed(fresh)).in_order())

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole state of this moment, in units of at most `_UNIT_ENTRIES` entries."""
        parts = [] if self._stacks is None else self._stacks.parts()
        # Who reads them sorts them.
        held = PanePartials.concat([one.where(self._needed(one)) for one in (*parts, *self._held.parts)])
        begins = range(0, max(len(held), 1), _UNIT_ENTRIES)
        # Made here and now, for the panes go on changing while they are written.
        return iter(
            [self._unit("snapshot", held.piece(begin, begin + _UNIT_ENTRIES), begin) for begin in begins]
        )

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply units in their order."""
        for kind, same in groupby(units, key=lambda unit: unit.kind):
            if kind == "snapshot":
                self._held.replace(PanePartials.none(self._layout))
                self._stacks = None
            parts = (self._read(unit) for unit in same)
            # A snapshot was cut where it was long enough, deltas come one after the other.
            for part in [PanePartials.concat(parts)] if kind == "snapshot" else parts:
                self._held.add(part.in_order())
        if self._oldest is not None:
            self._held.restrict(self._needed)
            self._forget_silent()

    def _read(self, unit: PUnit) -> PanePartials:
        """Return the entries of a unit, and go on from where it was."""
        self.watermark = unit.fields.number_or_none("watermark")
        self._next = unit.fields.number_or_none("next")
        entry = self._layout.entry
        at = entry.get_field_index(ENTRY_PANE)
        entry = entry.set(at, entry.field(at).with_nullable(False))
        if (stored := unit.blocks.get("entries")) is not None:
            entry = schema_like(entry, stored.schema, fixed=entry.names[: at + 1])
        return self._entries_of(unit.block("entries", entry))

    def _unit(self, kind: str, entries: PanePartials, before: int = 0) -> PUnit:
        known, of = self._groups(entries.ids)
        columns = [column.take(of) for column in known]
        block = pa.RecordBatch.from_arrays(
            [*columns, pa.array(entries.panes), *entries.values.columns],
            schema=schema_like(self._layout.entry, entries.values.schema),
        )
        meta = {"watermark": self.watermark, "next": self._next, "rows": len(self), "entries_before": before}
        return PUnit(kind=kind, meta=meta, blocks={"entries": block}, packed=True)
