"""Check a pipeline before it runs, without a JVM."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from penstock.checkpointing.graph.directory import GraphDirectory
    from penstock.conf.document import Document, FieldPath
    from penstock.conf.pipeline import Pipeline, Source, TableSection
    from penstock.dataflow import Graph, PhysicalPlan
    from penstock.dataflow.nodes import Node
    from penstock.errors import InvalidUsageError
    from penstock.jobs.checks.names import Columns, Use

__all__ = ["check_checkpoint", "check_pipeline", "check_with_options"]

_ELSEWHERE: Final = ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_REMOTE")
"""Environment variables with which the user's own Spark runs a pipeline."""
_NEWEST_LISTED: Final = (4, 3)
"""The newest version of Spark whose functions `penstock.sql.syntax.functions` lists."""


def check_with_options(
    pipeline: str, overrides: list[str], options: Mapping[str, str | None], **arguments: Any
) -> tuple[Pipeline, Document]:
    """Check as `check_pipeline` does; `options` are a command's options that override fields.

    Raises
    ------
    PipelineError
        As for `check_pipeline`, but a line names the option instead of the field that the option overrides.
    """
    from penstock.conf.document import PipelineError

    given = [(field, value) for field, value in options.items() if value is not None]
    try:
        fields = [*overrides, *(f"{field}={value}" for field, value in given)]
        return check_pipeline(pipeline, fields, **arguments)
    except PipelineError as error:
        problems = list(error.problems)
        for field, value in given:
            option = f"--{field.rpartition('.')[2]} {value}: "
            problems = [text.replace(f"--set {field}={value}: ", option) for text in problems]
        raise PipelineError(problems) from None


def check_pipeline(
    pipeline: str,
    overrides: list[str],
    *,
    inputs: bool = False,
    settings: Mapping[str, str] | None = None,
    own_process: bool = False,
) -> tuple[Pipeline, Document]:
    """Read a pipeline, and check its locations, columns, expressions and checkpoint.

    With `inputs`, also check that the input files of the pipeline exist. The Spark settings in `settings` and
    in the pipeline determine how S3 is reached. Set `own_process` if this process only runs the pipeline.

    Raises
    ------
    PipelineError
        If any of these is wrong, with a line for each problem.
    """
    from penstock.conf.document import PipelineError
    from penstock.conf.pipeline import load_parts

    loaded, document, problems, named = load_parts(pipeline, overrides)
    from penstock.dataflow import Graph  # heavy; an unknown pipeline does not need it
    from penstock.jobs.cluster.modules import import_beside
    from penstock.jobs.local.first_row import skip_pandas

    if named is not None:
        import_beside(named, pipeline)
    if loaded is None:
        if named is not None:
            problems += _find_wrong_columns(named, document)
            problems += _find_wrong_functions(named, document, settings or {})
        raise PipelineError(problems)
    from penstock.checkpointing.files.s3a import keep_s3a
    from penstock.jobs.pipelines.places import check_headers, check_inputs, check_places, check_upsert

    all_settings = {**loaded.query.spark, **(settings or {})}
    keep_s3a(all_settings.items(), os.environ)
    build: Callable[[Pipeline, Document], Graph] = _graph_with_functions
    if loaded.engine == "local":
        if own_process and not problems and not _has_users_code(loaded):
            skip_pandas()
        build = _check_local(settings or {})
    checks: list[Callable[[Pipeline, Document], object]] = [
        build, _check_sink_function, check_places, check_upsert, check_headers
    ]  # fmt: skip
    for check_part in [*([check_inputs] if inputs else []), *checks]:
        try:
            checked = check_part(loaded, document)
        except PipelineError as error:
            problems += error.problems
            if check_part is build:
                problems += _find_wrong_columns(loaded, document)
        else:
            if isinstance(checked, Graph):
                problems += _find_wrong_sink_fields(loaded, document, checked.schema)
    problems += _find_wrong_functions(named or loaded, document, all_settings)
    problems = list(dict.fromkeys(problems))
    if not problems:
        check_checkpoint(loaded, document, build)
    if problems:
        raise PipelineError(problems)
    return loaded, document


def _graph_with_functions(pipeline: Pipeline, document: Document) -> Graph:
    from functools import partial

    from penstock.conf.document import PipelineError
    from penstock.dataflow.runnable import check_runnable
    from penstock.errors import InvalidUsageError
    from penstock.jobs.pipelines.functions import import_function
    from penstock.jobs.pipelines.graph import Binding, field_errors, graph_of, problem_of

    graph = graph_of(pipeline, document, Binding(function=partial(import_function, field="apply")))
    with field_errors(document, "persist"):
        plan = graph.plan(None, pipeline.planned_persist)
    try:
        check_runnable(plan.root)
    except InvalidUsageError as error:
        path = document.path_of_node(error.context.get("node"))
        raise PipelineError([problem_of(document, path, error)]) from error
    return graph


