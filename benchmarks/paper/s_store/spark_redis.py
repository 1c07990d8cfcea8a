"""Figure 10: votes and a leaderboard of 10 seconds, here and in Spark with Redis (S-Store §4.6).

Each contender is a query of Spark in a process of its own, over the same Parquet files, a file in each
micro-batch. Ours keeps votes and window in tables. Spark's keeps the votes in Redis, which appends them to
its log and syncs it before it answers (``appendfsync always``), and counts windows by itself, with its
checkpoint and RocksDB; as in the paper no vote is undone if a task fails behind Redis.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import (
    ROCKSDB_STATE,
    MemoryProbe,
    batch_seconds,
    descendants,
    median,
    run_contender,
    scratch,
    session,
)
from benchmarks.paper.s_store.scale import Point, Scale
from benchmarks.paper.s_store.texts import define, voter
from penstock.procedures.databases import Database, database

__all__ = ["board", "figure_10", "redis_server", "write_votes"]

SCHEMA = "number long, ts timestamp, phone long, contestant long"
CONTESTANTS = 25
VOTES_PER_S = 20_000
"""Votes in a second of event time."""
BATCHES = 8
_PHONES = 20_000_000
_PIPELINE = 5_000
_SIZE_S, _SLIDE_S = 10, 1
_OURS, _SPARK, _VOTER = "penstock", "Spark, Redis", "penstock, Voter"

_BOARD = f"""
@db.trigger("recent")
def rank(e, recent, board):
    for id in range({CONTESTANTS}):
        board[id].votes = 0
    for vote in recent:
        board[vote.contestant].votes += 1

@db.procedure(event="ts timestamp NOT NULL, phone bigint NOT NULL, contestant bigint NOT NULL")
def vote(e, {{votes}}recent, board):
    if 0 not in board:
        for id in range({CONTESTANTS}):
            board.insert(id=id, votes=0)
    if e.contestant not in board:
        abort("no such contestant")
    {{validate}}
    recent.insert(ts=e.ts, contestant=e.contestant)
"""
_VALIDATE = """if e.phone in votes:
        abort("voted already")
    votes.insert(phone=e.phone, contestant=e.contestant)"""


def board(*, validated: bool) -> Database:
    """Return a database that counts the votes of the last 10 seconds, each second."""
    made = database("board")
    made.table("board", "id bigint, votes bigint NOT NULL", key="id")
    if validated:
        made.table("votes", "phone bigint, contestant bigint NOT NULL", key="phone")
    made.window(
        "recent", "ts timestamp NOT NULL, contestant bigint NOT NULL",
        size=f"{_SIZE_S} s", slide=f"{_SLIDE_S} s", time="ts",
    )  # fmt: skip
    text = _BOARD.replace("{votes}", "votes, " if validated else "")
    define(text.replace("{validate}", _VALIDATE if validated else "pass"), db=made)
    return made


def write_votes(place: Path, count: int) -> None:
    """Write votes as one Parquet file for each micro-batch; a tenth is by phones that have voted."""
    rng = np.random.default_rng(10)
    place.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(count), BATCHES)):
        times = 1_700_000_000_000_000 + rows * (1_000_000 // VOTES_PER_S)
        table = pa.table({
            "number": rows,
            "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
            "phone": rng.integers(0, _PHONES * count // 4_000_000 + 1, len(rows)),
            "contestant": rng.integers(0, CONTESTANTS, len(rows)),
        })  # fmt: skip
        pq.write_table(table, place / f"part-{number:05d}.parquet")


@contextmanager
def redis_server(place: Path) -> Iterator[tuple[int, int]]:
    """Run a server of Redis that syncs each write; yield its port and process.

    Raises
    ------
    SystemExit
        If it is not installed.
    """
    if shutil.which("redis-server") is None:
        raise SystemExit("there is no redis-server: apt-get install redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "port": port, "bind": "127.0.0.1", "dir": place, "appendonly": "yes", "appendfsync": "always",
        "save": "", "daemonize": "no",
    }  # fmt: skip
    arguments = [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
    process = subprocess.Popen(["redis-server", *arguments], stdout=subprocess.DEVNULL)
    try:
        client = _client(port)
        while True:
            try:
                client.ping()
                break
            except ConnectionError:
                if process.poll() is not None:
                    raise
                time.sleep(0.02)  # polls: a server that starts tells nobody
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def _client(port: int) -> Any:
    import redis

    class Client(redis.Redis):
        """A client whose errors of connections are Python's."""

        def ping(self, **kwargs: Any) -> Any:
            try:
                return super().ping(**kwargs)
            except redis.exceptions.ConnectionError as error:
                raise ConnectionError(str(error)) from error

    return Client(port=port)


