"""`start`: run a persistent operator graph as streaming queries of Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.graph.waiting import find_waiting_since_ms
from penstock.checkpointing.p_stream import EARLIEST, PStream
from penstock.checkpointing.trace import trace
from penstock.conf.arguments import check_keywords
from penstock.dataflow import Graph, Persist, Statistics
from penstock.dataflow.checkpoint import (
    Reading,
    check_readers_are_free,
    check_same_graph,
    directory_names,
    find_graph,
    graph_document,
    safe_name,
)
from penstock.dataflow.nodes import Materialize, Node, Sink, Source, rebuild, topological
from penstock.dataflow.nodes.trigger import find_promises, find_trigger_interval, promises_from_arrival
from penstock.dataflow.runnable import check_runnable, holds_back
from penstock.errors import InvalidUsageError
from penstock.spark_ext.api.register import register
from penstock.spark_ext.border.connection import is_connect, options_of_p_streams
from penstock.spark_ext.border.types import check_same, spark_schema, stored_schema
from penstock.spark_ext.graph.frames import Frames, SinkInput
from penstock.spark_ext.graph.handle import RESULTS, RunningGraph
from penstock.spark_ext.graph.recovery import GraphRecovery, QueryStreams
from penstock.spark_ext.graph.stage import Stage
from penstock.spark_ext.graph.state import StatePlace
from penstock.spark_ext.state_reader.committed import read_pointers
from penstock.spark_ext.worker.restart import check_writer
from penstock.units import parse_duration_us

__all__ = ["start"]

_INGEST = "ingest-"


@check_keywords
def start(
    graph: Graph,
    spark: SparkSession,
    checkpoint: str | os.PathLike[str],
    *,
    sources: Mapping[str, DataFrame | str | os.PathLike[str]] | None = None,
    tables: Mapping[str, DataFrame] | None = None,
    sink: Callable[[DataFrame], DataStreamWriter] | None = None,
    statistics: Statistics | None = None,
    persist: Persist = "auto",
    retain_interval: str | timedelta | None = None,
    checkpoint_interval: str | timedelta | None = None,
    available_now: bool = False,
    drain: bool = True,
    max_rows: int | None = None,
) -> RunningGraph:
    """Run a graph: one streaming query for each p-stream that it writes, and one for its results.

    Call this function on the driver. It returns when the queries run; their first micro-batches may still be
    running. With an existing checkpoint, the graph recovers and continues, exactly once.

    Parameters
    ----------
    graph : Graph
        The graph, with a `Graph.sink` at its end.
    spark : SparkSession
        The session; Penstock is registered with it.
    checkpoint : str or path
        The graph's directory, which need not exist. The directory holds the plan, the p-streams, state, and
        Spark's checkpoints.
    sources : mapping of str to DataFrame or path, optional
        For each source of the graph, a streaming DataFrame or a path. For the kind ``parquet``, the path
        leads to its files; for any other kind, the path is the location of a p-stream to read. A source whose
        path is in the graph may be left out.
    tables : mapping of str to DataFrame, optional
        The static tables of the graph's lookups.
    sink : callable, optional
        A function from the DataFrame of the results to its writer, such as ``lambda rows:
        rows.writeStream.foreachBatch(keep)``. By default the graph's sink is used.
    statistics : Statistics, optional
        The result of `Graph.measure`, for the plan.
    persist : str or mapping, optional
        As for `Graph.plan`.
    retain_interval : str or timedelta, optional
        The time between two retain markers, which make the input durable. By default as short as possible.
    checkpoint_interval : str or timedelta, optional
        The time between two checkpoint markers, which commit results. The default is as short as possible.
        With a freshness contract, the default is the controller's choice; with Spark Connect, it is an eighth
        of the tightest limit.
    available_now : bool
        Whether to end when the current input is processed. If true, the queries run one after the other.
    drain : bool
        With `available_now`, whether queries with a budget continue until no key waits. If false, they end
        with their input, and the next start serves the keys that still wait.
    max_rows : int, optional
        The maximum number of rows of a p-stream in a micro-batch.

    Returns
    -------
    RunningGraph

    Raises
    ------
    InvalidUsageError
        If a source, table or sink is missing or wrong, an operator cannot run, a setting is wrong, or the
        checkpoint belongs to another graph.
    CorruptDataError
        If the checkpoint is damaged.
    UnavailableError
        If the file system refuses.

    Examples
    --------
    >>> running = penstock.start(mean, spark, "loads-checkpoint", sources={"readings": df})  # doctest: +SKIP
    """
    runnable, paths = _locate(graph, sources or {})
    plan = runnable.plan(statistics, persist)
    check_runnable(plan.root)
    results = plan.root
    directory = GraphDirectory(checkpoint)
    old = find_graph(directory)
    if old is not None:
        check_same_graph(plan, old, directory)
    register(spark)
    places = directory_names(results)
    frames = Frames(
        spark,
        safe_name(graph.name),
        sources={name: source for name, source in (sources or {}).items() if isinstance(source, DataFrame)},
        tables=tables or {},
        streams={name: directory.place("p-streams", safe) for name, safe in places.items()},
        paths=paths,
        state=directory.place("state"),
        max_rows=max_rows,
    )
    if checkpoint_interval is None and is_connect(spark):
        checkpoint_interval = find_trigger_interval(results)
    retain, commit = (
        {"availableNow": True} if available_now else _trigger(interval)
        for interval in (retain_interval, checkpoint_interval)
    )
    stages: list[Stage] = []
    readings: dict[str, tuple[Reading, ...]] = {}
    states: dict[str, StatePlace | None] = {}
    writers: dict[str, str] = {}
    for node in topological(results):
        if isinstance(node, Materialize):
            location, query = directory.place("p-streams", places[node.name]), _INGEST + places[node.name]
            written = frames.build_sink_input(node.inputs[0], {"path": location})
            PStream(location, stored_schema(written.schema))
            writer = _set_options(written, {"path": location})
            readings[query], states[query] = written.readings, frames.state_of(node.inputs[0])
            writer = _name_writer(writer, f"{graph.name}.{node.name}", directory.query(query), retain)
            after = _find_predecessors(written.readings, writers)
            stages.append(Stage(query, writer, after, written.direct, holds_back(node.inputs[0])))
            writers[location] = query
    options: Mapping[str, str] | None = None
    if sink is None and isinstance(results, Sink) and _format(results) == "pstream":
        options = _options(results)
        written = frames.build_sink_input(results, options)
    else:
        rows, read = frames.build(results)
        written = SinkInput(rows, rows.schema, read, direct=False)
    readings[RESULTS], states[RESULTS] = written.readings, frames.state_of(results)
    if old is None:
        check_readers_are_free(chain.from_iterable(readings.values()), writers)
    # A sink may create a table.
    writer = _sink(written.rows, results, sink) if options is None else _set_options(written, options)
    writer = _name_writer(writer, graph.name, directory.query(RESULTS), commit)
    after = _find_predecessors(written.readings, writers)
    stages.append(Stage(RESULTS, writer, after, written.direct, holds_back(results)))
    _trace(graph.name, readings, writers, states)
    recovery = None
    if old is not None:
        queries = [
            QueryStreams(query, tuple(reading.location for reading in subscriptions), states[query])
            for query, subscriptions in readings.items()
        ]
        by_spark = partial(read_pointers, spark)
        recovery = GraphRecovery(graph.name, directory, queries, held_by_spark=by_spark)
    # Some queries start only when earlier queries have ended, so check all queries before the first query
    # reads.
    for stage in stages:
        check_writer(stage.writer)
    directory.put("graph", graph_document(plan, readings, writers))
    for reading in chain.from_iterable(readings.values()):
        PStream(reading.location).subscribe(reading.reader, EARLIEST)
    promised_s = find_promises(results)
    waiting_since_ms = None
    if promised_s and not available_now:
        # Without a column of arrival times, a row arrives with its micro-batch.
        streams = options_of_p_streams(written.rows) if promises_from_arrival(results) else ()
        waiting_since_ms = find_waiting_since_ms(directory, RESULTS, streams)
    return RunningGraph(
        spark,
        plan,
        directory,
        stages,
        written.schema,
        in_turn=available_now,
        drain=drain,
        recovery=recovery,
        promised_s=promised_s,
        waiting_since_ms=waiting_since_ms,
    )


def _trace(
    graph: str,
    readings: Mapping[str, Sequence[Reading]],
    writers: Mapping[str, str],
    states: Mapping[str, StatePlace | None],
) -> None:
    """Trace the inputs and outputs of each query; see `penstock.checkpointing.trace`."""
    queries = {
        query: {
            "reads": [[reading.location, reading.reader] for reading in some],
            "writes": next((location for location, writer in writers.items() if writer == query), None),
            "state": place and place.name,
        }
        for query, some in readings.items()
        for place in [states[query]]
    }
    trace("graph", graph=graph, queries=queries)


def _locate(
    graph: Graph, sources: Mapping[str, DataFrame | str | os.PathLike[str]]
) -> tuple[Graph, dict[str, str]]:
    """Set the kind of sources that read p-streams; return the graph and the locations of these sources."""
    nodes = {node.name: node for node in topological(graph.root) if isinstance(node, Source)}
    unknown = sorted(sources.keys() - nodes.keys())
    if unknown:
        raise InvalidUsageError("the graph has no such source", source=unknown[0], known=", ".join(nodes))
    places: dict[str, Any] = {
        name: dict(node.options)["path"]
        for name, node in nodes.items()
        if node.kind == "p-stream" and "path" in dict(node.options)
    }
    locations = {name: source for name, source in sources.items() if not isinstance(source, DataFrame)}
    files = {name for name, node in nodes.items() if node.kind == "parquet"}
    places |= {name: place for name, place in locations.items() if name not in files}
    paths = {
        name: GraphDirectory(place).location for name, place in places.items() if name not in _frames(sources)
    }

    def change(node: Node) -> Node:
        if isinstance(node, Source) and node.name in files:
            if node.name in _frames(sources):
                return replace(node, kind="files")
            path = {"path": os.fspath(locations[node.name])} if node.name in locations else {}
            return replace(node, options=tuple((dict(node.options) | path).items()))
        if not isinstance(node, Source) or node.name not in paths:
            return node
        check_same(
            spark_schema(_wanted_schema(node, paths[node.name])), spark_schema(node.columns), paths[node.name]
        )
        return replace(node, kind="p-stream")

    return replace(graph, root=rebuild(graph.root, change)), paths


def _frames(sources: Mapping[str, Any]) -> set[str]:
    return {name for name, source in sources.items() if isinstance(source, DataFrame)}


def _wanted_schema(node: Source, location: str) -> pa.Schema:
    """Return the columns of a p-stream that a source uses."""
    schema = PStream(location).schema
    return pa.schema([field for field in schema if field.name in node.columns.names], schema.metadata)


def _trigger(interval: str | timedelta | None) -> dict[str, Any]:
    if interval is None:
        return {}
    return {"processingTime": f"{parse_duration_us(interval) // 1000} milliseconds"}


def _name_writer(
    writer: DataStreamWriter, name: str, checkpoint: str, trigger: Mapping[str, Any]
) -> DataStreamWriter:
    writer = writer.queryName(name).option("checkpointLocation", checkpoint)
    return writer.trigger(**trigger) if trigger else writer


def _find_predecessors(readings: Sequence[Reading], writers: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(writers[reading.location] for reading in readings if reading.location in writers)
    )


def _sink(
    rows: DataFrame, root: Node, sink: Callable[[DataFrame], DataStreamWriter] | None
) -> DataStreamWriter:
    if sink is not None:
        return sink(rows)
    if not isinstance(root, Sink):
        raise InvalidUsageError("the graph has no sink", hint="end it with sink(...), or give sink=")
    return rows.writeStream.format(_format(root)).options(**_options(root))


def _format(root: Sink) -> str:
    return "pstream" if root.kind == "p-stream" else root.kind


def _options(root: Sink) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in root.options}


def _set_options(written: SinkInput, options: Mapping[str, str]) -> DataStreamWriter:
    """Return a stream writer with these options of a p-stream's sink."""
    writer = written.rows.writeStream.format("pstream").options(**options)
    writer = writer.option("descriptors", "true") if written.direct else writer
    return writer.option("deterministic", "true") if written.deterministic else writer
