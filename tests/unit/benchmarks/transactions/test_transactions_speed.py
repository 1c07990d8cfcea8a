"""The benchmarked programs of transactions equal their peers in plain Python."""

from __future__ import annotations

import pytest

from benchmarks.transactions.transaction_dicts import DICTS, Locked
from benchmarks.transactions.transaction_peers import PEERS
from benchmarks.transactions.transactions_peers import digest
from benchmarks.transactions.transactions_speed import NAMES, Workload
from penstock.procedures.programs import PROGRAMS
from tests.transactions.procedures import comparable, contents, interpreted, results_of


@pytest.mark.parametrize("name", NAMES)
def test_plain_python_gives_the_results_of_a_program(name: str) -> None:
    compiled = PROGRAMS[name].procedure.program()
    compiled.__dict__["kernel"] = interpreted(compiled)
    workload = Workload(name, 2000, 40)
    try:
        state = workload.loaded()
        made = results_of([state.run(compiled, workload.events)])
    finally:
        del compiled.__dict__["kernel"]
    for plain in (DICTS[name](), Locked(DICTS[name](), threads=1)):
        plain.run(workload.program.opening(40))
        outcomes = [comparable(one) for one in plain.run(workload.events)]
        assert [row if len(row) > 1 else (None, *row) for row in made] == [
            (None, why) if why else (value, why) for value, why in outcomes
        ]
        tables = {table: sorted(map(comparable, rows)) for table, rows in plain.tables().items()}
        assert tables == contents(state, workload.program.database)


def test_threads_with_locks_keep_money_and_goods() -> None:
    workload = Workload("SL", 3000, 20)
    serial, locked = DICTS["SL"](), Locked(DICTS["SL"](), threads=2)
    for one in (serial, locked):
        one.run(workload.program.opening(20))
    transfers = [event for event in serial.events(workload.events) if event[0] == 2]
    before = sum(balance for _, balance in locked.tables()["accounts"])
    locked.each(transfers)
    assert sum(balance for _, balance in locked.tables()["accounts"]) == before


@pytest.mark.parametrize("name", NAMES)
def test_statements_of_duckdb_give_the_results_of_plain_python(name: str) -> None:
    digests = []
    for peer in (PEERS["duckdb"](name, 30), PEERS["dicts"](name, 30)):
        peer.prepare(PROGRAMS[name].workload(300, 30, 1))
        peer.run()
        digests.append(digest(peer))
        peer.close()
    assert digests[0] == digests[1]
