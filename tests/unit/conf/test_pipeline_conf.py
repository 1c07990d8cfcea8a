"""Pipelines from YAML, and the messages about mistakes."""

from __future__ import annotations

import pickle
import re
import textwrap
from pathlib import Path
from typing import get_args

import pytest

from penstock.conf import sections
from penstock.conf.document import PipelineError
from penstock.conf.pipeline import (
    ConsoleSink,
    FilesSource,
    KafkaSource,
    MarketSource,
    Pipeline,
    RateSource,
    example_names,
    example_text,
    load_pipeline,
)
from penstock.conf.sections import Persist, PolicyName, SemanticsName, WindowModeName, WorkingCopyName
from penstock.dataflow.plan import PersistMode
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.graph import queue_options
from penstock.operators.scan.spec import TimeUnit
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.choices import Semantics, WindowMode
from penstock.state_store.tables.working_copy import WorkingCopy

_SINKS = "console, parquet, kafka, pstream, spark, foreach_batch, upsert, memory, noop"
_WHOLE = """\
    source:
      type: market
      rows_per_second: 100
    queue:
      key: symbol
      time: time
      policy: fifo
    sink:
      type: noop
    query:
      name: trades
"""


def test_a_pipeline_has_the_names_that_operators_have() -> None:
    assert set(get_args(PolicyName)) == set(Policy)
    assert set(get_args(SemanticsName)) == set(Semantics)
    assert set(get_args(WindowModeName)) == set(WindowMode)
    assert set(get_args(WorkingCopyName)) == set(WorkingCopy)
    assert set(get_args(sections.TimeUnit)) == set(get_args(TimeUnit))
    assert set(get_args(Persist)) == set(get_args(PersistMode))


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.chdir(tmp_path)
    return Loader(tmp_path / "p.yaml")


