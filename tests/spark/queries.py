"""Helpers of the tests of streaming queries: input files, restartable runs, and the content of a sink."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.checkpointing.p_stream import PStream
from penstock.errors import PenstockError
from penstock.spark_ext.api.metrics import batch_metrics
from penstock.spark_ext.border.connection import is_connect
from penstock.spark_ext.border.spark_versions import HAS_ADMISSION_CONTROL
from tests.servers import processes

Row = tuple[Any, ...]

PATIENCE_S = 600.0  # a machine under load runs a query slowly; a query that fails ends at once
SCHEMA = "k string, t long, v double"


def quotes(rows: Sequence[tuple[str | None, int | None, float | None]]) -> pa.Table:
    """Return rows of (k, t, v), the columns of `SCHEMA`."""
    k, t, v = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {"k": pa.array(k, pa.string()), "t": pa.array(t, pa.int64()), "v": pa.array(v, pa.float64())}
    )


class Input:
    """A directory of Parquet files, which a query reads one a micro-batch, in the order of `add`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._count = len(list(directory.glob("*.parquet")))

    def add(self, *tables: pa.Table, group_rows: int | None = None) -> None:
        """Add one file for each table, with row groups of this size; a file appears as a whole."""
        for table in tables:
            path = self.directory / f"{self._count:06d}.parquet"
            hidden = path.with_name(f"_{path.name}")
            pq.write_table(table, hidden, row_group_size=group_rows)
            moment = 1_000_000 + self._count  # Spark takes files in the order of their times.
            os.utime(hidden, (moment, moment))
            hidden.rename(path)
            self._count += 1

    def frame(self, spark: SparkSession, schema: Any = SCHEMA) -> DataFrame:
        """Return the files as a streaming DataFrame."""
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.directory))


