"""Transactions on the local engine, against a run in plain Python."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import _failpoints
from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
from penstock.conf.document import PipelineError
from penstock.conf.pipeline import Pipeline
from penstock.jobs.checks.checking import check_pipeline
from penstock.jobs.following.batches import summary_line
from penstock.jobs.local.pipeline import open_pipeline
from penstock.jobs.local.run import run_local
from penstock.jobs.pipelines.run import run_to_end
from tests.long_tests import long_but

BANK = """\
import penstock
from penstock import abort

bank = penstock.database("bank")
bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id", partition_by="id")


@bank.procedure(returns="left bigint")
def transfer(e, accounts):
    source = accounts[e.source]
    source.balance -= e.amount
    if source.balance < 0:
        abort("short")
    accounts[e.target].balance += e.amount
    return source.balance
"""
TRANSFERS = pa.schema({"id": pa.int64(), "source": pa.int64(), "target": pa.int64(), "amount": pa.int64()})
ACCOUNTS = 12


def transfers(rows: int, seed: int = 1) -> pa.Table:
    draws = random.Random(seed)
    sources = [draws.randrange(ACCOUNTS) for _ in range(rows)]
    return pa.table(
        {
            "id": list(range(rows)),
            "source": sources,
            "target": [(source + draws.randrange(1, ACCOUNTS)) % ACCOUNTS for source in sources],
            "amount": [draws.randrange(1, 60) for _ in range(rows)],
        },
        TRANSFERS,
    )


def pipeline(place: Path, **options: Any) -> Pipeline:
    (place / "bank.py").write_text(BANK)
    (place / "accounts.csv").write_text(
        "id,balance\n" + "".join(f"{number},100\n" for number in range(ACCOUNTS))
    )
    table = {
        "format": "csv", "path": str(place / "accounts.csv"), "schema": "id LONG, balance LONG",
        "options": {"header": "true"},
    }  # fmt: skip
    return Pipeline.model_validate(
        {
            "engine": "local",
            "source": {"type": "pstream", "path": str(place / "in")},
            "database": {
                "file": str(place / "bank.py"), "procedure": "transfer", "keep": "id",
                "initial": {"accounts": table}, **options,
            },
            "sink": {"type": "pstream", "path": str(place / "out")},
            "query": {"trigger": "available_now", "checkpoint": str(place / "checkpoint")},
        }
    )  # fmt: skip


def test_a_check_finds_that_the_program_has_changed(tmp_path: Path) -> None:
    with PStreamWriter(tmp_path / "in", TRANSFERS, threads=1) as writer:
        writer.append(transfers(20))
    document = pipeline(tmp_path)
    run_to_end(document)
    file = tmp_path / "p.yaml"
    file.write_text(json.dumps(document.model_dump(mode="json", by_alias=True, exclude_unset=True)))
    check_pipeline(str(file), [])
    (tmp_path / "bank.py").write_text(BANK.replace("source.balance < 0", "source.balance < 1"))
    with pytest.raises(PipelineError, match=r"made with another program: .*compatible_with="):
        check_pipeline(str(file), [])


def run_serially(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Return the id, the result and the rejection of each transfer, one after the other."""
    balances = dict.fromkeys(range(ACCOUNTS), 100)
    results: list[tuple[Any, ...]] = []
    for row in rows.to_pylist():
        left = balances[row["source"]] - row["amount"]
        if left < 0:
            results.append((row["id"], None, "short"))
            continue
        balances[row["source"]] = left
        balances[row["target"]] += row["amount"]
        results.append((row["id"], left, None))
    return results


def results(place: Path) -> list[tuple[Any, ...]]:
    rows = PStreamReader(place / "out").read().to_pylist()
    return sorted(((row["id"], row["left"], row["rejected"]) for row in rows), key=lambda row: row[0])


@pytest.mark.parametrize("buckets", long_but([1, 3], 3))
def test_transactions_are_those_of_a_serial_run_over_crashes(tmp_path: Path, buckets: int) -> None:
    rows = transfers(400)
    running = pipeline(tmp_path, buckets=buckets)
    points = ["local.after_plan", "operator.after_commit", "local.after_write", "local.after_commit"]
    if buckets > 1:
        points += ["coordinator.before_continuations", "coordinator.after_continuation"]
    for number, point in enumerate(points):
        with PStreamWriter(tmp_path / "in", TRANSFERS, threads=1) as writer:
            writer.append(rows.slice(50 * number, 50))
        opened = open_pipeline(running)
        with _failpoints.armed({point: "error"}), pytest.raises(_failpoints.InjectedError):
            opened.step()
    with PStreamWriter(tmp_path / "in", TRANSFERS, threads=1) as writer:
        writer.append(rows.slice(50 * len(points)))
    run_to_end(running)
    expected = run_serially(rows)
    assert {reason for _, _, reason in expected} == {None, "short"}
    assert results(tmp_path) == expected


def test_a_run_shows_committed_and_rejected_transactions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = transfers(100)
    with PStreamWriter(tmp_path / "in", TRANSFERS, threads=1) as writer:
        writer.append(rows)
    rejected = sum(rejection is not None for _, _, rejection in run_serially(rows))
    assert 0 < rejected < 100
    totals = run_local(pipeline(tmp_path))
    assert re.search(rf"in +100 +committed +{100 - rejected} +rejected {rejected} ", capsys.readouterr().err)
    assert summary_line(totals) == f"1 batch, 100 rows in, {100 - rejected} committed, {rejected} rejected"
