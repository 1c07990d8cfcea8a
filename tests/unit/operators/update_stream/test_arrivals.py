"""Arrivals keep the counts of conflated tuples, and are sent without loss."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.operators.update_stream.arrivals import Arrivals, conflate
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.border.parcels import from_parcel, to_parcels
from tests.oracles.naive import Update
from tests.samples.streams import ARRIVAL_STREAM, STREAM, arrivals_of, updates_of

BATCH = [Update(1, 5, 10, 50), Update(2, 1, 20, 40), Update(1, 7, 11, 30), Update(1, 6, 12, 20)]


def test_conflating_keeps_newest_count_places_and_first_arrival() -> None:
    out = conflate(ARRIVAL_STREAM, arrivals_of(ARRIVAL_STREAM, BATCH, position=100, part=2))
    assert updates_of(out.rows) == [BATCH[2], BATCH[1]]
    assert out.count.tolist() == [3, 1]
    assert (out.first - (2 << 40)).tolist() == [100, 101]
    assert (out.last - (2 << 40)).tolist() == [102, 101]
    assert out.first_arrival_us is not None
    assert out.first_arrival_us.tolist() == [20, 40]


def test_conflating_twice_is_conflating_once() -> None:
    once = conflate(STREAM, arrivals_of(STREAM, BATCH))
    twice = conflate(STREAM, once)
    assert twice.rows.equals(once.rows)
    for name in ("count", "first", "last"):
        assert np.array_equal(getattr(twice, name), getattr(once, name))


def test_conflating_nothing_is_nothing() -> None:
    assert len(conflate(STREAM, arrivals_of(STREAM, []))) == 0


def test_conflating_takes_keys_that_are_known_already() -> None:
    arrivals = arrivals_of(STREAM, BATCH)
    keys = STREAM.keys(arrivals.rows)
    assert conflate(STREAM, arrivals, keys).rows.equals(conflate(STREAM, arrivals).rows)


@pytest.mark.parametrize("stream", [STREAM, ARRIVAL_STREAM], ids=["plain", "arrival"])
def test_arrivals_come_back_from_a_parcel(stream: UpdateStream) -> None:
    arrivals = conflate(stream, arrivals_of(stream, BATCH, 7, 1))
    (parcel,) = to_parcels([arrivals.to_batch()])
    back = Arrivals.from_batch(from_parcel(parcel), stream.schema)
    assert back.rows.equals(arrivals.rows)
    for name in ("count", "first", "last", "first_arrival_us"):
        assert np.array_equal(getattr(back, name), getattr(arrivals, name))


def test_parts_arrive_one_after_the_other_however_long_they_are() -> None:
    early = arrivals_of(STREAM, [Update(1, 5, 10)], position=(1 << 40) - 1, part=0)
    late = arrivals_of(STREAM, [Update(1, 5, 11)], position=0, part=1)
    for parts in ([early, late], [late, early]):
        assert conflate(STREAM, Arrivals.concat(parts)).rows.column("value").to_pylist() == [11]


def test_the_most_parts_and_positions_fit() -> None:
    last = arrivals_of(STREAM, [Update(1, 5, 11)], position=(1 << 40) - 1, part=(1 << 23) - 1)
    assert last.first.tolist() == [(1 << 63) - 1]


def test_taking_takes_everything_along() -> None:
    arrivals = arrivals_of(ARRIVAL_STREAM, BATCH).take(np.array([2, 0]))
    assert updates_of(arrivals.rows) == [BATCH[2], BATCH[0]]
    assert arrivals.first.tolist() == arrivals.last.tolist() == [2, 0]
    assert arrivals.first_arrival_us is not None
    assert arrivals.first_arrival_us.tolist() == [30, 50]


def test_floating_times_conflate_by_value() -> None:
    stream = UpdateStream(pa.schema([("k", pa.int64()), ("t", pa.float64())]), ("k",), "t")
    times = [-5.0, -1.0, -3.0]
    rows = pa.RecordBatch.from_arrays([pa.array([1, 1, 1]), pa.array(times)], schema=stream.schema)
    assert conflate(stream, Arrivals.from_rows(stream, rows)).rows.column("t").to_pylist() == [-1.0]
