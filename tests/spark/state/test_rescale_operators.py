"""Windows and joins continue over a rewritten copy of their state as if they had been so from the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock import _durable
from penstock.checkpointing.files import LocalFiles
from penstock.errors import InvalidUsageError
from penstock.spark_ext.api.metrics import metrics
from tests.long_tests import long_but
from tests.spark.queries import Input, Place

pytestmark = pytest.mark.spark

SCHEMA = "k string, t long, v int, side long"
WINDOWS: dict[str, dict[str, Any]] = {
    "time": {"size": "16 s", "slide": "4 s"},
    "lazy": {"size": "16 s", "slide": "4 s", "mode": "lazy"},
    "rows": {"size": "4 rows", "slide": "2 rows"},
    "session": {"session": "3 s"},
}
TABLES = {"rows": "panes", "lazy": "panes", "join": "held"}


def rows(batch: int) -> pa.Table:
    rng = np.random.default_rng(batch)
    count = 80
    return pa.table(
        {
            "k": pa.array([f"key {n}" if n else None for n in rng.integers(0, 25, count)]),
            "t": pa.array(15 * batch + rng.integers(-12, 20, count)),
            "v": pa.array(rng.integers(0, 100, count), pa.int32()),
            "side": pa.array(np.arange(count) % 2),
        }
    )


def query(spark: SparkSession, place: Place, kind: str, buckets: int, **more: Any) -> DataFrame:
    given: dict[str, Any] = {
        "key": "k",
        "time": "t",
        "unit": "s",
        "state_location": place.state,
        "buckets": buckets,
    }
    if kind in WINDOWS:
        aggs = {
            "n": "count(*)",
            "total": "sum(v)",
            "first": "first(v)",
            "mean": "avg(v)",
            "kinds": "count(DISTINCT v)",
        }
        if kind == "rows":
            del aggs["kinds"]
        frame = place.input.frame(spark, SCHEMA)
        if (wide := more.pop("wide", None)) is not None:
            frame = frame.withColumn("v", sf.col("v").cast(wide))
        return penstock.update_window(
            frame, aggs=aggs, watermark_delay="6 s", **WINDOWS[kind], **given, **more
        )
    frames = [
        Input(place.input.directory).frame(spark, SCHEMA).where(f"side = {n} AND k IS NOT NULL")
        for n in (0, 1)
    ]
    kinds = more.pop("kinds", ("int", "int"))
    b, c = (sf.col("v").cast(one) for one in kinds)
    left = frames[0].select("k", "t", b.alias("b"), *more.pop("left", ()))
    right = frames[1].select("k", "t", c.alias("c"))
    return penstock.update_join(
        left, right, within="9 s", watermark_delay="1000 s", condition="b <> c", **given, **more
    )


def emitted(*places: Place) -> list[str]:
    return sorted(
        repr(row) for place in places for table in place.batches().values() for row in table.to_pylist()
    )


@pytest.mark.parametrize(
    ("kind", "buckets"),
    [
        ("time", 5),
        ("join", 2),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("rows", 2), ("session", 5), ("join", 5), ("lazy", 2))
        ),
    ],
)
def test_a_rescaled_query_emits_what_one_with_these_buckets_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, buckets: int
) -> None:
    old, whole = Place(tmp_path / "old"), Place(tmp_path / "whole")
    for place, count in ((old, 3), (whole, buckets)):
        place.input.add(*(rows(batch) for batch in range(3)))
        place.run(query(spark, place, kind, count))
    before = {path: path.read_bytes() for path in old.checkpoint.rglob("*") if path.is_file()}
    with monkeypatch.context() as broken:
        _break_later(broken, buckets // 2 + 1)
        with pytest.raises(_KilledError):
            penstock.rescale_state(old.checkpoint, old.state, tmp_path / "new", buckets=buckets)
    parts: list[tuple[int, int]] = []
    made = penstock.rescale_state(
        old.checkpoint,
        old.state,
        tmp_path / "new",
        buckets=buckets,
        progress=lambda *done: parts.append(done),
    )
    assert (made.old_buckets, made.buckets, parts[-1]) == (3, buckets, (buckets + 1, buckets + 1))
    assert before == {path: path.read_bytes() for path in before}
    shown = penstock.read_state(spark, old.state, checkpoint=tmp_path / "new", table=TABLES.get(kind))
    kept = penstock.read_state(spark, whole.state, checkpoint=whole.checkpoint, table=TABLES.get(kind))
    assert _content(shown) == _content(kept) != []
    new = Place(tmp_path / "old")
    new.checkpoint, new.sink = tmp_path / "new", tmp_path / "new-sink"
    late = []
    for place in (new, whole):
        place.input.add(*(rows(batch) for batch in range(3, 6)))
        again = metrics(place.run(query(spark, place, kind, buckets)))
        late.append(sum(one["late"] for one in again if one["batch_id"] > 2))
    assert emitted(old, new) == emitted(whole)
    assert late[0] == late[1] and (late[0] or kind in ("join", "time"))


def _content(shown: DataFrame) -> list[str]:
    """Return the rows of a state, wherever they are."""
    return sorted(repr(row) for row in shown.drop("version").collect())


class _KilledError(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def _break_later(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Let the next writes be done, and no further ones."""
    left = writes
    publish, replace = LocalFiles.publish, _durable.replace

    def counted() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise _KilledError

    def published(*given: Any) -> Any:
        counted()
        return publish(*given)

    def replaced(*given: Any) -> Any:
        counted()
        return replace(*given)

    monkeypatch.setattr(LocalFiles, "publish", published)
    monkeypatch.setattr(_durable, "replace", replaced)