def _check_sink_function(pipeline: Pipeline, document: Document) -> None:
    """Import the function of a sink.

    Raises
    ------
    PipelineError
        If there is no such function.
    """
    from penstock.conf.pipeline import ForeachBatchSink
    from penstock.jobs.pipelines.functions import import_function
    from penstock.jobs.pipelines.graph import field_errors

    if isinstance(pipeline.sink, ForeachBatchSink):
        with field_errors(document, "sink"):
            import_function(pipeline.sink.function, "function")


def _find_wrong_columns(pipeline: Pipeline, document: Document) -> list[str]:
    """Return the mistakes in columns and expressions, even in sections that the builder did not reach."""
    from penstock.errors import InvalidUsageError
    from penstock.jobs.checks.names import Use, find_uses
    from penstock.jobs.pipelines.schemas import schema_of

    def columns_of(source: Source | TableSection) -> Columns:
        try:
            return tuple(schema_of(source).names)
        except InvalidUsageError:
            return None

    return _collect(document, find_uses(pipeline, columns_of), Use.find_columns)


def _find_wrong_sink_fields(pipeline: Pipeline, document: Document, schema: pa.Schema) -> list[str]:
    """Return the mistakes in columns and expressions that a sink names or takes from the step before it."""
    from penstock.conf.pipeline import UpsertSink
    from penstock.jobs.checks.names import Use, sink_uses
    from penstock.jobs.pipelines.graph import field_errors
    from penstock.operators.types import check_condition
    from penstock.sql.expression import Expression
    from penstock.upserts.arrow_columns import split_window

    sink = pipeline.sink
    if isinstance(sink, UpsertSink):
        schema = split_window(schema.empty_table()).schema
    problems = _collect(document, sink_uses(sink, tuple(schema.names)), Use.find_columns)
    problems += _find_lost_columns(pipeline, document, schema.names)
    if problems or (delete_when := getattr(sink, "delete_when", None)) is None:
        return problems
    with field_errors(document, "sink", "delete_when", goes_on=True):
        condition = Expression.parse(delete_when).resolve(schema.names)
        check_condition(condition, schema, "delete_when")
    return list(document.problems)


def _find_lost_columns(pipeline: Pipeline, document: Document, names: list[str]) -> list[str]:
    """Return the fields of an upsert whose default is a column that the results have lost."""
    from penstock.conf.document import describe
    from penstock.conf.pipeline import UpsertSink
    from penstock.ddl import parse_schema

    sink, step = pipeline.sink, pipeline.step
    if not isinstance(sink, UpsertSink) or step is None:
        return []
    section = next(name for name in ("queue", "union", "join") if getattr(pipeline, name) is step)
    output = getattr(step, "output_schema", None)
    kept, known = (parse_schema(output).names if output else ()), {name.lower() for name in names}
    problems = []
    for field, columns in (("key", step.key), ("time", (step.time,))):
        lost = [name for name in columns if name.lower() not in known]
        if getattr(sink, field) is None and lost:
            at = f"{section}.output_schema" if output and lost[0] not in kept else "results.projection"
            fact = f"is by default the {section}'s {field}, but the results have no column {lost[0]!r}"
            hint = f"add {lost[0]} to {at}, or write {field} with a column of the results"
            problems.append(describe(document.place(("sink", field)), ("sink", field), fact, hint))
    return problems


def _find_wrong_functions(pipeline: Pipeline, document: Document, settings: Mapping[str, str]) -> list[str]:
    """Return the mistakes in names of functions; none if Spark may have functions of the user."""
    from penstock.jobs.checks.names import Use, find_uses

    found = _collect(document, find_uses(pipeline, lambda source: None), Use.find_functions)
    return [] if found and pipeline.engine != "local" and _may_have_functions(settings) else found


def _may_have_functions(settings: Mapping[str, str]) -> bool:
    """Return whether Spark may have functions that Penstock does not list."""
    from pyspark.version import __version__

    version = tuple(map(int, __version__.split(".")[:2]))
    added = [name for name in settings if name.startswith(("spark.sql.extensions", "spark.sql.catalog"))]
    return bool(added) or any(name in os.environ for name in _ELSEWHERE) or version > _NEWEST_LISTED


def _collect(
    document: Document, uses: Iterable[Use], find: Callable[[Use], Iterable[InvalidUsageError]]
) -> list[str]:
    """Return a line for each error that `find` yields."""
    from penstock.jobs.pipelines.graph import field_errors

    document.problems.clear()
    for use in uses:
        for error in () if document.is_unset(use.path) else find(use):
            with field_errors(document, *use.path, goes_on=True):
                raise error
    return list(document.problems)


