"""Keys leave a join as they leave a search of all pairs, wherever the join is reloaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.joins.join import UpdateJoin
from penstock.operators.joins.spec import JoinedStream
from penstock.sql.expression import Expression
from tests.oracles.naive_join import NaiveJoin, Tuple
from tests.property.operators.joins.test_update_join import (
    CONDITIONS,
    LEFT,
    RIGHT,
    content,
    left_of,
    matches_of,
    right_of,
)
from tests.samples.streams import through_bytes

TUPLES = st.lists(st.builds(Tuple, st.integers(0, 3), st.integers(-6, 4), st.integers(0, 9)), max_size=5)
BATCHES = st.lists(
    st.tuples(TUPLES, TUPLES, st.integers(0, 6), st.sampled_from(["", "reload", "snapshot"])), max_size=9
)


class ExpiringModel(NaiveJoin):
    """A `NaiveJoin` that forgets keys."""

    def __init__(self, within: int, delay: int, condition: str | None, ttl: int) -> None:
        super().__init__(within, delay, condition)
        self.ttl, self.horizon = ttl, -1000
        self.updated: dict[int, int] = {}

    def run(
        self, left: Sequence[Tuple], right: Sequence[Tuple], newest: int
    ) -> tuple[list[tuple[Any, ...]], dict[int, int]]:
        """Return the matches, and the keys that leave with their last times."""
        watermark = -1000 if self.newest is None else self.newest - self.delay
        sides = []
        seen = max((one.time for one in (*left, *right)), default=None)
        for side in (left, right):
            self.late += sum(one.time <= self.horizon for one in side)
            sides.append([one for one in side if one.time > self.horizon])
            for one in sides[-1]:
                behind = one.key in self.last and one.time < self.last[one.key][0] - self.within
                if one.time >= watermark and not behind:
                    self.updated[one.key] = max(one.time, self.updated.get(one.key, one.time))
        found = self.join(*sides)
        if seen is not None:
            self.newest = seen if self.newest is None else max(self.newest, seen)
        self.horizon = max(self.horizon, newest - self.ttl)
        gone = {key: time for key, time in self.updated.items() if time <= self.horizon}
        for key in gone:
            del self.updated[key]
            self.last.pop(key, None)
            for side_of_all in self.sides:
                for place in [place for place in side_of_all if place[0] == key]:
                    del side_of_all[place]
        return found, gone


@given(
    BATCHES, st.integers(0, 4), st.sampled_from([0, 2, 5, 1000]), CONDITIONS, st.sampled_from([0, 2, 5, 20]),
    st.booleans(),
)  # fmt: skip
def test_keys_leave_with_their_tuples_and_matches_also_across_reloads(
    batches: list[tuple[list[Tuple], list[Tuple], int, str]],
    within: int,
    delay: int,
    condition: str | None,
    ttl: int,
    tells_silent: bool,
) -> None:
    parsed = None if condition is None else Expression.parse(condition)
    stream = JoinedStream(LEFT, RIGHT, within, delay, parsed, ttl=ttl, tells_silent=tells_silent)
    join, model = UpdateJoin(stream, page_rows=2), ExpiringModel(within, delay, condition, ttl)
    follower = UpdateJoin(stream)
    units: list[Any] = []
    newest, late = 0, 0
    for number, (left, right, lead, step) in enumerate(batches):
        moved = [[Tuple(one.key, one.time + 2 * number, one.value) for one in side] for side in (left, right)]
        # Another bucket may be ahead.
        newest = max([newest, *(one.time for side in moved for one in side)]) + lead // 3
        held = join.held
        made = join.join(left_of(moved[0]), right_of(moved[1]), newest)
        matches, gone = model.run(moved[0], moved[1], newest)
        assert matches_of(made.rows) == matches
        told = dict(zip(made.expired.keys[0].to_pylist(), made.expired.times.tolist(), strict=True))
        if tells_silent:
            assert told == gone
            assert join.keys == len(model.updated)
        else:
            assert told.items() <= gone.items()
            assert join.keys <= len(model.updated)
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
