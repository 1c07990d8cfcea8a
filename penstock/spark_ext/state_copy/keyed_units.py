"""Move the keys of windows and joins to a new number of buckets, using the units of restored states.

The state of each old bucket is restored and written as a snapshot. Each row of the snapshot goes to the new
bucket of its group or key. All buckets of windows have the same watermark, which new buckets also get. A
bucket of a join stores the newest time of its tuples. A new bucket gets the newest time that its old buckets
have stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.checkpointing import MAX_UNIT_ROWS, PUnit
from penstock.errors import InvalidUsageError
from penstock.operators.joins.join import UpdateJoin
from penstock.operators.joins.spec import SIDES, JoinedStream
from penstock.operators.key_blocks import KEY_BLOCK, OWNER
from penstock.operators.queues.repartition import source_buckets
from penstock.operators.update_stream.deletes import DELETED_COLUMN
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.state_copy.query_copy import CopiedBucket, QueryCopy, explain_missing_file
from penstock.spark_ext.state_reader.state_view import Stored
from penstock.spark_ext.state_reader.window_view import window_view
from penstock.sql.expression import Expression
from penstock.state_store.bucket_store import BucketStore
from penstock.state_store.keys.key_words import KeyCodec, buckets_of
from penstock.units import FOREVER
from penstock.windows.append.panes import Panes
from penstock.windows.groups import GroupCodec
from penstock.windows.layout import WindowLayout

__all__ = [
    "JoinBuckets",
    "OldUnits",
    "WindowBuckets",
    "WrittenState",
    "marks_deletes",
    "select_groups",
]

_MARK = f"{DELETED_COLUMN} boolean"


@dataclass(frozen=True, slots=True)
class WrittenState:
    """The state of a new bucket.

    Attributes
    ----------
    parts : list of PUnit
        The units, at least one.
    """

    parts: list[PUnit]

    def units(self) -> Iterator[PUnit]:
        """Return the units."""
        return iter(self.parts)


class OldUnits:
    """Reads the old buckets of a copy; keeps the units of the bucket that was read last."""

    def __init__(self, copy: QueryCopy, specification: Mapping[str, Any]) -> None:
        self.buckets = int(specification["buckets"])
        self._places = {int(place.bucket): place for place in copy.buckets}
        self.units = functools.lru_cache(maxsize=2)(self._load)
        """Returns the units of a bucket's snapshot and the stored metadata; empty if it has no state."""
        self._specification = specification

    def _read_stored(self) -> Stored:
        return Stored(self._specification, self._look, large=False)

    def _look(self) -> PUnit | None:
        place = next(iter(self._places.values()), None)
        return None if place is None else self._newest(place)

    def _new_state(self) -> Any:
        raise NotImplementedError  # each kind of operator has its own

    def _load(self, bucket: int) -> tuple[list[PUnit], Mapping[str, Any]]:
        if bucket not in self._places:
            return [], {}
        place, state = self._places[bucket], self._new_state()
        with explain_missing_file(place):
            BucketStore(place.files).load(place.pointer, state)
        return list(state.snapshot()), self._meta(place)

    @staticmethod
    def _newest(place: CopiedBucket) -> PUnit:
        with explain_missing_file(place):
            return BucketStore(place.files).read_version(place.pointer)[1]

    def _meta(self, place: CopiedBucket) -> Mapping[str, Any]:
        return self._newest(place).meta

    def sources(self, bucket: int, buckets: int) -> list[tuple[list[PUnit], Mapping[str, Any]]]:
        """Return the units of the old buckets whose keys may belong to a new bucket."""
        found = map(self.units, source_buckets(bucket, buckets, self.buckets))
        return [(units, meta) for units, meta in found if units]


def marks_deletes(specification: Mapping[str, Any], side: str) -> bool:
    """Return whether a side of a join has deletes, so that its input ends with the mark of deletes."""
    return bool(specification.get("deletes")) and specification[side][-1:] == [_MARK]


class WindowBuckets(OldUnits):
    """The old buckets of windows in append mode: windows of time or of rows, or sessions."""

    @functools.cached_property
    def _layout(self) -> WindowLayout:
        return window_view(self._read_stored(), "panes").layout

    def _new_state(self) -> Panes:
        state = window_view(self._read_stored(), "panes").new_state()
        if not isinstance(state, Panes):
            raise InvalidUsageError("windows that are served key by key cannot be rewritten")
        return state

    def rescale(self, bucket: int, buckets: int) -> WrittenState | None:
        """Return the state of a new bucket; None if no old bucket has state.

        A bucket without groups also has state: the watermark, which determines late rows.
        """
        if not self._places:
            return None
        facts = self._facts
        parts: list[PUnit] = []
        count = 0
        for units, _ in self.sources(bucket, buckets) or [(self.units(next(iter(self._places)))[0], {})]:
            blocks = select_groups(units, self._layout, bucket, buckets)
            entries = blocks.pop("entries")
            for begin in range(0, max(entries.num_rows, 1), MAX_UNIT_ROWS):
                piece = entries.slice(begin, MAX_UNIT_ROWS)
                last = begin + MAX_UNIT_ROWS >= entries.num_rows
                # The first unit of a snapshot removes all earlier entries.
                meta = {**facts, "entries_before": max(count, 1) if parts else 0}
                held = {"entries": piece, **(blocks if last else {})}
                parts.append(PUnit("snapshot", meta, held, packed=True))
                count += piece.num_rows
        return WrittenState([replace(part, meta={**part.meta, "rows": count}) for part in parts])

    @functools.cached_property
    def _facts(self) -> dict[str, int | None]:
        """The watermark and the next window, which are the same in all buckets."""
        stored = [self._meta(place) for place in self._places.values()]
        return {
            name: max((meta[name] for meta in stored if meta[name] is not None), default=None)
            for name in ("watermark", "next")
        }


