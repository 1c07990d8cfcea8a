"""The results query of a pipeline over a read-only checkpoint, with its state in another place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.checkpointing.files import open_files
from penstock.conf.document import Document
from penstock.conf.pipeline import Pipeline
from penstock.dataflow.checkpoint import place_names, safe_name
from penstock.errors import InvalidUsageError
from penstock.jobs.local.pipeline import Places, bind_graph, parallel_of
from penstock.jobs.replay.recording import Checkpoint, Recording
from penstock.local_engine.builder import Builder
from penstock.local_engine.inputs import Input
from penstock.local_engine.operators import LocalOperator, Rows
from penstock.spark_ext.border.types import as_arrow_of_spark

__all__ = ["ReplayedQuery", "open_query"]


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
    """

    inputs: Sequence[Input]
    operator: LocalOperator | None
    rows: Rows
    schema: pa.Schema
    recording: Recording


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
        If the local engine cannot run the pipeline, or the checkpoint belongs to another pipeline.
    """
    elsewhere = pipeline.query.state_location
    pipeline = _without_side_effects(pipeline)
    bound = bind_graph(pipeline, document, Places())
    root = bound.graph.plan(None, pipeline.planned_persist).root
    directory = checkpoint.directory
    builder = Builder(
        safe_name(bound.graph.name),
        bound.sources,
        bound.tables,
        {name: directory.place("p-streams", safe) for name, safe in place_names(root).items()},
        bound.paths,
        scratch,
        parallel_of(pipeline),
        subscribes=False,
    )
    made = bound.finish(builder.build(root, checkpoint.path / "sources"))
    operator = builder.operator
    state = None
    if operator is not None:
        place = checkpoint.state if elsewhere is None else open_files(elsewhere)
        state = place.child(checkpoint.query).child(operator.name)
    streams = list(dict.fromkeys(reading.location for reading in builder.readings))
    recording = Recording(checkpoint, builder.inputs, streams, operator, state)
    if operator is not None and (stored := dict(recording.description())):
        stored[ignored] = operator.task.specification().get(ignored)
        operator.task.check_same(stored, "" if state is None else state.location)
    return ReplayedQuery(builder.inputs, operator, made.rows, as_arrow_of_spark(made.schema), recording)


def _without_side_effects(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline that writes only its state and its results.

    It may name p-streams of rejected records, because a `Builder` without subscriptions rejects none.
    """
    quiet: dict[str, Any] = {"query": pipeline.query.model_copy(update={"state_location": None})}
    for name in ("queue", "union", "join", "window"):
        section = getattr(pipeline, name)
        if getattr(section, "late_to", None) is not None:
            quiet[name] = section.model_copy(update={"late_to": None})
    if pipeline.database is not None and pipeline.database.requests is not None:
        raise InvalidUsageError(
            "a replay answers no requests",
            requests=pipeline.database.requests,
            hint="only a pipeline without database.requests can be replayed",
        )
    return pipeline.model_copy(update=quiet)
