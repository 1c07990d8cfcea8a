"""A join of update streams equals the search of all pairs that ever were."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.joins.join import Matched, UpdateJoin
from penstock.operators.joins.spec import JoinedStream
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream
from penstock.sql.expression import Expression
from tests.oracles.naive_join import NaiveJoin, Tuple
from tests.samples.streams import through_bytes

LEFT = UpdateStream(
    pa.schema({"k": pa.int64(), "a": pa.string(), "t": pa.int64(), "c": pa.int64()}), ("k",), "t"
)
RIGHT = UpdateStream(pa.schema({"t": pa.int64(), "b": pa.int64(), "k": pa.int64()}), ("k",), "t")
CONDITIONS = st.sampled_from([None, None, "(b + c) % 3 = 0 AND a <> 'a 1'", "b <> c", "b > 7", "b < 0"])


def joined_stream(within: int, delay: int, condition: str | None = None) -> JoinedStream:
    return JoinedStream(
        LEFT, RIGHT, within, delay, None if condition is None else Expression.parse(condition)
    )


def left_of(tuples: Sequence[Tuple], place: int = 0) -> Arrivals | None:
    if not tuples:
        return None
    values = [one.value for one in tuples]
    columns = [[one.key for one in tuples], [f"a {n}" for n in values], [one.time for one in tuples], values]
    rows = pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=LEFT.schema)
    return Arrivals.from_rows(LEFT, rows, place)


def right_of(tuples: Sequence[Tuple], place: int = 0) -> Arrivals | None:
    if not tuples:
        return None
    columns = [[one.time for one in tuples], [one.value for one in tuples], [one.key for one in tuples]]
    rows = pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=RIGHT.schema)
    return Arrivals.from_rows(RIGHT, rows, place)


def matches_of(rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return (key, time, left value, right value) of each row, sorted."""
    assert rows.schema.names == ["k", "a", "t", "c", "b"]
    k, a, t, c, b = (column.to_pylist() for column in rows.columns)
    assert a == [f"a {n}" for n in c]
    return sorted(zip(k, t, c, b, strict=True))


TUPLES = st.lists(st.builds(Tuple, st.integers(0, 1), st.integers(-3, 4), st.integers(0, 9)), max_size=6)
BATCHES = st.lists(st.tuples(TUPLES, TUPLES), max_size=8)


def moved(batches: list[tuple[list[Tuple], list[Tuple]]]) -> list[tuple[list[Tuple], list[Tuple]]]:
    """Let event time go on with the micro-batches."""

    def later(side: list[Tuple], number: int) -> list[Tuple]:
        return [Tuple(one.key, one.time + 2 * number, one.value) for one in side]

    return [(later(left, number), later(right, number)) for number, (left, right) in enumerate(batches)]


@settings(max_examples=settings().max_examples)
@given(BATCHES, st.integers(0, 4), st.sampled_from([0, 2, 5, 1000]), CONDITIONS, st.booleans())
def test_the_newest_match_of_each_key_is_delivered_and_every_tuple_is_counted(
    batches: list[tuple[list[Tuple], list[Tuple]]],
    within: int,
    delay: int,
    condition: str | None,
    reload: bool,
) -> None:
    stream = joined_stream(within, delay, condition)
    join, model = UpdateJoin(stream, page_rows=2), NaiveJoin(within, delay, condition)
    last: dict[int, int] = {}
    late = duplicates = 0
    units = [through_bytes(unit) for unit in join.snapshot()]
    for left, right in moved(batches):
        held = join.held
        made = join.join(left_of(left), right_of(right))
        expected = model.join(left, right)
        assert matches_of(made.rows) == expected
        for key, time, _, _ in expected:
            assert time >= last.get(key, time), "never an older match after a newer one"
            last[key] = time
        assert made.rows_in == len(left) + len(right)
        assert made.rows_in == made.late + made.duplicates + made.freed + join.held - held
        late, duplicates = late + made.late, duplicates + made.duplicates
        assert late == model.late
        assert duplicates <= model.duplicates, "of those that are held"
        units.append(through_bytes(join.delta()))
        if reload:
            join = UpdateJoin(stream, page_rows=2)
            join.restore(units)
    if condition is not None:
        assert duplicates == model.duplicates


def content(join: UpdateJoin) -> dict[str, Any]:
    """Return the whole state, without the order of its parts."""
    dirty = [join._dirty.copy(), *(side.dirty.copy() for side in join._sides)]
    (unit,) = join.snapshot()
    assert all(
        (one == other).all()
        for one, other in zip(dirty, [join._dirty, *(s.dirty for s in join._sides)], strict=True)
    )
    cells = unit.blocks["cells"].to_pylist()
    found: dict[str, Any] = {"newest": unit.meta["newest"], "rows": unit.meta["rows"]}
    found["cells"] = sorted(map(str, cells))
    for side in ("left", "right"):
        rows = unit.blocks[side].to_pylist()
        found[side] = sorted(str((cells[row.pop("__penstock_cell")]["k"], row)) for row in rows)
    return found