@pytest.mark.long
def test_a_migrated_join_emits_what_one_with_these_columns_does(spark: SparkSession, tmp_path: Path) -> None:
    old, whole = Place(tmp_path / "old"), Place(tmp_path / "whole")
    more = [sf.expr("CAST(IF(t > 60, concat('more ', v), NULL) AS string) AS more")]
    for place, given in ((old, {}), (whole, {"left": more, "kinds": ("int", "long")})):
        place.input.add(*(rows(batch) for batch in range(3)))
        place.run(query(spark, place, "join", 3, **given))
    with pytest.raises(InvalidUsageError, match="a join has the schemas of its sides"):
        penstock.migrate_state(old.checkpoint, old.state, tmp_path / "new", schema="k string")
    with pytest.raises(InvalidUsageError, match="cannot hold all old values exactly"):
        penstock.migrate_state(
            old.checkpoint, old.state, tmp_path / "new", schema={"right": "k string, t bigint, c smallint"}
        )
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob("new*"))
    made = penstock.migrate_state(
        old.checkpoint,
        old.state,
        tmp_path / "new",
        schema={"left": "k string, t bigint, b int, more string", "right": "k string, t bigint, c bigint"},
    )
    assert (made.added, made.widened) == (("more",), ("c",))
    new = Place(tmp_path / "old")
    new.checkpoint, new.sink = tmp_path / "new", tmp_path / "new-sink"
    for place in (new, whole):
        place.input.add(*(rows(batch) for batch in range(3, 6)))
        place.run(query(spark, place, "join", 3, left=more, kinds=("int", "long")))
    found = [row for table in new.batches().values() for row in table.to_pylist()]
    after = [row for batch, table in whole.batches().items() if batch > 2 for row in table.to_pylist()]
    # The left tuples of the first micro-batches are older than any that has the new column.
    assert sorted(map(repr, found)) == sorted(map(repr, after))
    assert {row["more"] is None for row in found} == {True, False}


@pytest.mark.parametrize("kind", long_but(["time", "lazy", "rows", "session"], "lazy"))
def test_migrated_windows_emit_what_ones_over_a_wider_column_do(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    old, whole = Place(tmp_path / "old"), Place(tmp_path / "whole")
    for place, wide in ((old, None), (whole, "long")):
        place.input.add(*(rows(batch) for batch in range(3)))
        place.run(query(spark, place, kind, 2, wide=wide))
    with pytest.raises(InvalidUsageError, match="cannot hold all old values exactly: column=v"):
        penstock.migrate_state(
            old.checkpoint, old.state, tmp_path / "new", schema="k string, t bigint, v smallint"
        )
    with pytest.raises(InvalidUsageError, match="only a join has several schemas"):
        penstock.migrate_state(old.checkpoint, old.state, tmp_path / "new", schema={"left": "k string"})
    assert not list(tmp_path.glob("new*"))
    made = penstock.migrate_state(
        old.checkpoint, old.state, tmp_path / "new", schema="k string, t bigint, v bigint, side bigint"
    )
    assert (made.added, made.widened) == ((), ("v",))
    new = Place(tmp_path / "old")
    new.checkpoint, new.sink = tmp_path / "new", tmp_path / "new-sink"
    for place in (new, whole):
        place.input.add(*(rows(batch) for batch in range(3, 6)))
        place.run(query(spark, place, kind, 2, wide="long"))
    after = [row for batch, table in whole.batches().items() if batch > 2 for row in table.to_pylist()]
    assert emitted(new) == sorted(map(repr, after)) != []
