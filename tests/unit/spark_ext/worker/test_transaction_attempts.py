"""A micro-batch of transactions that another attempt ran is run again only by the same program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import InvalidUsageError
from penstock.procedures.engine import TableSet
from penstock.spark_ext.border.transaction_packing import place_rows
from penstock.spark_ext.worker import bucket_task
from penstock.spark_ext.worker.bucket_task import BucketTask, Parcel
from penstock.spark_ext.worker.transaction_operator import TransactionOperator
from penstock.state_store.bucket_store import BucketStore, Pointer
from tests.transactions.procedures import define

ROWS = pa.record_batch({"id": pa.array([1, 2, 1]), "amount": pa.array([5, 6, 7])})


class Worker:
    """A worker that serves the bucket in one run of a query."""

    def __init__(self, place: Path, sign: str, run: str, begun: str = "the first") -> None:
        bucket_task._CACHE._entries.clear()
        bank = penstock.database("bank")
        bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id")
        text = "def act(e, accounts):\n    if e.id not in accounts:\n"
        text += "        accounts.insert(id=e.id, balance=0)\n"
        text += f"    accounts[e.id].balance {sign}= e.amount\n    return accounts[e.id].balance\n"
        act = bank.procedure(event="id bigint, amount bigint", returns="left bigint", plain=True)(
            define(text)
        )
        names = tuple(ROWS.schema.names)
        operator = TransactionOperator(
            act.program(), tuple(bank.tables.values()), names, keep=(), time=None, identity=begun
        )
        self.digest = act.program().digest
        self._task: BucketTask[TableSet] = BucketTask("act", str(place), operator, buckets=1, parallel=1)
        self._run = run

    def serve(self, batch: int, pointer: Pointer | None) -> tuple[Pointer, list[Any]]:
        parcels = [Parcel(0, place_rows(ROWS, tuple(ROWS.schema.names), None, 0))]
        made, batches, _ = self._task.run("query", batch, 0, pointer, parcels, lambda: 0, run_id=self._run)
        assert made is not None
        return made, batches[0].column("left").to_pylist()


def test_a_changed_program_waits_until_its_predecessor_has_finished(tmp_path: Path) -> None:
    first, results = Worker(tmp_path, "+", "1").serve(0, None)
    assert results == [5, 6, 12]
    _, lost = Worker(tmp_path, "+", "1").serve(1, first)
    with pytest.raises(InvalidUsageError, match="not finished was begun with another program") as caught:
        Worker(tmp_path, "-", "2").serve(1, first)
    assert caught.value.context["was"] != caught.value.context["now"]
    again, results = Worker(tmp_path, "+", "3").serve(1, first)
    assert results == lost == [17, 12, 24]
    assert Worker(tmp_path, "-", "4").serve(2, again)[1] == [19, 6, 12]


def test_a_wrong_compatible_with_is_refused_with_the_digests_of_both_programs(tmp_path: Path) -> None:
    first, _ = Worker(tmp_path, "+", "1").serve(0, None)
    other = Worker(tmp_path, "-", "2", begun="mistyped")
    bucket_task._CHECKED.clear()
    with pytest.raises(InvalidUsageError, match="made with another program") as caught:
        other.serve(1, first)
    assert (caught.value.context["was"], caught.value.context["now"]) == ('"the first"', f'"{other.digest}"')
    assert caught.value.hint is not None
    assert caught.value.hint.endswith('compatible_with="the first"')


def test_a_worker_looks_for_other_attempts_once_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    look = BucketStore.attempts_after

    def counted(self: BucketStore, *arguments: Any) -> Any:
        looks.append(1)
        return look(self, *arguments)

    monkeypatch.setattr(BucketStore, "attempts_after", counted)
    worker = Worker(tmp_path, "+", "1")
    pointer = None
    for batch in range(3):
        pointer, _ = worker.serve(batch, pointer)
    assert len(looks) == 1
    Worker(tmp_path, "+", "2").serve(3, pointer)
    assert len(looks) == 2
