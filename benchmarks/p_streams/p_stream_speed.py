"""P-streams under the queries of (Scabbard Table 3): durable append, read with push-down, both in Spark.

    python -m benchmarks.p_streams.p_stream_speed [--query CM1 ...] [--density sample dense] [--million 40]
                                        [--mode append read spark parquet options] [--goal fast]
                                        [--interval "0 seconds"] [--direct-io] [--unit-rows 262144]
                                        [--data FOLDER]

Each runs in a process of its own. ``append`` is what a `PStreamWriter` makes durable of the query's stream
with what the graph's rules push before the p-stream, in input tuples a second, beside plain Arrow IPC files
with all columns, synced; ``read`` is the scan that the rules push into the reader, down to fragments, by two
threads of one process; ``spark`` is a streaming query from a p-stream that grows to Spark's noop sink,
checkpoints on, while a writer in the same process appends, with a micro-batch in each ``--interval``: the
pace until all was read, of micro-batches while the writer appended (sustained), and of the writer, and the
nanoseconds of a core that a tuple takes in that process, in Java, in Java's compilers, and in the workers
that read; ``parquet`` is Spark's own streaming query, over the same tuples in Parquet files that are there
before, with the selection and the columns that are pushed to the p-stream, and no fragments. ``options`` are
the configurations of Scabbard's Fig. 11: tuples a second, and the bytes that are written of the sample as it
is, whose event times are its own. Input is counted in tuples of the stream before any is left out, and in the
bytes that Arrow has for them. Densities: the sample's own event times, and 10,000 tuples in each second of
event time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import REPOSITORY, machine
from benchmarks.p_streams.scans import scan_p_stream
from benchmarks.queries import QUERIES, STREAMS
from benchmarks.streams import DATA, REAL, load
from penstock.checkpointing.p_stream import PStream, PStreamWriter
from penstock.operators.scan.scanner import Scanner
from penstock.operators.scan.spec import Scan

CHUNK_ROWS = 1 << 20
UNIT_ROWS = 1 << 18
DENSE = 10_000
WARM_UP = 40
"""Micro-batches of a chunk before a streaming query is measured: Java's compilers are busy with the first."""
TIMES = {"ysb": "event_time", "nexmark": "date_time"}
SCABBARD = {"CM1": 74, "CM2": 87, "SG1": 229, "SG2": 17, "LRB1": 7.2, "YSB": 70, "NQ5": 30, "SM": 80}
"""Its exactly-once figures in million tuples a second, measured on a machine like this one."""


@dataclass(frozen=True)
class Case:
    """A measurement that runs in a process of its own."""

    query: str
    density: str
    folder: Path
    million: int
    goal: str
    interval: str
    direct_io: bool
    unit_rows: int

    @property
    def options(self) -> dict[str, Any]:
        """The options of the writer."""
        return {"goal": self.goal, "direct_io": self.direct_io, "unit_rows": self.unit_rows}


