"""Windows in a pipeline's file: their joins, and aggregates by window."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.conf.document import PipelineError
from penstock.conf.pipeline import load_pipeline
from penstock.dataflow import PhysicalPlan
from penstock.dataflow.nodes import (
    Aggregate,
    RowWindow,
    SessionWindow,
    Source,
    Window,
    WindowJoin,
    topological,
)
from penstock.jobs.pipelines.graph import graph_of, plan_file

_FILE = """\
source: {type: files, format: json, path: in, schema: "second BIGINT, plug INT, load DOUBLE"}
window: {time: second, size: 60 s, slide: 1 s, unit: s, watermark_delay: 5 s, mode: append}
group_by: [plug]
aggregates: {mean: avg(load)}
window_join:
  window: {size: 3600 s}
  aggregates: {whole: avg(load)}
  having: whole > 0
  condition: mean > whole
by_window:
  aggregates: {plugs: count(*)}
  having: plugs > 1
sink: {type: noop}
"""


def written(tmp_path: Path, text: str = _FILE) -> str:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    return str(path)


def test_windows_are_joined_and_aggregated_by_window(tmp_path: Path) -> None:
    made = graph_of(load_pipeline(written(tmp_path)))
    assert made.schema.names == ["window", "plugs"]
    nodes = list(topological(made.root))
    windows = [node for node in nodes if isinstance(node, Window)]
    assert [(one.size_ms, one.slide_ms, one.delay_ms, one.time_unit) for one in windows] == [
        (60_000, 1000, 5000, "s"),
        (3_600_000, 1000, 5000, "s"),
    ]
    (join,) = [node for node in nodes if isinstance(node, WindowJoin)]
    assert join.schema.names == ["plug", "window", "mean", "whole"]
    assert [node.name for node in nodes if isinstance(node, Aggregate)] == (
        ["aggregates", "window_join.aggregates", "by_window.aggregates"]
    )
    assert [node.label for node in nodes].count("source") == 1


def test_fragments_are_made_where_penstock_reads_the_files(tmp_path: Path) -> None:
    text = _FILE.replace(
        "format: json,", "format: parquet, reader: penstock, options: {maxFilesPerTrigger: '1'},"
    )
    made = graph_of(load_pipeline(written(tmp_path, text)))
    (source,) = [node for node in topological(made.root) if isinstance(node, Source)]
    assert (source.kind, dict(source.options)) == ("parquet", {"maxFilesPerTrigger": "1", "path": "in"})
    labels = [node.label for node in topological(made.plan(persist="never").root)]
    assert (labels.count("scan"), labels.count("assemble")) == (2, 2)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "format: json,",
            "format: json, reader: penstock,",
            "1: source.reader: Penstock reads Parquet files only",
        ),
        (
            "source: {type: files, format: json,",
            "persist: always\nsource: {type: files, format: parquet, reader: penstock,",
            "2: source.reader: applies only to windows, and not with persist: always",
        ),
        (
            "mode: append",
            "mode: apend",
            "2: window.mode: 'apend' is not one of append, lazy, eager. Hint",
        ),
        ("watermark_delay: 5 s", "watermark_delay: 5", "2: window.watermark_delay: 5 is not a duration"),
        ("{size: 3600 s}", "{size: 3600 s, slide: 2 s}", "6: window_join.window.slide: unknown field"),
        (
            "{size: 3600 s}",
            "{size: 500 ms}",
            "6: window_join.window.size: '500 ms' is shorter than",
        ),
        ("{size: 3600 s}", "{size: 1500 ms}", "6: window_join.window.size: windows of '1500 ms' never end"),
        ("{size: 3600 s}", "{}", "window_join.window.size: is required. Hint: write a duration"),
        ("{size: 3600 s}", "{size: 9 rows}", "6: window_join.window.size: windows of 9 rows do not end"),
        (
            "size: 60 s, slide: 1 s",
            "size: 60 rows, slide: 1 s",
            "2: window.slide: one of size and slide counts",
        ),
        ("size: 60 s, slide: 1 s", "size: 6 rows, slide: 9 rows", "2: window.slide: the slide of windows is"),
        ("size: 60 s, slide: 1 s", "size: 0 rows", "2: window.size: the slide of windows is not from 1"),
        (
            "size: 60 s, slide: 1 s",
            "size: 60 rows",
            "5: window_join: needs windows that end together, unlike",
        ),
        ("size: 60 s, slide: 1 s", "size: 60 rows", "10: by_window: needs windows that end together, unlike"),
        ("  window: {size: 3600 s}\n", "", "window_join.window: is required, or by_window. Hint: write"),
        ("  aggregates: {whole: avg(load)}\n", "", "window_join.aggregates: is required with window"),
        (
            "  having: whole > 0\n",
            "  by_window: {aggregates: {n: count(*)}}\n",
            "6: window_join.window: cannot be combined with by_window",
        ),
        (
            "  having: whole > 0\n",
            "  by_window: {agregates: {n: count(*)}}\n",
            "window_join.by_window.aggregates: is required",
        ),
        (
            "{whole: avg(load)}",
            "{whole: avg(laod)}",
            "7: window_join.aggregates.whole: there is no column 'laod'",
        ),
        ("having: whole > 0", "having: while > 0", "8: window_join.having: there is no column 'while'"),
        ("condition: mean", "key: plug\n  condition: mean", "window_join.key: there is no column 'plug'"),
        ("condition: mean", "condition: meen", "9: window_join.condition: there is no column 'meen'"),
        ("condition: mean", "conditon: mean", "9: window_join.conditon: unknown field. Hint: did you mean"),
        (
            "{plugs: count(*)}",
            "{plugs: count(plugg)}",
            "11: by_window.aggregates.plugs: there is no column",
        ),
        ("having: plugs > 1", "group_by: [plugg]", "12: by_window.group_by: there is no column 'plugg'"),
        (
            "sink:",
            "query: {state_location: x}\nsink:",
            "query.state_location: the state of windows is",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert _FILE.count(old) == 1
    with pytest.raises(PipelineError) as caught:
        plan_file(written(tmp_path, _FILE.replace(old, new)))
    assert any(problem in one for one in caught.value.problems), caught.value.problems


def test_windows_are_joined_with_what_is_aggregated_of_them(tmp_path: Path) -> None:
    join = "  by_window: {aggregates: {most: max(mean)}}\n  condition: mean = most\n"
    begin, end = _FILE.index("  window: {size"), _FILE.index("by_window:")
    made = graph_of(load_pipeline(written(tmp_path, _FILE[:begin] + join + _FILE[end:])))
    nodes = list(topological(made.root))
    (join_,) = [node for node in nodes if isinstance(node, WindowJoin)]
    assert join_.schema.names == ["plug", "window", "mean", "most"]
    assert join_.aggregate_of(join_.inputs[0]) is join_.aggregate_of(join_.inputs[1])


def test_windows_may_be_served_key_by_key(tmp_path: Path) -> None:
    serving = "mode: lazy, budget: 800ms, policy: fifo, cost: 2ms, weight: load"
    text = _FILE[: _FILE.index("window_join:")] + _FILE[_FILE.index("sink:") :]
    made = graph_of(load_pipeline(written(tmp_path, text.replace("mode: append", serving))))
    (window,) = [node for node in topological(made.root) if isinstance(node, Window)]
    options = window.options
    assert (options.mode, options.budget, options.policy, options.cost) == ("lazy", "800ms", "fifo", "2ms")
    assert options.weight == "load"
    assert made.key == ("plug",)
    problems = []
    for old, new in (("mode: append", "budget: 5, cost: 2ms"), ("mode: append", "mode: eager")):
        with pytest.raises(PipelineError) as caught:
            load_pipeline(written(tmp_path, _FILE.replace(old, new)))
        problems += [one.partition("p.yaml:")[2] for one in caught.value.problems]
    assert [re.split(r",|\. Hint", one)[0] for one in problems] == [
        "2: window.budget: does not apply to windows in append mode",
        "2: window.cost: does not apply to windows in append mode",
        "5: window_join: needs windows in append mode",
        "10: by_window: needs windows in append mode",
    ]


def _served(tmp_path: Path, window: str) -> PhysicalPlan:
    text = _FILE[: _FILE.index("window_join:")] + _FILE[_FILE.index("sink:") :]
    given = "size: 60 s, slide: 1 s, unit: s, watermark_delay: 5 s, mode: append"
    return plan_file(written(tmp_path, text.replace(given, f"unit: s, {window}")))


def test_windows_may_have_deletes_and_a_time_to_live(tmp_path: Path) -> None:
    silent = _served(tmp_path, "size: 60 s, mode: eager, ttl: 1 day, on_silent: row")
    assert silent.root.schema.names == ["plug", "window", "mean", "silent"]
    both = _served(tmp_path, "size: 60 s, mode: lazy, ttl: 1 day, delete_when: load < 0")
    assert both.root.schema.names == ["plug", "window", "mean", "deleted"]
    assert "60 s by 60 s over second, lazy, in_place, deletes, ttl 1 day" in both.explain()


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ("size: 60 s, ttl: 1 day", "2: window.ttl: does not apply to windows in append mode"),
        ("size: 60 s, on_silent: row", "2: window.on_silent: does not apply to windows in append mode"),
        ("size: 60 s, mode: lazy, ttl: 60", "2: window.ttl: 60 is not a duration"),
        ("size: 60 s, mode: lazy, ttl: 0 s", "2: window.ttl: a time to live is not positive"),
        ("size: 60 s, mode: lazy, on_silent: rows", "2: window.on_silent: 'rows' is not .*row"),
        ("size: 60 s, mode: lazy, on_silent: row", "2: window: on_silent needs ttl"),
        ("size: 60 s, mode: lazy, ttl: 1 s, budget: 3", "2: window: windows with a budget have no ttl"),
        ("size: 9 rows, mode: lazy, ttl: 1 s", "2: window: the keys of windows of rows do not leave"),
        ("size: 60 s, delete_when: ' '", "2: window.delete_when: is empty"),
        ("size: 60 s, delete_when: lode < 0", "2: window.delete_when: there is .* 'lode'.*mean 'load'"),
        ("size: 60 s, delete_when: load", "2: window: delete_when is not a condition: .*type=double"),
        ("session: 9 s, delete_when: load < 0", "2: window: session windows have no deletes"),
    ],
)
def test_wrong_deletes_and_times_to_live_are_told_with_their_line(
    tmp_path: Path, window: str, message: str
) -> None:
    with pytest.raises(PipelineError, match=f"p.yaml:{message}"):
        _served(tmp_path, window)


def test_windows_may_be_of_rows(tmp_path: Path) -> None:
    text = _FILE[: _FILE.index("window_join:")] + _FILE[_FILE.index("sink:") :]
    for mode, serving in (("append", ""), ("lazy", ", budget: 9, policy: fifo"), ("eager", ", weight: load")):
        of = f"size: 60 rows, slide: 10 rows, unit: s, watermark_delay: 5 s, mode: {mode}{serving}"
        plan = plan_file(
            written(
                tmp_path,
                text.replace("size: 60 s, slide: 1 s, unit: s, watermark_delay: 5 s, mode: append", of),
            )
        )
        (window,) = [node for node in topological(plan.root) if isinstance(node, RowWindow)]
        assert (window.size_rows, window.slide_rows, window.options.mode) == (60, 10, mode)
        assert "60 rows by 10 rows of each group in the order of second" in plan.explain()


def test_windows_may_be_sessions(tmp_path: Path) -> None:
    text = _FILE[: _FILE.index("window_join:")] + _FILE[_FILE.index("sink:") :]
    given = "size: 60 s, slide: 1 s, unit: s, watermark_delay: 5 s, mode: append"
    plan = plan_file(written(tmp_path, text.replace(given, "session: 90 s, unit: s, watermark_delay: 5 s")))
    (window,) = [node for node in topological(plan.root) if isinstance(node, SessionWindow)]
    assert (window.gap_ms, window.delay_ms) == (90_000, 5000)
    problems: list[str] = []
    for wrong in ("session: 90 s, size: 5 s, mode: lazy, unit: s", "unit: s"):
        with pytest.raises(PipelineError) as caught:
            load_pipeline(written(tmp_path, _FILE.replace(given, wrong)))
        problems += caught.value.problems
    for text in (
        "window.size: does not apply to session windows",
        "window.mode: session windows are only in append mode",
        "window_join: needs windows that end together, unlike sessions",
        "window: needs a size or a session",
    ):
        assert any(text in problem for problem in problems), text


def test_they_are_for_windows(tmp_path: Path) -> None:
    text = """\
source: {type: files, format: json, path: in, schema: "second BIGINT, plug INT, load DOUBLE"}
queue: {key: plug, time: second}
by_window: {aggregates: {n: count(*)}}
sink: {type: noop}
"""
    with pytest.raises(PipelineError, match="by_window: needs aggregates, and there are none"):
        load_pipeline(written(tmp_path, text))
