"""The queries of (Scabbard Table 3), run to their end, beside DuckDB: window for window."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from benchmarks.queries import QUERIES, STREAMS
from penstock.checkpointing.p_stream import PStreamWriter
from penstock.spark_ext.p_stream_types import spark_schema
from tests.spark.conftest import lean_session
from tests.spark.queries import PATIENCE_S, Input
from tests.table3 import campaigns, cut, expected, found, same, stream_of

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give a session for all tests of the module."""
    session = lean_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


CASES = [
    ("CM1", 6_000, "always"),
    ("CM1", 6_000, "never"),
    ("CM2", 16_000, "never"),
    ("SG1", 12_000, "p-stream"),
    ("SG2", 8_000, "always"),
    ("SG2", 8_000, "never"),
    ("SG3", 8_000, "always"),
    ("SG3", 8_000, "never"),
    ("LRB1", 8_000, "p-stream"),
    ("LRB2", 2_500, "p-stream"),
    ("LRB3", 2_500, "never"),
    ("YSB", 9_000, "always"),
    ("YSB", 9_000, "never"),
    ("NQ5", 5_000, "p-stream"),
    ("SM", 9_000, "p-stream"),
]


@pytest.mark.parametrize(("query", "rows", "persist"), CASES)
def test_a_query_closes_the_windows_that_duckdb_has(
    spark: SparkSession, tmp_path: Path, query: str, rows: int, persist: Any
) -> None:
    stream, seed = STREAMS[query], f"{query} {persist}"
    draw = random.Random(seed)
    table = stream_of(stream, rows)
    if table is None:
        pytest.skip("the file is not part of the project")
    tables = {stream: table}
    options: dict[str, Any] = {"max_rows": draw.randrange(rows // 6, rows // 3)}
    if query == "YSB":
        tables["campaigns"] = campaigns(table)
        options["tables"] = {"campaigns": spark.createDataFrame(tables["campaigns"].to_pandas())}
    source = Input(tmp_path / "files")
    if persist == "p-stream":
        options["sources"] = {stream: tmp_path / "stream"}
    else:
        options |= {"sources": {stream: source.frame(spark, spark_schema(table.schema))}, "persist": persist}

    # Stopped in between, and started again over the same checkpoint.
    at = draw.randrange(rows // 4, rows)
    for part in (table.slice(0, at), table.slice(at)):
        pieces = cut(part, draw, 3)
        if persist == "p-stream":
            with PStreamWriter(tmp_path / "stream", table.schema, threads=1) as writer:
                for piece in pieces:
                    writer.append(piece)
        else:
            source.add(*pieces)
        running = penstock.start(
            QUERIES[query](),
            spark,
            tmp_path / "checkpoint",
            sink=lambda df: df.writeStream.format("pstream").option("path", str(tmp_path / "out")),
            available_now=True,
            **options,
        )
        with running:
            assert running.await_termination(PATIENCE_S), running.status()
    wanted = expected(query, tables)
    assert len(wanted) > 3, f"too little to compare: {seed}"
    same(found(tmp_path / "out"), wanted)
