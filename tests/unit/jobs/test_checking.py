"""`penstock check` reports all mistakes at once, also those that only the checkpoint shows."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any, ClassVar, cast

import pyarrow as pa
import pytest
import yaml
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from typer.testing import CliRunner

from penstock.checkpointing import PUnit, encode
from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.p_stream import PStream
from penstock.cli import app
from penstock.conf.document import PipelineError
from penstock.conf.error_messages import _STORES
from penstock.conf.pipeline import example_names, load_document
from penstock.dataflow import PhysicalPlan
from penstock.dataflow.checkpoint import check_same_graph, graph_document
from penstock.errors import CorruptDataError, InvalidUsageError, UnavailableError
from penstock.jobs.checks.checking import check_pipeline
from penstock.jobs.following import follow
from penstock.jobs.following.batches import Totals
from penstock.jobs.local.pipeline import check_local_pipeline
from penstock.jobs.pipelines import run
from penstock.jobs.pipelines.graph import graph_of
from penstock.jobs.signals import StopSignals
from penstock.spark_ext.graph.handle import RunningGraph
from penstock.state_store.location import SPECIFICATION_FILE
from penstock.upserts.stores import SCHEMES

BASE: dict[str, Any] = {
    "source": {"type": "market", "rows": 10, "real_time": False},
    "queue": {"key": "symbol", "time": "time", "buckets": 2},
    "sink": {"type": "noop"},
    "query": {"trigger": "available_now"},
}


def written(place: Path, changes: dict[str, Any]) -> str:
    document = {name: value for name, value in (BASE | changes).items() if value is not None}
    (place / "p.yaml").write_text(yaml.safe_dump(document))
    return str(place / "p.yaml")


def problems_of(file: str, *overrides: str, inputs: bool = False) -> list[str]:
    with pytest.raises(PipelineError) as refused:
        check_pipeline(file, list(overrides), inputs=inputs)
    return [text.partition(": ")[2] for text in refused.value.problems]


@pytest.mark.parametrize(
    ("options", "first", "wrong"),
    [
        ({}, "k,t\n", True),
        ({"sep": ";"}, '"k"; t\r\n', True),
        ({"header": True}, "k,t\n", False),
        ({"header": False}, "k,t\n", False),
        ({}, "k,2026-03-01T08:00:00Z\n", False),
        ({}, "", False),
    ],
)
def test_a_header_that_would_be_read_as_a_row_is_found(
    tmp_path: Path, options: dict[str, Any], first: str, wrong: bool
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text(first, newline="")
    (tmp_path / "in" / ".a.csv.crc").write_text("crc")
    (tmp_path / "in" / "_SUCCESS").touch()
    source = {"type": "files", "format": "csv", "path": str(tmp_path / "in"), "options": options}
    schema = "k string, t timestamp"
    file = written(tmp_path, {"source": source | {"schema": schema}, "queue": {"key": "k", "time": "t"}})
    if wrong:
        hint = "add header: true to the source's options"
        expected = f"source.path: the first line of {tmp_path / 'in' / 'a.csv'} is a header. Hint: {hint}."
        assert problems_of(file) == [expected]
        assert all("source.schema" in problem for problem in problems_of(file, "source.schema=k text"))
    else:
        check_pipeline(file, [])


@pytest.mark.parametrize(
    ("schema", "moved"),
    [
        ("k string, t timestamp, v int", None),
        ("k string, t timestamp, other int", None),  # columns may have names of their own
        ("t timestamp, k string, other int", None),
        ("t timestamp, k string, v int", "t"),
        ("k string, v int, t timestamp", "v"),
    ],
)
def test_a_schema_in_another_order_than_the_header_is_refused(
    tmp_path: Path, schema: str, moved: str | None
) -> None:
    (tmp_path / "a.csv").write_text("k,t,v\nx,2026-01-01,1\n")
    table = {"format": "csv", "path": str(tmp_path / "a.csv"), "schema": schema, "options": {"header": True}}
    source = {"type": "files", "format": "json", "path": str(tmp_path), "schema": "k string, at timestamp"}
    document = {"source": source, "lookup": {"table": table, "key": "k"}, "queue": {"key": "k", "time": "at"}}
    csv = {"source": table | {"type": "files"}, "queue": {"key": "k", "time": "t"}}
    for changes, place in ((csv, "source"), (document, "lookup.table")):
        if moved is None:
            check_pipeline(written(tmp_path, changes), [])
        else:
            (problem,) = problems_of(written(tmp_path, changes))
            assert problem.startswith(f"{place}.schema: has column {moved!r} at another position")
            assert problem.endswith("write the columns in the order k, t, v.")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"heder": "true"}, "csv files have no option 'heder'. Hint: did you mean 'header'?"),
        ({"seperator": ";"}, "csv files have no option 'seperator'. Hint: did you mean 'sep'?"),
        ({"lineSeparator": ";"}, "csv files have no option 'lineSeparator'. Hint: did you mean 'lineSep'?"),
        ({"header": "yess"}, "header is not true or false."),
        ({"header": "true", "mode": "PERMISIVE"}, "mode is not one of PERMISSIVE, DROPMALFORMED, FAILFAST."),
        (
            {"header": "true", "sep": ""},
            "sep is empty. Hint: write the character between two fields, such as ';'.",
        ),
        ({"header": "true", "quote": "ab"}, "quote is more than one character."),
        (
            {"header": "true", "timestampFormat": "QQQ"},
            "timestampFormat has letters that no time can be read with: Q. "
            "Hint: write a pattern such as yyyy-MM-dd HH:mm:ss.",
        ),
        ({"header": "true", "timestampFormat": "yyyy-MM-dd'Q'HH:mm:ss"}, None),
        ({"header": "true", "quote": "\\'"}, "quote is more than one character."),
        ({"header": "true", "comment": "##"}, "comment is more than one character."),
        (
            {"header": "true", "charToEscapeQuoteEscaping": "ab"},
            "charToEscapeQuoteEscaping is more than one character.",
        ),
        ({"Header": "TRUE", "delimiter": "||", "myOption": "1"}, None),
    ],
)
def test_misspelt_and_wrong_options_of_files_are_found(
    tmp_path: Path, options: dict[str, str], problem: str | None
) -> None:
    source = {
        "type": "files", "format": "csv", "path": str(tmp_path), "options": options,
        "schema": "k string, t timestamp",
    }  # fmt: skip
    file = written(tmp_path, {"source": source, "queue": {"key": "k", "time": "t"}})
    if problem is None:
        check_pipeline(file, [])
        local = problems_of(file, "engine=local", "source.options={sep: ';;'}")
        assert any(
            "the local engine takes only one character for an option: options=sep" in one for one in local
        )
    else:
        assert f"source.options: {problem}" in problems_of(file)


@pytest.mark.parametrize(
    ("first", "schema", "options"),
    [
        ('"label, k",k,t', "label string, k string, t timestamp", {}),
        ("'label, k';k;t", "label string, k string, t timestamp", {"quote": "'", "delimiter": ";"}),
        ("k,t", "_corrupt_record string, k string, t timestamp", {}),
        ("k,t", "bad string, k string, t timestamp", {"columnNameOfCorruptRecord": "bad"}),
        ("# t, k\n\nk,t", "k string, t timestamp", {"comment": "#"}),
        ("t,raw_time,k", "event_time string, t timestamp, k string", {}),
    ],
)
def test_a_schema_that_spark_reads_by_position_is_accepted(
    tmp_path: Path, first: str, schema: str, options: dict[str, str]
) -> None:
    (tmp_path / "a.csv").write_text(f"{first}\n")
    source = {
        "type": "files", "format": "csv", "path": str(tmp_path / "a.csv"), "schema": schema,
        "options": {"header": "true"} | options,
    }  # fmt: skip
    check_pipeline(written(tmp_path, {"source": source, "queue": {"key": "k", "time": "t"}}), [])


@pytest.mark.parametrize(
    ("first", "schema", "options"),
    [
        ('"a, b",k,t', "k string, `a, b` string, t timestamp", {}),
        ("k||t", "t timestamp, k string", {"sep": "||"}),
        ("'k','t'", "t timestamp, k string", {"quote": "'"}),
        ("# k,t\nk,t", "t timestamp, _corrupt_record string, k string", {"comment": "#"}),
    ],
)
def test_a_header_in_another_order_is_found_with_the_options_of_the_reader(
    tmp_path: Path, first: str, schema: str, options: dict[str, str]
) -> None:
    (tmp_path / "a.csv").write_text(f"{first}\n")
    source = {
        "type": "files", "format": "csv", "path": str(tmp_path / "a.csv"), "schema": schema,
        "options": {"header": "true"} | options,
    }  # fmt: skip
    (problem,) = problems_of(written(tmp_path, {"source": source, "queue": {"key": "k", "time": "t"}}))
    assert "at another position than the header" in problem


def test_headers_of_other_sources_are_found_and_one_with_another_separator_is_left_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text("k,t\n")
    source: dict[str, Any] = {
        "type": "files", "format": "csv", "path": str(tmp_path / "a.csv"), "schema": "k string, t timestamp"
    }  # fmt: skip
    union = {"key": "k", "time": "t", "inputs": {"other": {"source": source}}}
    apart = source | {"options": {"sep": ";"}}
    document = {name: section for name, section in BASE.items() if name != "queue"}
    (tmp_path / "u.yaml").write_text(yaml.safe_dump(document | {"source": apart, "union": union}))
    (problem,) = [text for text in problems_of(str(tmp_path / "u.yaml")) if "header" in text]
    assert problem.startswith("union.inputs.other.source.path: the first line of")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sink": {"type": "postgres"}}, "write type: upsert, and the address in to, such as postgres://."),
        ({"sink": {"type": "csv"}}, "write type: spark and format: csv."),
        (
            {"queue": {"key": "symbol", "time": "time", "budget": "fifty"}},
            "queue.budget: 'fifty' is not a budget. "
            "Hint: write a number of rows, a duration such as '800ms', or null to drain.",
        ),
    ],
)
def test_hints_name_what_is_meant(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    (found,) = problems_of(written(tmp_path, changes))
    assert found.endswith(problem)


@pytest.mark.parametrize("engine", ["spark", "local"])
@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("price", "delete_when is not a condition, which is true or false: delete_when=price type=double"),
        ("concat(symbol, 'x')", "delete_when is not a condition, which is true or false"),
        ("pric > 0", "there is no column 'pric'"),
    ],
)
def test_a_sinks_delete_when_that_is_no_condition_is_refused(
    tmp_path: Path, engine: str, condition: str, problem: str
) -> None:
    sink = {"type": "pstream", "path": str(tmp_path / "p"), "key": "symbol", "time": "time"}
    query = {"checkpoint": str(tmp_path / "ck")}
    file = written(tmp_path, {"sink": sink | {"delete_when": condition}, "query": query, "engine": engine})
    (found,) = problems_of(file)
    assert found.startswith(f"sink.delete_when: {problem}")
    check_pipeline(file, ["sink.delete_when=price > 0"])


def test_each_store_has_a_hint() -> None:
    assert _STORES == SCHEMES


def test_no_mistake_hides_another(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = written(
        tmp_path,
        {
            "filter": "price",
            "queue": {"key": "simbol", "time": "time", "policy": "linecuting"},
            "sink": {"type": "parquet", "path": str(tmp_path / "file")},
            "lookup": {
                "key": "symbol",
                "table": {"path": str(tmp_path / "none"), "format": "csv", "schema": "symbol STRING"},
            },
            "query": {"trigger": "available_now", "checkpoint": str(tmp_path / "file")},
        },
    )
    found = problems_of(file, "no override", "query.nam=a", inputs=True)
    starts = ["not an override", "query.nam", "queue.policy", "lookup.table.path", "filter", "queue.key"]
    starts += ["query.checkpoint", "sink.path"]
    assert sorted(text.partition(": ")[0].partition(". ")[0] for text in found) == sorted(starts)


def fields_of(problems: list[str]) -> list[str]:
    return sorted(text.partition(": ")[0] for text in problems)


def test_a_wrong_field_of_a_section_hides_only_what_depends_on_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong: dict[str, Any] = {
        "source": {"type": "market", "rows_per_secnd": 100},
        "queue": {"key": "simbol", "time": "tme", "budgt": 5, "policy": "linecuting"},
        "results": {"filter": "pric > 3 AND foo(price)", "projection": ["symbl"]},
        "sink": {"type": "consle"},
        "query": {"checkpoint": str(tmp_path / "file"), "metrics": str(tmp_path / "file" / "m.jsonl")},
    }
    after = ["results.filter", "results.filter", "results.projection"]
    places = ["query.checkpoint", "query.metrics"]
    first = ["queue.budgt", "queue.key", "queue.policy", "queue.time", "sink.type", "source.rows_per_secnd"]
    assert fields_of(problems_of(written(tmp_path, wrong))) == sorted(first + after + places)


@pytest.mark.parametrize(
    ("field", "hidden"),
    [
        ({"budgt": 5}, False),
        ({"staleness_colum": True}, True),
        ({"apply": 3}, True),
        ({"nonsense": 1}, False),
    ],
)
def test_results_are_checked_unless_the_wrong_field_may_make_their_columns(
    tmp_path: Path, field: dict[str, Any], *, hidden: bool
) -> None:
    results = {"filter": "foo(price) > queue_staleness_ms"}
    queue = {"key": "symbol", "time": "time"} | field
    found = problems_of(written(tmp_path, {"queue": queue, "results": results}))
    assert any("there is no function 'foo'" in text for text in found)
    assert any("there is no column 'queue_staleness_ms'" in text for text in found) is not hidden


@pytest.mark.parametrize(
    ("field", "hidden"),
    [({"pathh": "in"}, True), ({"schem": "k STRING"}, True), ({"on_eror": "fail"}, False)],
)
def test_columns_are_checked_unless_the_wrong_field_of_the_source_may_make_them(
    tmp_path: Path, field: dict[str, Any], *, hidden: bool
) -> None:
    queue = {"key": "plug", "time": "ts"}
    found = problems_of(written(tmp_path, {"source": JSON | field, "queue": queue}))
    assert any("there is no column 'plug'" in text for text in found) is not hidden


JSON = {"type": "files", "format": "json", "path": "in", "schema": "sensor STRING, ts TIMESTAMP, n LONG"}


@pytest.mark.parametrize("engine", ["spark", "local"])
@pytest.mark.parametrize(
    ("queue", "found"),
    [
        ({"key": "sensor", "time": "sensor"}, "queue: a time column cannot be part of the update key"),
        ({"key": "n", "time": "sensor"}, "queue.time: a column of this type cannot be the time"),
        ({"key": "sensor", "time": "ts", "ttl": 10}, "queue.ttl: a number is the time to live of an integer"),
        ({"key": ["sensor", "senser"], "time": "ts"}, "queue.key: there is no column 'senser'"),
    ],
)
def test_what_a_run_refuses_in_a_queue_is_found_without_a_run(
    tmp_path: Path, engine: str, queue: dict[str, Any], found: str
) -> None:
    (problem,) = problems_of(written(tmp_path, {"engine": engine, "source": JSON, "queue": queue}))
    assert problem.startswith(found)


@pytest.mark.parametrize(
    ("format", "option", "hint"),
    [
        ("csv", "mode", "the options that it knows are delimiter, header, nullvalue, quote, sep."),
        ("json", "mode", "leave them out, or use engine: spark."),
    ],
)
def test_an_unknown_option_of_the_local_reader_is_found_without_a_run(
    tmp_path: Path, format: str, option: str, hint: str
) -> None:
    changes = {"engine": "local", "source": JSON | {"format": format, "options": {option: "PERMISSIVE"}}}
    (problem,) = problems_of(written(tmp_path, changes | {"queue": {"key": "sensor", "time": "ts"}}))
    assert problem.startswith("source.options: the local engine does not know options of the reader")
    assert problem.endswith(f"Hint: {hint}")


def test_a_misspelt_file_is_compared_with_those_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, {})
    with pytest.raises(PipelineError, match=r"there is no such file. Hint: did you mean 'p\.yaml'\?"):
        check_pipeline("p.yml", [])


def test_fields_that_others_depend_on_are_not_left_out(tmp_path: Path) -> None:
    file = written(tmp_path, {"projection": 7, "queue": {"key": "total", "time": "time"}})
    assert [text.partition(":")[0] for text in problems_of(file)] == ["projection"]
    file = written(tmp_path, {"queue": {"key": "simbol"}})
    assert [text.partition(":")[0] for text in problems_of(file)] == ["queue.time", "queue.key"]


WINDOWS: dict[str, Any] = {
    "window": {"time": "time", "size": "60 s"},
    "group_by": ["symbol"],
    "aggregates": {"n": "count(*)"},
}


@pytest.mark.parametrize("engine", ["spark", "local"])
@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"projection": ["symbol", "tme"], "queue": {"key": "simbol", "time": "tme"}},
         ["projection tme", "queue.key simbol", "queue.time tme"]),
        ({"projection": ["symbol", "prise * 2 AS twice", "time"],
          "queue": {"key": "symbol", "time": "time", "weight": "twice", "arrival": "arival"}},
         ["projection prise", "queue.arrival arival"]),
        ({"filter": "a > 0 AND b > 0", "queue": {"key": "k", "time": "t"}, "results": {"filter": "c > 0"}},
         ["filter a", "filter b", "queue.key k", "queue.time t", "results.filter c"]),
        ({"filter": "a > 0", "sink": {"type": "parquet", "path": "out"}},
         ["query.checkpoint", "filter a"]),
        ({"filter": "a > 0", "filtr": "b > 0", "queue": {"key": "k", "time": "t"}}, ["filtr", "filter a"]),
        ({"queue": {"key": "k", "policy": "in-place"}}, ["queue.policy", "queue.time", "queue.key k"]),
        (WINDOWS | {"queue": None, "window": {"time": "t", "size": "60 s"}, "group_by": ["symbol", "k"],
                    "aggregates": {"n": "sum(a)", "m": "max(b)"}, "having": "n > m AND c > 0"},
         ["window.time t", "group_by k", "aggregates.n a", "aggregates.m b", "having c"]),
        (WINDOWS | {"queue": None, "aggregates": {"n": "sum(a)"},
                    "by_window": {"aggregates": {"m": "max(o)"}},
                    "window_join": {"window": {"size": "120 s"}, "aggregates": {"k": "max(b)"},
                                    "condition": "k > d"}},
         ["aggregates.n a", "window_join.aggregates.k b", "window_join.condition d",
          "by_window.aggregates.m o"]),
    ],
)  # fmt: skip
def test_no_unknown_column_is_hidden_by_another_mistake(
    tmp_path: Path, engine: str, changes: dict[str, Any], fields: list[str]
) -> None:
    problems = problems_of(written(tmp_path, {"engine": engine} | changes))
    found = [re.sub(r": there is no column '(\w+)'.*|: .*", r" \1", text).strip() for text in problems]
    assert sorted(found) == sorted(fields)


@pytest.mark.parametrize("engine", ["spark", "local"])
@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"source": JSON | {"path": "${NOPE}"}, "queue": {"key": "sensr", "time": "tss", "policy": "lifo"}},
         ["source.path", "queue.policy", "queue.key sensr", "queue.time tss"]),
        ({"queue": {"key": ["simbol", "${NOPE}"], "time": "tme"}}, ["queue.key.1", "queue.time tme"]),
        ({"source": {"type": "market", "rows": "${NOPE}"}, "sink": {"type": "nop"}},
         ["source.rows", "sink.type"]),
        ({"filter": "${NOPE}", "projection": ["symbol", "prise"], "queue": {"key": "simbol", "time": "tme"}},
         ["filter", "projection prise", "queue.key simbol", "queue.time tme"]),
        ({"queue": {"key": "symbol", "time": "time", "budget": "${NOPE}", "arrival": "arival"},
          "results": {"filter": "c > 0"}},
         ["queue.budget", "queue.arrival arival", "results.filter c"]),
    ],
)  # fmt: skip
def test_a_variable_without_a_value_hides_no_mistake_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, changes: dict[str, Any], fields: list[str]
) -> None:
    monkeypatch.delenv("NOPE", raising=False)
    problems = problems_of(written(tmp_path, {"engine": engine} | changes))
    found = [re.sub(r": there is no column '(\w+)'.*|: .*", r" \1", text).strip() for text in problems]
    assert sorted(found) == sorted(fields)
    assert sum("the variable NOPE is not set" in text for text in problems) == 1


@pytest.mark.parametrize("engine", ["spark", "local"])
@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"filter": "abz(price) > 0"}, ["filter: there is no function 'abz'. Hint: did you mean 'abs'?"]),
        ({"projection": ["symbol", "time", "UPPR(symbol) AS u"], "results": {"filter": "lowr(symbol) = 'a'"}},
         ["projection: there is no function 'uppr'. Hint: did you mean 'upper'?",
          "results.filter: there is no function 'lowr'. Hint: did you mean 'lower'?"]),
    ],
)  # fmt: skip
def test_an_unknown_function_is_found_without_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, changes: dict[str, Any], problems: list[str]
) -> None:
    file = written(tmp_path, {"engine": engine} | changes)
    monkeypatch.delenv("SPARK_HOME", raising=False)  # a test of this process may have started Spark
    assert problems_of(file) == problems
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))  # the user's Spark may have more functions
    if engine == "spark":
        check_pipeline(file, [])


def test_functions_of_every_kind_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)  # a test of this process may have started Spark
    texts = ["symbol", "time", "uuid() AS u", "transform(array(price), x -> x + 1) AS t", "current_date AS d"]
    texts += [
        "current_timestamp() AS n",
        "rand(7) AS r",
        "if(price > 1, 'a', 'b') AS i",
        "own_db.f(price) AS o",
    ]
    texts += ["timestampdiff(DAY, time, now()) AS days", "struct(price) AS s", "position('a' IN symbol) AS p"]
    texts += ["div(7, 2) AS d7", "`+`(price, 1) AS more", "`and`(true, price > 1) AS both"]
    check_pipeline(written(tmp_path, {"projection": texts}), [])


@pytest.mark.parametrize("engine", ["spark", "local"])
@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"delete_when": "pric < 0"}, "sink.delete_when: there is no column 'pric': expression=pric < 0."),
        ({"delete_when": "abz(price) < 0"}, "sink.delete_when: there is no function 'abz'."),
        ({"delete_when": "price("}, "sink.delete_when: an expression cannot be parsed"),
        ({"time": "tim"}, "sink.time: there is no column 'tim'."),
    ],
)
def test_columns_of_a_sink_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, wrong: dict[str, str], problem: str
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)  # a test of this process may have started Spark
    sink = {"type": "upsert", "to": f"sqlite:///{tmp_path}/db", "table": "t", "create": True}
    checkpoint = {"query": {"checkpoint": str(tmp_path / "cp")}}
    check_pipeline(
        written(tmp_path, {"engine": engine, "sink": sink | {"delete_when": "price < 0"}} | checkpoint), []
    )
    (found,) = problems_of(written(tmp_path, {"engine": engine, "sink": sink | wrong} | checkpoint))
    assert found.startswith(problem)


@pytest.mark.parametrize("name", example_names())
def test_the_packaged_pipelines_have_no_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    times = [pa.field("time", pa.timestamp("us", "UTC"))]
    PStream("trades", pa.schema([*times, ("symbol", pa.string()), ("price", pa.float64())]))
    PStream("readings", pa.schema([*times, ("value", pa.float64()), ("topic", pa.string())]))
    loaded, _ = check_pipeline(name, [])
    assert loaded.query.name == name


@pytest.mark.parametrize("engine", ["spark", "local"])
@pytest.mark.parametrize(
    ("aggregate", "kind"),
    [
        ("sum(d)", "decimal(10, 2)"),
        ("sum(d) FILTER (WHERE n > 1)", "decimal(10, 2)"),
        ("avg(CASE WHEN n > 1 THEN d END)", "decimal(10, 2)"),
        ("sum(ts)", "timestamp"),
        ("min(ts) FILTER (WHERE n > 1)", None),
        ("sum(CAST(d AS DOUBLE)) FILTER (WHERE n > 1)", None),
        ("count(d) FILTER (WHERE n > 1)", None),
    ],
)
def test_types_that_an_aggregate_does_not_take_are_found(
    tmp_path: Path, engine: str, aggregate: str, kind: str | None
) -> None:
    source = JSON | {"schema": "k string, n int, d decimal(10, 2), ts timestamp"}
    windows = {"window": {"time": "ts", "size": "60 s"}, "group_by": ["k"], "aggregates": {"x": aggregate}}
    file = written(tmp_path, {"engine": engine, "source": source, "queue": None} | windows)
    if kind is None:
        check_pipeline(file, [])
        return
    (problem,) = problems_of(file)
    fact = "aggregates.x: an aggregate does not take values of this type"
    assert problem.startswith(f"{fact}: expression={aggregate} type={kind}. Hint: ")


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_a_window_after_a_queue_that_is_not_persisted_is_refused(tmp_path: Path, engine: str) -> None:
    windows = {
        "window": {"time": "time", "size": "60 s"},
        "group_by": ["symbol"],
        "aggregates": {"n": "count(*)"},
    }
    file = written(tmp_path, {"engine": engine} | windows)
    (problem,) = problems_of(file)
    fact, hint = problem.split(" Hint: ")
    assert fact.startswith(
        "queue: a query can hold only one window, update queue, union or join of update streams"
    )
    assert hint == "persist the output of the first: set persist to 'always' for queue."
    check_pipeline(file, ["persist={queue: always}"])


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_an_upsert_of_windows_names_their_start_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)  # a test of this process may have started Spark
    sink = {"type": "upsert", "to": f"sqlite:///{tmp_path}/db", "table": "t", "create": True}
    sink |= {"key": ["symbol", "window_start"], "time": "window_end"}
    windows = {
        "engine": engine, "queue": None, "window": {"time": "time", "size": "60 s"}, "group_by": ["symbol"],
        "aggregates": {"n": "count(*)"}, "query": {"checkpoint": str(tmp_path / "cp")},
    }  # fmt: skip
    check_pipeline(
        written(tmp_path, windows | {"sink": sink | {"delete_when": "window_end < window_start"}}), []
    )
    (found,) = problems_of(written(tmp_path, windows | {"sink": sink | {"time": "window"}}))
    assert found.startswith("sink.time: there is no column 'window'. Hint: did you mean 'window_end'")


@pytest.mark.parametrize("engine", ["spark", "local"])
@pytest.mark.parametrize(
    ("section", "changes", "problem"),
    [
        ("queue", {"output_schema": "symbol string, value double"},
         "sink.time: is by default the queue's time, but the results have no column 'time'. "
         "Hint: add time to queue.output_schema, or write time with a column of the results."),
        ("queue", {"output_schema": "symbol string, value double, time timestamp"},
         "sink.time: is by default the queue's time, but the results have no column 'time'. "
         "Hint: add time to results.projection, or write time with a column of the results."),
        ("union", {"output_schema": "symbol string, value double"},
         "sink.time: is by default the union's time, but the results have no column 'time'. "
         "Hint: add time to union.output_schema, or write time with a column of the results."),
    ],
)  # fmt: skip
def test_the_columns_that_an_upsert_takes_from_a_step_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, section: str, changes: Any, problem: str
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)  # a test of this process may have started Spark
    step = BASE["queue"] | {"apply": "copy:copy"} | changes
    if section == "union":
        step["inputs"] = {"more": {"source": dict(BASE["source"])}}
    sink = {"type": "upsert", "to": f"sqlite:///{tmp_path}/db", "table": "t", "create": True}
    query = {"checkpoint": str(tmp_path / "cp")}
    file = written(
        tmp_path,
        {"engine": engine, "queue": None, section: step, "sink": sink, "query": query}
        | {"results": {"projection": ["symbol", "value"]}},
    )
    assert problems_of(file) == [problem]
    check_pipeline(file, ["sink.time=value"])
    check_pipeline(
        file,
        [f"{section}.output_schema=symbol string, value double, time timestamp", "results=null"],
    )


@pytest.mark.parametrize("engine", ["spark", "local"])
@pytest.mark.parametrize("section", ["queue", "union"])
def test_a_wrong_output_schema_is_found_with_its_line(tmp_path: Path, engine: str, section: str) -> None:
    step = BASE["queue"] | {"apply": "copy:copy", "output_schema": "symbol string, value doubl"}
    if section == "union":
        step["inputs"] = {"more": {"source": dict(BASE["source"])}}
    results = {"filter": "value > 0 AND valeu > 0"}
    file = written(tmp_path, {"engine": engine, "queue": None, section: step, "results": results})
    with pytest.raises(PipelineError) as refused:
        check_pipeline(file, [])
    (problem,) = refused.value.problems
    number = next(n for n, line in enumerate(Path(file).read_text().splitlines(), 1) if "doubl" in line)
    assert problem.startswith(
        f"{file}:{number}: {section}.output_schema: the schema is wrong: 'doubl' is where a type should be. "
        "Hint: write names and types"
    )


def test_a_wrong_schema_is_told_once_by_the_local_engine(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = {
        "type": "files",
        "format": "json",
        "path": str(tmp_path / "in"),
        "schema": "symbol strin, time long",
    }
    found = problems_of(written(tmp_path, {"engine": "local", "source": source}))
    assert [one.partition(":")[0] for one in found] == ["source.schema"]
    assert not found[0].endswith("..")


@pytest.mark.parametrize(
    ("wrong", "results"),
    [
        ({"delete_when": "price <"}, {"filter": "NOT deleted"}),
        ({"staleness_column": "perhaps"}, {"filter": "queue_staleness_ms < 7"}),
    ],
)
def test_a_mistake_in_the_queue_is_no_mistake_of_the_results(
    tmp_path: Path, wrong: dict[str, object], results: dict[str, object]
) -> None:
    file = written(tmp_path, {"queue": BASE["queue"] | wrong, "results": results})
    (problem,) = problems_of(file)
    assert problem.startswith("queue")


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_a_changed_policy_key_or_number_of_buckets_is_found_in_the_checkpoint(
    tmp_path: Path, engine: str
) -> None:
    file = written(tmp_path, {"engine": engine, "query": {"checkpoint": str(tmp_path / "checkpoint")}})
    pipeline, _ = check_pipeline(file, [])
    directory = GraphDirectory(tmp_path / "checkpoint")
    plan = graph_of(pipeline).plan(None, "never")
    directory.put("graph", graph_document(plan, {}, {}))
    log = tmp_path / "checkpoint" / "queries" / "results"
    log.mkdir(parents=True)
    (log / "metadata").write_text(json.dumps({"id": "an-id"}))
    state = tmp_path / "checkpoint" / "state" / "an-id" / "queue"
    state.mkdir(parents=True)
    (state / SPECIFICATION_FILE).write_bytes(encode(PUnit("operator", {"buckets": 2})))

    check_pipeline(file, [])
    check_pipeline(file, ["queue.budget=7", "queue.late_to=elsewhere"])
    # On Spark, shuffle partitions are only a default, which the operator or another setting may replace.
    eight = ["queue.buckets=null", "query.spark={spark.sql.shuffle.partitions: '8'}"]
    if engine == "spark":
        check_pipeline(file, eight)
    else:
        assert "another number of buckets: operator=queue was=2 now=8" in problems_of(file, *eight)[0]
    (policy,) = problems_of(file, "queue.policy=fifo")
    assert policy.startswith("query.checkpoint: the checkpoint belongs to another graph")
    (key,) = problems_of(file, "queue.key=price")
    assert "(symbol) newest by time" in key
    assert "(price) newest by time" in key
    (buckets,) = problems_of(file, "queue.buckets=3")
    assert "another number of buckets: operator=queue was=2 now=3" in buckets
    assert "Hint: set it to 2 (buckets, or spark.sql.shuffle.partitions), or start" in buckets


@pytest.mark.parametrize("engine", ["spark", "local"])
@pytest.mark.parametrize("part", ["metadata", "offsets"])
def test_a_checkpoint_of_a_single_query_is_refused_as_by_a_run(
    tmp_path: Path, engine: str, part: str
) -> None:
    place = tmp_path / "checkpoint"
    file = written(tmp_path, {"engine": engine, "query": {"checkpoint": str(place)}})
    place.mkdir()
    (place / "other").mkdir()
    check_pipeline(file, [])
    (place / part).mkdir()
    assert problems_of(file) == [
        "query.checkpoint: the checkpoint belongs to a single query, not to a graph: "
        f"checkpoint={place}. Hint: start with a new checkpoint."
    ]


@pytest.mark.parametrize("engines", [("local", "spark"), ("spark", "local")])
def test_a_source_of_windows_is_told_by_its_real_kind_when_the_engine_changes(
    tmp_path: Path, engines: tuple[str, str]
) -> None:
    place = tmp_path / "checkpoint"

    def write(engine: str) -> str:
        windows = {**WINDOWS, "queue": None, "window": {"time": "ts", "size": "60 s"}, "group_by": ["sensor"]}
        query = {"checkpoint": str(place)}
        return written(tmp_path, {"engine": engine, "source": JSON, "query": query, **windows})

    def plans(engine: str) -> tuple[PhysicalPlan, PhysicalPlan]:
        pipeline, _ = load_document(write(engine))
        shown = graph_of(pipeline)
        graph = check_local_pipeline(pipeline) if engine == "local" else shown
        return graph.plan(None, "auto"), shown.plan(None, "auto")

    before, (plan, shown) = plans(engines[0]), plans(engines[1])
    directory = GraphDirectory(place)
    directory.put("graph", graph_document(before[0], {}, {}, before[1]))
    check_pipeline(write(engines[0]), [])
    texts = {"local": "source (files, replayable), read by Penstock", "spark": "source (files, replayable)"}
    was, now = (texts[engine] for engine in engines)
    (problem,) = problems_of(write(engines[1]))
    assert f" was={was} now={now}. Hint: undo the change" in problem
    old = directory.newest("graph")
    assert old is not None
    with pytest.raises(InvalidUsageError) as refused:  # as by a run
        check_same_graph(plan, old, directory, shown.logical)
    assert (refused.value.context["was"], refused.value.context["now"]) == (was, now)


LAZY_WINDOWS: dict[str, Any] = {
    "queue": None,
    "window": {"time": "time", "size": "1 s", "mode": "lazy"},
    "group_by": ["symbol"],
    "aggregates": {"n": "count(*)"},
}


@pytest.mark.parametrize("engine", ["spark", "local"])
@pytest.mark.parametrize("query", ["results", "ingest-other"])
@pytest.mark.parametrize(
    ("operator", "section", "changes"), [("queue", "queue", {}), ("aggregates", "window", LAZY_WINDOWS)]
)
def test_a_new_or_removed_budget_or_weight_is_found_in_the_checkpoint(
    tmp_path: Path, engine: str, query: str, operator: str, section: str, changes: dict[str, Any]
) -> None:
    place = tmp_path / "checkpoint"
    file = written(tmp_path, {"engine": engine, "query": {"checkpoint": str(place)}, **changes})
    pipeline, _ = check_pipeline(file, [])
    graph = graph_of(pipeline) if engine == "spark" else check_local_pipeline(pipeline)
    GraphDirectory(place).put("graph", graph_document(graph.plan(None, "never"), {}, {}))
    (place / "queries" / query).mkdir(parents=True)
    (place / "queries" / query / "metadata").write_text(json.dumps({"id": "an-id"}))
    state = place / "state" / "an-id" / operator
    state.mkdir(parents=True)
    (state / SPECIFICATION_FILE).write_bytes(encode(PUnit("operator", {"budget": "none", "weight": None})))
    check_pipeline(file, [])
    (problem,) = problems_of(file, f"{section}.weight=price")
    assert (
        'another weight: operator=queue was=null now="price"' if section == "queue" else "graph"
    ) in problem
    for budget in ("budget=7", "freshness={p95: 2 s}"):
        (problem,) = problems_of(file, f"{section}.{budget}")
        fact = "query.checkpoint: the checkpoint was made with another budget"
        assert problem.startswith(f'{fact}: operator={operator} was="none" now="some" file={state}. Hint: ')
    (state / SPECIFICATION_FILE).write_bytes(encode(PUnit("operator", {"budget": "some"})))
    check_pipeline(file, [f"{section}.budget=7"])
    (problem,) = problems_of(file)
    assert 'was="some" now="none"' in problem


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_changed_columns_of_a_source_are_found_in_the_checkpoint(tmp_path: Path, engine: str) -> None:
    queue = {"queue": {"key": "sensor", "time": "ts"}, "query": {"checkpoint": str(tmp_path / "checkpoint")}}
    file = written(tmp_path, {"engine": engine, "source": JSON} | queue)
    plan = graph_of(check_pipeline(file, [])[0]).plan(None, "never")
    GraphDirectory(tmp_path / "checkpoint").put("graph", graph_document(plan, {}, {}))
    check_pipeline(file, [])
    (problem,) = problems_of(file, "source.schema=sensor STRING, ts TIMESTAMP, n INT, m INT")
    assert problem == (
        "source.schema: a source has other columns than in its checkpoint: operator=source more=m fewer=none "
        "changed=n was int64, is int32. Hint: set the old columns back, or start with a new checkpoint."
    )


def test_what_is_wrong_with_data_has_another_exit_code_than_a_wrong_pipeline(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text('{"k": null, "t": 1}\n')
    source = {"type": "files", "format": "json", "path": str(rows), "schema": "k STRING, t LONG"}
    changes = {"engine": "local", "source": source, "queue": {"key": "k", "time": "t"}}
    command = ["run", written(tmp_path, changes), "--no-progress"]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 1
    fact = "rows with a null (or NaN) key, time or arrival: rows=1 columns=['k']."
    assert ran.stderr.startswith(fact), "the time is not null"
    assert CliRunner().invoke(app, [*command, "--set", "queue.key=j"]).exit_code == 2


def test_a_signal_that_also_ends_the_jvm_is_a_stop_and_no_failure() -> None:
    class Graph:
        queries: ClassVar[dict[str, object]] = {}

        def await_termination(self, timeout: float) -> bool:
            error = UnavailableError("the JVM of Spark's driver does not answer")
            raise error from ConnectionRefusedError()

    graph, signals = cast("RunningGraph", Graph()), StopSignals()
    with pytest.raises(UnavailableError):
        follow.follow_graph(graph, lambda batch: None, signals)
    signals.received = signal.SIGTERM
    assert follow.follow_graph(graph, lambda batch: None, signals) == Totals(signal=signal.SIGTERM)


def test_a_failure_of_the_stopping_batch_is_no_clean_stop() -> None:
    class Graph:
        def await_termination(self, timeout: float) -> bool:
            raise CorruptDataError("a block is damaged") from StreamingQueryException("the query failed")

    signals = StopSignals()
    signals.received = signal.SIGTERM
    with pytest.raises(CorruptDataError):
        follow.follow_graph(cast("RunningGraph", Graph()), lambda batch: None, signals)


def test_a_query_that_fails_marks_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Query:
        stopped = False

        def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
            """Show that this is a query."""

        def stop(self) -> None:
            self.stopped = True

    def fail(*_: object, **__: object) -> None:
        raise InvalidUsageError("rows with a null key")

    monkeypatch.setattr(run, "follow", fail)
    query = Query()
    with pytest.raises(InvalidUsageError) as failed:
        run.run(cast("StreamingQuery", query), on_batch=lambda batch: None)
    assert query.stopped
    assert failed.value.while_running


@pytest.mark.parametrize("pattern", ["", "/*.json", "/day=*/*.json", "/{a,b}"])
def test_a_check_accepts_inputs_that_come_later_and_names_them(tmp_path: Path, pattern: str) -> None:
    source = JSON | {"path": str(tmp_path / f"nowhere{pattern}")}
    file = written(tmp_path, {"source": source, "queue": {"key": "sensor", "time": "ts"}})
    checked = CliRunner().invoke(app, ["check", file])
    assert checked.exit_code == 0
    assert f"source.path: there is no file or directory '{tmp_path / 'nowhere'}'" in checked.stderr
    (tmp_path / "nowhere").mkdir()
    assert CliRunner().invoke(app, ["check", file]).stderr == ""


def test_a_check_is_for_the_engine_that_it_is_given(tmp_path: Path) -> None:
    source = JSON | {"format": "csv", "options": {"comment": "#"}}
    file = written(tmp_path, {"source": source, "queue": {"key": "sensor", "time": "ts"}})
    assert CliRunner().invoke(app, ["check", file]).exit_code == 0
    refused = CliRunner().invoke(app, ["check", file, "--engine", "local"])
    assert (refused.exit_code, "source.options" in refused.stderr) == (2, True)
    wrong = CliRunner().invoke(app, ["check", file, "--engine", "lokal"])
    assert wrong.stderr.startswith("--engine lokal: engine: ")


def test_a_wrong_group_is_told_once(tmp_path: Path) -> None:
    file = written(tmp_path, WINDOWS | {"queue": None, "group_by": ["symbl"]})
    assert problems_of(file) == ["group_by: there is no column 'symbl'. Hint: did you mean 'symbol'?"]
