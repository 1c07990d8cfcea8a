"""Pipelines: the whole configuration, read from a file and checked.

A pipeline is ``source -> filter -> projection -> lookup -> queue -> results -> sink``, where a union, a join
with other streams, transactions, or a window with aggregates may replace the queue. `engine` names the
engine that runs it. `load_pipeline` reads a pipeline from YAML and reports all its problems at once. Paths
inside a file are relative to the current directory. Nothing here imports pyspark, so checking a file starts
no JVM.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError, model_validator
from pydantic_core import PydanticCustomError

from penstock.conf.arguments import check_keywords
from penstock.conf.cross_field_checks import LATE_STEPS, find_disagreements
from penstock.conf.document import Document, FieldPath, PipelineError, Problem, describe, read_document
from penstock.conf.error_messages import REQUIRED, UNKNOWN_FIELD, explain_error
from penstock.conf.kafka_source import KafkaSource
from penstock.conf.sections import (
    ConsoleSink,
    DatabaseSection,
    FilesSource,
    ForeachBatchSink,
    Input,
    JoinSection,
    KafkaSink,
    LookupSection,
    MarketSource,
    MemorySink,
    NoopSink,
    OperatorSection,
    ParquetSink,
    PipelineSections,
    PStreamSink,
    PStreamSource,
    Query,
    Queue,
    RateSource,
    ResultsSection,
    Sink,
    Source,
    SparkSink,
    SparkSource,
    TableSection,
    UnionSection,
    UpsertSink,
    WindowSection,
)
from penstock.conf.values import did_you_mean
from penstock.errors import InvalidUsageError

__all__ = [
    "ConsoleSink",
    "DatabaseSection",
    "FilesSource",
    "ForeachBatchSink",
    "Input",
    "JoinSection",
    "KafkaSink",
    "KafkaSource",
    "LookupSection",
    "MarketSource",
    "MemorySink",
    "NoopSink",
    "OperatorSection",
    "PStreamSink",
    "PStreamSource",
    "ParquetSink",
    "Pipeline",
    "Query",
    "Queue",
    "RateSource",
    "ResultsSection",
    "Sink",
    "Source",
    "SparkSink",
    "SparkSource",
    "TableSection",
    "UnionSection",
    "UpsertSink",
    "WindowSection",
    "example_names",
    "example_text",
    "load_document",
    "load_pipeline",
    "paper_names",
    "redirect_late_rows",
]

FREE_SECTIONS: Final[frozenset[FieldPath]] = frozenset(
    {("source", "options"), ("sink", "options"), ("query", "spark"), ("operator", "arguments")}
)
"""Sections whose fields are names of Spark's own options and settings, or arguments of a class."""


class Pipeline(PipelineSections):
    """A whole pipeline. `load_pipeline` reads one from a file."""

    @model_validator(mode="after")
    def _sections_agree(self) -> Pipeline:
        problems = list(find_disagreements(self))
        if problems:
            facts = "; ".join(f"{'.'.join(map(str, path))}: {fact}" for path, fact, _ in problems)
            raise PydanticCustomError("sections", "{facts}", {"facts": facts, "problems": problems})
        return self

    @property
    def decodes_late(self) -> bool:
        """Return whether records of Kafka can be decoded after the queue instead of before it."""
        source, queue = self.source, self.queue
        if not isinstance(source, KafkaSource) or source.value_format == "raw" or queue is None:
            return False
        steps = (self.filter, self.projection, self.lookup, self.window, queue.apply)
        if any(step is not None for step in steps) or queue.staleness_column or isinstance(queue.weight, str):
            return False
        # The condition may read decoded columns, and silent rows have nothing to decode.
        if queue.delete_when is not None or queue.on_silent is not None:
            return False
        if source.reject_to is not None or source.on_error != "keep" or self.planned_persist != "never":
            return False
        own = {f"kafka_{column}" for column in source.kafka_columns}
        used = {*queue.key, queue.time, *((queue.arrival,) if queue.arrival is not None else ())}
        return used <= own and not isinstance(self.sink, PStreamSink)

    @property
    def later_steps(self) -> tuple[str, ...]:
        """The steps after the operator that may drop or combine rows that the operator has emitted."""
        names = [name for name in ("having", "window_join", "by_window") if getattr(self, name) is not None]
        if self.results is not None and self.results.filter is not None:
            names.append("results.filter")
        return tuple(names)


def _find_problems(data: dict[str, Any]) -> Pipeline | list[Problem]:
    """Return the pipeline with these fields, or their problems."""
    try:
        return Pipeline.model_validate(data)
    except ValidationError as error:
        return [
            problem
            for details in error.errors(include_url=False)
            for problem in explain_error(details, data, Pipeline)
        ]


