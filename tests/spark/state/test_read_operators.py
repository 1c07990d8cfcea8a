"""The rows of `read_state` for windows, joins and queues of other semantics follow from their input."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import InvalidUsageError
from tests.oracles.naive_join import NaiveJoin, Tuple
from tests.spark.queries import Input, Place, quotes
from tests.spark.state.test_gc import inspected

pytestmark = pytest.mark.spark

LEFT, RIGHT = "k long, t long, a string, c long", "b long, k long, t long"
READINGS = "t timestamp, k string, v double"
MOMENT = 1_700_000_000
_UTC = dt.UTC


def readings(rows: list[tuple[float, str | None, float]]) -> pa.Table:
    """Return readings at so many seconds after `MOMENT`."""
    micros = [round((MOMENT + t) * 1e6) for t, _, _ in rows]
    return pa.table(
        {
            "t": pa.array(micros, pa.timestamp("us", "UTC")),
            "k": pa.array([k for _, k, _ in rows], pa.string()),
            "v": [v for _, _, v in rows],
        }
    )


def seconds(moment: dt.datetime | None) -> float | None:
    """Return how long after `MOMENT` a time is that Spark gave, in a session of UTC."""
    return None if moment is None else moment.replace(tzinfo=_UTC).timestamp() - MOMENT


def windows(place: Place, spark: SparkSession, **options: Any) -> DataFrame:
    given: dict[str, Any] = {
        "key": "k",
        "time": "t",
        "aggs": {"rows": "count(*)", "total": "sum(v)"},
        "state_location": place.state,
        "buckets": 2,
    } | options
    return penstock.update_window(place.input.frame(spark, READINGS), **given)


def state(spark: SparkSession, place: Place, table: str | None = None) -> DataFrame:
    """Return a table of the committed state."""
    return penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table=table)


def either_way(spark: SparkSession, place: Place, table: str | None = None) -> DataFrame:
    """Return a table of the committed state. Without failures, the newest files hold the same table."""
    exact = state(spark, place, table)
    likely = penstock.read_state(spark, place.state, table=table)
    assert likely.schema == exact.schema
    assert Counter(map(str, likely.collect())) == Counter(map(str, exact.collect()))
    return exact


def spread(count: int) -> list[tuple[float, str | None, float]]:
    """Return readings of three groups, one without a name, up to 3 s out of order."""
    return [
        (i / 4 - (7 * i) % 13 / 4, ("a", "b", None)[i * i % 3 if i % 5 else 2], float(i))
        for i in range(count)
    ]


def test_the_panes_of_append_windows_are_what_no_closed_window_had_last(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, rows = Place(tmp_path), spread(160)
    place.input.add(*(readings(rows[begin : begin + 40]) for begin in range(0, 160, 40)))
    query = place.run(windows(place, spark, size="12 s", slide="5 s", watermark_delay="8 s", mode="append"))
    assert sum(m["late"] for m in penstock.metrics(query)) == 0
    newest = max(t for t, _, _ in rows) // 1
    # The panes of the first window that the watermark does not close, and those behind them. Windows begin
    # at multiples of their slide since 1970, and `MOMENT` is one.
    begin = (newest - 8 - 12) // 5 * 5 + 5
    expected: dict[tuple[str | None, float], list[float]] = defaultdict(list)
    for t, k, v in rows:
        if t >= begin:
            expected[k, t // 1].append(v)
    panes = either_way(spark, place)
    assert panes.columns == ["bucket", "version", "k", "pane_start", "count", "sum_v"]
    assert panes.schema["pane_start"].dataType.simpleString() == "timestamp"
    found: dict[tuple[str | None, Any], list[float]] = defaultdict(lambda: [0, 0.0])
    for row in panes.collect():
        pane = found[row["k"], seconds(row["pane_start"])]
        pane[0] += row["count"]
        pane[1] += row["sum_v"]
    assert dict(found) == {pane: [len(values), sum(values)] for pane, values in expected.items()}
    assert len(expected) > 20
    with pytest.raises(InvalidUsageError, match=r"the state has no such table: .*tables=\['panes'\]"):
        state(spark, place, "rows")


@pytest.mark.parametrize("mode", ["append", "lazy"])
def test_sums_beyond_64_bits_are_shown_beside_those_that_are_not(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    place, large = Place(tmp_path), 2**63 - 1
    rows = [(t, k, v) for t in (0, 1, 2) for k, v in (("a", large), ("b", 1), ("c", None))]
    times = pa.array([(MOMENT + t) * 10**6 for t, _, _ in rows], pa.timestamp("us", "UTC"))
    table = pa.table(
        {"t": times, "k": [k for _, k, _ in rows], "n": pa.array([v for *_, v in rows], pa.int64())}
    )
    place.input.add(table, table)
    df = penstock.update_window(
        place.input.frame(spark, "t timestamp, k string, n bigint"), key="k", time="t", size="1 hour",
        aggs={"mean": "avg(n)", "spread": "stddev(n)"}, mode=mode, state_location=place.state, buckets=2,
    )  # fmt: skip
    place.run(df)
    panes = either_way(spark, place, "panes")
    assert dict(panes.dtypes)["sum_n"] == "decimal(38,0)"
    totals = defaultdict(list)
    for row in panes.collect():
        totals[row["k"]].append((row["rows"], row["sum_n"], row["m2_n"]))
    assert {k: sum(count for count, *_ in some) for k, some in totals.items()} == dict.fromkeys("abc", 6)
    assert {k: sum(total or 0 for _, total, _ in some) for k, some in totals.items()} == {
        **{"a": 6 * large, "b": 6, "c": 0}
    }
    assert {m2 for k, some in totals.items() for *_, m2 in some if k != "c"} == {0.0}


def test_lazy_windows_have_groups_that_wait_and_panes_on_both_sides_of_the_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, rows = Place(tmp_path), [(t, k, v) for t, k, v in spread(160) if k != "b" or t < 12]
    place.input.add(readings(rows))
    df = windows(
        place, spark, size="15 s", slide="10 s", mode="lazy", budget=1, buckets=1, policy="linecutting"
    )
    place.run_until(df, lambda: len(place.batches()) >= 2)
    place.forget(1)
    (served,) = place.sequence("k", "window")
    with pytest.raises(InvalidUsageError, match=r"several tables: .*\['keys', 'settled', 'panes'\].*table="):
        state(spark, place)
    pane = {(t, k, v): t // 5 for t, k, v in rows}
    newest = int(max(pane.values()))
    by_key = {key: [int(pane[row]) for row in rows if row[1] == key] for key in ("a", "b", None)}
    # Of each group the newest window that is complete: its panes, of 5 s, are before the newest of all.
    complete = range(-2, newest - 2, 2)
    last = {
        key: max(start for start in complete if {start, start + 1, start + 2} & {*panes})
        for key, panes in by_key.items()
    }
    assert served[1]["start"].timestamp() - MOMENT == 5 * last[served[0]]
    keys = {row["k"]: row for row in state(spark, place, "keys").collect()}
    assert keys.keys() == by_key.keys()
    for key, row in keys.items():
        settled = max(p for p in by_key[key] if p < newest)
        assert seconds(row["newest_pane_start"]) == 5 * settled
        assert row["waiting"] == (key != served[0])
        assert seconds(row["waiting_start"]) == (5 * last[key] if row["waiting"] else None)
        assert (row["rank"] is not None) == (row["waiting_since_us"] is not None) == row["waiting"]
        assert (row["service"], row["committed_start"], row["seen_us"] > 0) == (None, None, True)
    (bucket,) = inspected(place, "--checkpoint", place.checkpoint)
    assert (bucket["rows"], bucket["waiting"]) == (len(keys), len(keys) - 1)
    held = Counter[tuple[Any, Any]]()
    for row in state(spark, place, "settled").collect():
        held[row["k"], seconds(row["pane_start"])] += row["count"]
    ahead = Counter[tuple[Any, Any]]()
    for row in state(spark, place, "panes").collect():
        ahead[row["k"], seconds(row["pane_start"])] += row["count"]
    expected = Counter((k, 5 * pane[row]) for row in rows for k in [row[1]])
    assert ahead == {one: count for one, count in expected.items() if one[1] == 5 * newest}
    # What no window to come has is gone: those before the one that waits, or that was served.
    first = {key: last[key] + 2 * (key == served[0]) for key in last}
    assert held == {
        (key, at): count for (key, at), count in expected.items() if 5 * first[key] <= at < 5 * newest
    }


def test_windows_of_rows_have_rows_that_are_not_numbered_and_panes_that_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, rows = Place(tmp_path), spread(90)
    place.input.add(readings(rows[:50]), readings(rows[50:]))
    aggs = {"rows": "count(*)", "odd": "sum(v % 2)"}
    place.run(
        windows(
            place,
            spark,
            size="12 rows",
            slide="8 rows",
            watermark_delay="4 s",
            mode="append",
            aggs=aggs,
            buckets=1,
        )
    )
    watermark = max(t for t, _, _ in rows) - 4
    waiting = either_way(spark, place, "rows")
    assert waiting.columns == ["bucket", "version", "k", "time", "v % 2"]
    assert Counter((row["k"], seconds(row["time"]), row["v % 2"]) for row in waiting.collect()) == Counter(
        (k, t, v % 2) for t, k, v in rows if t > watermark
    )
    numbered = Counter(k for t, k, _ in rows if t <= watermark)
    counts = state(spark, place, "counts").select("k", "numbered").collect()
    assert {row["k"]: row["numbered"] for row in counts} == dict(numbered)
    panes: Counter[tuple[str | None, int]] = Counter()
    for row in state(spark, place, "panes").collect():
        panes[row["k"], row["pane_row"]] += row["count"]
    # Of each group from the first window on that is not full: the last one that is begins 8 rows before.
    begin = {k: max((n - 12) // 8 + 1, 0) * 8 for k, n in numbered.items()}
    assert panes == {(k, at): min(4, n - at) for k, n in numbered.items() for at in range(begin[k], n, 4)}


def test_a_join_shows_its_last_matches_and_what_each_side_holds(spark: SparkSession, tmp_path: Path) -> None:
    place, second = Place(tmp_path), Input(tmp_path / "second")
    model = NaiveJoin(4, 3600, "b <> c")
    for number in range(3):
        left, right = (
            [Tuple(i % 5, 5 * number + i * 7 % (9 + side), (i * i + side) % 7) for i in range(20)]
            for side in range(2)
        )
        model.join(left, right)
        k, t, v = zip(*left, strict=True)
        place.input.add(pa.table({"k": k, "t": t, "a": [f"a {n}" for n in v], "c": v}))
        k, t, v = zip(*right, strict=True)
        second.add(pa.table({"b": v, "k": k, "t": t}))
    place.run(
        penstock.update_join(
            place.input.frame(spark, LEFT), second.frame(spark, RIGHT), "k", "t", "4 s", "b <> c",
            watermark_delay="1 h", unit="s", buckets=2, state_location=place.state,
        )
    )  # fmt: skip
    keys = state(spark, place, "keys")
    assert keys.columns == ["bucket", "version", "k", "matched_left", "matched_right"]
    assert sorted(tuple(row)[2:] for row in keys.collect()) == sorted(
        (key, left, right) for key, (_, left, right) in model.last.items()
    )
    held = either_way(spark, place, "held")
    assert held.columns == ["bucket", "version", "side", "k", "t", "a", "c", "b"]
    expected = [
        ("left", key, time, f"a {one.value}", one.value, None)
        for (key, time), one in model.sides[0].items()
        if time >= model.last[key][0] - 4
    ] + [
        ("right", key, time, None, None, one.value)
        for (key, time), one in model.sides[1].items()
        if time >= model.last[key][0] - 4
    ]
    assert sorted(map(str, (tuple(row)[2:] for row in held.collect()))) == sorted(map(str, expected))
    assert len(expected) > 10


@pytest.mark.parametrize("semantics", ["append", "adaptive"])
def test_a_queue_of_other_semantics_shows_its_keys_and_what_was_appended(
    spark: SparkSession, tmp_path: Path, semantics: str
) -> None:
    place = Place(tmp_path)
    rows = [(f"k{i % 4}", i if i % 6 else i - 5, float(i)) for i in range(10)]
    place.input.add(quotes(rows))
    df = place.queue(spark, buckets=1, budget=3, semantics=semantics)
    place.run_until(df, lambda: len(place.batches()) >= 2)
    place.forget(1)
    served = place.sequence()
    assert len(served) == 3
    newest: dict[str, int] = {}
    kept = []
    for k, t, v in rows:
        if semantics == "append" or t >= newest.get(k, t):
            kept.append((k, t, v))
            newest[k] = max(t, newest.get(k, t))
    appended = state(spark, place, "appended")
    assert appended.columns == ["bucket", "version", "place", "k", "t", "v", "arrived_us"]
    found = appended.orderBy("place").collect()
    assert [(row["k"], row["t"], row["v"]) for row in found] == kept[3:]
    assert [row["place"] for row in found] == list(range(3, len(kept)))
    keys = state(spark, place, "keys").select("k", "newest", "waiting", "v").collect()
    assert {row["k"]: tuple(row)[1:] for row in keys} == {k: (t, False, None) for k, t in newest.items()}
