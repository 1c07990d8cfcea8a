"""Unions, joins, lookups and results in a pipeline's file."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from penstock.conf.document import PipelineError
from penstock.conf.pipeline import JoinSection, Pipeline, UnionSection, load_pipeline
from penstock.dataflow.nodes import Join, StreamTableJoin, UpdateUnion, topological
from penstock.jobs.pipelines.graph import plan_file

_HEAD = """
source: {type: files, format: json, path: in, schema: k STRING, t TIMESTAMP, v DOUBLE}
"""
_TAIL = """
sink: {type: console}
query: {name: mine}
"""
_UNION = """
union:
  inputs:
    lse:
      source: {type: files, format: json, path: lse, schema: "k STRING, t TIMESTAMP, v DOUBLE, x INT"}
      filter: v > 0
      projection: [k, t, v]
  key: k
  time: t
  prefer: lse
  nulls: drop
results:
  filter: v > 1
  projection: [k, t, v * 2 AS twice]
"""
_JOIN = """
lookup:
  table: {format: csv, path: names.csv, schema: "k STRING, name STRING", options: {header: true}}
  key: k
join:
  with:
    source: {type: files, format: json, path: asks, schema: "k STRING, t TIMESTAMP, ask DOUBLE"}
  key: k
  time: t
  within: 5 s
  watermark_delay: 0 s
  condition: ask > v