def _describe_problems(found: list[Problem], document: Document) -> list[str]:
    """Return a line for each problem, in the order of the document."""
    order = list(document.places)

    def position(problem: Problem) -> int:
        path = problem[0]
        while path and path not in document.places:
            path = path[:-1]
        return order.index(path) if path else -1

    return [
        describe(document.place(path), path, fact + _cause(path, fact, document), hint)
        for path, fact, hint in sorted(found, key=position)
    ]


def _cause(path: FieldPath, fact: str, document: Document) -> str:
    """Return the override of a section's type that makes a field unknown or required, as part of a fact."""
    override = document.places.get((*path[:-1], "type"), "")
    is_cause = fact in (UNKNOWN_FIELD, REQUIRED) and path[-1:] != ("type",) and override.startswith("--set ")
    return f" with {override}" if is_cause and document.place(path) != override else ""


def _without_wrong_fields(data: dict[str, Any], found: list[Problem]) -> dict[str, Any] | None:
    """Return the fields without the wrong fields; None if the rest depends on a wrong or missing field."""
    rest = deepcopy(data)
    for path, *_ in found:
        if len(path) < 2 or (path[0] not in _ENDS and _is_shaping(path)):
            return None
        section: Any = rest
        for part in path[:-1]:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict) and path[-1] in section:
            del section[path[-1]]
        elif path[0] not in _OUTPUT:
            return None
    return rest


def _is_shaping(path: FieldPath) -> bool:
    """Return whether a field, or a field with a similar name, determines columns or the meaning of others."""
    return not _SHAPING.isdisjoint(path[1:]) or did_you_mean(path[-1], sorted(_SHAPING), None) is not None


