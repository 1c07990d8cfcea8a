"""A query's state in Penstock against Spark's RocksDB state store, whole micro-batches.

    python -m benchmarks.state.state_in_spark [--rounds N] [--quick]

State of 1 M keys, then batches of 100,000 updates of random keys, rows of (key long, value double, ts
timestamp, text of 16 bytes). Both queries emit the newest row of each key of a batch and keep what they
need for that between batches; both run on 2 cores from the same Parquet files, each in processes of its own,
in turn. ``penstock`` is ``update_queue(budget=None)``, ``rocksdb`` is ``groupBy(key).agg(max_by(struct))`` in
update mode on the RocksDB state store with changelog checkpointing.

They keep different state: Spark keeps the newest row of each key, Penstock only its key and time, because it
does not need emitted rows again. ``penstock-rows`` is a stateful function by bucket that keeps whole rows in
Penstock's store (`benchmarks.state.keyed_state`), so that the stores are compared with equal contents.

Columns: whole batch (``triggerExecution``), the commit of state (both partitions one after the other on
their cores: the slower one), bytes written for state per batch, bytes on disk after the last batch, memory at
its peak, and a restart in a new process: from ``start()`` to the end of its first micro-batch, and of that
the time that loading state took.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import ROCKSDB_STATE, MemoryProbe, machine, median, run_contender, scratch, session

SCHEMA = "key long, value double, ts timestamp, text string"
ARROW_SCHEMA = pa.schema(
    [
        pa.field("key", pa.int64()),
        pa.field("value", pa.float64()),
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("text", pa.string()),
    ]
)
CONTENDERS = ("penstock", "penstock-rows", "rocksdb")


def write_input(directory: Path, keys: int, updates: int, batches: int) -> None:
    """Write one file with all keys, and one for each batch of updates."""
    generator = np.random.default_rng(7)
    begin = 1_700_000_000_000_000
    for number in range(batches + 1):
        chosen = generator.permutation(keys) if number == 0 else generator.integers(0, keys, updates)
        times = begin + np.arange(len(chosen), dtype=np.int64)
        begin += len(chosen)
        table = pa.table(
            {
                "key": chosen * 2_654_435_761 % 2**40,
                "value": generator.random(len(chosen)),
                "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
                "text": _texts(generator, len(chosen)),
            }
        )
        pq.write_table(table, directory / f"part-{number:05d}.parquet")


def add_batch(directory: Path) -> None:
    """Add one more batch of updates, a copy of the last one."""
    files = sorted(directory.iterdir())
    (directory / f"part-{len(files):05d}.parquet").write_bytes(files[-1].read_bytes())


def _texts(generator: np.random.Generator, count: int) -> pa.Array:
    text = np.frombuffer(generator.bytes(8 * count).hex().encode(), np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * 16
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


class KeepsRows:
    """The function of ``applyInPandasWithState`` that keeps the newest row of each key of a bucket."""

    def __init__(self, location: str, stream: Any, log: str) -> None:
        self.location, self.stream, self.log = location, stream, log

    def __call__(self, key: tuple[Any, ...], frames: Any, state: Any) -> Any:
        import pandas as pd

        from penstock.checkpointing.files import open_files
        from penstock.operators.update_stream.arrivals import Arrivals, conflate
        from penstock.spark_ext.border.buckets import bucket_labels
        from penstock.spark_ext.border.parcels import from_parcel, to_parcels
        from penstock.state_store.bucket_store import BucketStore, FileId, Pointer, Version

        begin = time.perf_counter()
        bucket = bucket_labels(2).index(int(key[0]))
        store = BucketStore(open_files(self.location).child(f"{bucket:05d}"), background=_background())
        pointer = Pointer(Version(int(state.get[0])), FileId(state.get[1])) if state.exists else None
        found = _cache().take(store, pointer, _new_table)
        store.release(found.handle)
        loaded = time.perf_counter()
        payloads = [payload for frame in frames for payload in frame["payload"]]
        arrivals = [Arrivals.from_batch(from_parcel(payload), self.stream.schema) for payload in payloads]
        newest = conflate(self.stream, Arrivals.concat(arrivals)).rows
        found.state.put(newest)
        before_commit = time.perf_counter()
        handle = store.commit(found.state, found.handle)
        assert handle.pointer
        _cache().put(store, found.state, handle)
        state.update((handle.pointer.version, handle.pointer.file_id))
        facts = {
            "version": handle.pointer.version,
            "commit_ms": 1000 * (time.perf_counter() - before_commit),
            "load_ms": 1000 * (loaded - begin),
            "bytes": handle.bytes_since(found.handle),
        }
        with Path(self.log).open("a") as log:
            log.write(json.dumps(facts) + "\n")
        for payload in to_parcels([newest]):
            yield pd.DataFrame({"payload": [payload]}, dtype=object)


_KEPT: dict[str, Any] = {}


def _cache() -> Any:
    from penstock.state_store.cache import StateCache

    return _KEPT.setdefault("cache", StateCache(1 << 30))


def _background() -> Any:
    from concurrent.futures import ThreadPoolExecutor

    if "thread" not in _KEPT:
        _KEPT["thread"] = ThreadPoolExecutor(1)
    return _KEPT["thread"]


def _new_table() -> Any:
    from benchmarks.state.keyed_state import KeyedState

    return KeyedState(ARROW_SCHEMA, ("key",))


def build(contender: str, rows: Any, directory: Path) -> tuple[Any, str]:
    """Return the contender's streaming DataFrame and output mode."""
    from pyspark.sql import functions as sf

    import penstock
    from penstock.operators.update_stream.stream import UpdateStream
    from penstock.spark_ext.border.arrow_settings import skip_size_of_each_row
    from penstock.spark_ext.border.packing import Packer
    from penstock.spark_ext.border.parcels import PARCELS, Unpacker

    location = str(directory / "state")
    if contender == "rocksdb":
        newest = sf.max_by(sf.struct("value", "ts", "text"), "ts").alias("newest")
        return rows.groupBy("key").agg(newest).select("key", "newest.*"), "update"
    if contender == "penstock":
        return penstock.update_queue(rows, "key", "ts", policy="fifo", state_location=location), "append"
    skip_size_of_each_row(rows.sparkSession)
    stream = UpdateStream(ARROW_SCHEMA, ("key",), "ts", None)
    parcels = rows.mapInArrow(Packer(stream, 2, "error", None), PARCELS)
    # Not this script's own, which would travel by value, and its cache with it.
    keeps_rows = importlib.import_module("benchmarks.state.state_in_spark").KeepsRows
    results = parcels.groupBy("bucket").applyInPandasWithState(
        keeps_rows(location, stream, str(directory / "log")),
        "payload binary", "version long, file_id string", "append", "NoTimeout",
    )  # fmt: skip
    return results.mapInArrow(Unpacker(ARROW_SCHEMA), SCHEMA), "append"


