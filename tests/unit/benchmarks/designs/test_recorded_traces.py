"""Traces of the rows that transactions access when they run, and the designs that are known to be best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from benchmarks.designs.recorded_traces import record
from penstock.designing.cost import Choice, CostModel
from penstock.designing.search import Limits, SearchResult, search
from penstock.designing.traces.trace import Mode, Trace
from penstock.designing.workload import TableOption, Workload
from penstock.errors import InvalidUsageError
from penstock.procedures.databases import Database
from penstock.procedures.language import abort
from penstock.procedures.programs.oltp import OLTP
from penstock.procedures.programs.oltp.tatp import TatpScale
from penstock.procedures.programs.oltp.tpcc_data import TpccScale


def crew() -> Database:
    database = penstock.database("crew")
    columns = "id bigint, team bigint NOT NULL, name string"
    database.table("people", columns, key="id", indexes=["team", "name"])
    database.table("teams", "team bigint, members bigint NOT NULL", key="team", partition_by="team")

    @database.procedure(event="id bigint, team bigint")
    def move(e: Any, people: Any, teams: Any) -> Any:
        person = people.get(e.id)
        if person is None:
            people.insert(id=e.id, team=e.team)
        else:
            teams[person.team].members -= 1
            if e.team not in teams:
                abort("no team")
            person.team = e.team
        teams[e.team].members += 1

    @database.procedure(event="team bigint, name string")
    def rename(e: Any, people: Any) -> Any:
        for person in people.by("team")[e.team]:
            person.name = e.name

    @database.procedure(event="id bigint")
    def leave(e: Any, people: Any) -> Any:
        del people[e.id]

    return database


FIRST = {
    "people": {"id": [1, 2, 3], "team": [10, 10, 20], "name": ["a", "b", "c"]},
    "teams": {"team": [10, 20], "members": [2, 1]},
}


def accesses(trace: Trace) -> list[tuple[int, str, str, int, tuple[int | None, ...]]]:
    """Return transaction, table, mode, index and known key of each access."""
    found = []
    for place in range(len(trace.transaction)):
        spec = trace.tables[trace.table[place]]
        key = tuple(
            int(trace.values[column][place]) if trace.known[column][place] else None
            for column in range(len(spec.key))
        )
        mode = Mode(trace.mode[place]).name
        found.append((int(trace.transaction[place]), spec.name, mode, int(trace.index[place]), key))
    return sorted(found, key=str)


def test_each_access_is_recorded_with_its_key_and_index() -> None:
    requests = [
        ("move", {"id": [1, 9, 9], "team": [20, 10, 30]}),  # moved; new; rejected
        ("rename", {"team": [20], "name": ["d"]}),
        ("leave", {"id": [2]}),
    ]
    trace = record(crew(), requests, FIRST)
    both_indexes, of_team, of_name = 3, 1, 2
    assert accesses(trace) == sorted(
        [
            (0, "people", "READ", 0, (1,)), (0, "people", "WRITE", of_team, (1,)),
            (0, "teams", "READ", 0, (10,)), (0, "teams", "WRITE", 0, (10,)),
            (0, "teams", "READ", 0, (20,)), (0, "teams", "WRITE", 0, (20,)),
            (1, "people", "READ", 0, (9,)), (1, "people", "WRITE", both_indexes, (9,)),
            (1, "teams", "READ", 0, (10,)), (1, "teams", "WRITE", 0, (10,)),
            (2, "people", "READ", 0, (9,)), (2, "teams", "READ", 0, (30,)),
            (2, "teams", "READ", 0, (10,)), (2, "teams", "WRITE", 0, (10,)),
            # Person 1 is in team 20 by now.
            (3, "people", "SELECT", 0, (None,)),
            (3, "people", "FOUND", 0, (1,)), (3, "people", "WRITE", of_name, (1,)),
            (3, "people", "FOUND", 0, (3,)), (3, "people", "WRITE", of_name, (3,)),
            (4, "people", "WRITE", both_indexes, (2,)),
        ],
        key=str,
    )  # fmt: skip
    assert trace.procedures == ("move", "rename", "leave")
    assert trace.attributes == (("id", "team"), (), ("id",))


def test_a_look_up_finds_what_its_own_transaction_has_changed() -> None:
    database = penstock.database("crew")
    database.table("people", "id bigint, team bigint, name string", key="id", indexes=["team"])

    @database.procedure(event="id bigint, team bigint")
    def join(e: Any, people: Any) -> None:
        total = 0
        for person in people.by("team")[e.team]:
            total += person.id
        people[e.id].team = e.team
        for person in people.by("team")[e.team]:
            person.name = "x"

    trace = record(database, [("join", {"id": [1], "team": [20]})], FIRST_PEOPLE)
    assert {key for _, _, mode, _, key in accesses(trace) if mode == "FOUND"} == {(1,), (3,)}


@pytest.mark.parametrize(
    ("index", "singles"),
    [
        # By the hash of id: the look-up needs all partitions.
        (None, [False, True]),
        # With the index everywhere it needs those of the rows found, but a change of team needs all.
        (("team",), [True, False]),
        # Another index is of no use to the look-up, and the change leaves it.
        (("name",), [False, True]),
    ],
)
def test_a_replicated_index_serves_look_ups_and_costs_changes(
    index: tuple[str, ...] | None, singles: list[bool]
) -> None:
    database = penstock.database("crew")
    database.table("people", "id bigint, team bigint, name string", key="id", indexes=["team", "name"])

    @database.procedure(event="team bigint", returns="id bigint")
    def find(e: Any, people: Any) -> Any:
        person = people.by("team")[e.team].first()
        if person is None:
            abort("nobody")
        return person.id

    @database.procedure(event="id bigint, team bigint")
    def move(e: Any, people: Any) -> Any:
        people[e.id].team = e.team

    trace = record(database, [("find", {"team": [20]}), ("move", {"id": [1], "team": [30]})], FIRST_PEOPLE)
    workload = Workload.encode(trace, 4, compress=False)
    option = workload.options[0].index(TableOption("id", None, index))
    needed = CostModel(workload).masks(np.array([option]))
    assert (np.bitwise_count(needed) <= 1).tolist() == singles


FIRST_PEOPLE = {"people": FIRST["people"]}


def _best(
    name: str, scale: Any, count: int, partitions: int, memory: float | None = None
) -> tuple[Workload, SearchResult]:
    benchmark = OLTP[name]
    trace = record(
        benchmark.database,
        [("transact", benchmark.requests(scale, count, 1))],
        benchmark.tables(scale),
        kind="kind",
    )
    workload = Workload.encode(trace, partitions, 4)
    memory_bytes = None if memory is None else int(memory * trace.sizes.sum() / partitions)
    return workload, search(CostModel(workload, memory_bytes=memory_bytes), limits=Limits(seconds=600))


def _options(workload: Workload, choice: Choice) -> dict[str, TableOption]:
    chosen = zip(workload.names, workload.options, choice.tables.tolist(), strict=True)
    return {name: options[place] for name, options, place in chosen}


def test_the_best_design_of_tpc_c_is_by_warehouse_with_items_everywhere() -> None:
    workload, found = _best("tpcc", TpccScale(warehouses=8, districts=3, customers=10, items=60), 120, 4)
    options = _options(workload, found.choice)
    columns = {name: option.column for name, option in options.items()}
    assert columns.pop("items") is None
    assert columns.pop("history") == "c_w_id"
    assert set(columns.values()) == {"w_id"}
    assert all(option.index is None for option in options.values())
    for names, place in zip(workload.attributes, found.choice.routing.tolist(), strict=True):
        assert names[place] in ("w_id", "c_w_id")


def test_the_best_design_of_tatp_is_by_subscriber_with_the_index_of_numbers_everywhere() -> None:
    # Without a limit, a copy of the table that is only read is as good.
    workload, found = _best("tatp", TatpScale(300), 1_000, 16, memory=1.5)
    options = _options(workload, found.choice)
    assert {option.column for option in options.values()} == {"s_id"}
    assert {name: option.index for name, option in options.items() if option.index} == {
        "subscribers": ("sub_nbr",)
    }
    assert found.cost.single == 1.0
    routes = {names[place] for names, place in zip(workload.attributes, found.choice.routing, strict=True)}
    assert routes == {"s_id"}


def test_a_transaction_without_a_route_begins_anywhere() -> None:
    workload, found = _best("small_bank", OLTP["small_bank"].small, 200, 4)
    model = CostModel(workload)
    unrouted = np.zeros_like(found.choice.routing)
    cost = model.measure(Choice(found.choice.tables, unrouted))
    assert cost.single < 0.5 < found.cost.single


def test_only_procedures_over_tables_are_recorded() -> None:
    database = penstock.database("stream")
    database.table("t", "k bigint", key="k")
    stream = database.stream("s", "k bigint")

    @database.procedure(event="k bigint")
    def emit(e: Any, s: Any) -> None:
        s.emit(k=e.k)

    @database.procedure(event=stream)
    def take(e: Any, t: Any) -> None:
        t.insert(k=e.k)

    database.workflow("flow", emit, take)
    with pytest.raises(InvalidUsageError, match="only procedures over tables are recorded"):
        record(database, [("flow", pa.table({"k": [1]}))])
    with pytest.raises(InvalidUsageError, match="the trace has no transaction"):
        record(database, [])
