"""The join of two update streams: the newest match of each key within a time interval (UpStream §3.2).

Two tuples of equal key match if their times differ by at most ``within``, inclusive, and the condition is
true. Matches are ordered by the greater of their two times, then by the left time, then by the right time.
After a micro-batch the newest match of each key is delivered if it is newer than the key's previous match.

The state has the times of each key's last match, and the tuples of each side that a future match may need. In
UpStream no tuples are out of order. Here a tuple is *late* if it is older than the watermark, or more than
``within`` older than the last match of its key. The watermark is the newest time of earlier micro-batches
less ``delay``. With a time to live, a tuple is also late if it is not newer than the horizon, because its key
may have left the state (`penstock.operators.joins.key_lives`). Late tuples are dropped. If several tuples
have the same side, key and time, the first is kept. Deletes remove tuples and matches
(`penstock.operators.joins.key_deletes`).

Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.checkpointing import MAX_UNIT_ROWS, PUnit
from penstock.checkpointing.fields import Fields
from penstock.operators.joins.dropped import dropped_in
from penstock.operators.joins.join_kernels import NOBODY, find_pairs, mark_old, unlink_useless
from penstock.operators.joins.join_side import JoinSide
from penstock.operators.joins.key_deletes import KeyDeletes
from penstock.operators.joins.key_lives import KeyLives
from penstock.operators.joins.matches import Matched, Pairs
from penstock.operators.joins.spec import SIDES, JoinedStream
from penstock.operators.key_blocks import KEY_BLOCK, OWNER
from penstock.operators.queues.expiry import Expired
from penstock.operators.queues.pages import PAGE_ROWS
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.dropped import DroppedTuples
from penstock.operators.update_stream.stream import RESERVED_PREFIX, Integers, concat
from penstock.state_store.keys.key_index import KeyIndex, grow
from penstock.units import FOREVER, NEVER

__all__ = ["Matched", "UpdateJoin"]

_MAX_PAIRS_PER_ROUND: Final = 1 << 18  # pairs evaluated together; each key contributes at least one pair
_MIN_DEAD_KEYS_TO_REBUILD: Final = 1024  # the index is rebuilt only if more keys than this have no state

_MATCHED: Final = (f"{RESERVED_PREFIX}left", f"{RESERVED_PREFIX}right")
_LAST: Final = f"{RESERVED_PREFIX}last"


class UpdateJoin:
    """A join of update streams. In Spark, each instance is one bucket of the whole join.

    A join is not thread-safe. One task at a time calls `join`, then `delta`.

    Parameters
    ----------
    joined : JoinedStream
        The sides, the interval, the condition.
    page_rows : int
        The number of locations in a page of the paged memory.
    """

    def __init__(self, joined: JoinedStream, *, page_rows: int = PAGE_ROWS) -> None:
        self.joined = joined
        self.newest: int | None = None
        self.keys = 0
        self._index = KeyIndex()
        self._sides = [JoinSide(stream, page_rows) for stream in (joined.left, joined.right)]
        self._lives = None if joined.ttl is None else KeyLives()
        self._deletes = KeyDeletes() if joined.has_deletes else None
        self.dropped: tuple[list[DroppedTuples], list[DroppedTuples]] | None = None  # set by the owner
        self._within = np.uint64(joined.within)
        # Per key: the times of the last match, and whether the match must still be stored.
        self._matched = [np.zeros(0, np.int64), np.zeros(0, np.int64)]
        self._dirty = np.zeros(0, np.bool_)

    @property
    def held(self) -> int:
        """Number of tuples that both sides hold."""
        return sum(map(len, self._sides))

    @property
    def watermark(self) -> int | None:
        """The time before which tuples are late; None before the first tuple."""
        return self._watermark(self.joined.delay)

    def _watermark(self, delay: int) -> int | None:
        return None if self.newest is None else _clip(self.newest - delay)

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the state in bytes."""
        matched = sum(array.nbytes for array in (*self._matched, self._dirty))
        return matched + self._index.size_bytes + sum(side.size_bytes for side in self._sides)

    def close(self) -> None:
        """Do nothing, because the state is only in memory."""

    def join(self, left: Arrivals | None, right: Arrivals | None, newest: int | None = None) -> Matched:
        """Add the tuples of a micro-batch, in order of arrival, and return the new matches.

        Parameters
        ----------
        left, right : Arrivals, optional
            The tuples of each side.
        newest : int, optional
            The newest time of the micro-batch over all buckets; for a time to live.

        Raises
        ------
        InvalidUsageError
            If the condition fails.
        """
        watermark = self.watermark
        counts = np.zeros(4, np.int64)
        touched, deleted = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for place, arrivals in enumerate((left, right)):
            if arrivals is not None and len(arrivals):
                new, gone = self._let_in(place, arrivals, watermark, counts)
                touched.append(new)
                deleted.append(gone)
        rows = self._newest_matches(np.unique(np.concatenate(touched)))
        rows = self._take_away(np.unique(np.concatenate(deleted)), self.joined.to_results(rows))
        rows_in, late, duplicates, freed = counts.tolist()
        held = self.held
        expired = self._expire(newest)
        freed += held - self.held + self._free(self.joined.delay)
        for side in self._sides:
            side.fresh[:] = False
            side.compact()
        return Matched(rows, rows_in, late, duplicates, freed, expired)

    def _let_in(
        self, place: int, arrivals: Arrivals, watermark: int | None, counts: Integers
    ) -> tuple[Integers, Integers]:
        """Add the tuples that are neither late nor duplicates; return their keys, and the deleted keys."""
        side, stream = self._sides[place], self._sides[place].stream
        times = stream.times(arrivals.rows)
        ids = self._index.find_or_add(stream.keys(arrivals.rows))
        self._make_room()
        newest = int(times.max())
        self.newest = newest if self.newest is None else max(self.newest, newest)
        late = mark_old(ids, times, self._matched[0], self._matched[1], self._within)
        if watermark is not None:
            late |= times < watermark
        deletes, deleted_until = np.zeros(len(ids), np.bool_), None
        if self._lives is not None and self._lives.horizon != NEVER:
            late |= times <= self._lives.horizon
        if self._deletes is not None and stream.deleted:
            deleted_until = self._deletes.sides[place][ids]
            late |= times <= deleted_until
            deletes = arrivals.rows.column(stream.deleted).to_numpy(zero_copy_only=False) & ~late
        if self._lives is not None:
            self._lives.note(ids[~late], times[~late])
        # In time order, tuples are inserted at the heads of lists. If times are equal, the first one is kept.
        order = np.lexsort((arrivals.last, times))
        order = order[~(late | deletes)[order]]
        payload = arrivals.rows.select(side.payload.names).take(pa.array(order))
        new = side.put(ids[order], times[order], payload)
        if self.dropped is not None:
            matched = np.maximum(self._matched[0][ids], self._matched[1][ids])
            bounds = (deleted_until, self.joined.within, watermark, self._lives)
            self.dropped[place].extend(dropped_in(arrivals.rows, late, order[~new], matched, *bounds))
        gone, removed = np.unique(ids[deletes]), 0
        if self._deletes is not None and len(gone):
            deleted = self._deletes.sides[place]
            np.maximum.at(deleted, ids[deletes], times[deletes])
            removed = side.delete(gone, deleted[gone])
            self._dirty[gone] = True
        counts += (len(arrivals), int(late.sum()), int((~new).sum()), int(deletes.sum()) + removed)
        return ids[order[new]], gone

    def _take_away(self, ids: Integers, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Add a retraction of each last match that lost a tuple, unless a newer match replaces it."""
        if self._deletes is None or not len(ids):
            return rows
        taken = self._deletes.take_away(ids, self._matched)
        times = np.maximum(*(matched[taken] for matched in self._matched))
        keys = self.joined.left.codec.decode(self._index.words, self._index.starts(taken))
        return concat([rows, self.joined.deletes(keys, times)])

    def _make_room(self) -> None:
        size, needed = len(self._dirty), len(self._index)
        if needed <= size:
            return
        self._dirty = grow(self._dirty, needed)
        for number, array in enumerate(self._matched):
            larger = grow(array, len(self._dirty))
            larger[size:] = NEVER
            self._matched[number] = larger
        for side in self._sides:
            side.reserve(len(self._dirty))
        for part in self._extras:
            part.reserve(len(self._dirty))

    @property
    def _extras(self) -> list[KeyLives | KeyDeletes]:
        """The optional parts of the state of keys: deletes and times to live."""
        return [part for part in (self._lives, self._deletes) if part is not None]

    @property
    def _times(self) -> dict[str, Integers]:
        """All stored arrays that are indexed by key number."""
        arrays = dict(zip(_MATCHED, self._matched, strict=True))
        if self._lives is not None:
            arrays[_LAST] = self._lives.last
        if self._deletes is not None:
            arrays |= {
                f"{RESERVED_PREFIX}{name}": array
                for name, array in zip(KeyDeletes.names, self._deletes.arrays, strict=True)
            }
        return arrays

    def _newest_matches(self, ids: Integers) -> pa.RecordBatch:
        """Return and record the newest match of each key that has a newer match than before."""
        left, right = self._sides
        pairs = Pairs.start(ids, left.head[ids], right.head[ids])
        limit = 1
        batches: list[pa.RecordBatch] = []
        while len(pairs.ids):
            bounds = np.zeros(len(pairs.ids) + 1, np.int64)
            out = [np.empty(limit * len(pairs.ids), np.int64) for _ in SIDES]
            find_pairs(
                pairs.ids, pairs.at_left, pairs.at_right, pairs.partner,
                left.after, right.after, left.times, right.times, left.fresh, right.fresh,
                self._matched[0], self._matched[1], self._within, limit, bounds, out[0], out[1],
            )  # fmt: skip
            found = [places[: bounds[-1]] for places in out]
            owners = np.repeat(np.arange(len(pairs.ids)), np.diff(bounds))
            rows = self._rows_of(pairs.ids[owners], *found)
            true = self.joined.holds(rows).to_numpy(zero_copy_only=False)
            # Pairs come newest first: take each key's first pair for which the condition holds.
            which, first = np.unique(owners[true], return_index=True)
            best = np.flatnonzero(true)[first]
            for matched, side, places in zip(self._matched, self._sides, found, strict=True):
                matched[pairs.ids[which]] = side.times[places[best]]
            self._dirty[pairs.ids[which]] = True
            if self._deletes is not None:
                self._deletes.away[pairs.ids[which]] = 0
            if len(best):
                batches.append(rows.take(pa.array(best)))
            pairs = pairs.remove(which)
            limit = max(min(4 * limit, _MAX_PAIRS_PER_ROUND // max(len(pairs.ids), 1)), 1)
        return concat(batches) if batches else pa.RecordBatch.from_pylist([], self.joined.schema)

    def _rows_of(self, ids: Integers, left: Integers, right: Integers) -> pa.RecordBatch:
        keys = self.joined.left.codec.decode(self._index.words, self._index.starts(ids))
        here, there = (
            side.rows.take(places) for side, places in zip(self._sides, (left, right), strict=True)
        )
        return self.joined.match(keys, here, there)

    def _expire(self, newest: int | None) -> Expired:
        """Remove keys that had no tuple for their time to live."""
        if self._lives is None or self.joined.ttl is None:
            return self._let_go(np.zeros(0, np.int64))
        for ids in self._lives.advance_horizon(newest, self.joined.ttl):
            self._dirty[ids] = True
        gone = self._lives.find_gone()
        self._lives.expired += len(gone)
        return self._let_go(gone)

    def _let_go(self, ids: Integers) -> Expired:
        """Remove keys from the state, and return them."""
        if self._lives is not None:
            # Sort by hash: key numbers depend on what this working copy loaded, hashes do not.
            ids = ids[np.lexsort((self._index.keys.hashes[ids], self._lives.last[ids]))]
        keys = self.joined.left.codec.decode(self._index.words, self._index.starts(ids))
        if self._lives is None or not len(ids):
            return Expired(keys, ids, np.zeros(0, np.bool_))
        deleted = np.zeros(len(ids), np.int64) if self._deletes is None else self._deletes.away[ids]
        expired = Expired(keys, self._lives.last[ids], deleted != 0)
        leaves = np.zeros(len(self._dirty), np.bool_)
        leaves[ids] = True
        for side in self._sides:
            places = np.flatnonzero(side.used)
            side.free(places[leaves[side.owner[places]]])
            side.head[ids] = NOBODY
        self._forget(ids)
        # The next delta need not store these keys: the stored horizon shows which keys have left.
        self._dirty[ids] = False
        return expired

    def _free(self, delay: int) -> int:
        """Free the tuples and keys that no future match needs; return the number of tuples."""
        watermark = self._watermark(delay)
        keys = len(self._index)
        within = self.joined.within
        oldest = NEVER if watermark is None else _clip(watermark - within)
        reach = NEVER if watermark is None else _clip(watermark + within)
        count = 0
        for side in self._sides:
            freed = np.empty(len(side), np.int64)
            found = unlink_useless(
                side.head[:keys], side.after, side.times, self._matched[0][:keys], self._matched[1][:keys],
                self._within, oldest, reach, self.joined.condition is None, freed,
            )  # fmt: skip
            side.free(freed[:found])
            count += found
        newest = np.maximum(*(column[:keys] for column in self._matched))
        alive = newest != NEVER if watermark is None else newest >= max(watermark, NEVER + 1)
        for side in self._sides:
            alive |= side.head[:keys] != NOBODY
        if self._lives is not None and self.joined.tells_silent:
            alive |= self._lives.last[:keys] != NEVER
        if self._deletes is not None:
            # Later deletes may retract any match. Deletes can make tuples after the watermark late.
            alive |= (newest != NEVER) & (self._deletes.away[:keys] == 0)
            deleted = np.maximum(*self._deletes.sides)[:keys]
            alive |= deleted >= max(oldest, NEVER + 1)
        self.keys = int(np.count_nonzero(alive))
        if keys - self.keys > max(self.keys, _MIN_DEAD_KEYS_TO_REBUILD):
            self._keep(np.flatnonzero(alive | self._dirty[:keys]))
        else:
            # The last match of a key without held tuples has no effect any more.
            dead = np.flatnonzero(~alive)
            self._forget(dead)
        return count

    def _forget(self, ids: Integers) -> None:
        """Reset keys without held tuples to the state of new keys."""
        if self._deletes is None:
            self._dirty[ids] = False
        for times in self._matched if self._lives is None else (*self._matched, self._lives.last):
            times[ids] = NEVER
        if self._deletes is not None:
            self._deletes.forget(ids)

    def _keep(self, ids: Integers) -> None:
        columns = self.joined.left.codec.decode(self._index.words, self._index.starts(ids))
        number = np.full(len(self._index), NOBODY, np.int64)
        number[ids] = np.arange(len(ids))
        self._index = KeyIndex()
        self._index.find_or_add(self.joined.left.codec.encode(columns))
        self._matched = [matched[ids] for matched in self._matched]
        self._dirty = self._dirty[ids]
        for part in self._extras:
            part.keep(ids)
        for side in self._sides:
            side.head = side.head[ids]
            places = np.flatnonzero(side.used)
            side.owner[places] = number[side.owner[places]]

    def delta(self) -> PUnit:
        """Return the changes since the last call, to be stored.

        Freed tuples are not stored, because they can be computed from the newest time, the delay and the last
        matches.
        """
        dirty = [np.flatnonzero(side.dirty) for side in self._sides]
        changed = self._dirty[: len(self._index)].copy()
        for side, places in zip(self._sides, dirty, strict=True):
            changed[side.owner[places]] = True
        self._mark_stored()
        return self._unit("delta", np.flatnonzero(changed), dirty)

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state, in p-units of at most `MAX_UNIT_ROWS` keys."""
        alive = np.maximum(*(column[: len(self._index)] for column in self._matched)) != NEVER
        for side in self._sides:
            alive |= side.head[: len(self._index)] != NOBODY
        if self._lives is not None:
            alive |= self._lives.last[: len(self._index)] != NEVER
        if self._deletes is not None:
            alive |= np.maximum(*self._deletes.sides)[: len(self._index)] != NEVER
        ids = np.flatnonzero(alive)
        places = [np.flatnonzero(side.used) for side in self._sides]
        owners = [side.owner[some] for side, some in zip(self._sides, places, strict=True)]
        units = []
        for begin in range(0, max(len(ids), 1), MAX_UNIT_ROWS):
            part = ids[begin : begin + MAX_UNIT_ROWS]
            held = [
                some[(owner >= part[0]) & (owner <= part[-1])] if len(part) else some[:0]
                for some, owner in zip(places, owners, strict=True)
            ]
            units.append(self._unit("snapshot", part, held))
        # Copy now, because the join changes while the units are written.
        return iter(units)

    def _unit(self, kind: str, ids: Integers, places: list[Integers]) -> PUnit:
        keys = self.joined.left.codec.decode(self._index.words, self._index.starts(ids))
        times = {name: array[ids] for name, array in self._times.items()}
        keys_block = [*keys, *(pa.array(values) for values in times.values())]
        blocks = {
            KEY_BLOCK: pa.RecordBatch.from_arrays(keys_block, [*self.joined.left.key, *times]),
        }
        for name, side, some in zip(SIDES, self._sides, places, strict=True):
            payload = side.rows.take(some)
            owner = pa.array(np.searchsorted(ids, side.owner[some]))
            blocks[name] = pa.RecordBatch.from_arrays(
                [owner, *payload.columns], [OWNER, *payload.schema.names]
            )
        # A restart may change the delay, but earlier tuples were freed according to the stored delay.
        meta = {"rows": self.keys, "held": self.held, "newest": self.newest, "delay": self.joined.delay}
        return PUnit(kind, meta if self._lives is None else meta | self._lives.meta, blocks)

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply stored `units` in order, to an empty join or to an older version."""
        fields: Fields | None = None
        for unit in units:
            self._apply(unit)
            fields = unit.fields
            if self._lives is not None:
                # Keys that return later start as new keys.
                self._lives.restore(fields)
                self._let_go(self._lives.find_gone())
        if fields is None:
            return
        self.newest = fields.number_or_none("newest")
        self._free(fields.count("delay") if fields.has("delay") else self.joined.delay)
        self._mark_stored()

    def _apply(self, unit: PUnit) -> None:
        width = len(self.joined.left.key)
        keys = [self.joined.left.schema.field(name) for name in self.joined.left.key]
        fields = [*keys, *(pa.field(name, pa.int64()) for name in self._times)]
        keys_block = unit.block(KEY_BLOCK, pa.schema([field.with_nullable(False) for field in fields]))
        if not keys_block.num_rows:
            return
        ids = self._index.find_or_add(self.joined.left.codec.encode(keys_block.columns[:width]))
        self._make_room()
        for array, column in zip(self._times.values(), keys_block.columns[width:], strict=True):
            array[ids] = column.to_numpy()
        for name, side in zip(SIDES, self._sides, strict=True):
            time = side.stream.time
            stored = [field.with_nullable(field.nullable and field.name != time) for field in side.payload]
            schema = pa.schema([pa.field(OWNER, pa.int64(), nullable=False), *stored])
            block = unit.block(name, schema, side.stream.may_add)
            payload = pa.RecordBatch.from_arrays(block.columns[1:], schema=side.payload)
            times = side.stream.times(payload)
            order = np.argsort(times, kind="stable")
            owners = ids[unit.numbers_below(name, OWNER, len(ids))]
            side.put(owners[order], times[order], payload.take(pa.array(order)))
        if self._deletes is not None:
            for side, deleted in zip(self._sides, self._deletes.sides, strict=True):
                side.delete(ids, deleted[ids])

    def _mark_stored(self) -> None:
        self._dirty[:] = False
        for side in self._sides:
            side.dirty[:] = side.fresh[:] = False


def _clip(time: int) -> int:
    return max(min(time, FOREVER), NEVER)
