"""Queues, unions and joins with late rows, and the rows that brute force drops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.checkpointing.p_stream import PStreamReader
from penstock.state_store.keys.key_words import KeyCodec
from tests.oracles import naive_join, naive_union
from tests.spark.queries import Input, Place

__all__ = ["SCHEMA", "WANTED", "WANTED_WITH_DELETES", "add", "deletes", "found", "query", "updates"]

SCHEMA = "k long, t long, v long, side long"
Dropped = Counter[tuple[Any, ...]]


def updates(seed: int, rows: int, files: int) -> list[list[dict[str, Any]]]:
    """Return micro-batches of updates of two sides, out of order, with ties; some have no key or time.

    Some keys have so few tuples that the newest ones of a micro-batch are older than earlier ones.
    """
    rng = np.random.default_rng(seed)
    found = []
    for number in range(files):
        k, t = rng.integers(0, rng.choice([12, 60], rows)), 20 * number + rng.integers(-25, 25, rows)
        no_key, no_time = rng.random(rows) < 0.05, rng.random(rows) < 0.05
        found.append([
            {
                "k": None if no_key[n] else int(k[n]),
                "t": None if no_time[n] else int(t[n]),
                "v": number * rows + n,
                "side": n % 2,
            }
            for n in range(rows)
        ])  # fmt: skip
    return found


def unusable(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    return [
        (row, "the key is null" if row["k"] is None else "the time is null")
        for row in rows
        if row["k"] is None or row["t"] is None
    ]


def usable(rows: list[dict[str, Any]], side: int) -> list[Any]:
    known = (row for row in rows if row["k"] is not None and row["t"] is not None and row["side"] == side)
    return [(row["k"], row["t"], row["v"]) for row in known]


def add(place: Place, batches: list[list[dict[str, Any]]]) -> None:
    """Add the rows of each micro-batch, in three groups that Spark may give to three tasks."""
    for rows in batches:
        table = pa.Table.from_pylist(rows, pa.schema({name: pa.int64() for name in ("k", "t", "v", "side")}))
        place.input.add(table, group_rows=max(len(rows) // 3, 1))


def of_union(batches: list[list[dict[str, Any]]], buckets: int = 2) -> Dropped:
    """Return what a union drops, in any number of buckets."""
    model, found = naive_union.NaiveUnion(by_value=True), Dropped()
    for rows in batches:
        model.dropped, emitted = [], dict(model.emitted)
        found.update((row["k"], row["t"], row["v"], why, None) for row, why in unusable(rows))
        model.enqueue([naive_union.Tuple(k, t, n, v) for n in (0, 1) for k, t, v in usable(rows, n)])
        found.update(
            (one.key, one.time, one.value, why, emitted[one.key] if why == "late" else None)
            for one, why in model.dropped
        )
        for key in list(model.waiting):
            model.take(key)
    return found


def of_queue(batches: list[list[dict[str, Any]]], buckets: int = 2) -> Dropped:
    """Return what a queue drops, in any number of buckets."""
    emitted: dict[int, int] = {}
    found = Dropped()
    for rows in batches:
        found.update((row["k"], row["t"], row["v"], why, None) for row, why in unusable(rows))
        known = [*usable(rows, 0), *usable(rows, 1)]
        newest = {key: max(t for k, t, _ in known if k == key) for key, _, _ in known}
        found.update((k, t, v, "late", emitted[k]) for k, t, v in known if newest[k] < emitted.get(k, -99))
        emitted |= {k: t for k, t in newest.items() if t >= emitted.get(k, -99)}
    return found


def of_join(batches: list[list[dict[str, Any]]], buckets: int = 2) -> Dropped:
    """Return what a join drops; each bucket has a watermark of its own."""
    models = [naive_join.NaiveJoin(6, 15, "b <> c") for _ in range(buckets)]
    return of_models(batches, models, lambda side, row: naive_join.Tuple(*row))


def of_join_with_deletes(batches: list[list[dict[str, Any]]], buckets: int = 2) -> Dropped:
    """Return what a join drops whose left rows delete their key if `deletes`."""
    models = [naive_join.DeletingJoin(6, 15, "b <> c") for _ in range(buckets)]
    return of_models(
        batches, models, lambda side, row: naive_join.Change(*row, side == 0 and deletes(row[2]))
    )


def deletes(value: int) -> bool:
    """Return whether a row deletes its key, in a graph with deletes."""
    return value % 5 == 0


def of_models(
    batches: list[list[dict[str, Any]]],
    models: Sequence[Any],
    make: Callable[[int, tuple[int, int, int]], Any],
) -> Dropped:
    """Return what the models of a join's buckets drop; `make` makes a model's tuple of a side."""
    names, dropped = ("left", "right"), Dropped()
    for rows in batches:
        dropped.update(
            (row["k"], row["t"], row["v"], why, None, names[row["side"]]) for row, why in unusable(rows)
        )
        # Values decide between equal tuples of a micro-batch.
        sides = [
            [make(side, one) for one in sorted(usable(rows, side), key=lambda one: one[2])] for side in (0, 1)
        ]
        for bucket, model in enumerate(models):
            model.dropped = []
            left, right = (
                [one for one in some if bucket_of(one.key, len(models)) == bucket] for some in sides
            )
            model.join(left, right)
            dropped.update(
                (one.key, one.time, one.value, why, missed, names[side])
                for side, one, why, missed in model.dropped
            )
    return dropped


@cache
def bucket_of(key: int, buckets: int) -> int:
    """Return the bucket of a key."""
    codec = KeyCodec([pa.field("k", pa.int64())])
    return int(codec.encode([pa.array([key])]).bucket(buckets)[0])


def query(spark: SparkSession, place: Place, kind: str, **options: Any) -> DataFrame:
    frame = place.input.frame(spark, SCHEMA)
    given: dict[str, Any] = {"key": "k", "time": "t", "nulls": "drop", "state_location": place.state}
    if kind == "queue":
        return penstock.update_queue(frame, **given, **options)
    one, other = (Input(place.input.directory).frame(spark, SCHEMA).where(f"side = {n}") for n in (0, 1))
    if kind == "union":
        return penstock.update_union({"one": one, "other": other}, prefer="one", **given, **options)
    left, right = one.select("k", "t", sf.col("v").alias("b")), other.select("k", "t", sf.col("v").alias("c"))
    return penstock.update_join(
        left, right, within="6 s", unit="s", watermark_delay="15 s", condition="b <> c", **given, **options
    )


def found(stream: Path, kind: str) -> Dropped:
    rows = PStreamReader(stream).read().to_pylist()
    if kind != "join":
        return Dropped((row["k"], row["t"], row["v"], row["reason"], row["watermark"]) for row in rows)
    return Dropped(
        (
            row["k"],
            row["t"],
            row["b" if row["side"] == "left" else "c"],
            row["reason"],
            row["watermark"],
            row["side"],
        )
        for row in rows
        if row["c" if row["side"] == "left" else "b"] is None
    )


WANTED = {"queue": of_queue, "union": of_union, "join": of_join}

WANTED_WITH_DELETES = WANTED | {"join": of_join_with_deletes}
"""For queues and unions, a delete is a tuple like others."""
