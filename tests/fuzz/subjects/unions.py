"""Random update streams through a union of two or three, and through a plain model."""

from __future__ import annotations

import random

import pyarrow as pa

import penstock
from tests.fuzz.case import Case
from tests.oracles.naive_union import NaiveUnion, Tuple
from tests.spark.model import LONGS
from tests.spark.queries import Input, Place, fresh_workers


def check(case: Case) -> None:
    """Run a union over random updates, with a restart, and compare each micro-batch with the model's."""
    draw = case.random
    sources, count, keys = draw.randint(2, 3), draw.randint(2, 4), draw.choice([2, 9, 40])
    prefer = draw.choice([None, *range(sources)])
    place = Place(case.directory)
    inputs = [place.input, *(Input(case.directory / f"input {n}") for n in range(1, sources))]
    model, expected, late, duplicates, total = NaiveUnion(), [], 0, 0, 0
    restart, buckets = draw.randint(1, count - 1), draw.randint(1, 4)
    for begin, end in ((0, restart), (restart, count)):
        for number in range(begin, end):
            batch = [_some(draw, source, number, keys) for source in range(sources)]
            for one, tuples in zip(inputs, batch, strict=True):
                one.add(_table(tuples))
            given = [tuple_ for tuples in batch for tuple_ in tuples]
            total += len(given)
            # The source whose truth wins has the least number, all others are alike.
            model.enqueue(
                [one._replace(source=int(one.source != prefer and prefer is not None)) for one in given]
            )
            expected.append(sorted(model.take(key) for key in list(model.waiting)))
        df = penstock.update_union(
            *(one.frame(case.spark, LONGS) for one in inputs), key="k", time="t", prefer=prefer,
            buckets=buckets, combine=draw.random() < 0.5, state_location=place.state,
        )  # fmt: skip
        with fresh_workers(case.spark):
            query = place.run(df)
        for metrics in penstock.metrics(query):
            late += metrics["late"]
            duplicates += metrics["duplicates"]
            total -= metrics["rows_in"]
    rows = place.rows()
    assert [sorted(rows.get(number, [])) for number in range(count)] == expected
    assert (total, late, duplicates) == (0, model.late, model.duplicates)


def _some(draw: random.Random, source: int, number: int, keys: int) -> list[Tuple]:
    return [
        Tuple(draw.randrange(keys), 4 * number + draw.randint(-5, 6), source, draw.randint(0, 999))
        for _ in range(draw.randint(1, 60))
    ]


def _table(tuples: list[Tuple]) -> pa.Table:
    columns = {"k": [one.key for one in tuples], "t": [one.time for one in tuples]}
    columns["v"] = [one.value for one in tuples]
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
