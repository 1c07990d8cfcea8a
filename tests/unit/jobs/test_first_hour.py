"""Messages name the mistakes that newcomers make, and the options of the command line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.checkpointing.files import open_files
from penstock.cli import app
from penstock.conf.sections import FilesSource
from penstock.errors import InvalidUsageError
from penstock.jobs.class_archive import require_java
from penstock.jobs.pipelines.schemas import schema_of
from penstock.sql.evaluate import why_unsupported
from penstock.sql.expression import Expression
from penstock.state_store.location import find_operators


def test_a_wrong_java_home_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    with pytest.raises(InvalidUsageError, match=r"JAVA_HOME names no Java: JAVA_HOME=/nonexistent"):
        require_java()


def test_a_run_without_java_ends_with_2_as_nothing_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_HOME", "SPARK_CONF_DIR", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = CliRunner().invoke(app, ["run", "market", "--set", f"query.checkpoint={tmp_path}/ck"])
    assert (ended.exit_code, "there is no Java. Hint: install Java 17" in ended.stderr) == (2, True)


def test_a_file_of_another_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("sku,qty\na,1\n")
    source = FilesSource(type="files", format="parquet", path=str(tmp_path / "a.parquet"))
    with pytest.raises(InvalidUsageError, match=r"path=.*a\.parquet\. Hint: check .* of the format parquet"):
        schema_of(source)


def test_an_expression_for_spark_alone_has_a_reason() -> None:
    schema = pa.schema({"price": pa.decimal128(10, 2)})
    reason = why_unsupported(Expression.parse("price * 2 > 5"), schema)
    assert reason == "it combines decimal128(10, 2), int32; cast decimals to DOUBLE"


def test_the_state_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    bucket = tmp_path / "state" / "a-query" / "queue" / "00000"
    bucket.mkdir(parents=True)
    with pytest.raises(InvalidUsageError, match="there is no state at this location"):
        find_operators(open_files(str(tmp_path)))
    (bucket / "000000000001-0000.punit").touch()
    with pytest.raises(
        InvalidUsageError,
        match=rf"there is no state at this location, but below it: .* the state is in {tmp_path}/state",
    ):
        find_operators(open_files(str(tmp_path)))


def test_hints_of_commands_name_their_options(tmp_path: Path) -> None:
    pq.write_table(pa.table({"sku": ["a"], "ts": [1]}), tmp_path / "sample.parquet")
    planned = CliRunner().invoke(app, ["plan", str(tmp_path / "sample.parquet"), "--time", "ts"])
    assert planned.exit_code == 2
    assert "option=--key column=key. Hint: the columns are sku, ts." in planned.stderr
    (tmp_path / "bank.py").write_text("")
    designed = CliRunner().invoke(app, ["design", str(tmp_path / "bank.py")])
    assert designed.exit_code == 2
    assert "give one of --requests and --log" in designed.stderr
