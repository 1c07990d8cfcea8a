"""The examples of Spark's own documentation of functions: in the steps of a graph, and in Spark alone."""

from __future__ import annotations

import contextlib
import math
import re
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.checkpointing.p_stream import PStreamWriter
from penstock.errors import InvalidUsageError
from penstock.sql.expression import split_alias
from penstock.sql.syntax.functions import AGGREGATES, GENERATORS, OTHERS, ROW_FUNCTIONS
from tests.fuzz.case import Case
from tests.spark.queries import PATIENCE_S

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64()})
_TOGETHER = 250
"""Examples that are columns of one graph."""
ROWS = pa.table({"k": [0, 1, 2, 3], "t": [0, 1, 2, 1000]}, SCHEMA)
_EXAMPLE = re.compile(r"^\s*> SELECT (.*?);\s*$", re.MULTILINE | re.DOTALL)
_ELSEWHERE = re.compile(
    r"\b(rand\w*|aes_encrypt(?!.*('ECB'|unhex))|uuid|shuffle|uniform|now|local\w+|cur\w+|user|session_user)\b|unix_timestamp\(\)|\w+_id\(",
    re.IGNORECASE,
)
"""Calls whose value differs by call or query; an initial vector is random unless it is given."""


def check(case: Case) -> None:
    """Run some examples through a graph, as columns, conditions and filters of aggregates."""
    spark = case.spark
    _check_lists(spark)
    texts = examples(spark)
    _check_part(case, texts)
    rows = spark.createDataFrame(ROWS)
    some = _working(rows, case.random.sample(texts, case.random.choice([30, 60])))
    assert some, "no example works"
    alone = [text for text in some if _generates(text)][:1]
    plain = [text for text in some if not _generates(text)]
    conditions = [f"({text}) IS NULL OR k > {case.random.choice([-1, 1])}" for text in plain[:6]]
    columns = {f"e{n}": text for n, text in enumerate(plain + alone)}
    graph = penstock.graph("documented").source("rows", SCHEMA, kind="p-stream")
    wanted = rows
    for text in conditions:
        graph, wanted = graph.where(text), wanted.where(text)
    graph, wanted = graph.select("k", "t", **columns), _selected(wanted, "k", "t", **columns)
    last = "t >= 0 and (k < 3) OR k is null"
    graph = graph.where(last).select(*columns, twice="k * 2")
    wanted = _selected(wanted.where(last), *columns, twice="k * 2")
    persist = case.random.choice(["always", "never"])
    got = _run(graph, case, persist)
    assert got == _shown(wanted), f"persist={persist}: {_difference(got, _shown(wanted), columns)}"
    _check_filters(case, rows, plain[:20])


def _check_part(case: Case, texts: list[str]) -> None:
    """Run a part of all examples as columns of a graph: cases of successive seeds run every one."""
    rows = case.spark.createDataFrame(ROWS)
    parts = math.ceil(len(texts) / _TOGETHER)
    part = texts[case.seed % parts :: parts]
    working = [text for text in _working(rows, part) if not _generates(text)]
    columns = {f"e{n}": text for n, text in enumerate(working)}
    graph = penstock.graph("part").source("rows", SCHEMA, kind="p-stream").select("k", **columns)
    got, wanted = _run(graph, case, "never"), _shown(_selected(rows, "k", **columns))
    assert got == wanted, _difference(got, wanted, columns)


def _check_filters(case: Case, rows: DataFrame, texts: list[str]) -> None:
    """Compare aggregates in a window whose filters are the examples."""
    counted = {
        f"n{n}": f"count(*) FILTER (WHERE ({text}) IS NOT NULL and k>0)" for n, text in enumerate(texts)
    }
    first = {
        f"m{n}": f"max(k) FILTER (WHERE k<2 AND (({text}) IS NULL or True))" for n, text in enumerate(texts)
    }
    graph = penstock.graph("filters").source("rows", SCHEMA, kind="p-stream")
    aggregates = counted | first
    made = graph.window("t", size="100 s", unit="s").agg(aggregates).select(*aggregates)
    wanted = rows.where("t < 100").selectExpr(*(f"{text} AS {name}" for name, text in aggregates.items()))
    got, seen = _run(made, case, "never"), _shown(wanted)
    assert got == seen, _difference(got, seen, aggregates)


