"""Windows of all kinds on the local engine, against SQL and plain Python."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock import _failpoints
from penstock.checkpointing.p_stream import PStreamReader
from penstock.cli import app
from penstock.jobs.local.pipeline import open_pipeline
from penstock.jobs.pipelines.run import run_to_end
from tests.unit.local_engine.test_local_engine import append, out, pipeline, query, sorted_rows, updates

ROWS = updates(400, keys=3)
AGGREGATES = {"n": "count(*)", "mean": "avg(v)", "most": "max(v)", "newest": "last(v)"}
WINDOW = {"time": "t", "unit": "s", "size": "60 s", "slide": "20 s"}
NAMES = ("k", "w", "n", "mean", "most", "newest")


def windows(place: Path, **sections: Any) -> Any:
    return pipeline(place, group_by=["k"], aggregates=AGGREGATES, persist="never", **sections)


def results(place: Path) -> list[dict[str, Any]]:
    return [
        row | {part: int(row["window"][of].timestamp()) for part, of in (("w", "start"), ("end", "end"))}
        for row in out(place)
    ]


def of_window(window: str, rows: pa.Table = ROWS) -> list[tuple[Any, ...]]:
    """Return the aggregates of windows of 60 s by 20 s, by SQL."""
    text = f"""
        SELECT k, w, count(*), avg(v), max(v), arg_max(v, t)
        FROM rows, range(-40, 1000, 20) AS windows(w)
        WHERE t >= w AND t < w + 60 GROUP BY k, w {window} ORDER BY k, w
    """
    return query(text, rows)


CLOSED = "HAVING w + 60 <= (SELECT max(t) // 20 * 20 FROM rows)"


def test_lazy_windows_are_the_newest_complete_ones(tmp_path: Path) -> None:
    by_key = itertools.groupby(of_window(CLOSED), lambda row: row[0])
    newest = [max(some, key=lambda row: row[1]) for _, some in by_key]
    append(tmp_path / "in", ROWS)
    run_to_end(windows(tmp_path, window=WINDOW | {"mode": "lazy"}))
    assert sorted_rows(results(tmp_path), *NAMES) == newest


@pytest.mark.parametrize("mode", ["append", "lazy", "eager"])
def test_windows_in_parts_and_after_a_crash_are_those_that_sql_has(tmp_path: Path, mode: str) -> None:
    budget = {"budget": 2} if mode != "append" else {}
    running = windows(tmp_path, window=WINDOW | {"mode": mode} | budget)
    for number, point in enumerate(["local.after_plan", "local.after_write", "local.after_commit"]):
        append(tmp_path / "in", ROWS.slice(100 * number, 100))
        opened = open_pipeline(running)
        with _failpoints.armed({point: "error"}), pytest.raises(_failpoints.InjectedError):
            opened.step()
    append(tmp_path / "in", ROWS.slice(300))
    run_to_end(running)
    found, closed = sorted_rows(results(tmp_path), *NAMES), of_window(CLOSED)
    assert len({row[:2] for row in found}) == len(found), "each window once"
    assert set(found) <= set(closed)
    assert found if mode != "append" else found == closed


def test_windows_of_rows_are_counted_from_the_first_row(tmp_path: Path) -> None:
    append(tmp_path / "in", ROWS.slice(0, 250))
    of_rows = windows(tmp_path, window={"time": "t", "unit": "s", "size": "10 rows", "slide": "5 rows"})
    run_to_end(of_rows)
    append(tmp_path / "in", ROWS.slice(250))
    run_to_end(of_rows)
    expected = []
    for key in ("k0", "k1", "k2"):
        own = [row for row in ROWS.to_pylist() if row["k"] == key]
        for begin in range(0, len(own) - 9, 5):
            part = own[begin : begin + 10]
            values = [row["v"] for row in part]
            expected.append((key, part[0]["t"], part[-1]["t"], 10, sum(values) / 10, max(values), values[-1]))
    assert sorted_rows(results(tmp_path), "k", "w", "end", *NAMES[2:]) == expected


def test_sessions_end_a_gap_after_their_last_row(tmp_path: Path) -> None:
    append(tmp_path / "in", ROWS.slice(0, 170))
    sessions = windows(tmp_path, window={"time": "t", "unit": "s", "session": "6 s"}, having="n > 1")
    run_to_end(sessions)
    append(tmp_path / "in", ROWS.slice(170))
    run_to_end(sessions)
    text = """
        WITH marked AS (
            SELECT *, t - lag(t, 1, -10) OVER (PARTITION BY k ORDER BY t) >= 6 AS begins FROM rows
        ), numbered AS (SELECT *, sum(begins::INT) OVER (PARTITION BY k ORDER BY t) AS s FROM marked)
        SELECT k, min(t), max(t) + 6, count(*), avg(v), max(v), arg_max(v, t) FROM numbered GROUP BY k, s
        HAVING max(t) + 6 <= (SELECT max(t) FROM rows) AND count(*) > 1 ORDER BY k, min(t)
    """
    expected = query(text, ROWS)
    assert len(expected) > 20
    assert sorted_rows(results(tmp_path), "k", "w", "end", *NAMES[2:]) == expected


def test_a_row_that_deletes_its_key_takes_its_older_rows_out_of_windows(tmp_path: Path) -> None:
    append(tmp_path / "in", ROWS)
    run_to_end(windows(tmp_path, window={"time": "t", "unit": "s", "size": "60 s", "delete_when": "v < 3"}))
    expected = []
    for key, begin in itertools.product(("k0", "k1", "k2"), range(0, 360, 60)):
        own = [row for row in ROWS.to_pylist() if row["k"] == key and begin <= row["t"] < begin + 60]
        deletes = [at for at, row in enumerate(own) if row["v"] < 3]
        kept = [row["v"] for row in own[(deletes[-1] + 1 if deletes else 0) :]]
        values = (len(kept), sum(kept) / len(kept), max(kept), kept[-1]) if kept else (None,) * 4
        expected.append((key, begin, *values, not kept))
    found = [tuple(row[name] for name in (*NAMES, "deleted")) for row in results(tmp_path)]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert any(row[-1] for row in expected) or not any(row["deleted"] for row in results(tmp_path))


def test_rows_behind_the_watermark_go_into_a_p_stream(tmp_path: Path) -> None:
    append(tmp_path / "in", ROWS.slice(0, 200))
    late = {"time": "t", "unit": "s", "size": "60 s", "late_to": str(tmp_path / "late")}
    tumbling = windows(tmp_path, window=late)
    run_to_end(tumbling)
    older = updates(120, keys=3, seed=9, first=100)
    append(tmp_path / "in", older)
    run_to_end(tumbling)
    # Windows of 60 s have closed up to 180.
    expected = [(row["k"], row["t"], row["v"], 180) for row in older.to_pylist() if row["t"] < 180]
    found = PStreamReader(tmp_path / "late").read().to_pylist()
    assert {row["reason"] for row in found} == {"late"}
    assert sorted_rows(found, "k", "t", "v", "watermark") == sorted(expected)


def test_a_silent_key_gets_a_row_that_says_so(tmp_path: Path) -> None:
    rows = pa.table({"k": ["a", "b", "b"], "t": [1, 2, 300], "v": [1.0, 2.0, 3.0]}, ROWS.schema)
    append(tmp_path / "in", rows)
    lives = {"size": "60 s", "mode": "lazy", "ttl": "100 s", "on_silent": "row"}
    silent = windows(tmp_path, window={"time": "t", "unit": "s"} | lives)
    run_to_end(silent)
    found = {(row["k"], row["w"], row["n"], row["mean"], row["silent"]) for row in results(tmp_path)}
    assert ("a", 0, None, None, True) in found
    assert ("a", 0, 1, 1.0, False) in found
    assert ("b", 0, 1, 2.0, False) in found


def test_rows_are_looked_up_before_windows(tmp_path: Path) -> None:
    append(tmp_path / "in", ROWS)
    names = tmp_path / "names.csv"
    names.write_text("k,side\nk0,left\nk1,right\nk2,left\n")
    table = {
        "format": "csv", "path": str(names), "schema": "k STRING, side STRING", "options": {"header": "true"}
    }  # fmt: skip
    run_to_end(
        pipeline(
            tmp_path, lookup={"table": table, "key": "k"}, window=WINDOW, group_by=["side"],
            aggregates={"n": "count(*)", "most": "max(v)"}, persist="never",
        )
    )  # fmt: skip
    text = f"""
        SELECT CASE k WHEN 'k1' THEN 'right' ELSE 'left' END AS side, w, count(*), max(v)
        FROM rows, range(-40, 1000, 20) AS windows(w) WHERE t >= w AND t < w + 60 GROUP BY ALL {CLOSED}
        ORDER BY side, w
    """
    assert sorted_rows(results(tmp_path), "side", "w", "n", "most") == query(text, ROWS)


def test_windows_are_aggregated_by_window(tmp_path: Path) -> None:
    append(tmp_path / "in", ROWS)
    by_window = {"aggregates": {"keys": "count(*)", "all": "sum(n)", "mean_most": "avg(most)"}}
    run_to_end(windows(tmp_path, window=WINDOW, by_window=by_window))
    sums: dict[int, list[Any]] = {}
    for _, w, n, _, most, _ in of_window(CLOSED):
        sums.setdefault(w, []).append((n, most))
    expected = [
        (w, len(some), sum(n for n, _ in some), sum(most for _, most in some) / len(some))
        for w, some in sorted(sums.items())
    ]
    assert sorted_rows(results(tmp_path), "w", "keys", "all", "mean_most") == expected


JOINS: dict[str, tuple[dict[str, Any], str]] = {
    "others": (
        {"window": {"size": "20 s"}, "group_by": ["k"], "aggregates": {"few": "count(*)"}, "key": ["k"],
         "condition": "few > 6"},
        "SELECT a.k, a.w + 40 AS w, a.n, b.n AS few FROM longer a JOIN shorter b ON a.k = b.k AND "
        "b.w = a.w + 40 WHERE few > 6",
    ),
    "itself by window": (
        {"by_window": {"aggregates": {"few": "min(n)"}}, "condition": "n = few"},
        "SELECT a.k, a.w + 40, a.n, b.few FROM longer a JOIN (SELECT w, min(n) AS few FROM longer GROUP BY w)"
        " b ON a.w = b.w WHERE a.n = b.few",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", JOINS)
def test_windows_that_end_together_are_joined(tmp_path: Path, case: str) -> None:
    join, text = JOINS[case]
    joined = windows(tmp_path, window=WINDOW, window_join=join)
    for some in (ROWS.slice(0, 130), ROWS.slice(130)):
        append(tmp_path / "in", some)
        run_to_end(joined)
    made = "SELECT k, w, count(*) AS n FROM rows, range(-40, 1000, 20) AS windows(w) WHERE t >= w AND t < w +"
    ended = "(SELECT max(t) // 20 * 20 FROM rows)"
    with duckdb.connect() as connection:
        connection.register("rows", ROWS)
        sides = ", ".join(
            f"{name} AS ({made} {size} GROUP BY k, w HAVING w + {size} <= {ended})"
            for name, size in (("longer", 60), ("shorter", 20))
        )
        expected = connection.sql(f"WITH {sides} {text} ORDER BY ALL").fetchall()
    assert len(expected) > 10
    assert sorted_rows(results(tmp_path), "k", "w", "n", "few") == expected


STEPS = {
    "window": "window: {time: time, size: 1 s}",
    "rows": "window: {time: time, size: 10 rows}",
    "queue": "queue: {key: symbol, time: time}",
}
SOURCES = {
    "market": "{type: market, rows: 500, real_time: false, start_time: 2026-01-01T00:00:00Z}",
    "files": "{type: files, format: csv, path: in, schema: 'symbol string, time timestamp, price double'}",
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("step", STEPS)
def test_the_commands_accept_the_checkpoint_of_the_same_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, step: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("in", "a.csv").write_text("A,2026-01-01T00:00:01Z,1\nB,2026-01-01T00:00:03Z,2\n")
    grouped = "group_by: [symbol]\naggregates: {n: count(*)}\n" if step != "queue" else ""
    Path("p.yaml").write_text(
        f"engine: local\nsource: {SOURCES[source]}\n{STEPS[step]}\n{grouped}sink: {{type: noop}}\n"
        "query: {trigger: available_now, checkpoint: checkpoint}\n"
    )
    for command in (["run", "p.yaml"], ["run", "p.yaml"], ["check", "p.yaml"]):
        ran = CliRunner().invoke(app, command)
        assert ran.exit_code == 0, ran.output
