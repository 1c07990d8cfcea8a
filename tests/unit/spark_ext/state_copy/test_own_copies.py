"""Own operators whose buckets are rewritten go on as if there had been as many buckets from the start."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock._clock import SimulatedClock
from penstock.checkpointing.files import LocalFiles
from penstock.errors import InvalidUsageError
from penstock.operators.own.state import OperatorState
from penstock.spark_ext.state_copy.own_tables import OwnBuckets
from penstock.state_store.bucket_store import BucketStore, FileId, Pointer, Version
from penstock.state_store.keys.key_words import KeyCodec, buckets_of
from tests.checkpoints.bucket_states import Buckets, restored
from tests.samples.operators import Silence, Totals

pytestmark = pytest.mark.usefixtures("unsynced")

KEY = KeyCodec([pa.field("k", pa.string())])
COPIES = {"key": ["k"], "buckets": 3, "schema": ["k string", "v double"]}
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.float64())])


class Keyed(Totals):
    """Totals whose tables all have the key."""

    def restore(self, tables: Any) -> None:
        super().restore({**tables, "seen": self.seen})

    def snapshot(self) -> dict[str, pa.Table]:
        return {"totals": super().snapshot()["totals"]}


class Renumbered(Keyed):
    """Stores other keys than its input has."""

    def snapshot(self) -> dict[str, pa.Table]:
        table = super().snapshot()["totals"]
        return {"totals": table.set_column(0, "k", pa.array([f"{one}!" for one in table["k"].to_pylist()]))}


def _rows(begin: int) -> pa.Table:
    numbers = range(begin, begin + 60)
    return pa.table({"k": [f"k{n % 17}" for n in numbers], "v": [float(n) for n in numbers]}, SCHEMA)


def _feed(states: list[OperatorState], rows: pa.Table) -> list[str]:
    """Run the rows, each in the bucket of its key; return all results in order."""
    owner = buckets_of(KEY.encode([rows["k"].combine_chunks()]).hashes, len(states))
    results = []
    for bucket, state in enumerate(states):
        part = rows.filter(pa.array(owner == bucket))
        if part.num_rows:
            results += state.operator.run(part, SimulatedClock(0)).to_pylist()
    return sorted(map(repr, results))


def _written(place: Path, operator: penstock.Operator) -> Buckets:
    """Return three buckets after two micro-batches; in the second one, only some of them have rows."""
    buckets = Buckets(place, 3, lambda: OperatorState(operator))
    for rows in (_rows(0), _rows(60).slice(0, 2)):
        _feed(buckets.states, rows)
        buckets.commit()
    return buckets


@pytest.mark.parametrize("buckets", [1, 2, 3, 7])
def test_rewritten_buckets_go_on_with_the_totals_of_their_keys(tmp_path: Path, buckets: int) -> None:
    old = OwnBuckets(_written(tmp_path, Keyed()).copied(), COPIES)
    states = restored((old.rescale(n, buckets) for n in range(buckets)), lambda: OperatorState(Keyed()))
    assert sum(state.rows for state in states) == 17
    serial: dict[str, list[float]] = defaultdict(list)
    for row in [*_rows(0).to_pylist(), *_rows(60).slice(0, 2).to_pylist()]:
        serial[row["k"]].append(row["v"])
    expected = []
    for row in _rows(200).to_pylist():
        serial[row["k"]].append(row["v"])
        expected.append({"k": row["k"], "n": len(serial[row["k"]]), "total": sum(serial[row["k"]])})
    assert _feed(states, _rows(200)) == sorted(map(repr, expected))


def test_rewritten_buckets_are_stored_and_read_again(tmp_path: Path) -> None:
    written = OwnBuckets(_written(tmp_path / "old", Keyed()).copied(), COPIES).rescale(0, 1)
    assert written is not None
    store, file = BucketStore(LocalFiles(tmp_path / "new")), FileId("rewritten")
    store.publish_first(file, written.units())
    read = OperatorState(Keyed())
    store.load(Pointer(Version(1), file), read)
    (state,) = restored([written], lambda: OperatorState(Keyed()))
    assert read.tables["totals"].equals(state.tables["totals"])
    assert read.rows == 17


def test_a_bucket_whose_keys_wait_stays_due(tmp_path: Path) -> None:
    buckets = Buckets(tmp_path, 3, lambda: OperatorState(Silence()))
    _feed(buckets.states, _rows(0))
    buckets.commit()
    old = OwnBuckets(buckets.copied(), COPIES)
    written = old.rescale(0, 1)
    assert written is not None
    assert written.parts[0].meta["waiting"] > 0


@pytest.mark.parametrize(
    ("operator", "fact"), [(Totals(), "lacks key columns"), (Renumbered(), "has keys of other buckets")]
)
def test_tables_that_cannot_be_divided_are_refused(
    tmp_path: Path, operator: penstock.Operator, fact: str
) -> None:
    copied = _written(tmp_path, operator).copied()
    with pytest.raises(InvalidUsageError, match=re.escape(fact)):
        OwnBuckets(copied, COPIES)


@pytest.mark.parametrize(
    ("given", "stored", "divides"),
    [
        ("int", pa.int64(), True),
        ("bigint", pa.float64(), False),
        ("timestamp", pa.timestamp("us", "UTC"), True),
        ("timestamp", pa.timestamp("ns", "UTC"), False),
        ("string", pa.large_string(), True),
    ],
)
def test_one_bucket_is_divided_only_if_its_keys_have_the_types_of_the_input(
    tmp_path: Path, given: str, stored: pa.DataType, divides: bool
) -> None:
    class Stored(Keyed):
        def snapshot(self) -> dict[str, pa.Table]:
            return {"totals": pa.table({"k": pa.array([1, 2]).cast(stored)})}

    buckets = Buckets(tmp_path, 1, lambda: OperatorState(Stored()))
    _feed(buckets.states, _rows(0))
    buckets.commit()
    specification = {"key": ["k"], "buckets": 1, "schema": [f"k {given}", "v double"]}
    if divides:
        OwnBuckets(buckets.copied(), specification)
    else:
        with pytest.raises(InvalidUsageError, match="keys of other types"):
            OwnBuckets(buckets.copied(), specification)
