"""The interface of panes: the state from which the windows of one bucket are assembled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.checkpointing.p_stream.threads import usable_cores
from penstock.operators.aggregates.moments import upgrade_partials
from penstock.operators.aggregates.own_states import check_own_images
from penstock.operators.aggregates.quantiles import check_quantile_images
from penstock.operators.aggregates.sketches import check_images
from penstock.operators.aggregates.wide import schema_like
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import KeyIndex
from penstock.state_store.keys.key_words import Keys, Words
from penstock.windows.append.find import find_windows
from penstock.windows.append.limits import PaneLimits
from penstock.windows.append.pane_partials import PanePartials, WindowRanges
from penstock.windows.append.sliding import slide
from penstock.windows.append.sorted_runs import SortedRuns, combine_duplicates, merge_unsorted
from penstock.windows.emitters import PassThrough, WindowEmitter
from penstock.windows.groups import GroupCodec
from penstock.windows.layout import ENTRY_PANE, ClosedWindows, FinalPanes, PanesResult, WindowLayout
from penstock.windows.map_ordered import map_ordered

__all__ = ["DEFAULT_LIMITS", "Panes"]

_THREADS: Final = min(2, usable_cores())
"""Number of threads that assemble windows. They help if a few groups have most windows, because then the
other tasks leave cores idle."""

DEFAULT_LIMITS: Final = PaneLimits()


class Panes(ABC):
    """The pane partials that open windows need. One task at a time uses them.

    `run` returns windows when they close. `finalize_panes` returns panes when they become final. A caller
    uses only one of the two methods.

    Parameters
    ----------
    layout : WindowLayout
        The windows.
    finalizes : bool
        Whether the caller uses `finalize_panes`, not `run`. If so, groups keep their numbers.
    limits : PaneLimits
        The thresholds of the state.
    """

    def __init__(
        self, layout: WindowLayout, *, finalizes: bool = False, limits: PaneLimits = DEFAULT_LIMITS
    ) -> None:
        self._layout = layout
        self._finalizes = finalizes
        self._limits = limits
        self._codec = GroupCodec(list(layout.groups))
        self._index = KeyIndex()
        self._held = SortedRuns(layout, limits.min_repeats_to_combine)
        self._arrived: list[PanePartials] = []
        """Partials added since the last `delta`."""
        self.watermark: int | None = None
        """The greatest watermark so far; None before the first watermark."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the state in bytes."""
        return self._held.nbytes + self._index.size_bytes

    def close(self) -> None:  # noqa: B027  # memory needs no closing
        """Do nothing, because the state is only in memory."""

    def run(
        self,
        arriving: Iterable[pa.RecordBatch],
        watermark: int | None,
        emitter: WindowEmitter | None = None,
    ) -> PanesResult:
        """Add input, then close and emit the windows that the watermark completes.

        Parameters
        ----------
        arriving : iterable of pyarrow.RecordBatch
            The input, in order of arrival.
        watermark : int, optional
            The new watermark. A value lower than before is ignored.
        emitter : WindowEmitter, optional
            Converts closed windows to the output. By default the windows are the output.
        """
        emitter = emitter or PassThrough(self._layout)
        rows_in, late = self._enter(list(arriving), watermark)

        partials = emitter.partials

        def emit(ranges: WindowRanges) -> tuple[int, Any]:
            closed = self._collect_closed(ranges, partials)
            return len(closed.of), emitter(closed)

        batches = self._close()
        results = [] if batches is None else list(map_ordered(emit, batches, _THREADS))
        if batches is not None:
            self._discard()
        windows = emitter.collect([part for _, part in results])
        return PanesResult(windows, rows_in, late, self._live(), sum(count for count, _ in results))

    def finalize_panes(
        self, arriving: Iterable[pa.RecordBatch], watermark: int | None
    ) -> tuple[FinalPanes, int, int]:
        """Add input, then return the panes that the watermark makes final, each pane of a group once.

        Returns
        -------
        final : FinalPanes
            The final panes, in the order in which they became final.
        rows_in, late : int
            Number of input rows, and of input rows whose pane was already final.
        """
        rows_in, late = self._enter(list(arriving), watermark)
        if not any(self._is_final(part).any() for part in self._held.parts):
            none = PanePartials.none(self._layout)
            return FinalPanes(none.ids, none.panes, none.values), rows_in, late
        held = self._held.whole()
        is_final = self._is_final(held)
        self._held.replace(held.where(~is_final))
        final = self._order_final(combine_duplicates(self._layout, held.where(is_final), always=True))
        return FinalPanes(final.ids, final.panes, final.values), rows_in, late

    # ------------------------------------------------------------------- time and count panes differ

    @property
    @abstractmethod
    def border(self) -> int | None:
        """The pane before which all panes of all groups are final; None if groups differ."""

    @property
    def oldest(self) -> int | None:
        """The first pane, or time of a row, that would not be late now.

        The result is None as long as nothing can be late, or if groups differ.
        """
        return None

    @abstractmethod
    def _enter(self, arriving: list[pa.RecordBatch], watermark: int | None) -> tuple[int, int]:
        """Add input and advance the watermark; return the number of input rows and of late rows."""

    @abstractmethod
    def _is_final(self, partials: PanePartials) -> npt.NDArray[np.bool_]:
        """Mark the partials of final panes."""

    @abstractmethod
    def _order_final(self, partials: PanePartials) -> PanePartials:
        """Reorder sorted partials into the order in which they became final."""

    @abstractmethod
    def _close(self) -> Iterator[WindowRanges] | None:
        """Return the windows that the watermark closes; None if there are no partials."""

    @abstractmethod
    def _discard(self) -> None:
        """Discard the partials that no open window needs, after the closed windows were emitted."""

    @abstractmethod
    def _needed(self, partials: PanePartials) -> npt.NDArray[np.bool_]:
        """Return a mask of the partials that an open window needs, or whose panes are not final."""

    @abstractmethod
    def delta(self) -> PUnit:
        """Return the partials to store: those that were added since the last call and are still needed."""

    @abstractmethod
    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state, in p-units of bounded size."""

    @abstractmethod
    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply stored p-units in order."""

    # ---------------------------------------------------------------------------------------- groups

    @property
    def groups(self) -> int:
        """Number of groups that have a number."""
        return len(self._index)

    def numbers_of(self, keys: Keys) -> Integers:
        """Return the numbers of groups, -1 for unknown groups."""
        return self._index.find(keys)

    def groups_of(self, ids: Integers) -> list[pa.Array[Any]]:
        """Return the columns of groups by their numbers."""
        return self._codec.decode(self._index.words, self._index.starts(ids))

    def number(self, columns: list[pa.Array[Any]], rows: int) -> Integers:
        """Assign numbers to groups in order; return the numbers."""
        return self._index.find_or_add(self._codec.encode(columns, rows))

    def _live(self) -> int:
        """Return the number of groups that have a partial."""
        return int(np.count_nonzero(self._has_partials()))

    def live_groups(self) -> npt.NDArray[np.bool_]:
        """Return a mask, by group number, of the groups that have tuples in these panes."""
        return self._has_partials()

    def hashes_of(self, ids: Integers) -> Words:
        """Return the hashes of groups by their numbers."""
        return self._index.keys.hashes[ids]

    def _has_partials(self) -> npt.NDArray[np.bool_]:
        mask = np.zeros(len(self._index), np.bool_)
        for part in self._held.parts:
            mask[part.ids] = True
        return mask

    def _many_silent(self) -> bool:
        """Return whether many groups have no partials."""
        limits = self._limits
        most = limits.groups_per_live * self._live() + limits.min_silent_groups
        return not self._finalizes and len(self._index) > most

    def _forget_silent(self) -> None:
        """Renumber groups if many have no partials."""
        if not self._many_silent():
            return
        held = self._held.whole()
        live_ids, again = np.unique(held.ids, return_inverse=True)
        groups = self._codec.decode(self._index.words, self._index.starts(live_ids))
        self._index = KeyIndex()
        numbers = self._index.find_or_add(self._codec.encode(groups, len(live_ids)))
        self._held.replace(PanePartials(numbers[again], held.panes, held.values))
        # Groups with needed partials keep a number.
        fresh = [part.where(self._needed(part)) for part in self._arrived]
        self._arrived = [
            PanePartials(numbers[np.searchsorted(live_ids, part.ids)], part.panes, part.values)
            for part in fresh
        ]

    # -------------------------------------------------------------------------------- shared by both

    def _advance(self, watermark: int | None) -> None:
        if watermark is not None:
            self.watermark = watermark if self.watermark is None else max(self.watermark, watermark)

    def _partials_of(self, batch: pa.RecordBatch) -> PanePartials:
        """Convert a batch of `WindowLayout.pane_schema` to partials; new groups get numbers."""
        layout = self._layout
        groups = [batch.column(name) for name in layout.groups.names]
        ids = self._codec.numbers(self._index, groups, batch.num_rows)
        panes = batch.column(ENTRY_PANE).to_numpy()
        columns = [batch.column(name) for name in layout.values.names]
        return PanePartials(
            ids, panes, pa.RecordBatch.from_arrays(columns, schema=schema_like(layout.values, batch.schema))
        )

    def _add(self, parts: list[PanePartials], *, resort: bool = True) -> None:
        """Add partials in any order.

        Parameters
        ----------
        resort : bool
            Whether kept partials may be sorted again, together with the new partials.
        """
        if resort and len(self._held) < sum(map(len, parts)):
            # Sorting everything once saves a copy of the larger part.
            self._arrived.append(PanePartials.concat(parts))
            self._held.replace(merge_unsorted([*self._held.parts, *parts]))
            return
        self._arrived.append(merge_unsorted(parts))
        self._held.add(self._arrived[-1])

    def _find(self, partials: PanePartials, panes: Integers, first: int, last: int) -> Iterator[WindowRanges]:
        """Return the windows from `first` to `last` that contain any of the partials, which are sorted."""
        return find_windows(self._layout.spec, partials, panes, first, last, self._limits.chunk_windows)

    def _collect_closed(self, ranges: WindowRanges, reads: Container[str] | None) -> ClosedWindows:
        layout, partials = self._layout, ranges.partials
        values = slide(
            layout.partials,
            layout.times,
            partials.panes,
            partials.values,
            ranges.low,
            ranges.high,
            closing=True,
            reads=reads,
        )
        groups = self.groups_of(ranges.known)
        slide_by = layout.spec.slide
        starts = ranges.windows if slide_by == 1 else ranges.windows * slide_by
        return ClosedWindows(groups, pa.array(ranges.of), pa.array(starts), values)

    # ----------------------------------------------------------------------------------------- state

    def _delta_unit(self, next_window: int | None = None) -> PUnit:
        """Return the needed partials that were added since the last call."""
        fresh = PanePartials.concat([PanePartials.none(self._layout), *self._arrived])
        self._arrived = []
        return self._unit("delta", fresh.where(self._needed(fresh)).sort(), 0, next_window)

    def _snapshot_units(self, parts: Iterable[PanePartials], next_window: int | None = None) -> list[PUnit]:
        """Return copies of all needed partials, because panes change while the units are written."""
        # The partials need not be sorted, because `restore` sorts them.
        held, most = (
            PanePartials.concat([part.where(self._needed(part)) for part in parts]),
            self._limits.unit_entries,
        )
        begins = range(0, max(len(held), 1), most)
        return [
            self._unit("snapshot", held.piece(begin, begin + most), begin, next_window) for begin in begins
        ]

    def _read(self, unit: PUnit) -> tuple[PanePartials, int | None]:
        """Return the partials and the next window of a unit; set the watermark."""
        self.watermark = unit.fields.number_or_none("watermark")
        next_window = unit.fields.number_or_none("next")
        pane_schema = self._layout.pane_schema
        at = pane_schema.get_field_index(ENTRY_PANE)
        pane_schema = pane_schema.set(at, pane_schema.field(at).with_nullable(False))
        if (stored := unit.blocks.get("entries")) is not None:
            stored = upgrade_partials(stored, self._layout.partials)
            unit = replace(unit, blocks={**unit.blocks, "entries": stored})
            pane_schema = schema_like(pane_schema, stored.schema, fixed=pane_schema.names[: at + 1])
        partials = unit.block("entries", pane_schema)
        for partial in self._layout.partials:
            if partial.kind == "sketch":
                check_images(partials.column(partial.name))
            if partial.kind == "kll":
                check_quantile_images(partials.column(partial.name), partial.log2_size)
            if partial.kind == "own":
                check_own_images(partials.column(partial.name), partial.function)
        return self._partials_of(partials), next_window

    def _unit(self, kind: str, partials: PanePartials, before: int, next_window: int | None) -> PUnit:
        ids = partials.ids
        begins = np.flatnonzero(np.diff(ids, prepend=-1))
        of = pa.array(np.repeat(np.arange(len(begins)), np.diff(begins, append=len(ids))))
        columns = [column.take(of) for column in self.groups_of(ids[begins])]
        block = pa.RecordBatch.from_arrays(
            [*columns, pa.array(partials.panes), *partials.values.columns],
            schema=schema_like(self._layout.pane_schema, partials.values.schema),
        )
        meta = {
            "watermark": self.watermark,
            "next": next_window,
            "rows": len(self),
            "entries_before": before,
        }
        return PUnit(kind=kind, meta=meta, blocks={"entries": block}, packed=True)
