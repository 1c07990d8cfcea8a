"""The benchmark of transactions measures programs that do what its plain Python does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.transactions_speed import (
    WORKLOADS,
    Workload,
    loaded,
    plain_events,
    plain_tables,
    sqlite_rate,
    streaming_ledger,
)
from tests.procedures import interpreted


@pytest.mark.parametrize("make", WORKLOADS)
def test_a_workload_gives_the_results_of_plain_python(make: Callable[[int, int], Workload]) -> None:
    workload = make(2000, 40)
    program = workload.procedure.program()
    program.__dict__["kernel"] = interpreted(program)
    state = loaded(workload)
    made = state.run(program, workload.events).to_pylist()
    tables = plain_tables(workload)
    expected = [workload.plain(event, *tables) for event in plain_events(workload, 2000)]
    assert [row["rejected"] or next(iter(row.values())) for row in made] == expected
    for (name, spec), rows in zip(workload.database.tables.items(), tables, strict=True):
        if name == "seen":
            assert len(state[name]) == len(rows)
            continue
        for row in state[name].table().to_pylist():
            values = [row[column] for column in spec.names[1:]]
            assert rows[row["id"]] == (values[0] if len(values) == 1 else values)


def test_statements_of_sqlite_run() -> None:
    assert sqlite_rate(streaming_ledger(100, 40), 100) > 0