class Place:
    """The places of one query: input, state, checkpoint and a Parquet sink below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.input = Input(directory / "input")
        self.state = directory / "state"
        self.checkpoint = directory / "checkpoint"
        self.sink = directory / "sink"

    def copy_to(self, directory: Path) -> Place:
        """Return a copy of this place, as if its query, which has stopped, had run there."""
        shutil.copytree(self.directory, directory, dirs_exist_ok=True)  # with the times of the input
        for log in [*(directory / "checkpoint").rglob("*"), *(directory / "sink").rglob("*")]:
            if log.is_file() and bytes(self.directory) in log.read_bytes():
                log.write_bytes(log.read_bytes().replace(bytes(self.directory), bytes(directory)))
                log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
        return Place(directory)

    def queue(self, spark: SparkSession, **options: Any) -> DataFrame:
        """Return an update queue over the input of quotes; `options` are those of `update_queue`."""
        given: dict[str, Any] = {"key": "k", "time": "t", "state_location": self.state} | options
        return penstock.update_queue(self.input.frame(spark), **given)

    def start(self, df: DataFrame, **trigger: Any) -> StreamingQuery:
        """Start or restart the query `df`, into the Parquet sink."""
        writer = df.writeStream.format("parquet").outputMode("append")
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.start(str(self.sink))

    def run(self, df: DataFrame) -> StreamingQuery:
        """Run `df`, which has no budget, over all the input there is; return the ended query."""
        query = self.start(df, availableNow=True)
        try:
            assert query.awaitTermination(int(PATIENCE_S)), "the query did not end"
        finally:
            query.stop()
        return query

    def run_until(self, df: DataFrame, condition: Callable[[], bool]) -> StreamingQuery:
        """Run `df` until `condition` holds; return the stopped query."""
        query = self.start(df)
        try:
            wait(query, condition)
        finally:
            query.stop()
        return query

    def run_until_drained(self, df: DataFrame) -> StreamingQuery:
        """Run `df`, which has a budget, until all input is read and nothing waits."""
        query = self.start(df)
        try:
            wait_until_drained(query, self)
        finally:
            query.stop()
        return query

    @property
    def next_batch(self) -> int:
        """The id of the first micro-batch that will read input which is not there yet."""
        offsets = [int(log.name) for log in (self.checkpoint / "offsets").glob("*") if log.name.isdigit()]
        return max(offsets, default=-1) + 1

    def batches(self) -> dict[int, pa.Table]:
        """Return the committed rows of every micro-batch, in the order in which they were emitted."""
        found = {}
        logs = [log for log in (self.sink / "_spark_metadata").glob("*") if log.name.isdigit()]
        for log in sorted(logs, key=lambda log: int(log.name)):
            entries = [json.loads(line) for line in log.read_text().splitlines()[1:]]
            paths = sorted(unquote(urlparse(entry["path"]).path) for entry in entries)
            tables = [pq.ParquetFile(path).read() for path in paths]
            found[int(log.name)] = pa.concat_tables(tables) if tables else pa.table({})
        return found

    def forget(self, batch: int, *, planned: bool = True) -> None:
        """Remove the commits from `batch` on from checkpoint and sink, as if the query had crashed.

        Unless it stays `planned`, it is also forgotten which input `batch` has.
        """
        _delete_log(self.checkpoint / "offsets", batch + planned)
        _delete_log(self.checkpoint / "commits", batch)
        _delete_log(self.sink / "_spark_metadata", batch)

    def forget_commits(self, batch: int) -> None:
        """Let the checkpoint forget that `batch` and what followed were committed; the sink has its rows."""
        _delete_log(self.checkpoint / "commits", batch)

    def rows(self, *columns: str) -> dict[int, list[Row]]:
        """Return the `columns` (k, t and v by default) of every micro-batch that emitted any."""
        names = columns or ("k", "t", "v")
        return {
            batch: list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
            for batch, table in self.batches().items()
            if table.num_rows
        }

    def sequence(self, *columns: str) -> list[Row]:
        """Return the `columns` of all emitted rows."""
        return [row for rows in self.rows(*columns).values() for row in rows]

    def newest(self) -> dict[Any, Any]:
        """Return the last emitted time of each key."""
        return dict(self.sequence("k", "t"))

    def state_files(self) -> list[Path]:
        """Return the files of all buckets' state, oldest version first."""
        return sorted(self.state.glob("*/*/*/*.punit"), key=lambda path: path.name)


def _delete_log(directory: Path, first: int) -> None:
    """Delete the entries of one of Spark's logs from a number on."""
    for path in directory.iterdir():
        number = path.name.strip(".").removesuffix(".crc")
        if number.isdigit() and int(number) >= first:
            path.unlink()


def files_of_batches(checkpoint: Path, rows: Mapping[str, Sequence[int]]) -> list[dict[str, slice]]:
    """Return, for each micro-batch of a graph's results, the files that it read of each persisted source.

    The p-stream of a source gets one file a micro-batch, but a micro-batch of the results reads all files
    that the p-stream has by then. With ``available_now``, these are all files of a start.

    Parameters
    ----------
    checkpoint : Path
        The graph's checkpoint.
    rows : mapping
        For each source, the number of rows of each of its files.
    """
    names = {PStream(checkpoint / "p-streams" / name).identity: name for name in rows}
    ends = {name: [0, *accumulate(counts)] for name, counts in rows.items()}
    done, found = dict.fromkeys(rows, 0), []
    logs = (checkpoint / "queries" / "results" / "offsets").glob("[0-9]*")
    for log in sorted(logs, key=lambda log: int(log.name)):
        offsets = [json.loads(line) for line in log.read_text().splitlines()[2:] if line != "-"]
        end = done | {names[one["identity"]]: one["offset"] for one in offsets}
        found.append({
            name: slice(ends[name].index(done[name]), ends[name].index(end[name])) for name in rows
        })  # fmt: skip
        done = end
    assert done == {name: counts[-1] for name, counts in ends.items()}, "the results have not read all rows"
    return found