class Validates:
    """The function of ``mapInArrow`` that keeps votes of phones that Redis did not know."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import redis

        client = redis.Redis(port=self.port)
        for batch in batches:
            for begin in range(0, batch.num_rows, _PIPELINE):
                part = batch.slice(begin, _PIPELINE)
                pipeline = client.pipeline(transaction=False)
                phones, contestants = part.column("phone").to_pylist(), part.column("contestant").to_pylist()
                for phone, contestant in zip(phones, contestants, strict=True):
                    pipeline.set(phone, contestant, nx=True)
                accepted = pipeline.execute()
                yield part.filter(pa.array([bool(one) for one in accepted]))


def in_spark(rows: Any, port: int, *, validated: bool) -> Any:
    """Return the writer of Spark's own query; it puts the newest leaderboard into Redis."""
    from pyspark.sql import functions as sf

    if validated:
        # Not this script's own, which would travel by value.
        own = importlib.import_module("benchmarks.paper.s_store.spark_redis")
        rows = rows.mapInArrow(own.Validates(port), SCHEMA)
    counted = (
        rows.withWatermark("ts", "1 second")
        .groupBy(sf.window("ts", f"{_SIZE_S} seconds", f"{_SLIDE_S} seconds"), "contestant")
        .count()
    )

    def put(changed: Any, _: int) -> None:
        newest = changed.groupBy("window").agg(
            sf.map_from_entries(sf.collect_list(sf.struct("contestant", "count"))).alias("votes")
        )
        row = newest.orderBy(sf.desc("window.end")).offset(_SIZE_S // _SLIDE_S - 1).first()
        if row is not None:
            _client(port).hset("board", mapping={str(k): v for k, v in row.votes.items()})

    return counted.writeStream.outputMode("update").foreachBatch(put)


def ours(rows: Any, place: Path, *, validated: bool, whole: bool) -> Any:
    """Return the writer of our query."""
    import penstock

    if whole:
        rows = rows.selectExpr("number", "phone", "contestant % 8 AS contestant")
    made = voter().workflows["vote"] if whole else board(validated=validated).procedures["vote"]
    time_column = "number" if whole else "ts"
    results = penstock.transactions(rows, made, time=time_column, state_location=str(place / "state"))
    return results.writeStream.format("noop")


def run_one(contender: str, votes: Path, *, validated: bool) -> dict[str, Any]:
    """Run a contender in this process."""
    with scratch("s-store") as made, redis_server(Path(made)) as (port, process), MemoryProbe() as probe:
        place = Path(made)
        spark = session(**(ROCKSDB_STATE if contender == _SPARK else {}))
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(votes))
        if contender == _SPARK:
            writer = in_spark(rows, port, validated=validated)
        else:
            writer = ours(rows, place, validated=validated, whole=contender == _VOTER)
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        counted = [one.numInputRows for one in query.recentProgress if one.numInputRows]
        seconds = median(batch_seconds(query))
        if contender == _SPARK:
            client = _client(port)
            accepted = client.dbsize() - client.exists("board") if validated else 0
            memory = probe.peak_mib["total"] + _resident_mib(process)
        else:
            import penstock

            memory = probe.peak_mib["total"]
            accepted = 0
            if validated or contender == _VOTER:
                table = penstock.read_state(
                    spark, str(place / "state"), checkpoint=str(place / "checkpoint"), table="votes"
                )
                accepted = table.count()
        return {"rate": counted[0] / seconds, "accepted": accepted, "MiB": memory, "batch": seconds}


def _resident_mib(process: int) -> float:
    total = 0.0
    for pid in descendants(process):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])
    return total / 1024


def figure_10(scale: Scale) -> list[Point]:
    """Votes a second of queries of Spark, validated and not.

    Raises
    ------
    SystemExit
        If contenders accept other numbers of votes.
    """
    points: list[Point] = []
    with scratch("votes") as made:
        votes = Path(made) / "votes"
        write_votes(votes, scale.votes)
        for validated in (True, False):
            found = {
                name: run_contender(
                    "paper.s_store.spark_redis", name, str(votes), *(["--validated"] if validated else [])
                )
                for name in (_OURS, _SPARK, *([_VOTER] if validated else []))
            }
            if found[_OURS]["accepted"] != found[_SPARK]["accepted"]:
                raise SystemExit(f"contenders accept other votes: {found}")
            points.append({
                "validated": "yes" if validated else "no",
                **{name: one["rate"] for name, one in found.items()},
                **({} if validated else {_VOTER: float("nan")}),
                **{f"{name}, MiB": one["MiB"] for name, one in found.items() if name != _VOTER},
            })  # fmt: skip
    return points


def main() -> None:
    """Run one contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender", choices=(_OURS, _SPARK, _VOTER))
    parser.add_argument("votes", type=Path)
    parser.add_argument("--validated", action="store_true")
    options = parser.parse_args()
    print(json.dumps(run_one(options.contender, options.votes, validated=options.validated)))


if __name__ == "__main__":
    main()
