"""Every working copy passes the tests of `penstock.testing`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.state_store.bucket_store import State
from penstock.state_store.tables.working_copy import WorkingCopy, table_maker
from penstock.testing import StateTests
from tests.checkpoints.states import DictState, RowState
from tests.oracles.naive import Update
from tests.samples.streams import STREAM, enqueue, served_of

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


class TestUpdateQueue(StateTests):
    @pytest.fixture(params=list(WorkingCopy))
    def new(self, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], State]:
        table = table_maker(request.param, tmp_path)
        return lambda: UpdateQueue(STREAM, Policy.IN_PLACE, table=table)

    def change(self, state: UpdateQueue, step: int) -> None:
        enqueue(state, [Update(key, step + 1, key) for key in range(step, step + 6)], 10 * step)
        served_of(state, 3, 10 * step + 5)

    def content(self, state: UpdateQueue) -> object:
        """Return the stored content, independent of the order of keys and the size of ranks."""
        keys: dict[Any, Any] = {}
        for unit in state.snapshot():
            stored = unit.blocks["cells"].to_pylist()
            keys |= {one["key"]: [one] for one in stored}
            for row in unit.blocks["rows"].to_pylist():
                row.pop("__penstock_rank")
                keys[stored[row.pop("__penstock_cell")]["key"]].append(row)
        return keys
