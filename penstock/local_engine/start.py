"""`start_local`: run a graph in this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock._clock import Clock, now_us
from penstock.checkpointing.files import absolute_location, open_files
from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.p_stream import EARLIEST, PStream
from penstock.dataflow import Graph, Persist, PhysicalPlan, Statistics
from penstock.dataflow.checkpoint import (
    Reading,
    check_readers_are_free,
    check_same_graph,
    directory_names,
    find_graph,
    graph_document,
    safe_name,
)
from penstock.dataflow.nodes import Materialize, Node, topological
from penstock.local_engine.builder import Builder, NodeRows, OpenInput
from penstock.local_engine.checks import check_local
from penstock.local_engine.outputs import Output, PStreamOutput
from penstock.local_engine.query import LocalBatch, LocalQuery
from penstock.local_engine.query_log import QueryLog
from penstock.spark_ext.border.types import stored_schema
from penstock.spark_ext.worker.bucket_task import SPECIFICATION_FILE, missing_state_error
from penstock.state_store.descriptions import missing_state_notes

__all__ = ["RESULTS", "LocalGraph", "OpenOutput", "start_local"]

_LOGGER = logging.getLogger(__name__)

OpenOutput = Callable[[StructType, str], Output]
"""A function that opens a sink. It takes the results' columns, and the checkpoint of their query."""

RESULTS = "results"
"""The name of the query that makes a graph's results, as on Spark."""
_INGEST = "ingest-"