def run_one(contender: str, files: Path, directory: Path) -> dict[str, Any]:
    """Run a contender over the files that its checkpoint has not seen; return what it measured."""
    import penstock

    spark = session(**(ROCKSDB_STATE if contender == "rocksdb" else {}))
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))
    with MemoryProbe() as probe:
        df, mode = build(contender, rows, directory)
        writer = df.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
        before = _bytes_below(directory)
        begin = time.perf_counter()
        query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()
        # Looked for often, as this is what is measured: a listener hears of it later, over Spark's event bus.
        while not query.recentProgress and not query.awaitTermination(0.02):
            pass
        first_s = time.perf_counter() - begin
        query.awaitTermination()
        progress = [p for p in query.recentProgress if p.numInputRows]
        result: dict[str, Any] = {
            "seconds": [p.durationMs["triggerExecution"] / 1000 for p in progress],
            "first_s": first_s,
            "disk": _bytes_below(directory),
            "grown": _bytes_below(directory) - before,
        }
        if contender == "rocksdb":
            stores = [p.stateOperators[0] for p in progress]
            result["commit_ms"] = [s.commitTimeMs / 2 for s in stores]
            result["load_ms"] = stores[0].customMetrics["rocksdbLoadLatencyMs"] / 2
        elif contender == "penstock":
            metrics = penstock.metrics(query)
            result["commit_ms"] = [m["duration_ms"]["commit"] / 2 for m in metrics]
            result["load_ms"] = metrics[0]["duration_ms"]["load"] / 2
            result["written"] = [m["state_bytes_written"] for m in metrics]
        else:
            facts = [json.loads(line) for line in (directory / "log").read_text().splitlines()]
            facts = facts[-2 * len(progress) :]
            pairs = list(zip(facts[::2], facts[1::2], strict=True))
            result["commit_ms"] = [max(a["commit_ms"], b["commit_ms"]) for a, b in pairs]
            result["load_ms"] = max(a["load_ms"] for a in pairs[0])
            result["written"] = [a["bytes"] + b["bytes"] for a, b in pairs]
    spark.stop()
    return result | {"peak_mib": probe.peak_mib}


