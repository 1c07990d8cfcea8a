"""A failed query, or Ctrl-C, ends a run and a script without a trace of the JVM or of Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.long]

PIPELINE = """
source: {type: files, format: parquet, path: in, schema: "k string, t bigint"}
queue: {key: k, time: t, buckets: 1}
sink: {type: noop}
query: {trigger: available_now, spark: {spark.driver.memory: 1g}}
"""
SCRIPT = """
import penstock

with penstock.session({"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}) as spark:
    rows = spark.readStream.schema("k string, t bigint").parquet("in")
    newest = penstock.update_queue(rows, "k", "t", state_location="state")
    query = newest.writeStream.format("noop").option("checkpointLocation", "ck").start()
    END
"""


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["-m", "penstock.cli", "run", "p.yaml"], "a null"),
        (["-c", SCRIPT.replace("END", "penstock.run(query)")], "a null"),
        (["-c", SCRIPT.replace("END", "query.awaitTermination()")], "a null"),
    ],
    ids=["run", "script", "script that waits"],
)
def test_a_failure_is_told_in_one_line_without_the_jvms_stack(
    tmp_path: Path, arguments: list[str], fact: str
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"k": pa.array(["a", None]), "t": [1, 2]}), tmp_path / "in" / "rows.parquet")
    (tmp_path / "p.yaml").write_text(PIPELINE)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode in (1, 2), done.stderr
    assert fact in done.stderr.splitlines()[-1], done.stderr
    told = done.stdout + done.stderr
    for java in ("\tat ", "org.apache.spark", "Py4J", "Driver stacktrace", "JVM stacktrace"):
        assert java not in told, told


INTERRUPTED = """
import signal
import penstock

def interrupt():
    signal.raise_signal(signal.SIGINT)

def ctrl_c_while_it_loads(spark):
    rows = spark.readStream.format("market").option("rows", 10).load()
    interrupt()

def writer(spark, name):
    rows = spark.readStream.format("market").option("rows", 10).load()
    newest = penstock.update_queue(rows, "symbol", "time", state_location=f"state-{name}")
    return newest.writeStream.format("noop").option("checkpointLocation", f"checkpoint-{name}")

def ctrl_c_before_the_run(spark):
    query = writer(spark, "before").start()
    interrupt()

def ctrl_c_while_the_query_starts(spark):
    starting = writer(spark, "starts")
    def start():
        interrupt()
        return type(starting).start(starting)
    starting.start = start
    assert penstock.run(starting).signal == signal.SIGINT

def ctrl_c_in_a_batch(spark):
    spark.sparkContext.setJobGroup("group", "a job of a user's group")
    spark.range(9).count()
    interrupt()

settings = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
for step in (ctrl_c_while_it_loads, ctrl_c_before_the_run, ctrl_c_while_the_query_starts, ctrl_c_in_a_batch):
    code = 0
    try:
        with penstock.session(settings) as spark:
            step(spark)
    except SystemExit as ended:
        code = ended.code
    print(step.__name__, code)
"""


def test_ctrl_c_ends_a_stream_with_0_at_any_time_and_a_batch_with_130(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=tmp_path, env=dict(os.environ), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "ctrl_c_while_it_loads None",
        "ctrl_c_before_the_run None",
        "ctrl_c_while_the_query_starts 0",
        "ctrl_c_in_a_batch 130",
    ], done.stderr
    assert "KeyboardInterrupt" not in done.stderr and "SystemExit" not in done.stderr


TERMINATED = """
import os, signal, threading
import penstock

with penstock.session({"spark.driver.memory": "1g"}) as spark:
    writer = spark.readStream.format("rate").load().writeStream.format("noop")
    query = writer.option("checkpointLocation", "checkpoint").start()
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    query.awaitTermination()
"""


def test_sigterm_ends_a_program_that_waits_for_its_query(tmp_path: Path) -> None:
    # The interrupted call leaves its answer on the connection to the JVM, or never gets one.
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED], cwd=tmp_path, env=dict(os.environ), capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (143, "")
    assert "Traceback" not in done.stderr
