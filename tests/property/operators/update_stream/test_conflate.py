"""Conflating gives the same queue wherever and however often it is done."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dataflow import graph
from penstock.dataflow.nodes import PushedScan, topological
from penstock.dataflow.place import fuse, place_p_stream
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scan.newest_per_key import Latest
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.arrivals import Arrivals, conflate
from penstock.operators.update_stream.conflation import Conflation
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.border import packing
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.packing import Packer, PackingLimits
from penstock.spark_ext.border.parcels import ParcelLimits, from_parcel
from tests.oracles.naive import Update, bucket_of, conflated, key_words
from tests.samples.streams import (
    ARRIVAL_STREAM,
    POLICIES,
    STREAM,
    TEXT_STREAM,
    UNION_STREAM,
    WEIGHTED_STREAM,
    arrivals_of,
    assert_same_state,
    order_of,
    rows_of,
    served_of,
    stream_for,
    updates,
    updates_of,
)

NOW_US = 1_000
BATCHES = updates(max_size=24, arrival=st.integers(NOW_US - 30, NOW_US + 5))


def _split(data: st.DataObject, items: list[Any], most: int) -> list[list[Any]]:
    """Return `items` cut into up to `most` + 1 contiguous pieces, some perhaps empty."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(items)), max_size=most)))
    return [items[a:b] for a, b in zip([0, *cuts], [*cuts, len(items)], strict=True)]


def _reduced(data: st.DataObject, stream: UpdateStream, pieces: list[Arrivals]) -> Arrivals:
    """Return `pieces` merged in any order, conflated at any of the steps."""
    pieces = [conflate(stream, piece) if data.draw(st.booleans()) else piece for piece in pieces]
    while len(pieces) > 1:
        first = pieces.pop(data.draw(st.integers(0, len(pieces) - 1)))
        second = pieces.pop(data.draw(st.integers(0, len(pieces) - 1)))
        both = Arrivals.concat([first, second])
        pieces.append(conflate(stream, both) if data.draw(st.booleans()) else both)
    return pieces[0]


@given(st.data(), POLICIES, st.booleans(), st.lists(BATCHES.filter(bool), min_size=1, max_size=3))
def test_any_cut_merged_in_any_order_gives_the_same_queue(
    data: st.DataObject, policy: Policy, arrival: bool, batches: list[list[Update]]
) -> None:
    stream = stream_for(arrival=arrival)
    plain, cut = (UpdateQueue(stream, policy, cost_us=7.0) for _ in range(2))
    for number, batch in enumerate(batches):
        now_us = NOW_US + 20 * number
        pieces = []
        for part, of_part in enumerate(_split(data, batch, 3)):
            position = 0
            for chunk in _split(data, of_part, 2):
                if chunk:
                    pieces.append(arrivals_of(stream, chunk, position, part))
                position += len(chunk)
        reduced = _reduced(data, stream, pieces)
        assert cut.enqueue(reduced, now_us) == plain.enqueue(arrivals_of(stream, batch), now_us)
        assert cut.account_staleness(now_us + 10) == plain.account_staleness(now_us + 10)
        limit = data.draw(st.integers(0, 4))
        assert served_of(cut, limit, now_us + 10) == served_of(plain, limit, now_us + 10)
        assert_same_state(cut, plain)


@given(
    st.data(), POLICIES, st.sampled_from([STREAM, ARRIVAL_STREAM, WEIGHTED_STREAM]),
    st.lists(BATCHES.filter(bool), min_size=1, max_size=3),
)  # fmt: skip
def test_a_reader_leaves_a_queue_what_it_needs(
    data: st.DataObject, policy: Policy, stream: UpdateStream, batches: list[list[Update]]
) -> None:
    columns = {option: name for option in ("arrival", "weight") if (name := getattr(stream, option))}
    written = graph("g").source("in", stream.schema).update_queue("key", "time", policy=policy, **columns)
    fused, _ = fuse(place_p_stream(written.root, ["in"])[0])
    scans = [node.scan for node in topological(fused) if isinstance(node, PushedScan)]
    plain, behind = (UpdateQueue(stream, policy, cost_us=7.0) for _ in range(2))
    for number, batch in enumerate(batches):
        now_us = NOW_US + 20 * number
        plain.enqueue(arrivals_of(stream, batch), now_us)
        read = []
        for part, of_part in enumerate(_split(data, batch, 2)):
            rows = rows_of(stream, of_part)
            if scans and (newest := scans[0].latest_by):
                latest = Latest(newest, stream.schema)
                for chunk in _split(data, list(range(len(of_part))), 2):
                    latest.add(pa.Table.from_batches([rows.take(pa.array(chunk, pa.int64()))]))
                rows = latest.finish()
            read.append(Arrivals.from_rows(stream, rows, 0, part))
        behind.enqueue(Arrivals.concat(read), now_us)
        assert behind.account_staleness(now_us + 10) == plain.account_staleness(now_us + 10)
        limit = data.draw(st.integers(0, 4))
        assert served_of(behind, limit, now_us + 10) == served_of(plain, limit, now_us + 10)
        assert_same_state(behind, plain)