def _bytes_below(directory: Path) -> int:
    """Return the bytes of all state, and of Spark's own for it."""
    total = 0
    for below in (directory / "state", directory / "checkpoint" / "state"):
        total += sum(path.stat().st_size for path in below.rglob("*") if path.is_file())
    return total


def main() -> None:
    """Run all contenders and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="tiny inputs, one round: does it run?")
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), help="run these contenders only")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        result = run_one(options.contender, options.files, options.directory)
        if options.quick:  # the restart in the same JVM, with workers that know nothing
            add_batch(options.files)
            result["again"] = run_one(options.contender, options.files, options.directory)
        print(json.dumps(result))
        return
    keys, updates, batches = (1_000_000, 100_000, options.batches)
    if options.quick:
        keys, updates, batches = 5_000, 500, 3
    print(f"{machine()}; {keys} keys, {batches} batches of {updates} updates\n")
    print(f"{'contender':14} {'batch s':>8} {'commit ms':>10} {'MB/batch':>9} {'disk MB':>8} "
          f"{'JVM MiB':>8} {'Py MiB':>7} {'restart s':>10} {'load ms':>8}")  # fmt: skip
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(1 if options.quick else options.rounds):
        for contender in options.only:
            with scratch("state") as name:
                directory = Path(name)
                (directory / "in").mkdir()
                write_input(directory / "in", keys, updates, batches)
                arguments = ("--contender", contender, "--files", name + "/in", "--directory", name)
                run = run_contender(
                    "state.state_in_spark", *arguments, *(["--quick"] if options.quick else [])
                )
                if not options.quick:
                    add_batch(directory / "in")
                    run["again"] = run_contender("state.state_in_spark", *arguments)
                found.setdefault(contender, []).append(run)
            print(f"{contender}: {json.dumps(run)}", file=sys.stderr, flush=True)
    for contender, runs in found.items():
        warm = [second for run in runs for second in run["seconds"][6:] or run["seconds"]]
        commit = [ms for run in runs for ms in run["commit_ms"][6:] or run["commit_ms"]]
        written = [
            sum(run["written"][1:]) / batches
            if "written" in run
            else run["grown"] / (batches + keys / updates)
            for run in runs
        ]
        load = [run["again"]["load_ms"] for run in runs if "load_ms" in run["again"]]
        print(f"{contender:14} {median(warm):8.3f} {median(commit):10.1f} {median(written) / 1e6:9.2f} "
              f"{median([run['disk'] / 1e6 for run in runs]):8.1f} "
              f"{max(run['peak_mib']['jvm'] for run in runs):8.0f} "
              f"{max(run['peak_mib']['python'] for run in runs):7.0f} "
              f"{median([run['again']['first_s'] for run in runs]):10.2f} "
              f"{median(load) if load else float('nan'):8.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
