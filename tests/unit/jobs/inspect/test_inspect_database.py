"""``penstock inspect database`` shows tables as they are stored."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock.checkpointing import PUnit, encode
from penstock.checkpointing.files import LocalFiles
from penstock.cli import app
from penstock.procedures.engine import TableSet
from penstock.spark_ext.worker.bucket_task import SPECIFICATION_FILE
from penstock.state_store.bucket_store import BucketStore, Handle


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["inspect", "database", *arguments])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two buckets of a bank: three versions and one version."""
    bank = penstock.database("bank")
    bank.table(
        "accounts", "id bigint, balance bigint NOT NULL", key="id", partition_by="id", indexes=["balance"]
    )
    bank.table("log", "id bigint, at timestamp, text string", key=("id", "at"))
    operator = LocalFiles(tmp_path / "state" / "query" / "transactions")
    specification = {
        "buckets": 2,
        "program": "abc",
        "tables": [one.to_json() for one in bank.tables.values()],
    }
    operator.publish(SPECIFICATION_FILE, encode(PUnit("operator", specification)))
    for bucket, versions in ((0, 3), (1, 1)):
        state = TableSet(bank.tables.values())
        held = Handle()
        store = BucketStore(operator.child(f"{bucket:05d}"))
        for version in range(versions):
            rows = pa.record_batch({"id": [version, version + 10], "balance": [1, 2]})
            state["accounts"].upsert(
                pa.RecordBatch.from_arrays(rows.columns, schema=bank.tables["accounts"].schema).slice(bucket),
                dirty=True,
            )
            state.transactions += 5
            held = store.commit(state, held)
    return tmp_path / "state"


def test_tables_are_shown_with_rows_sizes_indexes_and_versions(place: Path) -> None:
    result = run(str(place))
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0] == f"{place}/query/transactions"
    assert lines[1].startswith("transactions of query query, last written ")
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert [row[:6] for row in cells] == [
        ["accounts", "id bigint NOT NULL, balance bigint NOT NULL", "id", "id", "balance", "7"],
        ["log", "id bigint NOT NULL, at timestamp NOT NULL, text string", "id, at", "-", "-", "0"],
    ]
    assert lines[-1].startswith("2 buckets, at version 2 of 1..3, loadable 1..3, ")
    assert "20 transactions" in lines[-1]
    assert lines[-1].endswith("program abc")


def test_a_database_of_one_process_has_a_loadable_version_and_no_program(tmp_path: Path) -> None:
    bank = penstock.database("bank")
    bank.table("accounts", "id bigint, balance bigint", key="id")
    with bank.open(tmp_path / "bank") as db:
        db.load("accounts", {"id": [1], "balance": [2]})
    last = run(str(tmp_path / "bank")).stdout.splitlines()[-1]
    assert last.startswith("1 bucket, at version 1, loadable 1, ")
    assert last.rstrip().endswith("stored")


def test_json_has_all_facts(place: Path) -> None:
    (found,) = json.loads(run(str(place), "--json").stdout)["databases"]
    assert [(one["name"], one["rows"], one["indexes"]) for one in found["tables"]] == [
        ("accounts", 7, [["balance"]]), ("log", 0, []),
    ]  # fmt: skip
    assert [(one["likely"]["version"], one["transactions"]) for one in found["buckets"]] == [(3, 15), (1, 5)]
    assert found["tables"][0]["memory_bytes"] > 0


def test_damage_is_told_and_ends_with_exit_code_1(place: Path) -> None:
    bucket = place / "query" / "transactions" / "00001"
    (file,) = bucket.glob("*.punit")
    file.write_bytes(file.read_bytes()[:-3])
    result = run(str(place))
    assert result.exit_code == 1
    assert str(file) in result.stderr
    cells = [line.split("│")[-3].strip() for line in result.stdout.splitlines() if line.startswith("│")]
    assert cells == ["?", "?"]
    assert ", transactions unknown, " in result.stdout
    (found,) = json.loads(run(str(place), "--json").stdout)["databases"]
    assert [one["rows"] for one in found["tables"]] == [None, None]


def test_state_of_other_operators_is_refused(tmp_path: Path, place: Path) -> None:
    (place / "query" / "transactions" / SPECIFICATION_FILE).unlink()
    result = run(str(place))
    assert result.exit_code == 2
    assert "there are no tables at this location" in result.stderr
    assert run(str(tmp_path / "nothing")).exit_code == 2


def test_a_database_whose_calls_are_only_in_its_log_is_told(tmp_path: Path) -> None:
    bank = penstock.database("bank")
    bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id")
    with bank.open(tmp_path / "bank") as db:
        db.load("accounts", {"id": [1], "balance": [5]})
        open_yet = run(str(tmp_path / "bank"))
    assert (open_yet.exit_code, open_yet.stdout) == (2, "")
    assert "has stored no version of its tables yet" in open_yet.stderr
    assert "its answered calls are in its log" in open_yet.stderr
    closed = run(str(tmp_path / "bank"))
    assert (closed.exit_code, "accounts" in closed.stdout) == (0, True), closed.stderr
