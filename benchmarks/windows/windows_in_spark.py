"""The windows of (Scabbard Table 3) in Spark: ours from a p-stream and from Parquet, and Spark's own.

    python -m benchmarks.windows.windows_in_spark [--query CM1 ...] [--density sample dense]
                                          [--contender p-stream "p-stream to p-stream" parquet rows spark]
                                          [--data FOLDER]

Each contender runs in a process of its own, as a streaming query with checkpoints on whose sink counts the
windows; but ``p-stream to p-stream`` writes them into a p-stream, durably, whose offsets count them, without
those that a selection leaves out. From ``parquet`` Penstock reads the files itself, and of ``rows`` Spark
does, as of any other source. Spark's own is ``groupBy(window(...))`` with its RocksDB state store and
changelog checkpoints, over the same Parquet files as ours. Input is all there before the query starts. The
same query runs in the same session over many small micro-batches before, and the first ones are not counted.
Input is counted in tuples of the stream before any is left out. Densities: the sample's own event times, and
10,000 tuples in each second of event time. Figures are million tuples a second, over the micro-batches'
``triggerExecution``, and the processor time of a tuple: in Python's workers, in Java, and in its compilers;
with ``--by-step`` also what the workers did with it. Where a tuple has more than a thousand windows, Spark's
own has a row for each in place of ``window()``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import ROCKSDB_STATE, ProcessorProbe, machine, run_contender, scratch, session
from benchmarks.p_streams.p_stream_speed import (
    CHUNK_ROWS,
    SCABBARD,
    Input,
    fill,
    parquet_files,
    parquet_stream,
    planned,
)
from benchmarks.queries import CAMPAIGNS, QUERIES, STREAMS, from_parquet
from benchmarks.steps import OTHER, STEPS, StepProfile
from benchmarks.streams import DATA
from penstock.checkpointing.p_stream import PStream
from penstock.dataflow import nodes
from penstock.dataflow.nodes import Node
from penstock.dataflow.nodes.base import topological

_SPARK_ROWS = {
    "CM1": 2_000_000,
    "CM2": 1_000_000,
    "YSB": 1 << 24,
    "SM": 100_000,
    "SG2": 200_000,
    "LRB1": 40_000,
    "SG1": 20_000,
    "SG3": 20_000,
}
_FEW_ROWS = 50_000
"""The tuples in a micro-batch of Spark's own windows: enough for about ten seconds."""
_FEWER = {
    ("LRB1", "sample"): 2,
    ("SG2", "sample"): 4,
    ("SG3", "sample"): 4,
    **dict.fromkeys(itertools.product(("LRB2", "LRB3"), ("sample", "dense")), 1),
}
"""Millions of tuples of a micro-batch from a p-stream, where windows outnumber tuples."""
_FEW_WINDOWS = {"CM1", "SG1", "YSB"}
"""Queries of which micro-batches from Parquet may be as large as those from a p-stream."""
_MANY_WINDOWS = 1000
"""With this many windows for a tuple, Spark's ``window()``, which has a projection for each, never ends."""
_NS = "ns a tuple of workers, Java, its compilers"
_WARM, _COUNTED = 8, 5
"""Each worker gets the memory that it keeps before micro-batches count."""
_SMALL, _SMALL_ROWS, _SMALL_SHARE = 30, 1 << 17, 16
"""The same query runs over so many micro-batches of few rows first: Java's compilers are busy with these."""


def tables_of(query: str, stream: Input, running: Any) -> dict[str, Any]:
    """Return the static tables of a query: 10 of its stream's advertisements for each of 100 campaigns."""
    if query != "YSB":
        return {}
    ads = sorted(set(stream.whole["ad_id"].to_pylist()))
    names = [f"campaign {number // 10}" for number in range(len(ads))]
    return {"campaigns": running.createDataFrame(pa.table([ads, names], schema=CAMPAIGNS).to_pandas())}