class Loader:
    """Writes a file and loads it by its relative name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, text: str | bytes, *overrides: str) -> Pipeline:
        if isinstance(text, str):
            text = textwrap.dedent(text).encode()
        self._path.write_bytes(text)
        return load_pipeline(self._path.name, overrides)

    def problems(self, text: str | bytes, *overrides: str) -> list[str]:
        with pytest.raises(PipelineError) as caught:
            self(text, *overrides)
        assert str(caught.value).splitlines() == list(caught.value.problems)
        return list(caught.value.problems)


def _with(line: int, text: str) -> str:
    """Return the whole pipeline with another line."""
    lines = textwrap.dedent(_WHOLE).splitlines()
    lines[line - 1] = text
    return "\n".join(lines) + "\n"


def test_a_small_file_gets_the_defaults(load: Loader) -> None:
    pipeline = load(_WHOLE)
    assert pipeline.source == MarketSource(type="market", rows_per_second=100)
    assert pipeline.queue is not None
    assert pipeline.queue.key == ("symbol",)
    assert pipeline.queue.budget is None
    assert pipeline.filter is None
    assert pipeline.query.name == "trades"
    assert pipeline.query.checkpoint is None
    assert pipeline.query.trigger is None


def test_all_fields_are_read(load: Loader) -> None:
    pipeline = load(
        """
        source:
          type: files
          format: csv
          path: in
          schema: a STRING, t TIMESTAMP
          options:
            header: yes
            sep: ;
            maxFilesPerTrigger: 3
            samplingRatio: 0.5
        filter: a <> 'x'
        projection:
          - a
          - t
        queue:
          key: [a, b]
          time: t
          policy: linecutting
          budget: 800ms
          apply: my_package.pricing:reprice
          output_schema: a STRING, b INT
          buckets: 8
          arrival: t
          cost: 1.5 ms
          nulls: drop
          combine: false
          staleness_column: true
          working_copy: rocksdb
        sink:
          type: parquet
          path: out
          options: {compression: zstd}
        query:
          name: x
          checkpoint: ck
          trigger: 5 seconds
          drain: false
          state_location: state
          metrics: m.jsonl
          spark:
            spark.sql.shuffle.partitions: 4
        """
    )
    assert pipeline.source == FilesSource.model_validate(
        {
            "type": "files",
            "format": "csv",
            "path": "in",
            "schema": "a STRING, t TIMESTAMP",
            "options": {"header": "true", "sep": ";", "maxFilesPerTrigger": "3", "samplingRatio": "0.5"},
        }
    )
    assert pipeline.projection == ("a", "t")
    assert pipeline.queue is not None
    assert pipeline.queue.key == ("a", "b")
    assert pipeline.queue.budget == "800ms"
    assert pipeline.queue.combine is False
    assert queue_options(pipeline.queue, None)["working_copy"] == "rocksdb"
    assert pipeline.query.spark == {"spark.sql.shuffle.partitions": "4"}
    assert not pipeline.query.drain


def test_a_pipeline_can_be_made_without_a_file() -> None:
    pipeline = Pipeline.model_validate(
        {
            "source": {"type": "rate"},
            "queue": {"key": "value", "time": "timestamp"},
            "sink": {"type": "console"},
        }
    )
    assert pipeline.source == RateSource(type="rate")
    assert pipeline.sink == ConsoleSink(type="console")


def test_an_empty_query_section_is_none(load: Loader) -> None:
    assert load(_WHOLE.replace("  name: trades", "")).query.name == "penstock"


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        ("price", "price"),
        ("{GOOG: 10, GM: .5}", {"GOOG": 10.0, "GM": 0.5}),
        ("{'7': 2}", {"7": 2.0}),
        ("null", None),
    ],
)
def test_a_weight_is_a_column_or_a_number_for_each_key(load: Loader, text: str, weight: object) -> None:
    pipeline = load(_with(7, f"  weight: {text}"))
    assert pipeline.queue is not None
    assert pipeline.queue.weight == weight


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1700000000000000", 1_700_000_000_000_000),
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
    ],
)
def test_a_start_time_is_an_instant(load: Loader, text: str, us: int) -> None:
    source = load(_with(3, f"  start_time: {text}")).source
    assert isinstance(source, MarketSource)
    assert source.start_time == us


@pytest.mark.parametrize(
    ("line", "text", "problem"),
    [
        (
            7,
            "  policy: linecuting",
            "p.yaml:7: queue.policy: 'linecuting' is not one of fifo, in_place, linecutting, freshest. "
            "Hint: did you mean 'linecutting'?",
        ),
        (
            7,
            "  policy: newest",
            "p.yaml:7: queue.policy: 'newest' is not one of fifo, in_place, linecutting, freshest.",
        ),
        (7, "  polcy: fifo", "p.yaml:7: queue.polcy: unknown field. Hint: did you mean 'policy'?"),
        (
            7,
            "  xyzzy: 1",
            "p.yaml:7: queue.xyzzy: unknown field. Hint: the fields here are key, time, policy, "
            "budget, freshness, apply, "
            "output_schema, buckets, arrival, cost, weight, nulls, combine, staleness_column, "
            "delete_when, ttl, delete_ttl, on_silent, semantics, working_copy, late_to.",
        ),
        (
            7,
            "  engine: local",
            "p.yaml:7: queue.engine: unknown field. Hint: write engine at the top level of the file.",
        ),
        (7, "  trigger: 1 s", "p.yaml:7: queue.trigger: unknown field. Hint: trigger is a field of query."),
        (7, "  policy: 3", "p.yaml:7: queue.policy: 3 is not one of fifo, in_place, linecutting, freshest."),
        (
            7,
            "  working_copy: rocks",
            "p.yaml:7: queue.working_copy: 'rocks' is not one of memory, rocksdb. "
            "Hint: did you mean 'rocksdb'?",
        ),
        (7, "  combine: maybe", "p.yaml:7: queue.combine: 'maybe' is not one of auto, true, false."),
        (
            7,
            "  budget: 0",
            "p.yaml:7: queue.budget: 0 is too small. Hint: it must be at least 1; null drains the queue.",
        ),
        (
            7,
            "  budget: -5",
            "p.yaml:7: queue.budget: -5 is too small. Hint: it must be at least 1; null drains the queue.",
        ),
        (
            7,
            "  budget: true",
            "p.yaml:7: queue.budget: true is not a budget. "
            "Hint: write a number of rows, a duration such as '800ms', or null to drain.",
        ),
        (
            7,
            "  budget: 1.5",
            "p.yaml:7: queue.budget: 1.5 is not a budget. "
            "Hint: write a number of rows, a duration such as '800ms', or null to drain.",
        ),
        (
            7,
            "  budget: 800 parsecs",
            "p.yaml:7: queue.budget: the duration '800 parsecs' has the unknown unit 'parsecs'. "
            "Hint: the units are "
            "us, microsecond, ms, millisecond, s, sec, second, min, minute, h, hour, d, day.",
        ),
        (
            7,
            "  budget: 0ms",
            "p.yaml:7: queue.budget: the duration '0ms' is too short. Hint: it must be at least a "
            "microsecond.",
        ),
        (
            7,
            "  budget: 800ms",
            "p.yaml:7: queue.budget: the time '800ms' needs apply, whose time it limits. "
            "Hint: set apply, or write a number of rows.",
        ),
        (
            7,
            "  cost: 3",
            "p.yaml:7: queue.cost: 3 is not a duration. Hint: write a number and a unit, such as '800ms'.",
        ),
        (
            7,
            "  weight: 3",
            "p.yaml:7: queue.weight: 3 is neither a column nor weights by key. Hint: write the name of a "
            "numeric column, or a positive number for each key, such as {GOOG: 10}.",
        ),
        (
            7,
            "  weight: {GOOG: 10, GM: -1}",
            "p.yaml:7: queue.weight: -1 is not a weight. Hint: write the name of a "
            "numeric column, or a positive number for each key, such as {GOOG: 10}.",
        ),
        (
            7,
            "  apply: reprice",
            "p.yaml:7: queue.apply: 'reprice' is not the name of a function. "
            "Hint: write module:function, such as my_package.pricing:reprice.",
        ),
        (
            7,
            "  apply: a:b",
            "p.yaml:4: queue.output_schema: is required with apply: it says what apply returns. "
            "Hint: write the columns as in CREATE TABLE, such as 'symbol STRING, price DOUBLE'.",
        ),
        (
            7,
            "  output_schema: a INT",
            "p.yaml:7: queue.output_schema: only what apply returns has another schema. "
            "Hint: set apply, or leave output_schema out.",
        ),
        (7, "  buckets: 0", "p.yaml:7: queue.buckets: 0 is too small. Hint: it must be at least 1."),
        (7, "  buckets: '8'", "p.yaml:7: queue.buckets: '8' is not a whole number."),
        (7, "  staleness_column: 1", "p.yaml:7: queue.staleness_column: 1 is neither true nor false."),
        (7, "  arrival: ''", "p.yaml:7: queue.arrival: is empty."),
        (6, "  time:", "p.yaml:6: queue.time: null is not text."),
        (6, "  time: 12", "p.yaml:6: queue.time: 12 is not text. Hint: put it in quotes."),
        (
            6,
            "",
            "p.yaml:4: queue.time: is required. Hint: name the column whose greatest value is the newest.",
        ),
        (
            5,
            "",
            "p.yaml:4: queue.key: is required. Hint: name the column, or the columns, of the update key.",
        ),
        (5, "  key: [a, a]", "p.yaml:5: queue.key: names the column 'a' twice."),
        (
            5,
            "  key: []",
            "p.yaml:5: queue.key: names no column. Hint: write the name of a column, or a list of names.",
        ),
        (5, "  key: [a, 1]", "p.yaml:5: queue.key: a list is neither a column's name nor a list of them."),
        (5, "  key: no", "p.yaml:5: queue.key: false is neither a column's name nor a list of them."),
        (
            9,
            "  type: parque",
            f"p.yaml:9: sink.type: 'parque' is not one of {_SINKS}. Hint: did you mean 'parquet'?",
        ),
        (
            9,
            "  type: 7",
            f"p.yaml:9: sink.type: 7 is not one of {_SINKS}.",
        ),
        (
            9,
            "  rows: 3",
            f"p.yaml:8: sink.type: is required. Hint: write one of {_SINKS}.",
        ),
        (
            2,
            "  type: markt",
            "p.yaml:2: source.type: 'markt' is not one of market, files, kafka, pstream, spark, rate. "
            "Hint: did you mean 'market'?",
        ),
        (
            3,
            "  rows_per_secnd: 3",
            "p.yaml:3: source.rows_per_secnd: unknown field. Hint: did you mean 'rows_per_second'?",
        ),
        (3, "  rows_per_second: fast", "p.yaml:3: source.rows_per_second: 'fast' is not a whole number."),
        (3, "  rows_per_second: 1.5", "p.yaml:3: source.rows_per_second: 1.5 is not a whole number."),
        (3, "  skew: 0.5", "p.yaml:3: source.skew: 0.5 is too small. Hint: it must be at least 1."),
        (3, "  skew: high", "p.yaml:3: source.skew: 'high' is not a number."),
        (
            3,
            "  start_time: 2024-01-31T09:30:00",
            "p.yaml:3: source.start_time: the time '2024-01-31T09:30:00' has no zone. "
            "Hint: end it with Z, or with an offset such as +01:00.",
        ),
        (
            3,
            "  start_time: yesterday",
            "p.yaml:3: source.start_time: 'yesterday' is not a time. Hint: write it as 2024-01-31T09:30:00Z, "
            "or as microseconds since 1970-01-01T00:00:00Z.",
        ),
        (
            3,
            "  real_time: false",
            "p.yaml:3: source.real_time: without real time a micro-batch has no end. "
            "Hint: set rows or max_rows_per_trigger.",
        ),
        (11, "  name: 3", "p.yaml:11: query.name: 3 is not text. Hint: put it in quotes."),
        (
            11,
            "  trigger: availble_now",
            "p.yaml:11: query.trigger: 'availble_now' is neither a duration nor available_now. "
            "Hint: did you mean 'available_now'?",
        ),
        (
            11,
            "  trigger: often",
            "p.yaml:11: query.trigger: 'often' is neither a duration nor available_now. "
            "Hint: write a duration such as '1 second', available_now, or null for no pause.",
        ),
        (
            11,
            "  trigger: 10us",
            "p.yaml:11: query.trigger: the duration '10us' is too short. Hint: it must be at least a "
            "millisecond.",
        ),
        (
            11,
            "  trigger: available_now",
            "p.yaml:1: source.rows: with the trigger available_now the market has no end. "
            "Hint: set rows to the number of rows to end at.",
        ),
        (
            11,
            "  spark: {spark.a: [1]}",
            "p.yaml:11: query.spark.spark.a: a list is not the value of an option. "
            "Hint: write text, a number, true or false.",
        ),
        (
            11,
            "  spark: fast",
            "p.yaml:11: query.spark: 'fast' is not a section. Hint: write its fields below it, indented.",
        ),
        (
            11,
            "bogus: 1",
            "p.yaml:11: bogus: unknown field. "
            "Hint: the fields here are engine, source, filter, projection, lookup, window, group_by, "
            "aggregates, having, window_join, by_window, persist, union, join, database, operator, queue, "
            "results, sink, query.",
        ),
        (
            11,
            "filter: ' '",
            "p.yaml:11: filter: is empty. Hint: write a SQL condition, or leave the field out.",
        ),
        (11, "filter: [a]", "p.yaml:11: filter: a list is not text."),
        (
            11,
            "projection: a, b",
            "p.yaml:11: projection: 'a, b' is not a list of SQL expressions. Hint: write one "
            "expression for each "
            "column, such as [symbol, 'price * volume AS turnover'].",
        ),
        (
            11,
            "projection: ['']",
            "p.yaml:11: projection: an expression is missing. Hint: write one SQL expression for "
            "each column.",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_line_and_what_would_be_right(
    load: Loader, line: int, text: str, problem: str
) -> None:
    assert load.problems(_with(line, text)) == [problem]


@pytest.mark.parametrize(
    ("source", "problems"),
    [
        (
            "{type: files, format: csv, path: in}",
            [
                "p.yaml:1: source.schema: is required for csv files. "
                "Hint: write the columns as in CREATE TABLE, such as 'symbol STRING, price DOUBLE'."
            ],
        ),
        (
            "{type: files, format: parquet, path: in, reader: penstock}",
            ["p.yaml:1: source.reader: applies only to windows, and not with persist: always."],
        ),
        (
            "{type: files, format: text, path: in, schema: a INT}",
            ["p.yaml:1: source.schema: text files have one column, value. Hint: split it in the projection."],
        ),
        (
            "{type: files, format: excel}",
            [
                "p.yaml:1: source.path: is required.",
                "p.yaml:1: source.format: 'excel' is not one of csv, json, parquet, orc, text.",
            ],
        ),
        (
            "{type: kafka}",
            [
                "p.yaml:1: source.options: has no kafka.bootstrap.servers. "
                "Hint: name the brokers, such as kafka.bootstrap.servers: 'localhost:9092'.",
                "p.yaml:1: source.options: needs exactly one of subscribe, subscribePattern, assign. "
                "Hint: name the topics, such as subscribe: trades.",
            ],
        ),
        (
            "{type: kafka, value_format: json, options: {kafka.bootstrap.servers: x, subscribe: y}}",
            [
                "p.yaml:1: source.schema: is required for JSON values. "
                "Hint: write the columns as in CREATE TABLE, such as 'symbol STRING, price DOUBLE'."
            ],
        ),
        (
            "{type: kafka, schema: a INT, options: {kafka.bootstrap.servers: x, assign: y}}",
            ["p.yaml:1: source.schema: raw values have no columns. Hint: set value_format: json."],
        ),
        (
            "{type: kafka, kafka_columns: key, "
            "options: {kafka.bootstrap.servers: x, assign: y, endingOffsets: z}}",
            [
                "p.yaml:1: source.options: endingOffsets does not apply to a stream, which has no end. "
                "Hint: trigger: available_now reads what is there when the run starts.",
                "p.yaml:1: source.kafka_columns: raw records have all of Kafka's columns. "
                "Hint: leave it out.",
            ],
        ),
        (
            "market",
            ["p.yaml:1: source: 'market' is not a section. Hint: write its fields below it, indented."],
        ),
    ],
)
def test_a_source_must_have_what_its_kind_needs(load: Loader, source: str, problems: list[str]) -> None:
    text = f"source: {source}\nqueue: {{key: a, time: t}}\nsink: {{type: noop}}\n"
    assert sorted(load.problems(text)) == sorted(problems)


@pytest.mark.parametrize(
    ("sink", "problems"),
    [
        (
            "{type: parquet, path: out}",
            [
                "p.yaml: query.checkpoint: is required for the parquet sink, so that a restart "
                "continues where it stopped. Hint: name a directory."
            ],
        ),
        (
            "{type: kafka}",
            [
                "p.yaml: query.checkpoint: is required for the kafka sink, so that a restart "
                "continues where it stopped. Hint: name a directory.",
                "p.yaml:3: sink.options: has no kafka.bootstrap.servers. "
                "Hint: write it, such as kafka.bootstrap.servers: 'localhost:9092'.",
                "p.yaml:3: sink.options: has no topic. Hint: write it, such as topic: 'newest'.",
            ],
        ),
        (
            "{type: pstream, path: log, key: a, time: t, keep_deletes: 2 days}\nquery: {checkpoint: cp}",
            [
                "p.yaml:3: sink.keep_deletes: needs delete_when. "
                "Hint: write delete_when, or leave keep_deletes out."
            ],
        ),
    ],
)
def test_a_sink_must_have_what_its_kind_needs(load: Loader, sink: str, problems: list[str]) -> None:
    text = f"source: {{type: rate}}\nqueue: {{key: a, time: t}}\nsink: {sink}\n"
    assert load.problems(text) == problems


def test_a_table_in_memory_needs_a_name_that_sql_takes(load: Loader) -> None:
    text = _WHOLE.replace("noop", "memory").replace("trades", "my-trades")
    assert load.problems(text) == [
        "p.yaml:11: query.name: 'my-trades' cannot name a table in memory. Hint: use letters, digits and _."
    ]


def test_all_problems_are_told_at_once_in_the_order_of_the_file(load: Loader) -> None:
    text = """\
        source:
          type: market
          seed: x
        queue:
          key: a
          policy: newest
        sink:
          type: file
        queri: 1
    """
    assert load.problems(text) == [
        "p.yaml:3: source.seed: 'x' is not a whole number.",
        "p.yaml:4: queue.time: is required. Hint: name the column whose greatest value is the newest.",
        "p.yaml:6: queue.policy: 'newest' is not one of fifo, in_place, linecutting, freshest.",
        f"p.yaml:8: sink.type: 'file' is not one of {_SINKS}.",
        "p.yaml:9: queri: unknown field. Hint: did you mean 'query'?",
    ]


def test_missing_sections_are_named(load: Loader) -> None:
    assert load.problems("filter: a\n") == [
        "p.yaml: source: is required.",
        "p.yaml: queue: is required.",
        "p.yaml: sink: is required.",
    ]


INDENTED_ALIKE = "indent all fields of a section alike, and quote values with ': '."


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["p.yaml: the file is empty."]),
        ("# only a comment\n", ["p.yaml: the file is empty."]),
        (
            "\nhello\n",
            ["p.yaml:2: not a pipeline. Hint: a pipeline has the sections source, queue and sink."],
        ),
        (
            "- a\n- b\n",
            ["p.yaml:1: not a pipeline. Hint: a pipeline has the sections source, queue and sink."],
        ),
        ("a: 1\nb: [x\n", ["p.yaml:3: not YAML: expected ',' or ']', but got '<stream end>'."]),
        (
            "a:\n\tb: 1\n",
            [
                "p.yaml:2: not YAML: found character '\\t' that cannot start any token. "
                "Hint: indent with spaces, not with tabs."
            ],
        ),
        ("a: b: c\n", ["p.yaml:1: not YAML: mapping values are not allowed here. Hint: " + INDENTED_ALIKE]),
        (
            "a:\n  b: 1\n c: 2\n",
            [
                "p.yaml:3: not YAML: expected <block end>, but found '<block mapping start>'. "
                "Hint: indent all fields of a section by the same number of spaces."
            ],
        ),
        ("a: 1\n---\nb: 2\n", ["p.yaml:2: not YAML: but found another document."]),
        (
            "a: 1\nb: !secret x\n",
            ["p.yaml:2: not YAML: could not determine a constructor for the tag '!secret'."],
        ),
        ("a: 1\nb: \x01\n", ["p.yaml:2: not YAML: a character that is not text."]),
        (b"a: \xff\n", ["p.yaml: not text in UTF-8."]),
        (
            "a: 1\nb: 2\na: 3\n",
            ["p.yaml:3: a: written twice, first in line 1. Hint: keep one."],
        ),
        (
            "sink:\n  type: noop\n  type: console\n",
            ["p.yaml:3: sink.type: written twice, first in line 2. Hint: keep one."],
        ),
        ("1: a\n", ["p.yaml:1: 1: the name of a field is not text. Hint: put it in quotes."]),
        ("on: a\n", ["p.yaml:1: on: the name of a field is not text. Hint: put it in quotes."]),
        (
            "a: &x {b: 1}\nc: *x\n",
            ["p.yaml:2: c: an alias of another field. Hint: write the value out."],
        ),
        ("a: &x [*x]\n", ["p.yaml:1: a.0: an alias of another field. Hint: write the value out."]),
        ("a: " + "[" * 2_000, ["p.yaml: nested too deeply."]),
    ],
)
def test_what_is_not_a_mapping_in_yaml_is_named_with_its_line(
    load: Loader, text: str | bytes, problems: list[str]
) -> None:
    assert load.problems(text) == problems


def test_a_file_that_is_not_there_is_named(load: Loader, tmp_path: Path) -> None:
    with pytest.raises(PipelineError) as caught:
        load_pipeline("nothing.yaml")
    assert str(caught.value) == (
        f"nothing.yaml: there is no such file. Hint: the packaged examples are {', '.join(example_names())}."
    )
    with pytest.raises(PipelineError) as caught:
        load_pipeline("markt")
    assert str(caught.value) == "markt: there is no such file. Hint: did you mean 'market'?"
    with pytest.raises(PipelineError) as caught:
        load_pipeline(tmp_path)
    assert str(caught.value) == f"{tmp_path}: cannot be read: Is a directory."


def test_overrides_change_fields_in_order(load: Loader) -> None:
    pipeline = load(
        _WHOLE,
        "queue.budget=100",
        "queue.budget = 200",
        "queue.key=[a, b]",
        "source={type: kafka, value_format: json, schema: 'a INT'}",
        "source.options.kafka.bootstrap.servers=localhost:9092",
        "source.options.subscribe=t",
        "query.spark.spark.sql.shuffle.partitions=3",
        "filter=price > 3 and symbol = 'A'",
        "query.trigger=null",
    )
    assert pipeline.queue is not None
    assert pipeline.queue.budget == 200
    assert pipeline.queue.key == ("a", "b")
    assert pipeline.source == KafkaSource.model_validate(
        {
            "type": "kafka",
            "value_format": "json",
            "schema": "a INT",
            "options": {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"},
        }
    )
    assert pipeline.query.spark == {"spark.sql.shuffle.partitions": "3"}
    assert pipeline.filter == "price > 3 and symbol = 'A'"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "queue.polcy=fifo",
            "--set queue.polcy=fifo: queue.polcy: unknown field. Hint: did you mean 'policy'?",
        ),
        (
            "queue.policy=linecuting",
            "--set queue.policy=linecuting: queue.policy: 'linecuting' is not one of fifo, in_place, "
            "linecutting, freshest. "
            "Hint: did you mean 'linecutting'?",
        ),
        (
            "queri.name=a",
            "--set queri.name=a: queri: unknown field. Hint: did you mean 'query'?",
        ),
        (
            "queue.key.a=1",
            "--set queue.key.a=1: queue.key: not a section, so it has no fields of its own. "
            "Hint: set the whole field.",
        ),
        (
            "queue.budget",
            "--set queue.budget: not an override. Hint: write field=value, such as queue.budget=100.",
        ),
        ("=3", "--set =3: not an override. Hint: write field=value, such as queue.budget=100."),
        (
            "queue..key=3",
            "--set queue..key=3: a name is empty. Hint: write field=value, such as queue.budget=100.",
        ),
        (
            "queue.key=[a",
            "--set queue.key=[a: the value is not YAML: expected ',' or ']', but got '<stream end>'. "
            "Hint: put the value in quotes if it is text.",
        ),
        ("sink.rows=3", "--set sink.rows=3: sink.rows: unknown field. Hint: the fields here are type."),
        (
            "queue={}",
            "--set queue={}: queue.key: is required. "
            "Hint: name the column, or the columns, of the update key.",
        ),
    ],
)
def test_a_wrong_override_is_named_instead_of_a_line(load: Loader, override: str, problem: str) -> None:
    assert problem in load.problems(_WHOLE, override)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "sink.type=noop",
            "sink.rows: unknown field with --set sink.type=noop. Hint: the fields here are type.",
        ),
        ("sink.type=parquet", "sink.path: is required with --set sink.type=parquet."),
    ],
)
def test_an_override_that_makes_a_field_of_the_file_wrong_is_named(override: str, problem: str) -> None:
    with pytest.raises(PipelineError) as refused:
        load_pipeline("market", [override])
    assert any(text.endswith(problem) for text in refused.value.problems)
    with pytest.raises(PipelineError, match=r"^--set sink={type: noop, row: 1}: sink.row: unknown field. "):
        load_pipeline("market", ["sink={type: noop, row: 1}"])


def test_a_line_is_still_named_for_what_no_override_wrote(load: Loader) -> None:
    assert load.problems(_with(7, "  policy: x"), "queue.budget=0") == [
        "p.yaml:7: queue.policy: 'x' is not one of fifo, in_place, linecutting, freshest.",
        "--set queue.budget=0: queue.budget: 0 is too small. Hint: it must be at least 1; null "
        "drains the queue.",
    ]


def test_the_packaged_examples_are_valid_and_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    queries = ["cm1", "cm2", "lrb1", "lrb2", "lrb3", "nq5", "sg1", "sg2", "sg3", "sm", "ysb"]
    starts = ["changes_to_delta", "csv_to_duckdb", "kafka", "kafka_to_postgresql", "market", "mqtt_to_redis"]
    assert example_names() == [*starts, "smart_grid", *sorted(queries)]
    for name in example_names():
        assert load_pipeline(name).query.name == name
    (tmp_path / "market").mkdir()
    assert load_pipeline("market").query.name == "market"


def test_a_file_wins_over_an_example_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "market").write_text(textwrap.dedent(_WHOLE), encoding="utf-8")
    assert load_pipeline("market").query.name == "trades"


def test_a_problem_of_an_example_names_it() -> None:
    with pytest.raises(PipelineError) as caught:
        load_pipeline("market", ["source.type=rate", "sink.rows=ten"])
    assert "--set sink.rows=ten: sink.rows: 'ten' is not a whole number." in caught.value.problems
    assert any(
        problem.startswith("market.yaml (packaged):") and "source.symbols: unknown field" in problem
        for problem in caught.value.problems
    )


def test_an_example_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InvalidUsageError) as caught:
        example_text("none")
    assert str(caught.value) == (
        f"there is no example 'none'. Hint: the examples are {', '.join(example_names())}."
    )
    with pytest.raises(InvalidUsageError, match="did you mean 'market'"):
        example_text("markt")


def test_the_problems_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(PipelineError(["a: b.", "c: d."])))
    assert isinstance(error, PipelineError)
    assert error.problems == ("a: b.", "c: d.")
    assert str(error) == "a: b.\nc: d."


def test_the_market_example_names_every_type_of_sink() -> None:
    sections = Pipeline.model_json_schema()["$defs"]
    types = {one["properties"]["type"]["const"] for name, one in sections.items() if name.endswith("Sink")}
    (line,) = (one for one in example_text("market").splitlines() if one.startswith("  type: console"))
    assert set(re.findall(r"\w+", line)) - {"type", "or"} == types