"""


def _file(tmp_path: Path, steps: str) -> str:
    path = tmp_path / "p.yaml"
    head = _HEAD.replace("k STRING, t TIMESTAMP, v DOUBLE", '"k STRING, t TIMESTAMP, v DOUBLE"')
    path.write_text(textwrap.dedent(head + steps.strip("\n") + _TAIL).lstrip("\n"))
    return str(path)


def _problems(tmp_path: Path, steps: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        plan_file(_file(tmp_path, steps))
    return [problem.partition("p.yaml:")[2] for problem in caught.value.problems]


def test_a_union_is_read_and_planned(tmp_path: Path) -> None:
    pipeline = load_pipeline(_file(tmp_path, _UNION))
    assert isinstance(pipeline.step, UnionSection)
    assert (pipeline.step.key, pipeline.step.prefer, pipeline.step.policy) == (("k",), "lse", "in_place")
    root = plan_file(_file(tmp_path, _UNION)).root
    union = next(node for node in topological(root) if isinstance(node, UpdateUnion))
    assert (union.key, union.time, union.prefer) == (("k",), "t", 1)
    assert root.key == ("k",)
    assert root.schema.names == ["k", "t", "twice"]


def test_a_join_and_a_lookup_are_read_and_planned(tmp_path: Path) -> None:
    pipeline = load_pipeline(_file(tmp_path, _JOIN))
    assert isinstance(pipeline.step, JoinSection)
    assert (pipeline.step.within, pipeline.step.watermark_delay, pipeline.step.condition) == (
        "5 s",
        "0 s",
        "ask > v",
    )
    root = plan_file(_file(tmp_path, _JOIN)).root
    join = next(node for node in topological(root) if isinstance(node, Join))
    assert (join.key, join.within_us) == (("k",), 5_000_000)
    assert any(isinstance(node, StreamTableJoin) for node in topological(join.inputs[0]))
    assert root.schema.names == ["k", "t", "v", "name", "ask"]


@pytest.mark.parametrize(
    ("steps", "old", "new", "problem"),
    [
        (
            _UNION,
            "prefer: lse",
            "prefer: lsee",
            "union.prefer: 'lsee' is not one of source, lse. Hint: did you",
        ),
        (_UNION, "  key: k\n", "", "union.key: is required. Hint: name the column, or the columns"),
        (
            _UNION,
            "    lse:\n",
            "    source:\n",
            "union.inputs.source: is the name of the pipeline's own input",
        ),
        (
            _UNION,
            "json, path: lse",
            "jsn, path: lse",
            "union.inputs.lse.source.format: 'jsn' is not one of csv",
        ),
        (
            _UNION,
            "type: files, format: json, path: lse",
            "type: file, path: lse",
            "union.inputs.lse.source.type",
        ),
        (
            _UNION,
            "filter: v > 0",
            "filtr: v > 0",
            "union.inputs.lse.filtr: unknown field. Hint: did you mean",
        ),
        (_UNION, "filter: v > 0", "filter: w > 0", "union.inputs.lse.filter: there is no column 'w'"),
        (_UNION, "projection: [k, t, v]", "projection: [k, t]", "union: the streams of a union differ"),
        (_UNION, "time: t", "time: x", "union.time: there is no column 'x'"),
        (
            _UNION,
            "[k, t, v * 2",
            "[t, v * 2",
            "results.projection: an update stream would lose its key: column=k",
        ),
        (_UNION, "[k, t, v * 2", "[upper(k) AS k, v * 2", "results.projection: the update key would change"),
        (_UNION, "filter: v > 1", "filter: w > 1", "results.filter: there is no column 'w'"),
        (
            _UNION,
            "results:",
            "queue: {key: k, time: t}\nresults:",
            "queue: cannot be in one pipeline with union",
        ),
        (_JOIN, "within: 5 s", "within: 5", "join.within: 5 is not a duration"),
        (
            _JOIN,
            "  within: 5 s\n",
            "",
            "join.within: is required. Hint: write how far two times may be apart",
        ),
        (_JOIN, "  with:\n", "  wit:\n", "join.with: is required"),
        (_JOIN, "ask DOUBLE", "v DOUBLE", "join: two columns have the same name: column=v"),
        (_JOIN, "ask > v", "ask + v", "join.condition: a join's condition is not boolean"),
        (_JOIN, "ask > v", "bid > v", "join.condition: there is no column 'bid'"),
        (_JOIN, "true}}\n  key: k", "true}}\n  key: name", "lookup.key: there is no column 'name'"),
        (_JOIN, "format: csv", "format: cvs", "lookup.table.format: 'cvs' is not one of csv"),
        (_JOIN, "options: {header: true}", "optons: {}", "lookup.table.optons: unknown field"),
        (_JOIN, "join:\n", "queue: {key: k, time: t}\njoin:\n", "queue: cannot be in one pipeline with join"),
    ],
)
def test_what_is_wrong_with_a_step_is_named_with_its_line(
    tmp_path: Path, steps: str, old: str, new: str, problem: str
) -> None:
    assert steps.count(old) == 1
    found = _problems(tmp_path, steps.replace(old, new))
    line, _, text = found[0].partition(": ")
    assert text.startswith(problem), found
    written = Path(tmp_path / "p.yaml").read_text().splitlines()
    field = problem.partition(":")[0].rpartition(".")[2]
    assert field in written[int(line) - 1] or "is required" in problem


def test_results_are_of_a_step_with_a_key() -> None:
    with pytest.raises(
        ValueError, match="results: needs a queue, a union, a join, a database or an operator"
    ):
        Pipeline.model_validate(
            {
                "source": {"type": "rate"},
                "window": {"time": "timestamp", "size": "5 s"},
                "aggregates": {"n": "count(*)"},
                "results": {"filter": "n > 1"},
                "sink": {"type": "console"},
            }
        )


@pytest.mark.parametrize(
    ("step", "steps", "label"),
    [
        ("queue", "queue:\n  key: k\n  time: t\n", "update queue"),
        ("union", _UNION, "update union"),
        ("join", _JOIN, "join"),
        ("window", "window: {time: t, session: 5 s}\ngroup_by: [k]\naggregates: {n: sum(v)}\n", "window"),
    ],
)
def test_a_plan_shows_where_late_rows_and_bad_records_go(
    tmp_path: Path, step: str, steps: str, label: str
) -> None:
    with_late = steps.replace("{time: t,", "{time: t, late_to: late,")
    with_late = with_late.replace("  time: t\n", "  time: t\n  late_to: late\n")
    path = Path(_file(tmp_path, with_late))
    path.write_text(path.read_text().replace("{type: files,", "{type: files, reject_to: rejected,", 1))
    plan = plan_file(str(path))
    (found,) = (node for node in topological(plan.root) if node.label == label)
    assert found.describe().endswith(", late rows to late")
    assert "bad records to rejected" in " ".join(plan.explain().split())
    if step != "window":
        # Whole rows are late, so no column may be left out.
        columns = {"k", "t", "v"}
        assert all(columns <= set(above.schema.names) for above in found.inputs[:1])
    path.write_text(path.read_text().replace("late_to: late", "late_to: rejected"))
    with pytest.raises(PipelineError, match="late rows and rejected records have other columns"):
        load_pipeline(str(path))
