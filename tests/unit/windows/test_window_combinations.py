"""The table of windows and their options in the docs is what graphs and pipelines take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.conf.document import PipelineError
from penstock.conf.pipeline import load_pipeline
from penstock.dataflow import Graph, graph
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.graph import graph_of
from tests.sketches import needs_sketches

PAGE = Path(__file__).parents[3] / "docs" / "concepts" / "windows.md"
SCHEMA = "k string, t bigint, v double"
KINDS: list[dict[str, Any]] = [{"size": "8 s", "slide": "4 s"}, {"size": "8 rows"}, {"session": "8 s"}]
MODES = ("append", "lazy", "eager")
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "mode": [{}],
    "budget": [{"budget": 3}, {"policy": "fifo"}, {"cost": "1 ms"}, {"weight": "v"}, {"weight": {"a": 2.0}}],
    "delete_when": [{"delete_when": "v < 0"}],
    "ttl": [{"ttl": "1 day"}, {"ttl": "1 day", "on_silent": "row"}],
    "late_to": [{"late_to": "late"}],
    "count(DISTINCT x)": [{"aggs": {"n": "count(DISTINCT v)", "m": "median(v)", "p": "percentile(v, 0.9)"}}],
    "join_windows": [{"then": "join"}, {"then": "group"}],
}


def combinations() -> list[tuple[str, int, tuple[str, ...]]]:
    """Return the rows of the table by the first word of their head, the kind of windows, and the modes."""
    text = PAGE.read_text().partition("## Which windows have what")[2].partition("## Windows of rows")[0]
    found = []
    for line in re.findall(r"^\| .*`.*$", text, re.M):
        head, *kinds = (part.strip() for part in line.strip("|").split("|"))
        name = head.partition("`")[2].partition("`")[0]
        for number, cell in enumerate(kinds):
            found.append((name, number, () if cell == "no" else tuple(cell.split(", "))))
    return found


def built(kind: dict[str, Any], mode: str, given: dict[str, Any]) -> Graph:
    options = dict(given)
    aggs, then = options.pop("aggs", {"n": "count(*)"}), options.pop("then", None)
    source = graph("g").source("s", SCHEMA)
    made = source.window("t", unit="s", mode=mode, **kind, **options).group_by("k").agg(aggs)
    if then == "join":
        return made.join_windows(made.group_by("window").agg(most="max(n)"))
    return made if then is None else made.group_by("window").agg(most="max(n)")


def written(path: Path, kind: dict[str, Any], mode: str, given: dict[str, Any]) -> Graph:
    options = dict(given)
    aggs, then = options.pop("aggs", {"n": "count(*)"}), options.pop("then", None)
    sections: dict[str, Any] = {
        "source": {"type": "files", "format": "csv", "path": "in", "schema": SCHEMA},
        "window": {"time": "t", "unit": "s", "mode": mode, **kind, **options},
        "group_by": ["k"],
        "aggregates": aggs,
        "sink": {"type": "noop"},
    }
    most = {"aggregates": {"most": "max(n)"}}
    if then is not None:
        sections |= {"window_join": {"by_window": most}} if then == "join" else {"by_window": most}
    path.write_text(yaml.safe_dump(sections, sort_keys=False))
    return graph_of(load_pipeline(str(path)))


def test_the_table_has_all_rows() -> None:
    assert [name for name, kind, _ in combinations() if kind == 0] == list(OPTIONS)
    assert len(combinations()) == len(KINDS) * len(OPTIONS)


@pytest.mark.parametrize(
    "combination",
    [
        pytest.param(combination, marks=needs_sketches if "(" in combination[0] else (), id=str(combination))
        for combination in combinations()
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_graphs_and_pipelines_take_what_the_table_says(
    tmp_path: Path, combination: tuple[str, int, tuple[str, ...]], mode: str
) -> None:
    name, kind, modes = combination
    for given in OPTIONS[name]:
        if mode in modes:
            one = built(KINDS[kind], mode, given)
            other = written(tmp_path / "p.yaml", KINDS[kind], mode, given)
            assert one.schema == other.schema
            continue
        with pytest.raises(InvalidUsageError):
            built(KINDS[kind], mode, given)
        with pytest.raises(PipelineError):
            written(tmp_path / "p.yaml", KINDS[kind], mode, given)