@given(BATCHES.filter(bool), st.booleans())
def test_conflating_equals_a_dictionary(batch: list[Update], arrival: bool) -> None:
    stream = stream_for(arrival=arrival)
    groups = conflated(batch)
    out = conflate(stream, arrivals_of(stream, batch))
    newest = [
        g.newest if arrival else Update(g.newest.key, g.newest.time, g.newest.value) for g in groups.values()
    ]
    assert updates_of(out.rows) == newest
    assert out.count.tolist() == [g.count for g in groups.values()]
    assert out.first.tolist() == [g.first for g in groups.values()]
    assert out.last.tolist() == [g.last for g in groups.values()]
    if arrival:
        assert out.first_arrival_us is not None
        assert out.first_arrival_us.tolist() == [g.first_arrival for g in groups.values()]
    else:
        assert out.first_arrival_us is None


@given(
    st.data(), st.sampled_from([STREAM, ARRIVAL_STREAM, WEIGHTED_STREAM, UNION_STREAM, TEXT_STREAM]),
    BATCHES.filter(bool), st.sampled_from([0, 100, 1 << 20]),
)  # fmt: skip
def test_conflating_as_rows_come_equals_conflating_all(
    data: st.DataObject, stream: UpdateStream, batch: list[Update], held_bytes: int
) -> None:
    conflation = Conflation(stream, 3, held_bytes)
    expected = conflate(stream, arrivals_of(stream, batch, 7, part=3))
    for _ in range(2):
        position = 7
        for chunk in _split(data, batch, 4):
            if chunk:
                conflation.add(rows_of(stream, chunk), position)
            position += len(chunk)
        assert (conflation.rows_seen, len(conflation)) == (len(batch), len(expected))
        assert conflation.finish().to_batch() == expected.to_batch()


def test_conflating_as_rows_come_has_room_for_many_keys() -> None:
    many = [Update(7 * i % 5003, i % 11, i) for i in range(9_000)]
    conflation = Conflation(STREAM, held_bytes=100_000)
    for begin in range(0, len(many), 3_000):
        conflation.add(rows_of(STREAM, many[begin : begin + 3_000]), begin)
    assert conflation.finish().to_batch() == conflate(STREAM, arrivals_of(STREAM, many)).to_batch()


class _Context:
    """Stands for Spark's ``TaskContext`` of one partition."""

    partition = 0

    @classmethod
    def get(cls) -> _Context:
        return cls()

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self.partition

    def getLocalProperty(self, name: str) -> str:  # noqa: N802 - Spark's name
        return f"the {name}"


LIMITS: dict[str, Any] = {
    "chunk_rows": 3,
    "chunk_bytes": 150,
    "held_bytes": 200,
    "remembered_rows": 2,
    "parcels": ParcelLimits(parcel_bytes=120),
}


@pytest.mark.parametrize("combine", [True, False, None])
@given(
    data=st.data(),
    policy=POLICIES,
    arrival=st.booleans(),
    batch=BATCHES,
    limited=st.sets(st.sampled_from(list(LIMITS))),
)
def test_the_packer_changes_nothing_for_the_operator(
    combine: bool | None,
    data: st.DataObject,
    policy: Policy,
    arrival: bool,
    batch: list[Update],
    limited: set[str],
) -> None:
    stream = stream_for(arrival=arrival)
    buckets = 3
    limits = PackingLimits(**{name: LIMITS[name] for name in limited})
    packer = Packer(stream, buckets, "error", combine, limits=limits)
    received: dict[int, list[Arrivals]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "TaskContext", _Context)
        patch.setattr(packing, "_CHOICES", {})
        for part, of_part in enumerate(_split(data, batch, 2)):
            patch.setattr(_Context, "partition", part)
            chunks = [rows_of(stream, chunk) for chunk in _split(data, of_part, 3)]
            for row in packer(chunks):
                (values,) = row.to_pylist()
                assert values["dropped"] == 0
                parcel = from_parcel(values["payload"])
                bucket = bucket_labels(buckets).index(values["bucket"])
                received.setdefault(bucket, []).append(Arrivals.from_batch(parcel, stream.schema))
    for bucket in range(buckets):
        mine = [u for u in batch if bucket_of(key_words(u.key), buckets) == bucket]
        parts = data.draw(st.permutations(received.pop(bucket, [])))
        assert bool(parts) == bool(mine)
        if not mine:
            continue
        packed, plain = (UpdateQueue(stream, policy, cost_us=7.0) for _ in range(2))
        assert packed.enqueue(Arrivals.concat(parts), NOW_US) == plain.enqueue(
            arrivals_of(stream, mine), NOW_US
        )
        assert packed.account_staleness(NOW_US + 10) == plain.account_staleness(NOW_US + 10)
        assert order_of(packed) == order_of(plain)
        assert_same_state(packed, plain)
    assert not received


@given(BATCHES, st.sampled_from([0.0, 0.5, 1.0]))
def test_combining_only_where_it_pays_keeps_every_count(batch: list[Update], most_left: float) -> None:
    stream = stream_for(arrival=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_CHOICES", {})
        packer = Packer(stream, 1, "error", None, most_left=most_left, limits=PackingLimits(chunk_rows=4))
        rows = list(packer([rows_of(stream, [u]) for u in batch]))
    sent = [Arrivals.from_batch(from_parcel(row.column("payload")[0].as_py()), stream.schema) for row in rows]
    assert sum(int(parcel.count.sum()) for parcel in sent) == len(batch)
    if most_left == 1.0:
        assert len(sent) <= 1
