"""Change data beside Spark's Auto CDC: ``python -m benchmarks.queues.auto_cdc``.

Parquet files hold changes of random keys, one in twenty a delete. Each contender keeps a table of the newest
row of each key in a process of its own, a file a micro-batch:

- *Auto CDC*: a flow of Spark's declarative pipelines, SCD type 1;
- *queue and MERGE*: an update queue, whose rows a hand-written ``foreachBatch`` merges into the same kind of
  table;
- *queue and upsert*: an update queue and `penstock.upsert` into a file of DuckDB.

Auto CDC needs a table with MERGE. It is the one that Spark's own tests keep in memory, in a jar that Ivy
fetches. The time is that from the start of the query until the table has all changes; the session is there
before. A table that is not what DuckDB computes from the files ends the benchmark.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from benchmarks import harness
from benchmarks.harness import REPOSITORY, machine, print_and_save
from tests.servers.jars import fetch

RESULT = Path(__file__).parents[1] / "results" / "auto_cdc.txt"
JAR = ("org.apache.spark", "spark-catalyst_2.13", "4.2.0", "tests")
CATALOG = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"
SCHEMA = "k bigint, t bigint, v double, op string"
DELETE = "op = 'd'"
TOTALS = "count(*), sum(t), sum(v)"
FLOW = """
from pyspark import pipelines as dp

@dp.temporary_view
def changes():
    return spark.readStream.schema({schema!r}).option("maxFilesPerTrigger", 1).parquet({log!r})

dp.create_streaming_table("newest")
dp.create_auto_cdc_flow(
    target="newest", source="changes", keys=["k"], sequence_by="t", apply_as_deletes={delete!r},
    except_column_list=["op"], stored_as_scd_type=1,
)
"""
PIPELINE = "name: cdc\ncatalog: mem\ndatabase: db\nlibraries: [{glob: {include: flow.py}}]\n"
MERGE = """
MERGE INTO mem.db.newest USING served ON newest.k = served.k
WHEN MATCHED AND served.deleted THEN DELETE
WHEN MATCHED THEN UPDATE SET t = served.t, v = served.v
WHEN NOT MATCHED AND NOT served.deleted THEN INSERT (k, t, v) VALUES (served.k, served.t, served.v)
"""


def write_changes(log: Path, files: int, rows: int, keys: int) -> None:
    """Write `files` files of `rows` changes, in the order of their times."""
    log.mkdir()
    rng = np.random.default_rng(5)
    for number in range(files):
        times = np.arange(number * rows, (number + 1) * rows)
        columns = [
            rng.integers(0, keys, rows),
            times,
            rng.random(rows),
            np.where(rng.random(rows) < 0.05, "d", "u"),
        ]
        path = log / f"{number:04}.parquet"
        pq.write_table(pa.table(columns, ["k", "t", "v", "op"]), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def expected(log: Path) -> tuple[int, int, float]:
    """Return what `TOTALS` finds in the right table."""
    newest = (
        f"SELECT k, max_by(op, t) AS op, max(t) AS t, max_by(v, t) AS v FROM '{log}/*.parquet' GROUP BY k"
    )
    row = duckdb.execute(f"SELECT {TOTALS} FROM ({newest}) WHERE NOT {DELETE}").fetchone()
    assert row is not None
    return row


def remote_session(settings: dict[str, str]) -> Any:
    """Return a session of Spark Connect, whose server starts with `settings`."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def session(place: Path, jar: Path, *, remote: bool) -> Any:
    """Return a session with the catalog ``mem`` and its schema ``db``."""

    settings = {
        "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", "spark.driver.memory": "2g",
        "spark.jars": str(jar), "spark.sql.catalog.mem": CATALOG,
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }  # fmt: skip
    spark = harness.session(**settings) if not remote else remote_session(settings)
    spark.sql("CREATE NAMESPACE mem.db")
    return spark


def auto_cdc(place: Path, jar: Path, log: Path) -> tuple[float, Any]:
    """Return the seconds of Auto CDC, and what `TOTALS` finds in its table."""
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import (
        create_dataflow_graph,
        handle_pipeline_events,
        start_run,
    )

    (place / "flow.py").write_text(FLOW.format(schema=SCHEMA, log=str(log), delete=DELETE))
    (place / "pipeline.yml").write_text(f"{PIPELINE}storage: file://{place}/storage\n")
    spark = session(place, jar, remote=True)
    spec = load_pipeline_spec(place / "pipeline.yml")
    begin = time.perf_counter()
    graph = create_dataflow_graph(spark, spec.catalog, spec.database, spec.configuration)
    registry = SparkConnectGraphElementRegistry(spark, graph)
    with contextlib.redirect_stdout(sys.stderr):
        register_definitions(place / "pipeline.yml", registry, spec, spark, graph)
        events = start_run(
            spark, graph, full_refresh=[], full_refresh_all=False, refresh=[], dry=False, storage=spec.storage
        )
        handle_pipeline_events(events)
    seconds = time.perf_counter() - begin
    return seconds, spark.sql(f"SELECT {TOTALS} FROM mem.db.newest").first()


