"""Every source of a pipeline with every sink; `docs/reference/combinations.md` shows where each ran."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
from penstock.conf.pipeline import Pipeline
from penstock.jobs.pipelines.run import run_to_end
from penstock.market import Market
from penstock.spark_ext.border.connection import is_connect
from tests import combinations
from tests.servers.jars import MissingJarsError
from tests.servers.kafka import Broker, Record, broker, connector_jars, leave_jars
from tests.spark.conftest import Sessions
from tests.spark.queries import SCHEMA, Input, Row, quotes

__all__ = ["broker"]

pytestmark = pytest.mark.spark

ROWS = [("a", 5, 1.0), ("b", 5, 2.0), ("a", 9, 3.0), ("b", 1, 9.0), ("c", 1, 4.0)]
START = "2026-01-01T00:00:00Z"
START_US = 1_767_225_600_000_000

WRITE_ROWS = """
import json

def write(batch, number):
    with open({file!r}, "a") as file:
        file.writelines(json.dumps(row.asDict()) + "\\n" for row in batch.select("k", "t", "v").collect())
"""


class Run:
    """One run from a source to a sink, in a directory of its own."""

    def __init__(self, spark: SparkSession, broker: Broker | None, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.name = directory.name.replace("-", "_")
        self._broker = broker

    @property
    def broker(self) -> Broker:
        assert self._broker is not None
        return self._broker

    def place(self, name: str) -> str:
        return str(self.directory / name)

    def servers(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.broker.address}


Source = tuple[dict[str, Any], list[Row]]
"""The sections of a pipeline that make rows (k, t, v), and these rows."""


def from_files(run: Run) -> Source:
    Input(run.directory / "in").add(quotes(ROWS[:3]), quotes(ROWS[3:]))
    source = {"type": "files", "format": "parquet", "path": run.place("in"), "schema": SCHEMA}
    return {"source": source}, ROWS


def from_p_stream(run: Run) -> Source:
    rows = quotes(ROWS)
    with PStreamWriter(run.directory / "in", rows.schema, writer="w", unit_rows=2, threads=1) as writer:
        writer.append(rows)
    return {"source": {"type": "pstream", "path": run.place("in")}}, ROWS


def from_kafka(run: Run) -> Source:
    topic = run.broker.make_topic(f"{run.name}-in")
    records = [json.dumps(dict(zip("ktv", row, strict=True))).encode() for row in ROWS]
    run.broker.send(topic, [Record(None, record) for record in records])
    options = run.servers() | {"subscribe": topic, "startingOffsets": "earliest"}
    source = {"type": "kafka", "value_format": "json", "schema": SCHEMA, "options": options}
    return {"source": source}, ROWS


def from_spark(run: Run) -> Source:
    options = {"rowsPerBatch": 10, "numPartitions": 1}
    source = {"type": "spark", "format": "rate-micro-batch", "options": options}
    columns = ["concat('k', value % 3) AS k", "value AS t", "cast(value AS double) AS v"]
    rows = [(f"k{n % 3}", n, float(n)) for n in range(10)]
    return {"source": source | {"schema": "timestamp timestamp, value long"}, "projection": columns}, rows


def from_market(run: Run) -> Source:
    source = {"type": "market", "rows": 200, "symbols": 20, "seed": 3, "real_time": False}
    batch = Market(symbols=20, seed=3, start_us=START_US).batch(0, 200)
    columns = batch["symbol"], batch["time"].cast(pa.int64()), batch["price"]
    rows = list(zip(*(one.to_pylist() for one in columns), strict=True))
    names = ["symbol AS k", "unix_micros(time) AS t", "price AS v"]
    return {"source": source | {"start_time": START}, "projection": names}, rows


Sink = tuple[dict[str, Any], Callable[[], list[Row]]]
"""The section of the sink, and a function that reads what it has."""


def json_rows(lines: list[str]) -> list[Row]:
    return [tuple(json.loads(line)[name] for name in "ktv") for line in lines]


def to_parquet(run: Run) -> Sink:
    def read() -> list[Row]:
        files = sorted((run.directory / "out").glob("*.parquet"))
        return [
            tuple(row[name] for name in "ktv") for file in files for row in pq.read_table(file).to_pylist()
        ]

    return {"type": "parquet", "path": run.place("out")}, read


def to_p_stream(run: Run) -> Sink:
    def read() -> list[Row]:
        rows = PStreamReader(run.directory / "out").read().to_pylist()
        return [tuple(row[name] for name in "ktv") for row in rows]

    return {"type": "pstream", "path": run.place("out")}, read


def to_kafka(run: Run) -> Sink:
    topic = run.broker.make_topic(f"{run.name}-out")
    read = lambda: json_rows([(record.value or b"").decode() for record in run.broker.read(topic)])  # noqa: E731
    return {"type": "kafka", "options": run.servers() | {"topic": topic}}, read


def to_memory(run: Run) -> Sink:
    read = lambda: run.spark.table(run.name).select("k", "t", "v").collect()  # noqa: E731
    return {"type": "memory"}, lambda: [tuple(row) for row in read()]


def to_spark(run: Run) -> Sink:
    def read() -> list[Row]:
        files = sorted((run.directory / "out").glob("*.json"))
        return json_rows([line for file in files for line in file.read_text().splitlines()])

    return {"type": "spark", "format": "json", "path": run.place("out")}, read


def to_function(run: Run) -> Sink:
    module = f"write_{run.name}"
    (run.directory / f"{module}.py").write_text(WRITE_ROWS.format(file=run.place("out")))
    read = lambda: json_rows(Path(run.place("out")).read_text().splitlines())  # noqa: E731
    return {"type": "foreach_batch", "function": f"{module}:write"}, read


def to_table(run: Run) -> Sink:
    def read() -> list[Row]:
        with closing(sqlite3.connect(run.place("out"))) as connection:
            return list(connection.execute("SELECT k, t, v FROM newest"))

    to = {"to": f"sqlite:///{run.place('out')}", "table": "newest", "create": True}
    return {"type": "upsert"} | to, read


SOURCES: dict[str, Callable[[Run], Source]] = {
    "files": from_files, "pstream": from_p_stream, "kafka": from_kafka, "spark": from_spark,
    "market": from_market,
}  # fmt: skip
SINKS: dict[str, Callable[[Run], Sink]] = {
    "parquet": to_parquet, "pstream": to_p_stream, "kafka": to_kafka, "memory": to_memory, "spark": to_spark,
    "foreach_batch": to_function, "upsert": to_table,
}  # fmt: skip


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> Iterator[SparkSession]:
    """Give a session that may be given the jars of Kafka."""
    jars = ""
    if os.environ.get("PENSTOCK_CONNECT") == "1":
        # Tasks of a server's query do not find jars that a session of it added.
        with suppress(MissingJarsError):
            jars = ",".join(connector_jars())
    with sessions.session(spark__jars=jars) if jars else sessions.session() as session:
        yield session
        if not is_connect(session):
            leave_jars(session)


PAIRS = [(source, sink) for source in SOURCES for sink in SINKS]
COVER = [
    ("files", "parquet"), ("files", "foreach_batch"), ("pstream", "pstream"), ("pstream", "upsert"),
    ("kafka", "kafka"), ("spark", "spark"), ("market", "memory"),
]  # fmt: skip
"""Pairs with each source and each sink, which always run; the others with ``PENSTOCK_COMBINATIONS=all``."""
CHOSEN = PAIRS if os.environ.get("PENSTOCK_COMBINATIONS") == "all" else COVER


def test_the_pairs_that_always_run_have_every_source_and_sink() -> None:
    assert {source for source, _ in COVER} == SOURCES.keys()
    assert {sink for _, sink in COVER} == SINKS.keys()


def test_the_page_shows_what_was_recorded() -> None:
    results = json.loads(combinations.RESULTS.read_text())
    assert combinations.PAGE.read_text() == combinations.render(results), (
        "run python -m tests.combinations, and commit what it writes"
    )
    names = {f"{source}-{sink}" for source, sink in PAIRS}
    for run in results.values():
        assert run["cases"].keys() <= names
        assert all((Path(__file__).parents[2] / file).exists() for file in run["files"])


def newest(rows: list[Row]) -> list[Row]:
    return sorted({k: (k, t, v) for k, t, v in sorted(rows, key=lambda row: row[1])}.values())


@pytest.mark.parametrize(("source", "sink"), CHOSEN, ids=["-".join(pair) for pair in CHOSEN])
def test_the_newest_of_each_key_passes_from_source_to_sink(
    spark: SparkSession, tmp_path: Path, source: str, sink: str, request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    directory = tmp_path / f"{source}-{sink}"
    directory.mkdir()
    monkeypatch.syspath_prepend(directory)
    started = None
    if "kafka" in (source, sink):
        started = request.getfixturevalue("broker")
        for jar in () if is_connect(spark) else connector_jars():
            spark.sql(f"ADD JAR '{jar}'")
    run = Run(spark, started, directory)
    sections, rows = SOURCES[source](run)
    to, read = SINKS[sink](run)
    pipeline = sections | {
        "queue": {"key": "k", "time": "t"}, "sink": to,
        "query": {"name": run.name, "checkpoint": run.place("checkpoint"), "trigger": "available_now"},
    }  # fmt: skip
    totals = run_to_end(Pipeline.model_validate(pipeline), spark=spark)
    assert totals.rows_in == len(rows)
    assert newest(read()) == newest(rows)