@given(BATCHES, st.integers(0, 6), st.sampled_from([0, 4]), CONDITIONS, st.integers(0, 8))
def test_catching_up_by_deltas_equals_loading_a_snapshot(
    batches: list[tuple[list[Tuple], list[Tuple]]], within: int, delay: int, condition: str | None, at: int
) -> None:
    stream = joined_stream(within, delay, condition)
    join, follower = UpdateJoin(stream, page_rows=3), UpdateJoin(stream)
    units: list[Any] = []
    for number, (left, right) in enumerate(moved(batches)):
        join.join(left_of(left), right_of(right))
        units.append(through_bytes(join.delta()))
        if number == at:
            units = [through_bytes(unit) for unit in join.snapshot()]
            follower = UpdateJoin(stream)
        follower.restore(units if number == at else units[-1:])
        assert content(follower) == content(join)
        for other in (stream, joined_stream(within, 1 << 62, condition)):
            loaded = UpdateJoin(other)
            loaded.restore(units)
            # What was freed stays that, whatever delay there is after a restart.
            assert content(loaded) == content(join)


_BEST = """
select l.k, greatest(l.t, r.t) as t, l.v, r.v from l join r on l.k = r.k and abs(l.t - r.t) <= {within}
qualify row_number() over (partition by l.k order by greatest(l.t, r.t) desc, l.t desc, r.t desc) = 1
order by all
"""


@given(TUPLES, TUPLES, st.integers(0, 9), st.lists(st.integers(0, 16), max_size=4))
def test_however_tuples_are_cut_into_micro_batches_the_last_match_is_the_newest_of_all(
    left: list[Tuple], right: list[Tuple], within: int, cuts: list[int]
) -> None:
    left, right = (list({(one.key, one.time): one for one in side}.values()) for side in (left, right))
    join = UpdateJoin(joined_stream(within, delay=1000))
    last: dict[int, tuple[Any, ...]] = {}
    bounds = [0, *sorted(cuts), 100]
    for begin, end in itertools.pairwise(bounds):
        made = join.join(left_of(left[begin:end]), right_of(right[begin:end]))
        last |= {match[0]: match for match in matches_of(made.rows)}
    with duckdb.connect(config={"threads": 1}) as database:
        for name, side in (("l", left), ("r", right)):
            columns = [pa.array([one[n] for one in side], pa.int64()) for n in range(3)]
            database.register(name, pa.table(columns, names=["k", "t", "v"]))
        assert sorted(last.values()) == database.sql(_BEST.format(within=within)).fetchall()


def _joined(join: UpdateJoin, left: list[Tuple], right: list[Tuple]) -> Matched:
    return join.join(left_of(left), right_of(right))


def test_a_key_that_updates_without_end_holds_its_newest_tuples_only() -> None:
    join = UpdateJoin(joined_stream(within=100_000, delay=10))
    for time in range(0, 50_000, 50):
        batch = [Tuple(key, time + n, 0) for n in range(50) for key in (1, 2)]
        _joined(join, batch, [one for one in batch if one.key == 1])
    assert join.keys == 2
    assert join.held <= 3, "of one side without partners the newest is enough too"


def test_what_is_silent_is_freed_as_time_goes_on() -> None:
    join = UpdateJoin(joined_stream(within=10, delay=5))
    for time in range(0, 15_000, 10):
        _joined(join, [Tuple(time + n, time, 0) for n in range(10)], [Tuple(time, time, 0)])
    assert join.keys <= 40
    assert join.held <= 40
    assert len(join._index) <= 4096
    copy = UpdateJoin(join.joined)
    copy.restore([through_bytes(unit) for unit in join.snapshot()])
    assert content(copy) == content(join)
    assert matches_of(_joined(copy, [], [Tuple(14_998, 14_991, 7)]).rows) == [(14_998, 14_991, 0, 7)]


def test_times_at_the_ends_of_their_range_do_not_overflow() -> None:
    far = (1 << 63) - 1
    join = UpdateJoin(joined_stream(within=2, delay=far))
    assert not _joined(join, [Tuple(1, -far, 0)], [Tuple(1, far, 0)]).rows.num_rows
    made = _joined(join, [Tuple(1, far - 2, 5), Tuple(2, far, 0)], [Tuple(2, -far, 0)])
    assert matches_of(made.rows) == [(1, far, 5, 0)]


def test_a_condition_that_fails_is_an_error() -> None:
    join = UpdateJoin(joined_stream(5, 5, "b * 9223372036854775807 > 0"))
    with pytest.raises(Exception, match="an expression fails"):
        _joined(join, [Tuple(1, 1, 1)], [Tuple(1, 1, 9)])
