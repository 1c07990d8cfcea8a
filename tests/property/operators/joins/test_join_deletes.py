"""Deletes take matches away from a join as they do from a search of all pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.joins.join import UpdateJoin
from penstock.operators.joins.spec import JoinedStream
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream
from penstock.sql.expression import Expression
from tests.oracles.naive_join import Change, DeletingJoin, Tuple
from tests.property.operators.joins.test_update_join import (
    CONDITIONS,
    LEFT,
    RIGHT,
    content,
    left_of,
    right_of,
)
from tests.samples.streams import through_bytes

MARK = pa.field("deleted", pa.bool_())
SIDES = tuple(
    UpdateStream(side.schema.append(MARK), ("k",), "t", deleted="deleted") for side in (LEFT, RIGHT)
)


CHANGES = st.lists(
    st.builds(Change, st.integers(0, 1), st.integers(-4, 4), st.integers(0, 9), st.booleans()), max_size=5
)
BATCHES = st.lists(st.tuples(CHANGES, CHANGES, st.sampled_from(["", "reload", "snapshot"])), max_size=9)


def marked(stream: UpdateStream, batch: Sequence[Change], plain: Any) -> Arrivals | None:
    arrivals = plain([Tuple(*one[:3]) for one in batch])
    if arrivals is None:
        return None
    marks = pa.array([one.deletes for one in batch])
    return Arrivals.from_rows(stream, arrivals.rows.append_column(MARK, marks))


def rows_of(rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
    columns = [rows.column(name).to_pylist() for name in ("k", "t", "c", "b", "deleted")]
    return sorted(zip(*columns, strict=True), key=str)


def dropped_in(join: UpdateJoin) -> list[tuple[Any, ...]]:
    """Return side, key, time, value, mark, reason and first time in time of each dropped tuple."""
    assert join.dropped is not None
    return [
        (side, row["k"], row["t"], row["cb"[side]], row["deleted"], one.reason,
         None if one.missed is None else int(one.missed[at]))
        for side, dropped in enumerate(join.dropped)
        for one in dropped
        for at, row in enumerate(one.rows.to_pylist())
    ]  # fmt: skip


@given(BATCHES, st.integers(0, 4), st.sampled_from([0, 2, 5, 1000]), CONDITIONS)
def test_deletes_take_away_what_a_sink_holds_and_nothing_older_comes_back(
    batches: list[tuple[list[Change], list[Change], str]], within: int, delay: int, condition: str | None
) -> None:
    parsed = None if condition is None else Expression.parse(condition)
    stream = JoinedStream(SIDES[0], SIDES[1], within, delay, parsed)
    join, model = UpdateJoin(stream, page_rows=2), DeletingJoin(within, delay, condition)
    follower = UpdateJoin(stream)
    units: list[Any] = []
    late = 0
    sink: dict[int, tuple[Any, ...]] = {}
    for number, (left, right, step) in enumerate(batches):
        moved = [[one._replace(time=one.time + 2 * number) for one in side] for side in (left, right)]
        held = join.held
        join.dropped, model.dropped = ([], []), []
        made = join.join(marked(SIDES[0], moved[0], left_of), marked(SIDES[1], moved[1], right_of))
        assert rows_of(made.rows) == model.join(moved[0], moved[1])
        # Without a condition, the join frees tuples that it does not need, and finds no duplicates of them.
        reasons = ("late",) if condition is None else ("late", "duplicate")
        assert Counter(one for one in dropped_in(join) if one[-2] in reasons) == Counter(
            (side, *change, reason, missed)
            for side, change, reason, missed in model.dropped
            if reason in reasons
        )
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