def _without_output(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with a sink that drops all rows, and without settings of the run."""
    return {name: value for name, value in data.items() if name not in _OUTPUT} | _NO_SINK


def _columns_only(data: dict[str, Any], found: list[Problem]) -> Pipeline | None:
    """Return the sections whose columns can be checked in spite of the problems; None if there are none."""
    wrong = {path[0] if path else "" for path, *_ in found}
    is_end = wrong <= {*_ENDS}
    rest = {name: value for name, value in data.items() if name not in wrong and (is_end or name in _BEGIN)}
    stubs: dict[str, str] = {}
    if not is_end or "queue" in wrong:
        given = data.get("queue") if is_end else None
        fields = given.items() if isinstance(given, dict) else ()
        known = {
            name: value for name, value in fields if all(("queue", name) != path[:2] for path, *_ in found)
        }
        stubs = dict.fromkeys({"key", "time"} - known.keys(), "none")
        rest["queue"] = known | stubs
    pipeline = _find_problems(_without_output(rest))
    if not isinstance(pipeline, Pipeline):
        return None
    queue = pipeline.queue and pipeline.queue.model_copy(update=dict.fromkeys(stubs))
    return pipeline.model_copy(update={"queue": queue})


_BEGIN: Final = ("engine", "source", "filter", "projection")
"""Sections that depend on none of the later sections."""
_OUTPUT: Final = ("sink", "query")
_NO_SINK: Final = {"sink": {"type": "noop"}}
_ENDS: Final = ("queue", "results", *_OUTPUT)
"""Sections on whose columns at most the results depend."""
_SHAPING: Final = frozenset({
    "aggregates", "apply", "columns", "delete_when", "format", "group_by", "keep", "kafka_columns", "message",
    "mode", "on_silent", "options", "output_schema", "path", "projection", "reader", "registry", "schema",
    "session", "size", "slide", "staleness_column", "type", "unit", "value_format", "value_schema",
})  # fmt: skip
"""Fields that determine the columns of their section, or which other fields and sections are possible."""

_PAPERS: Final = "pipelines/papers"
_GROUPS: Final = ("pipelines", _PAPERS)
"""The directories of packaged pipelines."""


def example_names() -> list[str]:
    """Return the names of the packaged example pipelines: first simple pipelines, then the papers'."""
    return [name for group in _GROUPS for name in sorted(_examples(group))]


def paper_names() -> list[str]:
    """Return the names of the packaged pipelines of benchmarks and papers."""
    return sorted(_examples(_PAPERS))


def _examples(group: str) -> dict[str, Traversable]:
    entries = list(resources.files("penstock.conf").joinpath(group).iterdir())
    return {entry.name.removesuffix(".yaml"): entry for entry in entries if entry.name.endswith(".yaml")}


def example_text(name: str) -> str:
    """Return the YAML of a packaged example.

    Raises
    ------
    InvalidUsageError
        If there is no example of that name.
    """
    names = example_names()
    if name not in names:
        hint = did_you_mean(name, names, f"the examples are {', '.join(names)}")
        raise InvalidUsageError(f"there is no example {name!r}", hint=hint)
    return ChainMap(*map(_examples, _GROUPS))[name].read_text(encoding="utf-8")


def _read(reference: str) -> Document:
    path = Path(reference)
    if not path.is_file() and reference in example_names():
        return read_document(example_text(reference), f"{reference}.yaml (packaged)")
    try:
        return read_document(path.read_text(encoding="utf-8"), reference)
    except FileNotFoundError:
        names = example_names()
        nearby = [str(path.parent / other.name) for other in sorted(path.parent.glob("*.y*ml"))]
        hint = did_you_mean(reference, [*nearby, *names], f"the packaged examples are {', '.join(names)}")
        raise PipelineError([describe(reference, (), "there is no such file", hint)]) from None
    except UnicodeDecodeError:
        raise PipelineError([describe(reference, (), "not text in UTF-8")]) from None
    except OSError as error:
        fact = f"cannot be read: {error.strerror or error}"
        raise PipelineError([describe(reference, (), fact)]) from None


@check_keywords
def load_pipeline(reference: str | Path, overrides: Sequence[str] = ()) -> Pipeline:
    """Read a pipeline from a YAML file.

    Parameters
    ----------
    reference : str or pathlib.Path
        The file; or the name of a packaged example, such as ``market``, if no file has that name.
    overrides : sequence of str
        Assignments ``section.field=value``, with the value in YAML, which are applied in order.

    Returns
    -------
    Pipeline

    Raises
    ------
    PipelineError
        If anything is wrong. The message has one line for each problem. The line names the field, and either
        its file and line or its override.
    """
    return load_document(reference, overrides)[0]


def load_document(reference: str | Path, overrides: Sequence[str] = ()) -> tuple[Pipeline, Document]:
    """Read a pipeline like `load_pipeline`; return it and the document with each field's position.

    Raises
    ------
    PipelineError
        If anything is wrong.
    """
    pipeline, document, problems, _ = load_parts(reference, overrides)
    if problems or pipeline is None:
        raise PipelineError(problems)
    return pipeline, document


def redirect_late_rows(pipeline: Pipeline, place: Callable[[str], str | None]) -> Pipeline:
    """Return a pipeline with new p-streams of late rows.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    place : callable
        Returns the new ``late_to`` of a section that has ``late_to``, by the section's name.
    """
    changed = {
        name: section.model_copy(update={"late_to": place(name)})
        for name in LATE_STEPS
        if getattr(section := getattr(pipeline, name), "late_to", None) is not None
    }
    return pipeline.model_copy(update=changed)


def load_parts(
    reference: str | Path, overrides: Sequence[str] = ()
) -> tuple[Pipeline | None, Document, list[str], Pipeline | None]:
    """Read a pipeline that may have problems, so that its correct parts can be checked further.

    Returns
    -------
    pipeline : Pipeline or None
        The pipeline without its wrong fields. None if the remaining fields are not a pipeline, if the
        columns of other parts depend on a wrong field, or if a variable has no value.
    document : Document
        The positions of the file's fields.
    problems : list of str
        A line for each problem.
    named : Pipeline or None
        The sections whose names of functions and, if `pipeline` is None, of columns can be checked; None if
        there are no such sections. Fields of its queue may be None.

    Raises
    ------
    PipelineError
        If the file cannot be read or is not YAML.
    """
    document = _read(str(reference))
    if isinstance(overrides, str | Mapping):
        raise InvalidUsageError("overrides are not a list", got=overrides, hint='write ["queue.budget=1"]')
    problems: list[str] = []
    for override in overrides:
        try:
            document.set(override, FREE_SECTIONS)
        except PipelineError as error:
            problems += error.problems
    problems += document.unset.values()
    found = _find_problems(document.data)
    if isinstance(found, Pipeline):
        return None if document.unset else found, document, problems, found
    problems += _describe_problems([one for one in found if not document.is_unset(one[0])], document)
    if document.unset:
        return None, document, problems, _columns_only(document.data, found)
    rest = _without_wrong_fields(document.data, found)
    if rest is None:
        return None, document, problems, _columns_only(document.data, found)
    named = _first_pipeline(rest)
    if any(path[0] == "queue" and _is_shaping(path) for path, *_ in found):
        rest.pop("results", None)  # the wrong field may make a column of the results
    checked = _first_pipeline(rest)
    return checked, document, problems, named or checked or _columns_only(document.data, found)


def _first_pipeline(data: dict[str, Any]) -> Pipeline | None:
    """Return a pipeline with these fields, if need be without its sink and the settings of its run."""
    tries = (data, data | _NO_SINK, _without_output(data))
    return next((one for one in map(_find_problems, tries) if isinstance(one, Pipeline)), None)