def wait(query: StreamingQuery, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait until `condition` holds; a query that fails meanwhile raises its error."""
    end = time.monotonic() + patience_s
    while not condition():
        active = query.isActive  # before the error, which is there once the query is not active
        error = query.exception()
        if error is not None:
            raise error
        assert active, "the query ended early"
        assert time.monotonic() < end, f"still not so after {patience_s} s: {query.lastProgress}"
        time.sleep(0.05)  # polls: conditions are of files and progress; listeners hear of it later


needs_admission_control = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="before Spark 4.2, Python sources cannot limit micro-batches"
)


def limits(**options: Any) -> dict[str, Any]:
    """Return options that limit micro-batches; none where Spark reads all rows of a Python source at once."""
    return options if HAS_ADMISSION_CONTROL else {}


def offset_in(text: str | None) -> dict[str, Any]:
    """Return an offset of a query's progress: JSON, or in Spark 4.0 the text of a Python dictionary."""
    found: dict[str, Any] = ast.literal_eval((text or "{}").replace("null", "None"))
    return found


def wait_until_drained(running: StreamingQuery, place: Place) -> None:
    """Wait until `running` has read all input and nothing waits; raise what it fails with."""
    files = len(list(place.input.directory.glob("*.parquet")))

    def drained() -> bool:
        progress = running.lastProgress
        if progress is None:
            return False
        end = offset_in(progress.sources[0].endOffset)
        read_all = bool(end) and end["logOffset"] == files - 1
        # A trigger after the last file, in which no bucket had anything to do.
        return read_all and progress.numInputRows == 0 and not batch_metrics(progress)

    wait(running, drained)


@contextlib.contextmanager
def fresh_workers(spark: SparkSession, **environment: str) -> Iterator[None]:
    """Let queries that are defined within run in new Python workers, which hold no cached state.

    With an `environment` they come from a daemon of their own. Else those that there are end: no query may
    run.
    """
    if not environment:
        _end_workers(spark)
        yield
        return
    if is_connect(spark):
        pytest.skip("behind Spark Connect, functions have no environment of their own")
    variables = spark.sparkContext.environment
    before = dict(variables)
    variables.update(environment, PENSTOCK_TEST_WORKERS=uuid.uuid4().hex)
    try:
        yield
    finally:
        variables.clear()
        variables.update(before)


def _end_workers(spark: SparkSession) -> None:
    """Kill the Python workers of an application; the next task gets new ones from their daemon."""
    if is_connect(spark):
        driver = vars(spark)["server"].pid
    else:
        jvm: Any = spark._jvm
        driver = jvm.java.lang.ProcessHandle.current().pid()
    running = list(processes.running())
    daemons = {one.id for one in running if one.parent == driver}
    workers = [one.id for one in running if one.parent in daemons]
    processes.kill(workers)
    # Spark takes a worker for one that lives until the daemon has seen that it ended.
    gone = processes.until(lambda: not any(Path(f"/proc/{one}").exists() for one in workers), PATIENCE_S)
    assert gone, "a daemon does not take note of workers that ended"


@contextlib.contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    """Set Spark settings (with ``__`` for dots) and set them back."""
    names = {name: name.replace("__", ".") for name in values}
    before = {full: spark.conf.get(full, None) for full in names.values()}
    for name, value in values.items():
        spark.conf.set(names[name], value)
    try:
        yield
    finally:
        for full, old in before.items():
            if old is None:
                spark.conf.unset(full)
            else:
                spark.conf.set(full, old)


def failure(df: DataFrame, place: Place) -> str:
    """Run `df` until it fails, at its start or later, and return the text of its error."""
    try:
        query = place.start(df)
    except PenstockError as error:
        return f"{type(error).__module__}.{type(error).__name__}: {error}"
    try:
        ended = query.awaitTermination(int(PATIENCE_S))
        raise AssertionError("the query ended well" if ended else "the query did not fail")
    except StreamingQueryException as error:
        return str(error)
    finally:
        query.stop()
