"""Every working copy, and the state of every operator but windows, passes the tests of `penstock.testing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.operators.joins.join import UpdateJoin
from penstock.operators.own.state import OperatorState
from penstock.operators.queues.abc import KeyedQueue
from penstock.operators.queues.adaptive_queue import AdaptiveQueue, Semantics
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.stream import UpdateStream
from penstock.procedures.in_process.open_tables import open_tables
from penstock.procedures.partitions.partitioned_tables import State as Tables
from penstock.state_store.bucket_store import State
from penstock.state_store.tables.working_copy import WorkingCopy, table_maker
from penstock.testing import StateTests
from tests.checkpoints.states import DictState, RowState
from tests.oracles.naive import Update
from tests.oracles.naive_join import Tuple
from tests.property.operators.joins.test_update_join import content as joined
from tests.property.operators.joins.test_update_join import joined_stream, left_of, right_of
from tests.property.procedures.partitions.test_partitions import BANK
from tests.samples.operators import Totals
from tests.samples.streams import STREAM, UNION_STREAM, WEIGHTED_STREAM, enqueue, served_of

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


class TestDictState(StateTests):
    @pytest.fixture
    def new(self) -> Callable[[], State]:
        return DictState

    def change(self, state: DictState, step: int) -> None:
        for key in range(step, step + 5):
            state[key] = bytes([step] * 10) if key % 4 else None

    def content(self, state: DictState) -> object:
        return dict(state.content)


class TestRowState(StateTests):
    @pytest.fixture
    def new(self) -> Callable[[], State]:
        return partial(RowState, SCHEMA, part=3)

    def change(self, state: RowState, step: int) -> None:
        state.put(pa.record_batch([range(step, step + 5), [f"{step}"] * 5], schema=SCHEMA))
        state.delete([step + 2])

    def content(self, state: RowState) -> object:
        return dict(state.content)


def waiting(queue: KeyedQueue) -> object:
    """Return the stored content, independent of the order of keys and the size of ranks."""
    keys: dict[Any, Any] = {}
    for unit in queue.snapshot():
        stored = unit.blocks["cells"].to_pylist()
        keys |= {one["key"]: [one] for one in stored}
        for row in unit.blocks["rows"].to_pylist():
            row.pop("__penstock_rank")
            keys[stored[row.pop("__penstock_cell")]["key"]].append(row)
        if "appended" in unit.blocks:
            keys["appended"] = unit.blocks["appended"].to_pylist()
    return keys


class QueueTests(StateTests):
    def change(self, state: Any, step: int) -> None:
        enqueue(state, [Update(key, step + 1, key) for key in range(step, step + 6)], 10 * step)
        served_of(state, 3, 10 * step + 5)

    def content(self, state: Any) -> object:
        return waiting(state)


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize(
    "stream", [STREAM, WEIGHTED_STREAM, UNION_STREAM], ids=("plain", "weighted", "union")
)
class TestUpdateQueue(QueueTests):
    @pytest.fixture
    def new(self, policy: Policy, stream: UpdateStream) -> Callable[[], State]:
        return lambda: UpdateQueue(stream, policy)


@pytest.mark.parametrize("stream", [STREAM, UNION_STREAM], ids=["plain", "union"])
class TestUpdateQueueOnDisk(QueueTests):
    @pytest.fixture
    def new(self, stream: UpdateStream, tmp_path: Path) -> Callable[[], State]:
        table = table_maker(WorkingCopy.ROCKSDB, tmp_path)
        return lambda: UpdateQueue(stream, Policy.IN_PLACE, table=table)


@pytest.mark.parametrize("semantics", [Semantics.APPEND, Semantics.ADAPTIVE])
@pytest.mark.parametrize("copy", WorkingCopy)
class TestAdaptiveQueue(QueueTests):
    @pytest.fixture
    def new(self, semantics: Semantics, copy: WorkingCopy, tmp_path: Path) -> Callable[[], State]:
        table = table_maker(copy, tmp_path)
        return lambda: AdaptiveQueue(STREAM, Policy.IN_PLACE, semantics, table=table)

    def change(self, state: AdaptiveQueue, step: int) -> None:
        state.capacity = 1.0 if 3 < step < 9 else 100.0  # the queue switches to update semantics and back
        super().change(state, step)

    def content(self, state: AdaptiveQueue) -> object:
        return state.appending, waiting(state)


class TestJoin(StateTests):
    @pytest.fixture(params=[None, "b <> c"])
    def new(self, request: pytest.FixtureRequest) -> Callable[[], State]:
        stream = joined_stream(3, 4, request.param)
        return lambda: UpdateJoin(stream, page_rows=2)

    def change(self, state: UpdateJoin, step: int) -> None:
        left = [Tuple(key, 2 * step + key % 3, step) for key in range(step % 3, 6)]
        right = [Tuple(key, 2 * step - key % 4, key) for key in range(0, 6, step % 2 + 1)]
        state.join(left_of(left), right_of(right) if step % 4 else None)

    def content(self, state: UpdateJoin) -> object:
        return joined(state)


TABLES = {"one bucket": 1, "partitions": 3}


class TestTransactionTables(StateTests):
    @pytest.fixture(params=TABLES)
    def new(self, request: pytest.FixtureRequest) -> Iterator[Callable[[], State]]:
        made: list[Tables] = []

        def empty() -> Tables:
            made.append(open_tables(tuple(BANK.tables.values()), TABLES[request.param], {}))
            return made[-1]

        yield empty
        for state in made:
            state.close()

    def change(self, state: Tables, step: int) -> None:
        owner = f"owner {step % 4}"
        events: dict[str, list[dict[str, Any]]] = {
            "open_account": [{"id": step + at, "owner": owner} for at in (0, 20)],
            "deposit": [{"id": step, "amount": 7 * step}, {"id": -1, "amount": 1}],
            "transfer": [{"source": step, "target": step + 19, "amount": 3}] * 2,
            "set_rate": [{"currency": f"currency {step % 3}", "rate": step}],
            "close_account": [{"id": step - 2, "heir": step}],
        }
        for name, rows in events.items():
            procedure = BANK.procedures[name]
            batch = pa.RecordBatch.from_pylist(rows, procedure.event_schema(None))
            state.run(procedure.program(), batch)

    def content(self, state: Tables) -> object:
        return state.transactions, {
            name: sorted(map(str, state[name].table().to_pylist())) for name in BANK.tables
        }


class TestOperatorState(StateTests):
    @pytest.fixture
    def new(self) -> Callable[[], State]:
        return lambda: OperatorState(Totals())

    def change(self, state: Any, step: int) -> None:
        keys = [f"k{step % 3}", None, "é"]
        batch = pa.table({"k": pa.array(keys, pa.string()), "v": [step + 0.5, 1.0, 2.0]})
        state.operator.run(batch, None)

    def content(self, state: Any) -> object:
        return {name: table.to_pylist() for name, table in state.operator.snapshot().items()}
