"""Own aggregates in pipelines: windows, restarts and crashes, as built-in aggregates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import InvalidUsageError

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.testing.plugin import OpenPipeline

pytest_plugins = ["penstock.testing.plugin"]

WINDOWS = """
source: {type: files, format: json, path: nowhere, schema: "k STRING, ts TIMESTAMP, v DOUBLE"}
window: {time: ts, size: 20 s, slide: 10 s, watermark_delay: 5 s}
group_by: [k]
aggregates: {own: "own('tests.samples.aggregates:Spread', v)", twice: "2 * own('tests.samples.aggregates:Spread', v)", n: count(*)}
having: twice > 0
sink: {type: console}
"""  # noqa: E501  # a line of YAML


def row(second: int, value: float | None, key: str = "a") -> dict[str, Any]:
    return {"k": key, "ts": f"2026-01-01T00:00:{second:02}Z", "v": value}


def result(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((one["window"]["start"].second, one["k"], one["own"], one["n"]) for one in rows)


def test_windows_keep_states_over_restarts_and_crashes(
    tmp_path: Path, penstock_pipeline: OpenPipeline
) -> None:
    (tmp_path / "w.yaml").write_text(WINDOWS)
    test = penstock_pipeline(tmp_path / "w.yaml")
    test.send([row(1, 7), row(2, 3), row(3, None), row(4, 1, "b"), row(12, 30)])
    assert test.rows() == []
    test.restart()
    test.send([row(11, 2), row(26, 5)])
    test.crash("write")
    # Windows of two panes, each of rows from two micro-batches.
    assert result(test.rows()) == [
        (0, "a", 28_004.0, 5),
        (0, "b", 1.0, 1),
        (50, "a", 4_002.0, 3),
        (50, "b", 1.0, 1),
    ]
    test.restart()
    test.send([row(59, 0)])
    assert result(test.rows()) == [(10, "a", 28_003.0, 3), (20, "a", 1.0, 1)]


WEIGHTED = """
source: {type: files, format: json, path: nowhere, schema: "k STRING, ts TIMESTAMP, v BIGINT, w INT"}
window: {time: ts, WINDOW}
group_by: [k]
aggregates:
  mean: "own('tests.samples.aggregates:WeightedMean', v, w)"
  heavy: "own('tests.samples.aggregates:WeightedMean', v + 1, w) FILTER (WHERE w > 2)"
  n: count(*)
sink: {type: console}
"""


def weighted(second: int, v: int | None, w: int | None) -> dict[str, Any]:
    return {**row(second, v), "w": w}


def mean(rows: list[dict[str, Any]], more: int = 0, above: int = -1) -> float | None:
    known = [(one["v"] + more, one["w"]) for one in rows if None not in (one["v"], one["w"])]
    known = [(v, w) for v, w in known if w > above]
    return sum(v * w for v, w in known) / sum(w for _, w in known) if known else None


@pytest.mark.parametrize(
    "window",
    [
        "size: 10 s",
        "size: 10 s, slide: 5 s",
        "size: 10 s, mode: lazy, budget: 100",
        "size: 10 s, mode: eager, budget: 100",
        "session: 3 s",
        "size: 2 rows",
    ],
)
def test_an_aggregate_of_two_values_gets_the_rows_in_which_both_are_known(
    tmp_path: Path, penstock_pipeline: OpenPipeline, window: str
) -> None:
    (tmp_path / "w.yaml").write_text(WEIGHTED.replace("WINDOW", window))
    test = penstock_pipeline(tmp_path / "w.yaml")
    first = [weighted(11, 7, 2), weighted(12, 3, 4), weighted(13, None, 100)]
    second = [weighted(14, 5, None), weighted(15, 9, 5), weighted(16, 1, 1)]
    found = {}
    for rows in (first, second, [weighted(59, 0, 1)]):
        test.send(rows)
        for one in test.rows():
            found[one["window"]["start"].second, one["n"]] = one["mean"], one["heavy"]
        test.restart()
    several = [*first, *second]
    parts = {
        "size: 2 rows": [several[begin : begin + 2] for begin in (0, 2, 4)],
        "size: 10 s, slide: 5 s": [several[:4], several, several[4:]],
    }.get(window, [several])
    expected = sorted(((mean(part), mean(part, 1, 2)) for part in parts), key=repr)
    # In eager mode, windows also show before they are complete.
    assert set(expected) <= set(found.values())
    assert "eager" in window or sorted(found.values(), key=repr) == expected


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (("', v, w)", "', v)"), r"w\.yaml:5.*another number of values than its add takes.*2: value, weight"),
        (("', v, w)", "', v, k)"), "does not take values of this type"),
        (
            ("WeightedMean', v, w)", "Spread', named_struct('a', v, 'b', w))"),
            "does not take values of this type",
        ),
    ],
)
def test_wrong_values_are_an_error_before_the_first_batch(
    tmp_path: Path, penstock_pipeline: OpenPipeline, change: tuple[str, str], fact: str
) -> None:
    (tmp_path / "w.yaml").write_text(WEIGHTED.replace("WINDOW", "size: 10 s").replace(*change))
    with pytest.raises(InvalidUsageError, match=fact):
        penstock_pipeline(tmp_path / "w.yaml")


def test_a_wrong_name_is_an_error_with_its_place(tmp_path: Path, penstock_pipeline: OpenPipeline) -> None:
    (tmp_path / "w.yaml").write_text(WINDOWS.replace("Spread", "Spraed", 1))
    with pytest.raises(InvalidUsageError, match=r"w\.yaml:5.*cannot be imported"):
        penstock_pipeline(tmp_path / "w.yaml")
    (tmp_path / "w.yaml").write_text(WINDOWS)
    wrong = "own('tests.samples.aggregates:Nope', v)"
    with pytest.raises(
        InvalidUsageError, match=r"--set aggregates\.own=own.*: aggregates: .*cannot be imported"
    ):
        penstock_pipeline(tmp_path / "w.yaml", overrides=[f"aggregates.own={wrong}"])
