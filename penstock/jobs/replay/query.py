"""The results query of a pipeline over a read-only checkpoint, with state in a scratch location."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.checkpointing.files import absolute_location, open_files
from penstock.conf.document import Document
from penstock.conf.pipeline import Pipeline, redirect_late_rows
from penstock.dataflow.checkpoint import directory_names, safe_name
from penstock.dataflow.nodes import Node, topological
from penstock.errors import InvalidUsageError
from penstock.jobs.local.pipeline import Places, bind_graph, parallel_of
from penstock.jobs.replay.recording import Checkpoint, Recording
from penstock.local_engine.builder import Builder
from penstock.local_engine.inputs import Input
from penstock.local_engine.operators import LocalOperator, Rows
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.procedures.requests.client import REQUESTS_PLACE
from penstock.procedures.requests.messages import ANSWERS
from penstock.spark_ext.border.types import as_arrow_of_spark
from penstock.state_store.descriptions import read_description

__all__ = ["HeldAnswers", "ReplayedQuery", "open_query"]


@dataclass(slots=True)
class HeldAnswers:
    """Holds the answers to the requests of a micro-batch, and publishes none."""

    held: list[pa.RecordBatch] = field(default_factory=list)

    def publish(self, answers: pa.RecordBatch, query: str, batch: int, bucket: int) -> None:
        """Hold the answers of a bucket."""
        self.held.append(answers)

    def take(self) -> pa.Table:
        """Return the answers since the last call."""
        answers, self.held = self.held, []
        return pa.Table.from_batches(answers, ANSWERS)


@dataclass(frozen=True, slots=True)
class ReplayedQuery:
    """A query that runs recorded micro-batches.

    Attributes
    ----------
    inputs : sequence of Input
        The sources.
    operator : LocalOperator or None
        The operator with state, which writes to the scratch location.
    rows : callable
        Makes the results of the query.
    schema : pyarrow.Schema
        The columns of the results.
    recording : Recording
        The checkpoint's recording of the query.
    answers : HeldAnswers or None
        The answers to requests, if the query answers requests.
    """

    inputs: Sequence[Input]
    operator: LocalOperator | None
    rows: Rows
    schema: pa.Schema
    recording: Recording
    answers: HeldAnswers | None = None


def open_query(
    pipeline: Pipeline, document: Document, checkpoint: Checkpoint, scratch: str, *, ignored: str = ""
) -> ReplayedQuery:
    """Open the query of a pipeline's results.

    Parameters
    ----------
    pipeline, document
        The pipeline.
    checkpoint : Checkpoint
        The checkpoint.
    scratch : str
        The directory for state.
    ignored : str
        A setting that may differ from the recorded setting.

    Raises
    ------
    InvalidUsageError
        If the local engine cannot run the pipeline, the checkpoint belongs to a different pipeline, or the
        location of the pipeline's requests has no requests.
    """
    requests = answers = None
    if pipeline.database is not None and pipeline.database.requests is not None:
        requests = f"{absolute_location(pipeline.database.requests).rstrip('/')}/{REQUESTS_PLACE}"
        answers = HeldAnswers()
    elsewhere = pipeline.query.state_location
    pipeline = _without_side_effects(pipeline, scratch)
    bound = bind_graph(pipeline, document, Places())
    root = bound.graph.plan(None, pipeline.planned_persist).root
    directory = checkpoint.directory
    builder = Builder(
        safe_name(bound.graph.name),
        bound.sources,
        bound.tables,
        {name: directory.place("p-streams", safe) for name, safe in directory_names(root).items()},
        bound.paths,
        scratch,
        _recorded_buckets(checkpoint, elsewhere, root) or parallel_of(pipeline),
        subscribes=False,
        answers=answers,
    )
    made = bound.finish(builder.build(root, checkpoint.path / "sources"))
    operator = builder.operator
    if operator is not None and pipeline.engine != "local":
        operator.task = replace(operator.task, processors=None)  # without a clock record, they are not known
    state = None
    if operator is not None:
        place = checkpoint.state if elsewhere is None else open_files(elsewhere)
        state = place.child(checkpoint.query).child(operator.name)
    streams = list(dict.fromkeys(reading.location for reading in builder.readings))
    if requests is not None:
        streams.append(requests)
    recording = Recording(checkpoint, builder.inputs, streams, operator, state)
    if operator is not None and (stored := dict(recording.description())):
        specified, time = operator.task.specification(), stored.get("time")
        if str(time).startswith(RESERVED_PREFIX) and time != specified.get("time"):
            raise InvalidUsageError(
                "Spark planned these windows in a way that the local engine does not know",
                hint="only windows over a p-stream can be replayed if Spark ran them",
            )
        stored[ignored] = specified.get(ignored)
        operator.task.check_same(stored, "" if state is None else state.location, in_graph=True)
    schema = as_arrow_of_spark(made.schema)
    return ReplayedQuery(builder.inputs, operator, made.rows, schema, recording, answers)


def _recorded_buckets(checkpoint: Checkpoint, state_location: str | None, root: Node) -> int | None:
    """Return the number of buckets of the recorded operator of a plan; None if the query has no state.

    The query may also have state of operators that an earlier pipeline had.
    """
    states = checkpoint.state if state_location is None else open_files(state_location)
    query = states.child(checkpoint.query)
    stored = {facts.name for facts in query.list() if facts.is_directory}
    for name in {node.state_name: None for node in topological(root)}:
        described = read_description(query.child(name)) if name in stored else None
        if described is not None and "buckets" in described:
            return int(described["buckets"])
    return None


def _without_side_effects(pipeline: Pipeline, scratch: str) -> Pipeline:
    """Return a pipeline with late rows in a scratch directory, and state at the default place.

    Without `late_to`, windows might be planned differently. The pipeline may still name p-streams for
    rejected records, because a `Builder` without subscriptions does not write rejected records.
    """
    query = pipeline.query.model_copy(update={"state_location": None})
    other = pipeline.model_copy(update={"query": query})
    return redirect_late_rows(other, lambda section: f"{scratch}/late rows of {section}")