def select_groups(
    units: Iterable[PUnit], layout: WindowLayout, bucket: int, buckets: int
) -> dict[str, pa.RecordBatch]:
    """Return the rows of each block of panes whose groups belong to a bucket."""
    names = layout.groups.names
    codec = GroupCodec(list(layout.groups))
    found: dict[str, list[pa.RecordBatch]] = {}
    for unit in units:
        for name, block in unit.blocks.items():
            groups = [block.column(group) for group in names]
            mine = codec.encode(groups, block.num_rows).bucket(buckets) == bucket
            found.setdefault(name, []).append(block.filter(pa.array(mine)))
    return {name: pa.concat_batches(parts) for name, parts in found.items()}


class JoinBuckets(OldUnits):
    """The old buckets of a join of update streams."""

    @functools.cached_property
    def _joined(self) -> JoinedStream:
        """The parts of the join that a restore needs; its columns come from the newest blocks."""
        units = [self._newest(place) for place in self._places.values()]
        key, streams = tuple(self._specification["key"]), []
        for side in SIDES:
            unit = max(units, key=lambda unit: unit.blocks[side].num_columns)
            fields = [unit.blocks[KEY_BLOCK].schema.field(name) for name in key]
            fields += [one for one in unit.blocks[side].schema if one.name != OWNER]
            marks = marks_deletes(self._specification, side)
            fields += [pa.field(DELETED_COLUMN, pa.bool_())] if marks else []
            deleted = DELETED_COLUMN if marks else None
            streams.append(UpdateStream(pa.schema(fields), key, self._specification["time"], deleted=deleted))
        condition = self._specification["condition"]
        return JoinedStream(
            streams[0],
            streams[1],
            self._specification["within"],
            FOREVER,  # the stored delay is used
            None if condition is None else Expression.parse(condition),
            ttl=1 if self._specification.get("ttl") else None,  # the stored horizon is used
            tells_silent=self._specification.get("on_silent") is not None,
        )

    def _new_state(self) -> UpdateJoin:
        return UpdateJoin(self._joined)

    def rescale(self, bucket: int, buckets: int) -> WrittenState | None:
        """Return the state of a new bucket; None if it has no keys."""
        sources = self.sources(bucket, buckets)
        parts = [
            _select_keys(unit, self._specification["key"], bucket, buckets)
            for units, _ in sources
            for unit in units
        ]
        stored = [meta for _, meta in sources]
        return _join_state(parts, stored)

    def convert(
        self, bucket: int, change: Callable[[str, pa.RecordBatch], pa.RecordBatch]
    ) -> WrittenState | None:
        """Return the state of a bucket with new columns."""
        units, meta = self.units(bucket)
        parts = [
            replace(unit, blocks={**unit.blocks, **{side: change(side, unit.blocks[side]) for side in SIDES}})
            for unit in units
        ]
        return _join_state(parts, [meta] if units else [])


def _select_keys(unit: PUnit, key: Sequence[str], bucket: int, buckets: int) -> PUnit:
    """Return the keys of a unit that belong to a bucket, and their tuples."""
    key_rows = unit.blocks[KEY_BLOCK]
    codec = KeyCodec([key_rows.schema.field(name) for name in key])
    mine = buckets_of(codec.encode([key_rows.column(name) for name in key]).hashes, buckets) == bucket
    numbers = np.cumsum(mine) - 1
    blocks = {KEY_BLOCK: key_rows.filter(pa.array(mine))}
    for side in SIDES:
        rows = unit.blocks[side]
        owner = rows.column(OWNER).to_numpy()
        kept = rows.filter(pa.array(mine[owner]))
        place = kept.schema.get_field_index(OWNER)
        owners = pa.array(numbers[owner[mine[owner]]])
        blocks[side] = kept.set_column(place, kept.schema.field(place), owners)
    return replace(unit, blocks=blocks)


def _join_state(parts: list[PUnit], stored: Sequence[Mapping[str, Any]]) -> WrittenState | None:
    """Return the units with new metadata; None if no old bucket stored a newest time or a horizon."""
    newest = max((meta["newest"] for meta in stored if meta["newest"] is not None), default=None)
    horizons = [meta["horizon"] for meta in stored if "horizon" in meta]
    if newest is None and not horizons:
        return None
    meta = {
        "rows": sum(part.blocks[KEY_BLOCK].num_rows for part in parts),
        "held": sum(part.blocks[side].num_rows for part in parts for side in SIDES),
        "newest": newest,
    }
    # The longest delay keeps the most tuples.
    delays = [one["delay"] for one in stored if "delay" in one]
    meta |= {"delay": max(delays)} if delays else {}
    if horizons:
        # All buckets get the same clock, so a bucket's horizon is older only if the bucket has missed
        # micro-batches.
        meta |= {"horizon": max(horizons), "expired": sum(one["expired"] for one in stored)}
    return WrittenState([replace(part, meta=meta) for part in parts])
