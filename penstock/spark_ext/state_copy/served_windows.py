"""Move the groups of lazy and eager windows to a new number of buckets.

As in `penstock.spark_ext.state_copy.keyed_units`, each old bucket's state is restored and written as a
snapshot. Groups get new numbers in their new bucket. Waiting groups are merged in the same way as update
queues (`penstock.operators.queues.repartition`), by the time at which they began to wait.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import InternalError
from penstock.operators.aggregates.wide import cast_sums, schema_like
from penstock.operators.key_blocks import KEY_BLOCK
from penstock.operators.queues.repartition import merge_ranks
from penstock.operators.update_stream.choices import WindowMode
from penstock.operators.update_stream.stream import Integers
from penstock.spark_ext.state_copy.keyed_units import OldUnits, WindowBuckets, WrittenState, select_groups
from penstock.spark_ext.state_copy.query_copy import QueryCopy
from penstock.spark_ext.state_reader.window_view import window_view
from penstock.units import NEVER
from penstock.windows.groups import GroupCodec
from penstock.windows.layout import WindowLayout
from penstock.windows.update.renumber import renumber_key_rows, set_column
from penstock.windows.update.transitions import READY
from penstock.windows.update.windows import UpdateWindows

__all__ = ["ServedWindowBuckets", "window_buckets"]


@dataclass(frozen=True, slots=True)
class _Part:
    """The groups of a new bucket that come from one old bucket, renumbered for the new bucket."""

    groups: pa.RecordBatch
    panes: dict[str, pa.RecordBatch]
    key_rows: pa.RecordBatch
    rows: pa.RecordBatch
    queue: Mapping[str, Any]


class ServedWindowBuckets(OldUnits):
    """The old buckets of windows in lazy or eager mode."""

    @functools.cached_property
    def _layout(self) -> WindowLayout:
        return window_view(self._read_stored(), "panes").layout

    def _new_state(self) -> UpdateWindows:
        state = window_view(self._read_stored(), "panes").new_state()
        if not isinstance(state, UpdateWindows):
            raise InternalError("windows in append mode are not served key by key")
        return state

    def rescale(self, bucket: int, buckets: int) -> WrittenState | None:
        """Return the state of a new bucket; None if no old bucket has state.

        A bucket without groups also has state: the watermark, which determines late rows.
        """
        if not self._places:
            return None
        sources = self.sources(bucket, buckets) or [self.units(next(iter(self._places)))]
        parts: list[_Part] = []
        count = 0
        for units, _ in sources:
            parts.append(self._select(units, bucket, buckets, count))
            count += parts[-1].groups.num_rows
        key_rows = _merge_key_rows(parts)
        owners = np.cumsum([0, *(part.key_rows.num_rows for part in parts)])
        rows = [_shift(part.rows, int(begin)) for part, begin in zip(parts, owners, strict=False)]
        waiting = int(np.count_nonzero(key_rows.column("candidate").to_numpy() != NEVER))
        stored = [meta for _, meta in sources]
        horizons = [one for one in stored if "horizon" in one]
        named: dict[str, Any] = {"names_groups": True} if any("names_groups" in one for one in stored) else {}
        if horizons:
            named |= {"horizon": max(one["horizon"] for one in horizons)}
            named |= {"expired": sum(one["expired"] for one in horizons)}
        blocks = {
            "groups": pa.concat_batches([part.groups for part in parts]),
            **{name: _concat([part.panes[name] for part in parts]) for name in parts[0].panes},
            KEY_BLOCK: key_rows,
            "rows": _concat(rows),
        }
        meta = {
            "rows": count,
            "waiting": waiting,
            "panes": {**self._facts, "rows": blocks["entries"].num_rows, "entries_before": 0},
            "queue": self._queue_meta(parts, key_rows.num_rows, waiting, buckets),
            **named,
        }
        return WrittenState([PUnit("snapshot", meta, blocks)])

    @functools.cached_property
    def _facts(self) -> dict[str, int | None]:
        """The watermark, which is the same in all buckets."""
        stored = [self._meta(place)["panes"]["watermark"] for place in self._places.values()]
        return {"watermark": max((one for one in stored if one is not None), default=None), "next": None}

    def _select(self, units: Sequence[PUnit], bucket: int, buckets: int, first: int) -> _Part:
        """Return the groups of an old bucket that belong to a new bucket, numbered from `first` on."""
        codec, names = GroupCodec(list(self._layout.groups)), self._layout.groups.names
        listed = pa.concat_batches([unit.blocks["groups"] for unit in units if "groups" in unit.blocks])
        mine = (
            codec.encode([listed.column(name) for name in names], listed.num_rows).bucket(buckets) == bucket
        )
        groups = listed.filter(pa.array(mine))
        place = groups.num_columns - 1
        stored = groups.column(place).to_numpy()
        numbers = np.arange(first, first + len(stored))
        groups = groups.set_column(place, groups.schema.field(place), pa.array(numbers))
        panes = select_groups(
            [PUnit("snapshot", {}, unit.blocks) for unit in units if "panes" in unit.meta],
            self._layout,
            bucket,
            buckets,
        )
        queues = [unit for unit in units if "queue" in unit.meta]
        chosen = [_select_key_rows(unit, stored, numbers) for unit in queues]
        begins = np.cumsum([0, *(one[KEY_BLOCK].num_rows for one in chosen)])
        rows = [_shift(one["rows"], int(begin)) for one, begin in zip(chosen, begins, strict=False)]
        key_rows = pa.concat_batches([one[KEY_BLOCK] for one in chosen])
        return _Part(groups, panes, key_rows, _concat(rows), queues[-1].meta["queue"])

    def _queue_meta(self, parts: Sequence[_Part], keys: int, waiting: int, buckets: int) -> dict[str, Any]:
        def known(name: str) -> list[Any]:
            return [value for part in parts if (value := part.queue.get(name)) is not None]

        costs = known("cost_us")
        meta = {
            **parts[0].queue,
            "keys": keys,
            "waiting": waiting,
            "watermark": max(known("watermark"), default=None),
            "birth_us": min(known("birth_us"), default=None),
            # With an earlier time, the new bucket would count staleness again that an old bucket has already
            # counted.
            "settled_at_us": max(known("settled_at_us"), default=None),
            "served_at_us": max(known("served_at_us"), default=None),
            "cost_us": sum(costs) / len(costs) * buckets / self.buckets if costs else None,
        }
        if "virtual_time" in meta:
            meta["virtual_time"] = max(known("virtual_time")) if waiting else 0.0
        return meta


def window_buckets(copy: QueryCopy, specification: Mapping[str, Any]) -> WindowBuckets | ServedWindowBuckets:
    """Return the old buckets of windows in any mode."""
    append = specification["mode"] == WindowMode.APPEND
    return (WindowBuckets if append else ServedWindowBuckets)(copy, specification)


def _select_key_rows(unit: PUnit, stored: Integers, numbers: Integers) -> dict[str, pa.RecordBatch]:
    """Return the key rows and tuples of the groups with these stored numbers, with their new numbers."""
    key_rows, rows = unit.blocks[KEY_BLOCK], unit.blocks["rows"]
    mine = np.isin(key_rows.column("key").to_numpy(), stored)
    owner = rows.column(0).to_numpy()
    places = np.cumsum(mine) - 1
    kept = rows.filter(pa.array(mine[owner]))
    kept = kept.set_column(0, kept.schema.field(0), pa.array(places[owner[mine[owner]]]))
    some = PUnit(unit.kind, {}, {KEY_BLOCK: key_rows.filter(pa.array(mine)), "rows": kept})
    return renumber_key_rows(some, kept, stored, numbers)


def _merge_key_rows(parts: Sequence[_Part]) -> pa.RecordBatch:
    """Return the key rows of all parts, with their places in the merged queue."""
    key_rows = pa.concat_batches([part.key_rows for part in parts])
    if len(parts) == 1:
        return key_rows
    waits = [part.key_rows.column("candidate").to_numpy() != NEVER for part in parts]
    lines = [
        tuple(part.key_rows.column(name).to_numpy()[mask] for name in ("rank", "since_us"))
        for part, mask in zip(parts, waits, strict=True)
    ]
    ranks = key_rows.column("rank").to_numpy().copy()
    ranks[np.concatenate(waits)] = merge_ranks(lines)
    key_rows = set_column(key_rows, "rank", ranks)
    # Groups that are being processed keep the order of their old bucket; groups of different buckets
    # alternate.
    places = []
    for part in parts:
        ready = part.key_rows.column("ready_rank").to_numpy().copy()
        under = part.key_rows.column("service").to_numpy() == READY
        ready[under] = np.argsort(np.argsort(ready[under]))
        places.append(ready)
    ready, under = np.concatenate(places), key_rows.column("service").to_numpy() == READY
    ready[under] = np.argsort(np.argsort(ready[under], kind="stable"), kind="stable") + 1
    key_rows = set_column(key_rows, "ready_rank", ready)
    if "start" in key_rows.schema.names:
        clocks = [float(part.queue["virtual_time"]) for part in parts]
        starts = [
            part.key_rows.column("start").to_numpy() + (max(clocks) - clock)
            for part, clock in zip(parts, clocks, strict=True)
        ]
        key_rows = set_column(key_rows, "start", np.concatenate(starts))
    return key_rows


def _concat(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate parts, some of which may have sums of two words."""
    wide = functools.reduce(schema_like, [part.schema for part in parts])
    return pa.concat_batches([cast_sums(part, wide) for part in parts])


def _shift(rows: pa.RecordBatch, by: int) -> pa.RecordBatch:
    """Return tuples whose numbers of key rows are increased by `by`."""
    return rows.set_column(0, rows.schema.field(0), pa.array(rows.column(0).to_numpy() + by))
