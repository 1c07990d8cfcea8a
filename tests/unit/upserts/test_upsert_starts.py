"""Upserts into stores that are not ready when a pipeline starts."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock.checkpointing.p_stream import PStreamWriter
from penstock.cli import app
from penstock.errors import InvalidUsageError
from penstock.spark_ext.api.upsert import _call_patiently
from penstock.upserts import Columns, open_target
from penstock.upserts.stores import check_address

_SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64()})
_PIPELINE = """
engine: local
source: {type: pstream, path: updates}
queue: {key: k, time: t}
sink: {type: upsert, to: "sqlite:///store.db", table: newest}
query: {trigger: available_now, checkpoint: checkpoint}
"""


def test_a_missing_table_passes_the_check_and_ends_a_run_before_its_first_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pipeline.yaml").write_text(_PIPELINE)
    with PStreamWriter("updates", _SCHEMA) as writer:
        writer.append(pa.table([[1], [1]], _SCHEMA))
    assert CliRunner().invoke(app, ["check", "pipeline.yaml"]).exit_code == 0
    result = CliRunner().invoke(app, ["run", "pipeline.yaml"])
    assert result.exit_code == 2, result.output
    assert "there is no such table" in result.output
    assert not Path("store.db").exists()
    assert not list(Path("checkpoint").glob("queries/*/commits/[0-9]*"))


def test_a_store_that_does_not_answer_is_logged_with_the_reason_but_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = open_target(f"sqlite:///{tmp_path}/store.db", "newest", Columns(_SCHEMA, ("k",), "t", False))
    monkeypatch.setattr(target, "is_transient", lambda error: True)
    monkeypatch.setattr("penstock.errors._hidden", {"open sesame": "***"})
    answers = iter([OSError("connection refused for open sesame\nand more"), None])

    def call() -> None:
        if (error := next(answers)) is not None:
            raise error

    with caplog.at_level(logging.WARNING):
        _call_patiently(target, call, 60.0)
    (record,) = caplog.records
    assert record.getMessage().endswith("reason=connection refused for ***]")


def test_a_duckdb_file_that_another_process_reads_is_retried_and_its_holder_named(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    file = tmp_path / "store.db"
    duckdb.connect(file).close()
    target = open_target(f"duckdb:///{file}", "newest", Columns(_SCHEMA, ("k",), "t", False))
    hold = "import duckdb, sys; _ = duckdb.connect(sys.argv[1], True); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(duckdb.IOException) as caught:
            target.prepare(create=True)
        holder.communicate()
    assert target.is_transient(caught.value)
    assert "read-only" in str(caught.value)
    described = target.describe(caught.value)
    assert f"PID {holder.pid}" in described
    assert "read-only" not in described
    target.prepare(create=True)
    target.close()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("sqllite:///x.db", "not valid: scheme=sqllite. Hint: did you mean sqlite://?"),
        ("nats://host/x", "not valid: scheme=nats. Hint: it begins with one of postgresql://"),
        ("se cret:word", "not valid. Hint: it begins with one of postgresql://"),
    ],
)
def test_an_unknown_scheme_is_named_and_a_known_one_suggested(address: str, message: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        check_address(address, "newest")
    assert message in str(caught.value)
