"""Workers that the daemon forks have loaded what they need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.spark_ext.daemon import DAEMON
from tests.spark.queries import Place, fresh_workers, quotes

pytestmark = pytest.mark.spark


def facts_of_a_worker(spark: SparkSession) -> dict[str, Any]:
    """Return the facts that the first function in a new worker sees."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc
        import json
        import os
        import sys
        from pathlib import Path

        loaded = sorted(sys.modules)
        parent = Path(f"/proc/{os.getppid()}")
        kernels = {}
        if "penstock.state_store.keys.key_index" in loaded:
            index = sys.modules["penstock.state_store.keys.key_index"]
            kernels["_find_or_add"] = len(index._find_or_add.signatures)
        facts = {
            "process": os.getpid(),
            "daemon_process": os.getppid(),
            "modules": loaded,
            "pyspark": sys.modules["pyspark"].__file__,
            "memory_pool": pa.default_memory_pool().backend_name,
            "frozen": gc.get_freeze_count(),
            "kernels": kernels,
            "daemon": (parent / "cmdline").read_text().split("\0"),
            "threads_of_daemon": len(list((parent / "task").iterdir())),
        }
        for _ in batches:
            yield pa.record_batch([[json.dumps(facts)]], ["facts"])

    with fresh_workers(spark):
        (row,) = spark.range(1, numPartitions=1).mapInArrow(look, "facts string").collect()
    facts: dict[str, Any] = json.loads(row.facts)
    return facts


def test_a_worker_has_loaded_what_it_needs(spark: SparkSession) -> None:
    facts = facts_of_a_worker(spark)
    assert DAEMON in facts["daemon"]
    assert {"pandas", "pyarrow", "numba", "pyspark.worker"} <= set(facts["modules"])
    assert {"penstock.spark_ext.api.update_queue", "penstock.spark_ext.worker.bucket_task"} <= set(
        facts["modules"]
    )
    assert facts["frozen"] > 10_000
    assert facts["memory_pool"] == "system", "it keeps memory that is free"
    assert facts["kernels"]["_find_or_add"] >= 1
    assert ".zip" not in facts["pyspark"]


def test_tests_that_want_new_workers_get_some_from_the_daemon_that_there_is(spark: SparkSession) -> None:
    first, second = facts_of_a_worker(spark), facts_of_a_worker(spark)
    assert first["process"] != second["process"]
    assert first["daemon_process"] == second["daemon_process"]


def test_the_daemon_has_no_thread_that_a_fork_would_lose(spark: SparkSession) -> None:
    assert facts_of_a_worker(spark)["threads_of_daemon"] == 1


def test_a_query_loads_hardly_anything_more(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0), ("b", 2, 2.0), ("a", 3, 3.0)]))
    before = set(facts_of_a_worker(spark)["modules"])
    seen = tmp_path / "modules"

    def note(table: pa.Table) -> pa.Table:
        import sys
        from pathlib import Path

        Path(seen).write_text("\n".join(sys.modules))
        return table

    with fresh_workers(spark):
        place.run(place.queue(spark, apply=note, output_schema="k string, t long, v double"))
    assert place.newest() == {"a": 3, "b": 2}
    assert len(set(seen.read_text().split()) - before) < 10