@cache
def examples(spark: SparkSession) -> list[str]:
    """Return the expressions of the documentation that need no table."""
    found: dict[str, None] = {}
    for info in _functions(spark).values():
        for example in _EXAMPLE.findall(info.getExamples()):
            try:
                text = split_alias(f"{example} AS e" if not example.endswith(("result", " e")) else example)[
                    1
                ].text
            except InvalidUsageError:
                continue  # it has a table
            if not _ELSEWHERE.search(text):
                found[text] = None
    return list(found)


@cache
def _functions(spark: SparkSession) -> dict[str, Any]:
    jvm: Any = spark._jvm
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    names = registry.listFunction().iterator()
    found = {}
    while names.hasNext():
        name = names.next()
        found[name.funcName()] = registry.lookupFunction(name).get()
    return found


@cache
def _check_lists(spark: SparkSession) -> None:
    """Compare our lists of functions with the groups that Spark puts them into."""
    groups = {name: info.getGroup() for name, info in _functions(spark).items()}
    known = set(groups)
    assert {name for name in known if groups[name] == "agg_funcs"} <= AGGREGATES
    assert {name for name in known if groups[name] == "generator_funcs"} <= GENERATORS
    several = {"agg_funcs", "generator_funcs", "window_funcs"}
    assert not {name for name in ROW_FUNCTIONS & known if groups[name] in several}
    unlisted = known - AGGREGATES - GENERATORS - ROW_FUNCTIONS - OTHERS
    assert not {name for name in unlisted if name.isidentifier()} - {"and", "div", "in", "or"}


def _generates(text: str) -> bool:
    return any(f"{name}(" in text for name in GENERATORS)


def _working(rows: DataFrame, texts: list[str]) -> list[str]:
    """Return the examples that Spark can evaluate, and always to the same."""
    plain = [text for text in texts if not _generates(text)]
    alone = [[text] for text in texts if _generates(text)]
    return [text for some in (plain, *alone) for text in _evaluated(rows, some)]


def _evaluated(rows: DataFrame, texts: list[str]) -> list[str]:
    if not texts:
        return []
    with contextlib.suppress(Exception):
        made = rows.selectExpr(*(f"{text} AS e{n}" for n, text in enumerate(texts)))
        if made._jdf.queryExecution().analyzed().deterministic():
            made.collect()
            return texts
    half = len(texts) // 2
    return [*_evaluated(rows, texts[:half]), *_evaluated(rows, texts[half:])] if half else []


def _selected(rows: DataFrame, *names: str, **columns: str) -> DataFrame:
    return rows.selectExpr(*names, *(f"{text} AS {name}" for name, text in columns.items()))


def _shown(rows: DataFrame) -> list[str]:
    """Return types, and rows as text."""
    return [rows.schema.simpleString(), *sorted(map(repr, rows.collect()))]


def _difference(got: list[str], wanted: list[str], columns: dict[str, str]) -> str:
    at = next((n for n, both in enumerate(zip(got, wanted, strict=False)) if both[0] != both[1]), 0)
    parts = [re.split(r", (?=[en]\d+)|,(?=[en]\d+:)", one[at]) for one in (got, wanted)]
    seen = [pair for pair in zip(*parts, strict=False) if pair[0] != pair[1]]
    return f"{len(got)} and {len(wanted)} rows, {seen or parts} of {columns}"


def _run(graph: Any, case: Case, persist: Any) -> list[str]:
    """Return what a graph makes of the rows."""
    place = case.directory / graph.name
    with PStreamWriter(place / "in", SCHEMA, threads=1) as writer:
        writer.append(ROWS)
    shown: list[list[str]] = []

    def sink(rows: DataFrame) -> Any:
        return rows.writeStream.foreachBatch(lambda batch, _: shown.append(_shown(batch)))

    running = penstock.start(
        graph.sink("memory"), case.spark, place / "checkpoint", sources={"rows": place / "in"}, sink=sink,
        available_now=True, persist={"rows": persist},
    )  # fmt: skip
    with running:
        assert running.await_termination(PATIENCE_S)
    return [shown[0][0], *sorted(row for batch in shown for row in batch[1:])]