@dataclass(slots=True)
class LocalGraph:
    """A graph that runs in this process. One thread uses it.

    Parameters
    ----------
    plan : PhysicalPlan
        The plan.
    queries : sequence of LocalQuery
        The queries. A query may read the output of earlier queries.
    schema : StructType
        The columns of the results.
    checkpoint : str
        The graph's directory.
    drain : bool
        Whether `run_available` continues until no key waits.
    """

    plan: PhysicalPlan
    queries: Sequence[LocalQuery]
    schema: StructType
    checkpoint: str
    drain: bool = True

    def step(self, on_batch: Callable[[LocalBatch], None] = lambda batch: None) -> bool:
        """Run at most one micro-batch of each query; return whether any ran.

        Raises
        ------
        PenstockError
            If a micro-batch fails. Start again from the checkpoint.
        """
        ran = False
        for query in self.queries:
            ran |= self._step(query, on_batch)
        return ran

    def run_available(
        self,
        on_batch: Callable[[LocalBatch], None] = lambda batch: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run the queries, one after the other, until all present input is read.

        With `drain`, each query continues until no key waits.
        """
        for query in self.queries:
            query.stop_at_present()
            while not is_stopped() and self._step(query, on_batch, serves=self.drain):
                pass

    def _step(
        self, query: LocalQuery, on_batch: Callable[[LocalBatch], None], *, serves: bool = True
    ) -> bool:
        if not query.run_batch(serves=serves):
            return False
        if query.newest is not None:
            on_batch(query.newest)
        return True


def start_local(
    graph: Graph,
    checkpoint: str | os.PathLike[str],
    *,
    sources: Mapping[str, OpenInput],
    paths: Mapping[str, str],
    tables: Mapping[str, pa.Table] | None = None,
    sink: OpenOutput,
    statistics: Statistics | None = None,
    persist: Persist = "auto",
    parallel: int = 1,
    max_rows: int | None = None,
    drain: bool = True,
    clock: Clock = now_us,
    finish: Callable[[NodeRows], NodeRows] = lambda node_rows: node_rows,
    shown: Graph | None = None,
) -> LocalGraph:
    """Start a graph, or continue it from a checkpoint of either engine. Nothing runs yet.

    Parameters
    ----------
    graph : Graph
        The graph, with a sink at its end.
    checkpoint : str or path
        The graph's directory on a local disk.
    sources : mapping of str to callable
        For each source that is not a p-stream, a function that opens the source.
    paths : mapping of str to str
        The locations of the sources that are p-streams.
    tables : mapping of str to pyarrow.Table, optional
        The static tables of the graph's lookups.
    sink : callable
        A function that opens the sink for the results.
    statistics, persist
        See `Graph.plan`.
    parallel : int
        The number of Spark's shuffle partitions. An operator has as many buckets, unless it sets their
        number.
    max_rows : int, optional
        The maximum number of rows that a reader of a p-stream reads in a micro-batch.
    drain : bool
        See `LocalGraph`.
    clock : Clock
        The clock that operators read.
    finish : callable
        A function that transforms the results of the graph before the sink gets them.
    shown : Graph, optional
        The graph as its user wrote it, to show to people, if `graph` has other kinds of sources.

    Raises
    ------
    InvalidUsageError
        If the local engine cannot run an operator, or the checkpoint belongs to a different graph.
    CorruptDataError
        If the checkpoint is damaged.
    UnavailableError
        If the file system refuses.
    """
    plan = graph.plan(statistics, persist)
    check_local(plan.root)
    directory = GraphDirectory(absolute_location(checkpoint))
    old = find_graph(directory)
    if old is not None:
        check_same_graph(plan, old, directory, None if shown is None else shown.root)
    names = directory_names(plan.root)
    builder = Builder(
        safe_name(graph.name),
        sources,
        tables or {},
        {name: directory.place("p-streams", safe) for name, safe in names.items()},
        paths,
        directory.place("state"),
        parallel,
        max_rows,
    )
    started = _Queries(builder, directory, clock, is_new=old is None)
    for node in topological(plan.root):
        if isinstance(node, Materialize):
            location = directory.place("p-streams", names[node.name])
            title = f"{graph.name}.{node.name}"
            started.add(_INGEST + names[node.name], title, node.inputs[0], _into(location), location)
    schema = started.add(RESULTS, graph.name, plan.root, sink, finish=finish)
    shown_plan = None if shown is None else shown.plan(statistics, persist)
    directory.put("graph", graph_document(plan, started.readings, started.writers, shown_plan))
    for some in started.readings.values():
        for reading in some:
            PStream(reading.location).subscribe(reading.reader, EARLIEST)
    return LocalGraph(plan, started.queries, schema, directory.location, drain)


@dataclass(slots=True)
class _Queries:
    """The queries of one start, in the order in which they are built."""

    builder: Builder
    directory: GraphDirectory
    clock: Clock
    is_new: bool
    queries: list[LocalQuery] = field(default_factory=list)
    readings: dict[str, tuple[Reading, ...]] = field(default_factory=dict)
    writers: dict[str, str] = field(default_factory=dict)

    def add(
        self,
        name: str,
        title: str,
        end: Node,
        sink: OpenOutput,
        location: str | None = None,
        finish: Callable[[NodeRows], NodeRows] = lambda node_rows: node_rows,
    ) -> StructType:
        """Build the query of a node; return the columns of its results."""
        checkpoint = self.directory.query(name)
        before = len(self.builder.readings)
        node_rows = finish(self.builder.build(end, Path(checkpoint) / "sources"))
        self.readings[name] = tuple(self.builder.readings[before:])
        if self.is_new:
            check_readers_are_free(self.readings[name], self.writers)
        log = QueryLog(checkpoint, self.builder.parallel)
        if location is not None:
            PStream(location, stored_schema(node_rows.schema))
            self.writers[location] = name
        output = sink(node_rows.schema, checkpoint)
        operator = self.builder.operator
        is_known = operator is not None and operator.task.check_known(log.id, in_graph=True)
        if operator is not None and log.committed < 0:  # later, a bucket without state is an error
            place = operator.task.state_location
            for note in missing_state_notes(operator.name, place, log.id, has_pointers=False):
                _LOGGER.warning("%s [query=%s]", note, self.builder.name)
        query = LocalQuery(
            name, title, log, self.builder.inputs, operator, node_rows.rows, output, self.clock
        )
        if operator is not None and operator.pointers and not is_known:
            state = open_files(operator.task.state_location).child(log.id).child(operator.name)
            raise missing_state_error(state.path_of(SPECIFICATION_FILE))
        self.queries.append(query)
        return node_rows.schema


def _into(location: str) -> OpenOutput:
    return lambda schema, checkpoint: PStreamOutput({"path": location}, schema, checkpoint)