def native(root: Node, source: Any, tables: dict[str, Any]) -> Any:
    """Return a graph as a Spark user writes it."""
    from pyspark.sql import functions as sf

    windows = [node for node in topological(root) if isinstance(node, nodes.Window)]
    # A window is known by its ``window()``, or by its end where that has too many for a tuple.
    plain = all(node.size_ms // node.slide_ms <= _MANY_WINDOWS for node in windows)
    window = "window" if plain else "end"

    def of(node: Node) -> Any:
        if isinstance(node, nodes.Source):
            return source
        if isinstance(node, nodes.WindowJoin):
            left, right = (of(above) for above in node.inputs)
            condition = "TRUE" if node.condition is None else node.condition.text
            other = right.withColumnRenamed(window, "__other")
            return left.join(other, sf.expr(f"{window} = __other AND {condition}")).drop("__other")
        rows = of(node.inputs[0])
        match node:
            case nodes.Where():
                return rows.where(node.predicate.text)
            case nodes.Select():
                return rows.selectExpr(*(f"{one.text} AS `{name}`" for name, one in node.columns))
            case nodes.StreamTableJoin():
                return rows.join(sf.broadcast(tables[node.table]), list(node.on))
            case nodes.Window():
                whole = pa.types.is_integer(node.schema.field(node.time).type)
                time = sf.timestamp_seconds(node.time) if whole else sf.col(node.time).cast("timestamp")
                rows = rows.withColumn("__time", time)
                if not plain:
                    rows = rows.withColumn(window, _ends(node))
                    return rows.withWatermark(window, f"{node.size_ms} milliseconds")
                size, slide = f"{node.size_ms} milliseconds", f"{node.slide_ms} milliseconds"
                rows = rows.withWatermark("__time", "0 seconds")
                return rows.withColumn(window, sf.window("__time", size, slide))
            case nodes.Aggregate():
                groups = [window] if isinstance(node.inputs[0], nodes.Window) else []
                groups += [window if name == "window" else name for name in node.group_by]
                return rows.groupBy(*groups).agg(
                    *(sf.expr(one.text).alias(name) for name, one in node.aggregates)
                )
        return rows

    return of(root)


def _ends(node: nodes.Window) -> Any:
    """Return the ends of a row's windows, a row each: what ``window()`` has a projection for each of.

    The newest of them is a window's length after the row's time.
    """
    from pyspark.sql import functions as sf

    last = f"unix_millis(__time) - pmod(unix_millis(__time), {node.slide_ms}) + {node.size_ms}"
    numbers = f"sequence(0, {node.size_ms // node.slide_ms - 1})"
    return sf.expr(
        f"explode(transform({numbers}, number -> timestamp_millis({last} - number * {node.slide_ms})))"
    )


@dataclass(frozen=True)
class Load:
    """The input of a query: tuples of a stream, their number in each micro-batch, and their directory."""

    query: str
    stream: Input
    place: Path
    rows: int
    batches: int
    by_step: bool = False

    def chunks(self) -> Iterator[pa.Table]:
        """Return the tuples."""
        total = self.batches * self.rows
        for first in range(0, total, CHUNK_ROWS):
            yield self.stream.chunk(first // CHUNK_ROWS).slice(0, total - first)


def measured(frame: Any, load: Load) -> dict[str, float]:
    """Run a query over all its input; return million tuples a second, and windows."""
    from pyspark.sql import functions as sf

    counted = frame.observe("counted", sf.count(sf.lit(1)).alias("windows"))
    writer = counted.writeStream.format("noop").option("checkpointLocation", str(load.place / "checkpoint"))
    query, probe, steps = _run(writer, load)
    windows = sum(one.observedMetrics["counted"]["windows"] for one in query.recentProgress)
    return {**_figures(query, load.rows, windows, probe), **steps}


def _run(writer: Any, load: Load) -> tuple[Any, ProcessorProbe, dict[str, float]]:
    """Run a query over all its input; return it, processor times, and its workers' steps where wanted."""
    with ProcessorProbe() as probe:
        query = writer.trigger(availableNow=True).start()
        if not load.by_step:
            query.awaitTermination()
            return query, probe, {}
        with StepProfile(lambda: len(query.recentProgress) > _WARM) as profile:
            query.awaitTermination()
    steps = {f"step {name}": share for name, share in profile.shares.items()}
    return query, probe, {**steps, "samples": float(profile.samples)}


def _figures(query: Any, rows: float, windows: int, probe: ProcessorProbe) -> dict[str, float]:
    done = [one for one in query.recentProgress if one.numInputRows]
    took = [one.durationMs["triggerExecution"] / 1000 for one in done[_WARM:]]
    seconds = float(np.median(took))
    begin, end = (datetime.fromisoformat(done[at].timestamp).timestamp() for at in (_WARM, -1))
    spent = probe.between(begin, end + took[-1])
    tuples = rows * len(took)
    return {
        **{f"{name} ns": spent[name] / tuples * 1e9 for name in ("workers", "java", "compilers")},
        "million a s": rows / seconds / 1e6,
        "batch s": seconds,
        "windows a tuple": windows / (rows * len(done)),
        "batches": float(len(took)),
    }


def p_stream(load: Load) -> dict[str, float]:
    """Measure ours from a p-stream that the graph's rules have narrowed."""
    frames, root = _from_p_stream(load)
    frame, _ = frames.build(root)
    return measured(frame, load)


def to_p_stream(load: Load) -> dict[str, float]:
    """Measure ours from a p-stream to a p-stream."""
    frames, root = _from_p_stream(load)
    options = {"path": str(load.place / "results"), "goal": "fast"}
    made = frames.build_sink_input(root, options)
    if made.direct:
        options["descriptors"] = "true"
    writer = made.rows.writeStream.format("pstream").options(**options)
    writer = writer.option("checkpointLocation", str(load.place / "checkpoint"))
    query, probe, steps = _run(writer, load)
    return {**_figures(query, load.rows, PStream(load.place / "results").end, probe), **steps}


def _from_p_stream(load: Load) -> tuple[Any, Node]:
    """Return frames over a p-stream, and the end of the query's graph."""
    from penstock.spark_ext.api.register import register
    from penstock.spark_ext.graph.frames import Frames

    query, p_stream = load.query, load.place / "p-stream"
    fill(p_stream, load.chunks(), planned(query)[0], goal="fast")
    spark = session()
    register(spark)
    plan = QUERIES[query]().plan(persist="always")
    frames = Frames(
        spark,
        query,
        sources={},
        tables=tables_of(query, load.stream, spark),
        streams={STREAMS[query]: str(p_stream)},
        paths={},
        state=str(load.place / "state"),
        # A selection leaves some of a micro-batch's tuples out before the p-stream.
        max_rows=-(-PStream(p_stream).end // load.batches),
    )
    return frames, plan.root


def parquet(load: Load) -> dict[str, float]:
    """Measure ours from Parquet files that Penstock reads."""
    return _from_files(load, ours=True)


def rows_of_spark(load: Load) -> dict[str, float]:
    """Measure ours of rows that Spark reads from Parquet files."""
    return _from_files(load, ours=False)


def _from_files(load: Load, *, ours: bool) -> dict[str, float]:
    from penstock.spark_ext.api.register import register
    from penstock.spark_ext.graph.frames import Frames

    query, files = load.query, load.place / "files"
    parquet_files(files, load.stream, load.rows, load.batches)
    spark = session()
    register(spark)
    frames = Frames(
        spark,
        query,
        sources={} if ours else {STREAMS[query]: parquet_stream(spark, files)},
        tables=tables_of(query, load.stream, spark),
        streams={},
        paths={},
        state=str(load.place / "state"),
    )
    graph = QUERIES[query]()
    if ours:
        graph = from_parquet(graph, path=str(files), maxFilesPerTrigger="1")
    frame, _ = frames.build(graph.plan(persist="never").root)
    return measured(frame, load)


def spark(load: Load) -> dict[str, float]:
    """Measure Spark's own windows from Parquet files."""
    query, files = load.query, load.place / "files"
    parquet_files(files, load.stream, load.rows, load.batches)
    running = session(**ROCKSDB_STATE)
    tables = tables_of(query, load.stream, running)
    frame = native(QUERIES[query]().root, parquet_stream(running, files), tables)
    return measured(frame, load)


CONTENDERS: dict[str, Callable[[Load], dict[str, float]]] = {
    "p-stream": p_stream,
    "p-stream to p-stream": to_p_stream,
    "parquet": parquet,
    "rows": rows_of_spark,
    "spark": spark,
}


def rows_of(contender: str, query: str, density: str, million: int) -> int:
    """Return the tuples of a micro-batch."""
    if contender == "spark":
        return _SPARK_ROWS.get(query, _FEW_ROWS)
    million = min(million, _FEWER.get((query, density), million))
    large = contender not in ("parquet", "rows") or query in _FEW_WINDOWS
    # Where 10,000 tuples come each second, windows are few.
    large = large or (contender == "parquet" and density == "dense")
    whole = million if large else max(1, million // 4)
    return whole * CHUNK_ROWS


def steps_of(found: dict[str, float]) -> str:
    """Return where a tuple's nanoseconds of both cores went."""
    whole = 2e9 / (found["million a s"] * 1e6)
    steps = {name: found["workers ns"] * found[f"step {name}"] for name in (*STEPS, OTHER)}
    rest = {name: found[f"{name} ns"] for name in ("java", "compilers")}
    idle = whole - found["workers ns"] - sum(rest.values())
    told = ", ".join(f"{name} {ns:.2f}" for name, ns in {**steps, **rest, "idle": idle}.items())
    return f"{told}; of {whole:.2f} ns ({found['samples']:.0f} samples)"


def lines(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the table, a line at a time, as it is measured."""
    names = "".join(f"{name:>{max(12, len(name) + 2)}}" for name in arguments.contender)
    yield f"{'query':8}{'density':8}{names}{'Scabbard':>10}   times Spark; windows a tuple; batch s; {_NS}"
    for query, density in itertools.product(arguments.query, arguments.density):
        found = {}
        for contender in arguments.contender:
            rows = rows_of(contender, query, density, arguments.million)
            found[contender] = run_contender(
                "windows.windows_in_spark", "--one", contender, "--query", query, "--density", density,
                "--rows", str(rows), "--data", str(arguments.data),
                *(["--by-step"] if arguments.by_step and contender != "spark" else []),
            )  # fmt: skip
            print(f"{query} {density} {contender}: {found[contender]}", file=sys.stderr, flush=True)
        speeds = {name: one["million a s"] for name, one in found.items()}
        numbers = "".join(
            f"{speeds[name]:{max(12, len(name) + 2)}.3f}" if name in speeds else f"{'-':>12}"
            for name in arguments.contender
        )
        ratio = (
            ", ".join(f"{speed / speeds['spark']:.1f}" for speed in speeds.values())
            if "spark" in speeds
            else "-"
        )
        rest = ", ".join(f"{one['windows a tuple']:.4f}" for one in found.values())
        took = ", ".join(f"{one['batch s']:.2f}" for one in found.values())
        spent = ", ".join(
            " ".join(f"{one[name + ' ns']:.1f}" for name in ("workers", "java", "compilers"))
            for one in found.values()
        )
        published = SCABBARD.get(query, "-")
        yield f"{query:8}{density:8}{numbers}{published:>10}   {ratio}; {rest}; {took}; {spent}"
        if arguments.by_step:
            yield from (f"    {name}: {steps_of(one)}" for name, one in found.items() if "samples" in one)


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--query", nargs="+", default=list(QUERIES), choices=list(QUERIES))
    parser.add_argument("--density", nargs="+", default=["sample", "dense"], choices=["sample", "dense"])
    parser.add_argument("--contender", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--million", type=int, default=16, help="2**20 tuples each, of a micro-batch")
    parser.add_argument("--by-step", action="store_true", help="sample Python's workers, too (needs py-spy)")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--one", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        (query,), (density,) = arguments.query, arguments.density
        stream = Input(query, density, arguments.data)
        run = CONTENDERS[arguments.one]
        few = max(1024, min(_SMALL_ROWS, arguments.rows // _SMALL_SHARE))
        with scratch("windows") as place:
            run(Load(query, stream, Path(place) / "small", few, _SMALL))
            load = Load(
                query,
                stream,
                Path(place) / "large",
                arguments.rows,
                _WARM + _COUNTED,
                arguments.by_step,
            )
            found = run(load)
            if not found["windows a tuple"]:
                raise SystemExit("no window came out, so there is nothing to measure")
            print(json.dumps(found))
        return
    print(machine(), flush=True)
    for line in lines(arguments):
        print(line, flush=True)


if __name__ == "__main__":
    main()
