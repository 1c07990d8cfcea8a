"""The cost of designs against sets of partitions, and the search against all designs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from penstock.designing.cost import Choice, CostModel
from penstock.designing.search import Limits, SearchResult, search
from penstock.designing.workload import Workload
from tests.transactions.designs import (
    naive_cost,
    partitions_of,
    random_database,
    random_transactions,
    trace_of,
)

NO_ROUTES = 8


def _choices(workload: Workload) -> list[Choice]:
    routing = np.full(NO_ROUTES, -1, np.int64)
    places = itertools.product(*(range(len(options)) for options in workload.options))
    return [Choice(np.array(place, np.int64), routing) for place in places]


@pytest.mark.parametrize("seed", range(6))
def test_the_cost_is_that_of_sets_of_partitions(seed: int) -> None:
    draw = np.random.default_rng(seed)
    partitions, intervals = int(draw.choice([2, 3, 8, 64])), int(draw.integers(1, 5))
    database = random_database(draw, 3)
    transactions = random_transactions(draw, database, 60)
    trace = trace_of(database, transactions)
    compressed = Workload.encode(trace, partitions, intervals)
    whole = Workload.encode(trace, partitions, intervals, compress=False)
    assert whole.records == len(transactions) >= compressed.records
    assert compressed.weights.sum() == len(transactions)
    choices = _choices(compressed)
    for number in draw.choice(len(choices), min(len(choices), 12), replace=False):
        choice = choices[number]
        design = {
            name: options[option]
            for name, options, option in zip(
                compressed.names, compressed.options, choice.tables.tolist(), strict=True
            )
        }
        needed = [partitions_of(database, one, design, partitions) for one in transactions]
        expected = naive_cost(needed, partitions, intervals)
        for workload in (compressed, whole):
            cost = CostModel(workload, 5, 1).measure(choice)
            assert (cost.coordination, cost.skew, cost.single) == pytest.approx(expected, abs=1e-12)
            assert cost.total == pytest.approx((5 * expected[0] + expected[1]) / 6)


def test_the_cost_never_falls_as_more_is_chosen() -> None:
    draw = np.random.default_rng(7)
    for _ in range(5):
        database = random_database(draw, 4)
        model = CostModel(Workload.encode(trace_of(database, random_transactions(draw, database, 40)), 4))
        for choice in _choices(model.workload)[:40]:
            tables = choice.tables.copy()
            cost = model.measure(choice).total
            for table in range(len(tables)):
                tables[table] = -1
                bound = model.bound(model.masks(tables))
                assert bound <= cost + 1e-12
                cost = bound


def _search(model: CostModel, seed: int) -> SearchResult:
    return search(model, seed=seed, limits=Limits(seconds=600, rounds=25, exhaustive=0))


@pytest.mark.parametrize(
    ("cases", "tables"), [(20, 4), pytest.param(200, 5, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_the_search_finds_the_best_design_of_small_databases(cases: int, tables: int) -> None:
    draw = np.random.default_rng(3)
    count = best = 0
    for seed in range(cases):
        database = random_database(draw, tables)
        model = CostModel(Workload.encode(trace_of(database, random_transactions(draw, database, 50)), 4))
        choices = _choices(model.workload)
        least = min(model.measure(choice).total for choice in choices)
        found = _search(model, seed)
        assert model.measure(found.choice) == found.cost
        assert found.cost.total >= least - 1e-12
        best += found.cost.total <= least + 1e-12
        count += 1
    assert best >= 0.95 * count, f"{best} of {count}"


def test_the_search_finds_the_best_routes() -> None:
    draw = np.random.default_rng(11)
    best = 0
    for seed in range(20):
        database = random_database(draw, 2)
        transactions = random_transactions(draw, database, 40)
        # Attributes that hold a value of the first or last access in most or few transactions.
        routes = [
            {
                f"r{number}": next(
                    value
                    for value in (
                        *(one[place].key.values() if draw.random() < share else ()),
                        int(draw.integers(9)),
                    )
                    if isinstance(value, int)
                )
                for number, (place, share) in enumerate(((0, 0.7), (-1, 0.7), (0, 0.3)))
            }
            for one in transactions
        ]
        model = CostModel(Workload.encode(trace_of(database, transactions, routes), 3, 2))
        places = [range(len(names)) for names in model.workload.attributes]
        least = min(
            model.measure(Choice(choice.tables, np.array(routing, np.int64))).total
            for choice in _choices(model.workload)
            for routing in itertools.product(*places)
        )
        found = _search(model, seed)
        assert found.cost.total >= least - 1e-12
        best += found.cost.total <= least + 1e-12
    assert best >= 19, f"{best} of 20"


def test_equal_seeds_find_equal_designs() -> None:
    draw = np.random.default_rng(5)
    database = random_database(draw, 6)
    trace = trace_of(database, random_transactions(draw, database, 80))
    found = [_search(CostModel(Workload.encode(trace, 8)), 9) for _ in range(2)]
    assert found[0].choice.tables.tolist() == found[1].choice.tables.tolist()
    assert (found[0].cost, found[0].designs) == (found[1].cost, found[1].designs)