def merge(place: Path, jar: Path, log: Path) -> tuple[float, Any]:
    """Return the seconds of a queue and MERGE, and what `TOTALS` finds in the table."""
    spark = session(place, jar, remote=False)
    spark.sql("CREATE TABLE mem.db.newest (k bigint, t bigint, v double)")

    def write(rows: Any, _: int) -> None:
        rows.createOrReplaceTempView("served")
        rows.sparkSession.sql(MERGE)

    seconds = run(spark, place, log, lambda newest: newest.writeStream.foreachBatch(write))
    return seconds, spark.sql(f"SELECT {TOTALS} FROM mem.db.newest").first()


def upsert(place: Path, jar: Path, log: Path) -> tuple[float, Any]:
    """Return the seconds of a queue and an upsert, and what `TOTALS` finds in the table."""

    def writer(newest: Any) -> Any:
        return penstock.upsert(
            newest.drop("op"), to=f"duckdb:///{place}/newest.duckdb", table="newest", key="k", time="t",
            delete_when="deleted", create=True,
        )  # fmt: skip

    seconds = run(session(place, jar, remote=False), place, log, writer)
    with duckdb.connect(place / "newest.duckdb", read_only=True) as store:
        return seconds, store.execute(f"SELECT {TOTALS} FROM newest").fetchone()


def run(spark: Any, place: Path, log: Path, writer: Callable[[Any], Any]) -> float:
    """Return the seconds of an update queue whose rows go to a sink."""
    penstock.register(spark)
    begin = time.perf_counter()
    changes = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(log))
    newest = penstock.update_queue(changes, "k", "t", delete_when=DELETE, state_location=place / "state")
    ready = writer(newest).option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    ready.start().awaitTermination()
    return time.perf_counter() - begin


CONTENDERS = {"Auto CDC": auto_cdc, "queue and MERGE": merge, "queue and upsert": upsert}


def measure(contender: str, log: Path) -> float:
    """Return the seconds of a contender, which runs in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.queues.auto_cdc",
        "--contender",
        contender,
        "--log",
        str(log),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{contender} failed:\n{done.stderr[-4000:]}")
    return float(done.stdout.splitlines()[-1])


def run_contender(contender: str, log: Path) -> float:
    """Run a contender in this process, check its table, and return its seconds."""
    jar = next(fetch([JAR], "master").glob("*.jar"))
    with tempfile.TemporaryDirectory(prefix="penstock-auto-cdc-") as directory:
        seconds, found = CONTENDERS[contender](Path(directory), jar, log)
    count, times, values = expected(log)
    if tuple(found)[:2] != (count, times) or abs(found[2] - values) > 1e-6 * values:
        raise SystemExit(f"{contender} has a wrong table: {tuple(found)} instead of {(count, times, values)}")
    return seconds


def report(files: int, rows: int, keys: int) -> Iterator[str]:
    """Yield the lines of the report."""
    yield "python -m benchmarks.queues.auto_cdc"
    yield ""
    yield f"{machine()}; load {os.getloadavg()[0]:.0f} at the begin"
    yield f"{files} files of {rows:,} changes of {keys:,} keys"
    yield ""
    yield f"{'':<18}{'s':>8}{'changes/s':>12}{'Auto CDC = 1':>14}"
    base = 0.0
    with tempfile.TemporaryDirectory(prefix="penstock-auto-cdc-") as directory:
        log = Path(directory, "log")
        write_changes(log, files, rows, keys)
        for contender in CONTENDERS:
            seconds = measure(contender, log)
            base = base or seconds
            yield f"{contender:<18}{seconds:>8.1f}{files * rows / seconds:>12,.0f}{base / seconds:>14.2f}"


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100_000, help="the changes in a file")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        print(run_contender(arguments.contender, arguments.log))
        return
    print_and_save(report(arguments.files, arguments.rows, arguments.keys), arguments.out)


if __name__ == "__main__":
    main()
