"""Deletes take matches away from a join as they do from a search of all pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.joins.join import UpdateJoin
from penstock.operators.joins.spec import JoinedStream
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream
from penstock.sql.expression import Expression
from tests.naive_join import Tuple, holds
from tests.property.operators.joins.test_update_join import (
    CONDITIONS,
    LEFT,
    RIGHT,
    content,
    left_of,
    right_of,
)
from tests.streams import through_bytes

MARK = pa.field("deleted", pa.bool_())
SIDES = tuple(
    UpdateStream(side.schema.append(MARK), ("k",), "t", deleted="deleted") for side in (LEFT, RIGHT)
)


class Change(NamedTuple):
    key: int
    time: int
    value: int
    deletes: bool


CHANGES = st.lists(
    st.builds(Change, st.integers(0, 1), st.integers(-4, 4), st.integers(0, 9), st.booleans()), max_size=5
)
BATCHES = st.lists(st.tuples(CHANGES, CHANGES, st.sampled_from(["", "reload", "snapshot"])), max_size=9)


class DeletingModel:
    """Keeps every tuple that was not late until it is deleted, and looks at all pairs."""

    def __init__(self, within: int, delay: int, condition: str | None) -> None:
        self.within, self.delay, self.condition = within, delay, condition
        self.newest: int | None = None
        self.held: tuple[dict[tuple[int, int], Tuple], ...] = ({}, {})
        self.deleted: tuple[dict[int, int], ...] = ({}, {})
        self.order: dict[int, tuple[int, int, int]] = {}
        """The order of each key's last match; a delete takes the place of a tuple that it removes."""
        self.shown: dict[int, tuple[int, int]] = {}
        """The times of the match that a sink holds."""
        self.late = 0

    def run(self, left: Sequence[Change], right: Sequence[Change]) -> list[tuple[Any, ...]]:
        watermark = -1000 if self.newest is None else self.newest - self.delay
        before = tuple(dict(deleted) for deleted in self.deleted)
        for side, batch in enumerate((left, right)):
            for one in batch:
                behind = one.key in self.order and one.time < self.order[one.key][0] - self.within
                if one.time < watermark or behind or one.time <= before[side].get(one.key, -1000):
                    self.late += 1
                elif one.deletes:
                    self.deleted[side][one.key] = max(one.time, self.deleted[side].get(one.key, one.time))
                else:
                    self.held[side].setdefault((one.key, one.time), Tuple(*one[:3]))
            for key, time in list(self.held[side]):
                if time <= self.deleted[side].get(key, -1000):
                    del self.held[side][key, time]
        self.newest = max(
            [one.time for one in (*left, *right)] + ([] if self.newest is None else [self.newest]),
            default=None,
        )
        found: dict[int, tuple[Any, ...]] = {}
        for here in self.held[0].values():
            for other in self.held[1].values():
                order = (max(here.time, other.time), here.time, other.time)
                if here.key != other.key or abs(here.time - other.time) > self.within:
                    continue
                if order > self.order.get(here.key, (-1000, 0, 0)) and holds(self.condition, here, other):
                    self.order[here.key], self.shown[here.key] = order, (here.time, other.time)
                    found[here.key] = (here.key, order[0], here.value, other.value, False)
        for key in list(self.order):
            _, *times = self.order[key]
            after = [
                max(time, deleted.get(key, time)) for time, deleted in zip(times, self.deleted, strict=True)
            ]
            hit = any(
                time <= deleted.get(key, -1000) for time, deleted in zip(times, self.deleted, strict=True)
            )
            self.order[key] = (max(after), after[0], after[1])
            if hit and self.shown.pop(key, None) is not None:
                found[key] = (key, max(after), None, None, True)
        return sorted(found.values(), key=str)


def marked(stream: UpdateStream, batch: Sequence[Change], plain: Any) -> Arrivals | None:
    arrivals = plain([Tuple(*one[:3]) for one in batch])
    if arrivals is None:
        return None
    marks = pa.array([one.deletes for one in batch])
    return Arrivals.from_rows(stream, arrivals.rows.append_column(MARK, marks))


def rows_of(rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
    columns = [rows.column(name).to_pylist() for name in ("k", "t", "c", "b", "deleted")]
    return sorted(zip(*columns, strict=True), key=str)


@given(BATCHES, st.integers(0, 4), st.sampled_from([0, 2, 5, 1000]), CONDITIONS)
def test_deletes_take_away_what_a_sink_holds_and_nothing_older_comes_back(
    batches: list[tuple[list[Change], list[Change], str]], within: int, delay: int, condition: str | None
) -> None:
    parsed = None if condition is None else Expression.parse(condition)
    stream = JoinedStream(SIDES[0], SIDES[1], within, delay, parsed)
    join, model = UpdateJoin(stream, page_rows=2), DeletingModel(within, delay, condition)
    follower = UpdateJoin(stream)
    units: list[Any] = []
    late = 0
    sink: dict[int, tuple[Any, ...]] = {}
    for number, (left, right, step) in enumerate(batches):
        moved = [[one._replace(time=one.time + 2 * number) for one in side] for side in (left, right)]
        held = join.held
        made = join.join(marked(SIDES[0], moved[0], left_of), marked(SIDES[1], moved[1], right_of))
        assert rows_of(made.rows) == model.run(moved[0], moved[1])
        for key, time, *values, deleted in rows_of(made.rows):
            assert time >= sink.get(key, (time,))[0], "a sink takes no older row"
            sink[key] = (time, *values)
            if deleted:
                del sink[key]
        assert sink.keys() == model.shown.keys()
        assert made.rows_in == made.late + made.duplicates + made.freed + join.held - held
        late += made.late
        assert late == model.late
        units.append(through_bytes(join.delta()))
        follower.restore(units[-1:])
        assert content(follower) == content(join)
        if step == "snapshot":
            units = [through_bytes(unit) for unit in join.snapshot()]
        if step:
            join = UpdateJoin(stream, page_rows=3)
            join.restore(units)
            assert content(follower) == content(join)