def check_checkpoint(
    pipeline: Pipeline, document: Document, build: Callable[[Pipeline, Document], Graph]
) -> None:
    """Check that the pipeline can continue from its checkpoint, if the checkpoint is on a local disk.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    document : Document
        The positions of its fields.
    build : callable
        Returns the pipeline's graph as its engine runs it.

    Raises
    ------
    PipelineError
        If the checkpoint belongs to a single query, or was made with a different key, policy, weight, number
        of buckets or graph, or if it has a budget and the pipeline has none, or the reverse.
    """
    from penstock.conf.document import PipelineError, describe
    from penstock.errors import InvalidUsageError

    location = pipeline.query.checkpoint
    if location is None or "://" in location or not any(Path(location).glob("*")):
        return
    from penstock.checkpointing.graph.directory import GraphDirectory  # few checked pipelines have state
    from penstock.dataflow.checkpoint import check_same_shape, find_graph, written_sources
    from penstock.dataflow.shape import shape
    from penstock.jobs.pipelines.graph import graph_of
    from penstock.jobs.pipelines.places import sources_of

    directory, sources = GraphDirectory(location), sources_of(pipeline)
    try:
        if (old := find_graph(directory)) is None:
            return
        plan = build(pipeline, document).plan(None, pipeline.planned_persist)
        if not pipeline.decodes_late:  # only a run knows what it decodes late
            known = all(map(_declares_columns, sources.values()))
            new_parts, old_parts = (
                _fixed_parts(lines, columns=known) for lines in (shape(plan), old["shape"])
            )
            written = written_sources(old, graph_of(pipeline, document).root)
            check_same_shape(new_parts, old_parts, directory, written)
        _check_settings(pipeline, plan, directory)
    except InvalidUsageError as error:
        path: FieldPath = ("query", "checkpoint")
        if (name := error.context.get("operator")) in sources:
            path = sources[name][0]
            if (*path, "schema") in document.places:
                path = (*path, "schema")
        context = "".join(f" {name}={value}" for name, value in error.context.items())
        raise PipelineError(
            [describe(document.place(path), path, f"{error.fact}:{context}", error.hint)]
        ) from None


def _declares_columns(section: tuple[FieldPath, Source]) -> bool:
    """Return whether a source's columns are known before a run; otherwise Spark reads them from files."""
    return section[1].type not in ("files", "kafka") or getattr(section[1], "columns", None) is not None


def _fixed_parts(lines: list[str], *, columns: bool) -> list[str]:
    """Return the lines of a plan's shape, without columns unless `columns` is set."""
    entries = []
    for line in lines:
        entry = json.loads(line)
        if not columns:
            entry.pop("columns", None)
        entries.append(json.dumps(entry))
    return entries


def _check_settings(pipeline: Pipeline, plan: PhysicalPlan, directory: GraphDirectory) -> None:
    """Check that the state of each operator has the pipeline's number of buckets, weight, and budget or none.

    Raises
    ------
    InvalidUsageError
        If they differ.
    """
    from penstock.checkpointing.files import open_files
    from penstock.dataflow.nodes import topological
    from penstock.state_store.descriptions import changed_setting_error, read_description

    place = open_files(pipeline.query.state_location or directory.place("state"))
    nodes = {node.state_name: node for node in topological(plan.logical)}
    for query in directory.files.child("queries").list():
        state = place.child(directory.progress(query.name).id or query.name)
        for operator in (facts.name for facts in state.list() if facts.is_directory):
            # If the section has no number, a run on Spark chooses a number that this check cannot know.
            buckets = getattr(getattr(pipeline, operator, None), "buckets", None)
            if buckets is None and pipeline.engine == "local":
                from penstock.jobs.local.pipeline import parallel_of  # imports pyarrow

                buckets = parallel_of(pipeline)
            wanted = _settings_of(nodes.get(operator)) | ({} if buckets is None else {"buckets": buckets})
            files = state.child(operator)
            known = read_description(files) or {}
            for name, now in wanted.items():
                if now != known.get(name, now):
                    raise changed_setting_error(
                        name, known[name], now, operator=operator, file=files.location, in_graph=True
                    )


def _settings_of(node: Node | None) -> dict[str, object]:
    """Return the program of transactions, or budget and weight of a queue or of windows, as stored."""
    from penstock.dataflow.nodes import Transactions
    from penstock.operators.update_stream.operator_options import QueueOptions, WindowOptions

    if isinstance(node, Transactions):
        return {"program": node.identity}
    # The state of windows is under the name of their aggregates.
    for one in () if node is None else (node, *node.inputs):
        options = getattr(one, "options", None)
        if isinstance(options, QueueOptions | WindowOptions):
            settings: dict[str, object] = {"budget": options.limits.setting}
            if options.weight is None or isinstance(options.weight, str):
                settings["weight"] = options.weight
            return settings
    return {}


def _has_users_code(pipeline: Pipeline) -> bool:
    """Return whether a pipeline runs Python code of its user; True if the pipeline cannot be read."""
    from penstock.errors import InvalidUsageError
    from penstock.jobs.cluster.modules import user_code

    try:
        return pipeline.database is not None or bool(user_code(pipeline))
    except InvalidUsageError:
        return True  # the checks report what is wrong, and where


def _check_local(settings: Mapping[str, str]) -> Callable[[Pipeline, Document], Graph]:
    """Return a function that checks a pipeline for the local engine, which takes no Spark settings."""
    from penstock.errors import InvalidUsageError
    from penstock.jobs.local.pipeline import check_local_pipeline

    if settings:
        raise InvalidUsageError(
            "the local engine takes no settings of Spark",
            settings=", ".join(settings),
            hint="use engine: spark",
        )
    return check_local_pipeline