class Input:
    """A query's stream in chunks, whose times move on; other columns are shared."""

    def __init__(self, query: str, density: str, folder: Path) -> None:
        name = STREAMS[query]
        stream = load(name, folder, CHUNK_ROWS)
        if stream is None:
            raise SystemExit(f"the file of {name} is not in {folder}")
        self._time = TIMES.get(name, "timestamp")
        self.whole = stream.whole
        self._chunk = stream.long.slice(0, CHUNK_ROWS).combine_chunks()
        self.schema = self._chunk.schema
        times = self._chunk[self._time].combine_chunks().view(pa.int64()).to_numpy()
        steps = 1_000_000 if pa.types.is_timestamp(self.schema.field(self._time).type) else 1
        if density == "dense":
            times = times[0] + np.arange(CHUNK_ROWS) * steps // DENSE
        span = int(times.max() - times.min())
        self._times, self._span = times, span + max(1, span // CHUNK_ROWS)
        self._moving = [c for c in REAL[name].moving if c != self._time] if name in REAL else []
        self.bytes_per_tuple = self._chunk.nbytes / CHUNK_ROWS

    def chunk(self, number: int) -> pa.Table:
        """Return the chunk of a number."""
        at = self.schema.get_field_index(self._time)
        times = pa.array(self._times + number * self._span).view(self.schema.field(at).type)
        return self._chunk.set_column(at, self.schema.field(at), times)

    def chunks(self, count: int) -> list[pa.Table]:
        """Return the first chunks."""
        return [self.chunk(number) for number in range(count)]


def planned(query: str) -> tuple[Scan, Scan]:
    """Return what the rules push before the p-stream, and into its reader."""
    (stream,) = QUERIES[query]().plan(persist="always").streams
    if stream.ingest is None:
        raise SystemExit(f"nothing of {query} is pushed before its p-stream")
    return stream.ingest, stream.readers[0]


def bytes_in(place: Path) -> int:
    """Return the bytes of a p-stream's files."""
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def fill(
    place: Path,
    chunks: Iterable[pa.Table],
    ingest: Scan | None,
    *,
    unit_rows: int = UNIT_ROWS,
    **options: Any,
) -> float:
    """Append chunks to a new p-stream; return the seconds until all were durable, once kernels are there."""
    rest = iter(chunks)
    first = next(rest)
    scanner = None if ingest is None else Scanner(ingest, first.schema)
    apply: Callable[[pa.Table], pa.Table] = scanner.apply if scanner else lambda rows: rows
    schema = scanner.schema if scanner else first.schema
    with PStreamWriter(place, schema, unit_rows=unit_rows, interval="20ms", **options) as writer:
        writer.append(apply(first))
        writer.flush()
        begin = time.perf_counter()
        for chunk in rest:
            writer.append(apply(chunk))
        writer.flush()
        return time.perf_counter() - begin


def append(case: Case) -> dict[str, float]:
    """Measure durable appends."""
    stream = Input(case.query, case.density, case.folder)
    chunks = stream.chunks(max(2, case.million * 1_000_000 // CHUNK_ROWS))
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "p-stream"
        took = fill(place, chunks, planned(case.query)[0], **case.options)
        input_bytes = stream.bytes_per_tuple * CHUNK_ROWS * len(chunks)
        share = bytes_in(place) / input_bytes
        ipc = _ipc(Path(scratch), chunks[1:5])
    rows = CHUNK_ROWS * (len(chunks) - 1)
    return {"append": rows / took / 1e6, "written": 100 * share, "ipc": ipc}


def _ipc(place: Path, chunks: list[pa.Table]) -> float:
    begin = time.perf_counter()
    for number, chunk in enumerate(chunks):
        with (place / f"{number}.arrow").open("wb") as file:
            with pa.ipc.new_stream(file, chunk.schema) as writer:
                writer.write_table(chunk)
            file.flush()
            os.fsync(file.fileno())
    return CHUNK_ROWS * len(chunks) / (time.perf_counter() - begin) / 1e6


def read(case: Case) -> dict[str, float]:
    """Measure the scan in one process, by two threads, of as many tuples as were appended."""
    ingest, scan = planned(case.query)
    stream = Input(case.query, case.density, case.folder)
    chunks = stream.chunks(max(2, case.million * 1_000_000 // CHUNK_ROWS))
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "p-stream"
        fill(place, chunks, ingest, **case.options)
        source = PStream(place)
        scan_p_stream(source, scan, stop=UNIT_ROWS)
        best, rows = float("inf"), 1
        for _ in range(3):
            begin = time.perf_counter()
            rows = scan_p_stream(source, scan).num_rows
            best = min(best, time.perf_counter() - begin)
    return {
        "read": CHUNK_ROWS * len(chunks) / best / 1e6,
        "tuples a fragment": CHUNK_ROWS * len(chunks) / rows,
    }


def spark(case: Case) -> dict[str, float]:
    """Measure a streaming query over a p-stream that is written at the same time."""
    import penstock
    from benchmarks.harness import processor_seconds, session

    ingest, scan = planned(case.query)
    stream = Input(case.query, case.density, case.folder)
    scanner = Scanner(ingest, stream.schema)
    chunks = stream.chunks(WARM_UP + max(4, case.million * 1_000_000 // CHUNK_ROWS))
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "p-stream"
        running = session()
        penstock.register(running)
        with PStreamWriter(place, scanner.schema, **case.options) as writer:
            writer.append(scanner.apply(chunks[0]))
            writer.flush()
            frame = (
                running.readStream.format("pstream").option("scan", scan.to_json()).option("partitions", 2)
                .option("reader", case.query).load(str(place))
            )  # fmt: skip
            query = frame.writeStream.format("noop").option("checkpointLocation", f"{scratch}/checkpoint")
            query_run = query.start()
            for chunk in chunks[1 : WARM_UP + 1]:
                writer.append(scanner.apply(chunk))
                writer.flush()
                query_run.processAllAvailable()
            query_run.stop()
            query_run = query.trigger(processingTime=case.interval).start()
            query_run.processAllAvailable()
            measured = chunks[WARM_UP + 1 :]
            size, spent = writer.metrics()["written_bytes"], processor_seconds()
            batches = len(query_run.recentProgress)
            begin, until = time.perf_counter(), time.time()
            thread = threading.Thread(target=_append_all, args=(writer, scanner, measured))
            thread.start()
            thread.join()
            appended = time.perf_counter() - begin
            until += appended
            query_run.processAllAvailable()
            took = time.perf_counter() - begin
            spent = {kind: after - spent[kind] for kind, after in processor_seconds().items()}
            size = writer.metrics()["written_bytes"] - size
            done = query_run.recentProgress[batches:]
            query_run.stop()
        running.stop()
    rows = CHUNK_ROWS * len(measured)
    return {
        "spark": rows / took / 1e6,
        "sustained": sustained(done, until) * rows / 1e6,
        "its writer": rows / appended / 1e6,
        "batches": float(len(done)),
        "written %": 100 * size / (stream.bytes_per_tuple * rows),
        **{f"{kind} ns": 1e9 * seconds / rows for kind, seconds in spent.items()},
    }


def sustained(batches: Sequence[Any], until: float) -> float:
    """Return the share of all rows that micro-batches read in a second while there was a writer.

    The first one, which found few rows, does not count, and each takes until the next one begins.

    Parameters
    ----------
    batches : sequence of StreamingQueryProgress
        That read all rows.
    until : float
        When the writer ended, in seconds since 1970; micro-batches that began later do not count.

    Returns
    -------
    float
        NaN where there are fewer than three that began before it.
    """

    def begins(batch: Any) -> float:
        return datetime.fromisoformat(batch.timestamp).timestamp()

    def rows(first: Any, last: Any) -> int:
        offsets = (first.sources[0].startOffset, last.sources[0].endOffset)
        start, end = (json.loads(one)["offset"] for one in offsets)
        return int(end - start)

    known = [batch for batch in batches if batch.numInputRows]
    within = [batch for batch in known if begins(batch) <= until][1:]
    if len(within) < 2:
        return math.nan
    took = begins(within[-1]) - begins(within[0])
    return rows(within[0], within[-2]) / rows(known[0], known[-1]) / took


def _append_all(writer: PStreamWriter, scanner: Scanner, chunks: list[pa.Table]) -> None:
    for chunk in chunks:
        writer.append(scanner.apply(chunk))
    writer.flush()


def parquet(case: Case) -> dict[str, float]:
    """Measure Spark's own streaming query over Parquet files, by two tasks, to its noop sink."""
    from benchmarks.harness import batch_seconds, session

    ingest, _ = planned(case.query)
    stream = Input(case.query, case.density, case.folder)
    rows = 4 * CHUNK_ROWS
    files = 2 * max(5, case.million * 1_000_000 // (2 * rows))
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "files"
        parquet_files(place, stream, rows, files)
        running = session()
        frame = parquet_stream(running, place, files=2)
        if ingest.where is not None:
            frame = frame.where(ingest.where)
        if ingest.select is None:
            frame = frame.select(*ingest.columns)
        else:
            frame = frame.selectExpr(*(f"{text} AS `{name}`" for name, text in ingest.select.items()))
        writer = frame.writeStream.format("noop").option("checkpointLocation", f"{scratch}/ck")
        done = writer.trigger(availableNow=True).start()
        done.awaitTermination()
        seconds = batch_seconds(done)
        running.stop()
    return {"parquet": 2 * rows * len(seconds) / sum(seconds) / 1e6, "batches": float(len(seconds))}


def parquet_files(place: Path, stream: Input, rows: int, count: int) -> None:
    """Write Parquet files of so many rows each, in row groups of a million."""
    place.mkdir(parents=True)
    for number in range(count):
        first, last = number * rows, (number + 1) * rows
        table = pa.concat_tables(
            stream.chunk(one) for one in range(first // CHUNK_ROWS, -(-last // CHUNK_ROWS))
        )
        path = place / f"{number:05d}.parquet"
        pq.write_table(
            table.slice(first % CHUNK_ROWS, rows),
            path,
            row_group_size=1 << 20,
            coerce_timestamps="us",
            allow_truncated_timestamps=True,
        )
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def parquet_stream(running: Any, place: Path, *, files: int = 1) -> Any:
    """Return the stream of a directory of Parquet files, so many a micro-batch."""
    schema = running.read.parquet(str(place)).schema
    return running.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(place))


def options(case: Case) -> dict[str, float]:
    """Measure the configurations of Fig. 11: bytes written in percent of the input's, and tuples a second.

    The bytes are those of the sample as it is, in one commit, the log's included: a replica repeats itself.
    """
    ingest, _ = planned(case.query)
    stream = Input(case.query, case.density, case.folder)
    chunks = stream.chunks(max(2, case.million * 1_000_000 // CHUNK_ROWS // 4))
    floats = [field.name for field in stream.schema if pa.types.is_floating(field.type)]
    plain = dict.fromkeys(stream.schema.names, "plain")
    kept = dict.fromkeys(ingest.columns if ingest.select is None else ingest.select, "plain")
    bounds = {name: 0.005 for name in floats if name in kept}
    found: dict[str, float] = {}
    configurations: list[tuple[str, Scan | None, dict[str, Any]]] = [
        ("none", None, {"codecs": plain}),
        ("push-up", ingest, {"codecs": kept}),
        ("compression", None, {"goal": "balanced"}),
        ("both", ingest, {"goal": "balanced"}),
        *([("both, lossy", ingest, {"goal": "balanced", "error_bounds": bounds})] if bounds else []),
    ]
    for name, scan, settings in configurations:
        with tempfile.TemporaryDirectory() as scratch:
            took = fill(Path(scratch) / "chunks", chunks, scan, **settings)
            fill(Path(scratch) / "whole", [stream.whole], scan, **settings)
            share = bytes_in(Path(scratch) / "whole") / stream.whole.nbytes
        found[f"{name} %"] = 100 * share
        found[f"{name} M/s"] = CHUNK_ROWS * (len(chunks) - 1) / took / 1e6
    return found


MODES: dict[str, Callable[[Case], dict[str, float]]] = {
    "append": append,
    "read": read,
    "spark": spark,
    "parquet": parquet,
    "options": options,
}


def _alone(mode: str, query: str, density: str, arguments: argparse.Namespace) -> dict[str, float]:
    command = [
        sys.executable, "-m", "benchmarks.p_streams.p_stream_speed", "--one", mode, "--query", query,
        "--density", density, "--million", str(arguments.million), "--goal", arguments.goal,
        "--interval", arguments.interval, "--data", str(arguments.data),
        *(["--direct-io"] if arguments.direct_io else []), "--unit-rows", str(arguments.unit_rows),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{mode} of {query} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def lines(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the tables, a line at a time, as they are measured."""
    for mode in arguments.mode:
        header: list[str] = []
        for query, density in itertools.product(arguments.query, arguments.density):
            found = _alone(mode, query, density, arguments)
            if header != list(found):
                header = list(found)
                yield (
                    f"\n{mode:8}{'density':8}"
                    + "".join(f"{name:>14}" for name in header)
                    + f"{'Scabbard':>10}"
                )
            numbers = "".join(f"{value:14.2f}" for value in found.values())
            yield f"{query:8}{density:8}{numbers}{SCABBARD[query]:10}"


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--query", nargs="+", default=list(SCABBARD), choices=list(SCABBARD))
    parser.add_argument("--density", nargs="+", default=["sample", "dense"], choices=["sample", "dense"])
    parser.add_argument("--mode", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--million", type=int, default=40, help="million tuples of input")
    parser.add_argument("--goal", default="fast", help="of what append, read and spark write")
    parser.add_argument(
        "--interval", default="0 seconds", help="between micro-batches' starts in spark; 0: without a pause"
    )
    parser.add_argument(
        "--direct-io", action="store_true", help="append, read and spark: bypass the page cache"
    )
    parser.add_argument("--unit-rows", type=int, default=UNIT_ROWS, help="most rows of a p-unit")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--one", choices=list(MODES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        case = Case(
            arguments.query[0],
            arguments.density[0],
            arguments.data,
            arguments.million,
            arguments.goal,
            arguments.interval,
            arguments.direct_io,
            arguments.unit_rows,
        )
        print(json.dumps(MODES[arguments.one](case)))
        return
    print(machine())
    print("$ python -m benchmarks.p_streams.p_stream_speed", *sys.argv[1:])
    for line in lines(arguments):
        print(line, flush=True)


if __name__ == "__main__":
    main()
