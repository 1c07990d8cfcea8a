"""Measure windows end to end in Spark, by the number of keys and by size over slide.

    python -m benchmarks.windows.windows_growth_in_spark [--keys 10 100 ...] [--ratio 1 4 ...] [--million 8]
                                                 [--into counted | p-stream]
    python -m benchmarks.windows.windows_growth_in_spark --of RESULTS.txt --plot FILE.svg

A streaming query with checkpoints on, from a p-stream whose reader makes the fragments, over the windows of a
graph, to a sink that counts them, or durably into a p-stream; each case in a process of its own. Keys are
drawn evenly, and all micro-batches have equally many tuples. Keys: tumbling windows of 10 s, a minute to a
micro-batch. Size over slide: 1,000 keys, a slide of a second, 400 seconds to a micro-batch. All input is
there before the query starts. The first micro-batch fills the windows; it and 27 more are not counted, in
which workers get the memory that they keep, and then nine are: as many as it takes until the longest windows
have other panes.

Of these: million tuples a second over their ``triggerExecution``; seconds of one, and of the slowest;
nanoseconds a tuple beyond what a micro-batch of a thousand tuples takes, which is printed first; processor
time a tuple of Python's workers and of the JVM, its compilers' included; the state as the query's metrics
have it, in memory and what is stored in a micro-batch; its entries as they are read from the checkpoint in
the end; windows of a micro-batch. The second command draws what the first one printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import ProcessorProbe, machine, median, run_contender, scratch, session
from benchmarks.p_streams.p_stream_speed import CHUNK_ROWS, fill
from benchmarks.windows.windows_growth import KEYS, RATIOS, Case, plot, table
from penstock.checkpointing.p_stream import PStream
from penstock.dataflow import Graph, graph

WARM, COUNTED = 27, 9
"""Micro-batches after the first one that are not counted, and those that are."""
TINY = Case(10, 60, 1024, 10, 10)
SHOWN = ("million a s", "workers ns", "state MB")
_SCHEMA = pa.schema({"time": pa.int64(), "key": pa.int64(), "value": pa.float64()})
_WIDTH = 14


def query_of(case: Case) -> Graph:
    """Return the query: an average in each window of each key."""
    return (
        graph("growth")
        .source("tuples", _SCHEMA)
        .window("time", size=f"{case.size} s", slide=f"{case.slide} s", unit="s")
        .group_by("key")
        .agg(mean="avg(value)")
        .sink("noop")
    )


def chunks(case: Case) -> Iterator[pa.Table]:
    """Yield the stream; of a window before the first counted second, its first micro-batch has each pane."""
    for number in range(-1, WARM + COUNTED):
        generator, at = np.random.default_rng(number + 1), np.arange(case.tuples)
        if number < 0:
            times, keys = at * case.size // case.tuples - case.size, at % case.keys
        else:
            times = number * case.seconds + at * case.seconds // case.tuples
            keys = generator.integers(0, case.keys, case.tuples)
        values = generator.integers(0, 1000, case.tuples) / 8
        whole = pa.table([pa.array(one) for one in (times, keys, values)], schema=_SCHEMA)
        for begin in range(0, case.tuples, CHUNK_ROWS):
            yield whole.slice(begin, CHUNK_ROWS)


def run(case: Case, place: Path, into: str) -> dict[str, float]:
    """Run a case; return its figures."""
    from pyspark.sql import functions as sf

    import penstock
    from penstock.spark_ext.graph.frames import Frames

    plan = query_of(case).plan(persist="always")
    fill(place / "p-stream", chunks(case), plan.streams[0].ingest, goal="fast")
    spark = session()
    penstock.register(spark)
    frames = Frames(
        spark,
        "growth",
        sources={},
        tables={},
        streams={"tuples": str(place / "p-stream")},
        paths={},
        state=str(place / "state"),
        max_rows=case.tuples,
    )
    results = place / "results"
    if into == "p-stream":
        made = frames.build_sink_input(plan.root, {"path": str(results), "goal": "fast"})
        writer = made.rows.writeStream.format("pstream").options(path=str(results), goal="fast")
        writer = writer.option("descriptors", str(made.direct).lower())
    else:
        frame, _ = frames.build(plan.root)
        counted = frame.observe("counted", sf.count(sf.lit(1)).alias("windows"))
        writer = counted.writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    with ProcessorProbe() as probe:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    done = [one for one in query.recentProgress if one.numInputRows][1 + WARM :]
    took = [one.durationMs["triggerExecution"] / 1000 for one in done]
    begin, end = (datetime.fromisoformat(done[at].timestamp).timestamp() for at in (0, -1))
    spent = probe.between(begin, end + took[-1])
    known = penstock.metrics(query)[-len(done) :]
    state = penstock.read_state(spark, place / "state", checkpoint=place / "checkpoint")
    tuples = case.tuples * len(done)
    return {
        "million a s": tuples / sum(took) / 1e6,
        "batch s": sum(took) / len(done),
        "slowest s": max(took),
        "workers ns": spent["workers"] / tuples * 1e9,
        "JVM ns": (spent["java"] + spent["compilers"]) / tuples * 1e9,
        "entries": float(state.count()),
        "state MB": max(one["state_bytes"] for one in known) / 1e6,
        "stored MB": median([one["state_bytes_written"] / 1e6 for one in known]),
        "windows": (
            PStream(results).end / len([one for one in query.recentProgress if one.numInputRows])
            if into == "p-stream"
            else median([one.observedMetrics["counted"]["windows"] for one in done])
        ),
    }


def alone(case: Case, into: str) -> dict[str, float]:
    """Run a case in a process of its own."""
    return run_contender("windows.windows_growth_in_spark", "--one", json.dumps(asdict(case)), "--into", into)


def printed(text: str) -> dict[str, dict[int, dict[str, float]]]:
    """Return the tables in a text."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    names: list[str] = []
    points: dict[int, dict[str, float]] = {}
    for line in text.splitlines():
        fields = [line[at : at + _WIDTH].strip() for at in range(0, len(line), _WIDTH)]
        if "beyond ns" in fields:
            title, *names = fields
            points = found.setdefault(title, {})
        elif not line.strip():
            names = []
        elif names:
            points[int(fields[0])] = dict(zip(names, map(float, fields[1:]), strict=True))
    return found


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", nargs="*", type=int, default=KEYS)
    parser.add_argument("--ratio", nargs="*", type=int, default=RATIOS)
    parser.add_argument("--million", type=int, default=8, help="2**20 tuples each, of a micro-batch")
    parser.add_argument("--into", choices=["counted", "p-stream"], default="counted")
    parser.add_argument("--of", type=Path, help="a file with tables that were printed")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        with scratch("growth") as place:
            print(json.dumps(run(Case(**json.loads(arguments.one)), Path(place), arguments.into)))
        return
    if arguments.plot:
        plot(arguments.plot, printed(arguments.of.read_text()), SHOWN)
        return
    print(machine())
    rows = arguments.million * CHUNK_ROWS
    tiny = alone(TINY, arguments.into)
    print(
        f"{TINY.tuples} tuples to a micro-batch: {tiny['batch s']:.3f} s, slowest {tiny['slowest s']:.3f} s"
    )

    def measure(case: Case) -> dict[str, float]:
        found = alone(case, arguments.into)
        return {**found, "beyond ns": (found["batch s"] - tiny["batch s"]) / case.tuples * 1e9}

    table("keys", {keys: Case(keys, 60, rows, 10, 10) for keys in arguments.keys}, measure)
    ratios = {ratio: Case(1000, 400, rows, ratio, 1) for ratio in arguments.ratio}
    table("size / slide", ratios, measure)


if __name__ == "__main__":
    main()
