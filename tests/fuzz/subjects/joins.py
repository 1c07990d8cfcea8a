"""Random update streams through a join, and through a model that looks at all pairs."""

from __future__ import annotations

import random
from datetime import timedelta

import pyarrow as pa

import penstock
from tests.fuzz.case import Case
from tests.oracles.naive_join import NaiveJoin, Tuple
from tests.spark.queries import Input, Place, fresh_workers

_CONDITIONS = [None, "b <> c", "b > 7", "(b + c) % 3 = 0 AND c <> 1"]


def check(case: Case) -> None:
    """Run a join over random updates, with a restart, and compare each micro-batch with the model's."""
    draw = case.random
    within, delay = draw.choice([0, 2, 4, 20]), draw.choice([0, 5, 3600])
    condition = draw.choice(_CONDITIONS)
    count, keys = draw.randint(2, 4), draw.choice([1, 8, 30])
    # The model says of one bucket what is late; of several each has a watermark of its own.
    buckets = 1 if delay < 3600 else draw.randint(1, 4)
    place, second = Place(case.directory), Input(case.directory / "second")
    model, expected = NaiveJoin(within, delay, condition), []
    counted = dict.fromkeys(("rows_in", "late", "duplicates", "freed", "emitted"), 0)
    held = rows_in = 0
    restart = draw.randint(1, count - 1)
    for begin, end in ((0, restart), (restart, count)):
        for number in range(begin, end):
            left, right = (_some(draw, number, keys) for _ in range(2))
            place.input.add(_table(left, "c"))
            second.add(_table(right, "b"))
            expected.append(model.join(left, right))
            rows_in += len(left) + len(right)
        df = penstock.update_join(
            place.input.frame(case.spark, "k long, t long, c long"),
            second.frame(case.spark, "k long, t long, b long"),
            "k", "t", timedelta(seconds=within), condition, watermark_delay=f"{delay} s", unit="s",
            buckets=buckets, state_location=place.state,
        )  # fmt: skip
        with fresh_workers(case.spark):
            query = place.run(df)
        for metrics in penstock.metrics(query):
            for name in counted:
                counted[name] += metrics[name]
            held = metrics["held"]
    rows = place.rows("k", "t", "c", "b")
    assert [sorted(rows.get(number, [])) for number in range(count)] == expected
    assert rows_in == counted.pop("rows_in")
    assert rows_in == counted["late"] + counted["duplicates"] + counted.pop("freed") + held
    told = {"late": model.late, "duplicates": model.duplicates, "emitted": sum(map(len, expected))}
    if condition is None and counted["duplicates"] < told["duplicates"]:
        # The join counts those of what it holds; without a condition it lets go of what the model keeps.
        told["duplicates"] = counted["duplicates"]
    assert counted == told, f"counted {counted}, the model {told}"


def _some(draw: random.Random, number: int, keys: int) -> list[Tuple]:
    return [
        Tuple(draw.randrange(keys), 6 * number + draw.randint(-12, 6), draw.randint(0, 9))
        for _ in range(draw.randint(1, 50))
    ]


def _table(tuples: list[Tuple], value: str) -> pa.Table:
    columns = {"k": [one.key for one in tuples], "t": [one.time for one in tuples]}
    columns[value] = [one.value for one in tuples]
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
