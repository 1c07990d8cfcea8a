"""Divide the stored state of an update queue into a different number of buckets.

A bucket holds the keys whose hashes are in a range (`penstock.state_store.keys.key_words`). So a new bucket
gets its keys from a few neighbouring old buckets. A key's record and waiting tuple stay the same, but its
place in the queue may change. If all waiting keys of a new bucket come from one old bucket, their places stay
the same. Otherwise the queues are merged:

- Keys of one old bucket keep their order.
- Keys that cut the line precede all other keys, as before.
- Keys of different old buckets are ordered by the arrival of their oldest pending update, unless the first
  rule requires a different order. The state stores no other time of a key, so this order is approximate for
  ``fifo`` and for keys that cut the line.
- With weights, the virtual times of the old queues are shifted to a common clock. The time until each key is
  due stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import MAX_UNIT_ROWS, PUnit
from penstock.errors import CorruptDataError
from penstock.operators.key_blocks import KEY_BLOCK, OWNER
from penstock.operators.queues.key_records import is_before_horizon
from penstock.operators.scheduling.abc import FIRST_CUT_RANK
from penstock.operators.update_stream.stream import RESERVED_PREFIX, Integers
from penstock.state_store.keys.key_index import KeyIndex, grow
from penstock.state_store.keys.key_words import KeyCodec, Words, buckets_of

__all__ = ["QueueState", "merge_ranks", "merge_states", "read_state", "source_buckets"]

_ARRIVED, _RANK, _START = (f"{RESERVED_PREFIX}{name}" for name in ("arrived", "rank", "start"))
_COST = f"{RESERVED_PREFIX}cost_us"
_UNIT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class QueueState:
    """The stored state of one bucket of an update queue at one version.

    Attributes
    ----------
    records : pyarrow.Table
        One row for each key: its columns and its stored record.
    waiting : pyarrow.Table
        One row for each waiting key. `places` gives the number of its record.
    places : int64 array
        The row in `records` of each waiting key; ascends.
    hashes : uint64 array
        The hash of each key.
    meta : mapping
        The metadata of the newest unit.
    """

    records: pa.Table
    waiting: pa.Table
    places: Integers
    hashes: Words
    meta: Mapping[str, Any]

    def select(self, bucket: int, buckets: int) -> QueueState:
        """Return the state of the keys of one bucket, if there are `buckets` buckets."""
        mask = buckets_of(self.hashes, buckets) == bucket
        waits = mask[self.places]
        numbers = np.cumsum(mask) - 1
        return replace(
            self,
            records=self.records.filter(pa.array(mask)),
            waiting=self.waiting.filter(pa.array(waits)),
            places=numbers[self.places[waits]],
            hashes=self.hashes[mask],
        )

    def units(self, most_keys: int = MAX_UNIT_ROWS) -> Iterator[PUnit]:
        """Return the state as p-units (at least one) of bounded size and at most `most_keys` keys."""
        count = self.records.num_rows
        size_bytes = self.records.nbytes + self.waiting.nbytes
        step = max(min(most_keys, count * _UNIT_BYTES // max(size_bytes, 1)), 1)
        for begin in range(0, max(count, 1), step):
            first, last = np.searchsorted(self.places, [begin, begin + step]).tolist()
            rows = _one_batch(self.waiting.slice(first, last - first))
            record = pa.array(self.places[first:last] - begin)
            key_records = _one_batch(self.records.slice(begin, step))
            numbered = pa.RecordBatch.from_arrays([record, *rows.columns], [OWNER, *rows.schema.names])
            yield PUnit("snapshot", self.meta, {KEY_BLOCK: key_records, "rows": numbered})


def read_state(units: Iterable[PUnit], key: Sequence[str]) -> QueueState:
    """Return the state in stored units. Later units replace the keys of earlier units.

    Raises
    ------
    CorruptDataError
        If a block or a column is missing, or numbers are impossible.
    """
    index, last = KeyIndex(), np.zeros(0, np.int64)
    records: list[pa.RecordBatch] = []
    waiting: list[pa.RecordBatch] = []
    places: list[Integers] = []
    meta: Mapping[str, Any] = {}
    count = 0
    for unit in units:
        try:
            key_records, rows = unit.blocks[KEY_BLOCK], unit.blocks["rows"]
            keys = KeyCodec([key_records.schema.field(name) for name in key]).encode(
                key_records.select(list(key)).columns
            )
            own = unit.numbers_below("rows", OWNER, key_records.num_rows, ascend=True)
            rows = rows.drop_columns([OWNER])
            rows.schema.field(_RANK), rows.schema.field(_ARRIVED)
        except (KeyError, pa.ArrowInvalid) as error:
            raise CorruptDataError("a p-unit is not the state of an update queue", kind=unit.kind) from error
        numbers = index.find_or_add(keys)
        last = grow(last, len(index))
        last[numbers] = np.arange(count, count + len(numbers))
        records.append(key_records)
        waiting.append(rows)
        places.append(own + count)
        count += len(numbers)
        meta = unit.meta
    mask = np.zeros(count, np.bool_)
    mask[last[: len(index)]] = True
    hashes = np.zeros(count, np.uint64)
    hashes[last[: len(index)]] = index.keys.hashes
    all_places = np.concatenate(places) if places else np.zeros(0, np.int64)
    if "horizon" in meta:
        left = is_before_horizon(_concat(records), meta["horizon"], meta["deleted_horizon"])
        left[all_places] = False
        mask &= ~left
    waits = mask[all_places]
    return QueueState(
        _concat(records).filter(pa.array(mask)),
        _concat(waiting).filter(pa.array(waits)),
        (np.cumsum(mask) - 1)[all_places[waits]],
        hashes[mask],
        meta,
    )


def source_buckets(bucket: int, buckets: int, old_buckets: int) -> range:
    """Return the old buckets whose keys may belong to a new bucket."""
    return range(bucket * old_buckets // buckets, -(-(bucket + 1) * old_buckets // buckets))


def merge_states(states: Sequence[QueueState], cost_factor: float) -> QueueState:
    """Merge parts of old buckets' states, which have no key in common, into the state of one new bucket.

    Parameters
    ----------
    states : sequence of QueueState
        The states to merge, at least one.
    cost_factor : float
        The factor by which measured costs change. A measured cost includes the time for which a bucket waits
        for the other buckets of its task.
    """
    queues = [state for state in states if state.waiting.num_rows]
    waiting, clock = _merge_waiting(queues or states[:1])
    begins = np.cumsum([0, *(state.records.num_rows for state in states)])
    records = _concat([state.records for state in states])
    if _COST in records.column_names:
        records = _set_column(records, _COST, records.column(_COST).to_numpy() * cost_factor)
    places = [state.places + begin for state, begin in zip(states, begins, strict=False)]

    def known(name: str) -> list[Any]:
        return [value for state in states if (value := state.meta.get(name)) is not None]

    costs = known("cost_us")
    meta = {
        **states[0].meta,
        "rows": records.num_rows,
        "waiting": waiting.num_rows,
        "birth_us": min(known("birth_us"), default=None),
        # With an earlier time, staleness that a bucket has already counted would be counted again.
        "settled_at_us": max(known("settled_at_us"), default=None),
        "served_at_us": max(known("served_at_us"), default=None),
        "cost_us": sum(costs) / len(costs) * cost_factor if costs else None,
    }
    # A controller's estimates for an old bucket do not hold for a new bucket.
    meta.pop("controller", None)
    if "horizon" in meta:
        # All buckets get the same clock, so only a bucket that ran no micro-batch can have an older clock.
        meta |= {name: max(known(name)) for name in ("horizon", "deleted_horizon")}
        meta["expired"] = sum(known("expired"))
    if clock is not None:
        meta["virtual_time"] = clock if waiting.num_rows else 0.0
    hashes = np.concatenate([state.hashes for state in states])
    return QueueState(records, waiting, np.concatenate(places), hashes, meta)


def _merge_waiting(queues: Sequence[QueueState]) -> tuple[pa.Table, float | None]:
    """Return the waiting keys of queues with their new places, and the virtual time if there is one."""
    times: list[float] = [queue.meta["virtual_time"] for queue in queues if "virtual_time" in queue.meta]
    clock = max(times, default=None)
    waiting = _concat([queue.waiting for queue in queues])
    if len(queues) == 1:
        return waiting, clock
    ranks = merge_ranks([(_numbers(queue, _RANK), _numbers(queue, _ARRIVED)) for queue in queues])
    waiting = _set_column(waiting, _RANK, ranks)
    if clock is not None:
        starts = [_numbers(queue, _START) + (clock - time) for queue, time in zip(queues, times, strict=True)]
        waiting = _set_column(waiting, _START, np.concatenate(starts))
    return waiting, clock


def merge_ranks(queues: Sequence[tuple[Integers, Integers]]) -> Integers:
    """Return the ranks of keys in the merged queue, given ranks and arrivals in each old queue."""
    cuts, moments, lines = [], [], []
    for ranks, arrived in queues:
        order, cut = np.argsort(ranks), np.count_nonzero(ranks < 0)
        moment, line = np.empty_like(arrived), np.empty_like(arrived)
        for part in (order[:cut], order[cut:]):
            moment[part] = np.maximum.accumulate(arrived[part])
            line[part] = np.arange(len(part))
        cuts.append(ranks < 0)
        moments.append(moment)
        lines.append(line)
    cutting = np.concatenate(cuts)
    # The sort is stable, so ties stay in the order of the queues.
    order = np.lexsort((np.concatenate(lines), np.concatenate(moments)))
    merged = np.empty(len(order), np.int64)
    merged[order] = np.arange(1, len(order) + 1)
    merged[cutting] += FIRST_CUT_RANK
    return merged


def _numbers(state: QueueState, name: str) -> Any:
    return state.waiting.column(name).to_numpy()


def _set_column(table: pa.Table, name: str, values: npt.NDArray[Any]) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), pa.array(values))


def _concat(parts: Sequence[pa.RecordBatch | pa.Table]) -> pa.Table:
    """Concatenate parts. The last part determines whether texts have 32-bit or 64-bit offsets.

    A column that was added later is null in parts written before.
    """
    tables = [pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part for part in parts]
    types = {field.name: field for table in tables for field in table.schema}
    cast = [table.cast(pa.schema([types[name] for name in table.column_names])) for table in tables]
    return pa.concat_tables(cast, promote_options="default")


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
