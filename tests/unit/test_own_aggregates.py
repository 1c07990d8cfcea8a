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
aggregates: {own: "own('tests.aggregates:Spread', v)", twice: "2 * own('tests.aggregates:Spread', v)", n: count(*)}
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


def test_a_wrong_name_is_an_error_with_its_place(tmp_path: Path, penstock_pipeline: OpenPipeline) -> None:
    (tmp_path / "w.yaml").write_text(WINDOWS.replace("Spread", "Spraed", 1))
    with pytest.raises(InvalidUsageError, match=r"w\.yaml:5.*cannot be imported"):
        penstock_pipeline(tmp_path / "w.yaml")
