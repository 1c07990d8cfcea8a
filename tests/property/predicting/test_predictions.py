"""Probability tables solve linear equations, and predictions leave the serial order as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.designing.traces.queries import Query
from penstock.errors import FencedError
from penstock.predicting.models import runtime_kernels
from penstock.predicting.models.estimates import Walker
from penstock.predicting.models.markov import ABORT, COMMIT, MarkovModel, bits
from penstock.predicting.models.parameters import EventParameters
from penstock.predicting.models.walk_kernels import FIXED, IMPOSSIBLE, UNKNOWN
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import Run
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.language import abort
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.partitions.predicted import guard_kernels, guards, run
from penstock.procedures.partitions.predicted.call import MAX_KEPT_ENTRIES, UndoLog
from penstock.procedures.partitions.predicted.prediction import Prediction, StoredPredictor
from penstock.procedures.partitions.predicted.run import PredictionLimits, use_predictor
from penstock.procedures.schema import TableSpec
from tests.oracles import naive_walks
from tests.property.procedures.partitions.test_partitions import BANK, RANGES, Call, calls, tables
from tests.property.procedures.partitions.test_partitions import run as run_calls
from tests.transactions.procedures import interpreted, interpreted_source

WRITES = [False, True, True]
NUMBERS = st.integers(-(2**63), 2**63 - 1)
QUERIES = st.lists(st.builds(Query, st.integers(0, 2), st.integers(0, 7)), max_size=5)


@given(st.lists(st.tuples(QUERIES, st.booleans()), min_size=1, max_size=12))
def test_tables_solve_the_equations_of_the_chain(transactions: list[tuple[list[Query], bool]]) -> None:
    model = MarkovModel(3, WRITES)
    for queries, aborted in transactions:
        model.add(queries, aborted=aborted)
    model.process()
    count = len(model)
    matrix = np.array([[model.probability(one, other) for other in range(count)] for one in range(count)])
    ends = np.isin(np.arange(count), [COMMIT, ABORT])

    def solve(fixed: dict[int, float], at_ends: float = 0.0) -> np.ndarray:
        """Return the expected value at each vertex, given the values of some vertices."""
        equations, right = np.eye(count) - matrix, np.zeros(count)
        for vertex, value in {**dict.fromkeys(np.flatnonzero(ends).tolist(), at_ends), **fixed}.items():
            equations[vertex] = np.eye(count)[vertex]
            right[vertex] = value
        return np.linalg.solve(equations, right)

    reached = np.array([bool(edges) for edges in model.edges]) | ends
    assert np.allclose(model.abort, solve({ABORT: 1.0}))
    wide = {
        vertex: 0.0
        for vertex, state in enumerate(model.states)
        if (state.partitions | state.previous).bit_count() > 1
    }
    assert np.allclose(model.single[reached], solve(wide, 1.0)[reached])
    for partition in range(3):
        here = [vertex for vertex, state in enumerate(model.states) if partition in bits(state.partitions)]
        reads = dict.fromkeys([vertex for vertex in here if not WRITES[model.states[vertex].name]], 1.0)
        changes = dict.fromkeys([vertex for vertex in here if WRITES[model.states[vertex].name]], 1.0)
        assert np.allclose(model.reads[:, partition], solve(reads))
        assert np.allclose(model.changes[:, partition], solve(changes))
        # To have finished is that no later query is here, so that a vertex here counts only once it is left.
        arrival = solve(dict.fromkeys(here, 0.0), 1.0)
        expected = np.where(ends, 1.0, matrix @ arrival)
        assert np.allclose(model.finish[:, partition], expected)


class Sources:
    """The partitions of three queries: those of an attribute, of the elements of a list, or none.

    An attribute may also limit how often a query is executed.
    """

    def __init__(self, kinds: list[str], limits: list[tuple[str, str]]) -> None:
        self.kinds, self.limited = kinds, [limit for limit, _ in limits]
        self.required = [role == "required" for _, role in limits]
        self.last = [role == "last" for _, role in limits]

    def limits(self, names: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        places = {"none": [-1, -1], "value": [0, -1], "list": [1, -1], "both": [1, 0]}
        bounds = np.array([places[limit] for limit in self.limited])
        return bounds, np.array(self.required), np.array(self.last)

    def sources(self, names: int) -> tuple[np.ndarray, np.ndarray]:
        places = {"value": [0, 0], "list": [1, 1], "first": [1, UNKNOWN], "fixed": [FIXED] * 2}
        source = np.array([places.get(kind, [UNKNOWN] * 2) for kind in self.kinds])
        return np.array([5 if kind == "fixed" else 0 for kind in self.kinds], np.uint64), source

    def of(self, value: int, elements: list[int]) -> Callable[[int, int], int]:
        """Return the partitions of a query as `naive_walks.estimate` takes them."""

        def partitions(query: int, counter: int) -> int:
            kind = self.kinds[query]
            number = UNKNOWN
            if self.limited[query] in ("value", "both") and value < 0:
                return IMPOSSIBLE
            if self.limited[query] in ("list", "both") and counter >= len(elements):
                return IMPOSSIBLE
            if kind == "fixed":
                return 5
            if kind == "value":
                number = value
            elif kind == "list" or (kind == "first" and counter == 0):
                if counter >= len(elements):
                    return IMPOSSIBLE
                number = elements[counter]
            return UNKNOWN if number < 0 else 1 << number

        return partitions


EVENTS = st.lists(
    st.tuples(st.integers(-1, 2), st.lists(st.integers(-1, 2), max_size=3)), min_size=1, max_size=6
)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.tuples(QUERIES, st.booleans()), min_size=1, max_size=12), min_size=1, max_size=2),
    st.lists(st.sampled_from(["value", "list", "first", "fixed", "none"]), min_size=3, max_size=3),
    st.lists(
        st.tuples(
            st.sampled_from(["none", "value", "list", "both"]), st.sampled_from(["", "required", "last"])
        ),
        min_size=3,
        max_size=3,
    ),
    EVENTS,
    st.sampled_from([0.1, 0.5, 1.0]),
)
def test_walks_equal_those_of_a_plain_walker(
    traces: list[list[tuple[list[Query], bool]]],
    kinds: list[str],
    limits: list[tuple[str, str]],
    events: list[tuple[int, list[int]]],
    threshold: float,
) -> None:
    models = []
    for transactions in traces:
        model = MarkovModel(3, WRITES)
        for queries, aborted in transactions:
            model.add(queries, aborted=aborted)
        model.process()
        models.append(model)
    sources = Sources(kinds, limits)
    scalars = np.array([value for value, _ in events])
    starts = np.cumsum([0, *(len(elements) for _, elements in events)])
    flat = np.array([number for _, elements in events for number in elements], np.int64)
    values = EventParameters([(None, scalars), (starts, flat)], len(events))
    walker = Walker(models, WRITES, sources, threshold)  # type: ignore[arg-type]
    for number, model in enumerate(models):
        numbers = np.full(len(events), number)
        partitions, written, undo = walker.walk(values, np.arange(len(events)), numbers)
        for event, (value, elements) in enumerate(events):
            expected = naive_walks.estimate(
                model, sources.of(value, elements), threshold, WRITES, sources.required, sources.last
            )
            assert walker.estimate(values, event, number) == expected
            found = partitions[event], written[event], undo[event]
            assert found == (expected.partitions, expected.written, expected.needs_undo)


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=6), st.integers(0, 3))
def test_codes_have_numbers_in_the_order_of_their_first_occurrence(calls: list[list[int]], bits: int) -> None:
    slots, slot_numbers = np.zeros(16, np.uint64), np.full(16, -1)
    known: dict[int, int] = {}
    for call in calls:
        codes = np.array(call, np.uint64) << np.uint64(bits)  # they fall into few slots
        before = len(known)
        expected = [known.setdefault(code, len(known)) for code in call]
        numbers, first = np.empty((2, len(call)), np.int64)
        new = runtime_kernels.find_numbers(codes, slots, slot_numbers, before, numbers, first)
        assert numbers.tolist() == expected
        assert new == len(known) - before
        assert [call[place] for place in first[:new]] == list(known)[before:]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 2)), max_size=30))
def test_votes_find_what_most_transactions_accessed(transactions: list[tuple[int, int, int]]) -> None:
    numbers, touched, predicted = np.array(transactions, np.int64).reshape(-1, 3).T
    candidates, votes = np.zeros(2, np.uint64), np.zeros(2, np.int64)
    masks = touched.astype(np.uint64), predicted.astype(np.uint64)
    right = runtime_kernels.count_votes(numbers, *masks, candidates, votes)
    assert right == sum(one == other for _, one, other in transactions)
    for number in (0, 1):
        seen = [mask for one, mask, _ in transactions if one == number]
        for mask in set(seen):
            if 2 * seen.count(mask) > len(seen):
                assert (candidates[number], votes[number] > 0) == (mask, True)


@given(
    st.integers(1, 64).flatmap(
        lambda count: st.tuples(
            st.just(count), st.none() | st.lists(NUMBERS, min_size=count - 1, max_size=count - 1, unique=True)
        )
    ),
    st.lists(NUMBERS, min_size=1, max_size=20),
)
def test_a_guard_knows_the_partition_of_each_row(
    placed: tuple[int, list[int] | None], numbers: list[int]
) -> None:
    partitions, ranges = placed
    spec = TableSpec.parse("t", "k bigint", ("k",), "k")
    placement = Placement(spec, partitions, None if ranges is None else sorted(ranges))
    expected = placement.partitions_of(placement.columns, [pa.array(numbers, pa.int64())]).tolist()
    bounds = [] if ranges is None else [5, len(ranges), *sorted(ranges)]
    head = [0, partitions, 0, 0, 5 if ranges is not None else 0]
    guard, touched = np.array(head + bounds[1:], np.int64), np.zeros(1, np.int64)
    for number, place in zip(numbers, expected, strict=True):
        guard[0] = touched[0] = 0
        assert guard_kernels.leaves(guard, touched, 0, 1, number)
        assert touched.view(np.uint64)[0] == 1 << place
        guard[0] = touched[0]
        assert not guard_kernels.leaves(guard, touched, 0, 1, number)
    assert guard_kernels.needs_all(guard, touched, 0) == (partitions > 1)
    assert touched.view(np.uint64)[0] == (1 << partitions) - 1


class Guesses:
    """Predictions that are drawn: mostly wrong, or with a partition too many or too few."""

    def __init__(self, seed: int, style: str) -> None:
        self._draw, self._style = np.random.default_rng(seed), style
        self._partitions = 1
        self.right = self.wrong = self.asked = 0

    def bind(self, database: str, partitions: int, placements: Mapping[str, Placement]) -> Guesses:
        self._partitions = partitions
        return self

    def predict(self, program: Program, events: pa.RecordBatch) -> Prediction:
        self.asked += 1
        draw, count = self._draw, events.num_rows
        every = (1 << self._partitions) - 1
        masks = draw.integers(0, every, count, np.uint64, endpoint=True)
        if self._style == "nearly all":
            few = draw.random(count) < 0.2
            masks = np.where(few, masks, np.uint64(every))
        if self._style == "one":
            masks = np.uint64(1) << draw.integers(0, self._partitions, count, np.uint64)
        written = draw.integers(0, every, count, np.uint64, endpoint=True)
        if draw.random() < 0.8:
            written &= masks
        if draw.random() < 0.5:
            written = masks
        return Prediction(masks, written, draw.random(count) < draw.choice([0.0, 0.5, 1.0]))

    def observe(self, touched: np.ndarray) -> None:
        self.right += 1

    def correct(self, event: int, touched: int) -> None:
        self.wrong += 1


USED = PredictionLimits(max_forwarded=1.0)
KERNELS: dict[tuple[str, bool], Callable[..., int]] = {}


@pytest.fixture(autouse=True)
def _guards_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(program: Program, placements: Mapping[str, Placement], *, undo: bool) -> Callable[..., int]:
        key = (program.digest, undo)
        if key not in KERNELS:
            KERNELS[key] = interpreted_source(guards.guarded_source(program, placements, undo=undo))
        return KERNELS[key]

    monkeypatch.setattr(run, "load_guarded", load)


def open_guessing(
    database: Database,
    partitions: int,
    guesses: StoredPredictor,
    limits: PredictionLimits = USED,
    **options: Any,
) -> OpenDatabase:
    """Open a database whose guesses are used also if they forward all transactions."""
    db = database.open(partitions=partitions, **options)
    use_predictor(db._state, database.name, guesses, {}, limits)
    return db


@pytest.mark.parametrize(("partitions", "ranged", "max_copied"), [(2, False, 0), (3, True, 16)])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=calls(), seed=st.integers(0, 99), style=st.sampled_from(["random", "nearly all", "one"]))
def test_any_guess_equals_the_serial_order(
    partitions: int,
    ranged: bool,
    max_copied: int,
    made: list[Call],
    seed: int,
    style: str,
) -> None:
    limits = replace(USED, max_copied=max_copied)
    ranges = RANGES[partitions] if ranged else None
    guesses = Guesses(seed, style)
    with BANK.open() as serial, open_guessing(BANK, partitions, guesses, limits, ranges=ranges) as db:
        assert run_calls(db, made) == run_calls(serial, made)
        assert tables(db) == tables(serial)
        assert db._state.transactions == serial._state.transactions
        assert db._state.rows == serial._state.rows


def chain() -> Database:
    """Return a database whose transactions access rows that the event does not name."""
    database = penstock.database("chain")
    database.table("nodes", "id bigint, next bigint NOT NULL, n bigint NOT NULL", key="id", partition_by="id")
    database.table("rates", "id bigint, rate bigint NOT NULL", key="id")

    @database.procedure(event="id bigint, steps bigint, most bigint", returns="seen bigint")
    def walk(e: Any, nodes: Any, rates: Any) -> Any:
        node = nodes[e.id]
        node.n += rates[1].rate
        for step in range(e.steps):
            if step < 3:
                node = nodes[node.next]
                node.n += 1
        if node.n > e.most:
            abort("too many")
        return node.n

    @database.procedure(event="id bigint", returns="n bigint")
    def look(e: Any, nodes: Any) -> Any:
        return nodes[nodes[e.id].next].n

    for procedure in database.procedures.values():
        program = procedure.program()
        assert isinstance(program, Program)
        program.__dict__["kernel"] = interpreted(program)
    return database


CHAIN = chain()
NODES = 12


def fill(db: OpenDatabase, seed: int) -> dict[str, dict[str, Any]]:
    nexts = np.random.default_rng(seed).integers(0, NODES, NODES)
    rows = {
        "nodes": {"id": range(NODES), "next": nexts.tolist(), "n": [0] * NODES},
        "rates": {"id": [1], "rate": [2]},
    }
    for name, table in rows.items():
        db.load(name, table)
    return rows


def walks(draw: np.random.Generator, count: int) -> dict[str, Any]:
    return {
        "id": draw.integers(0, NODES, count).tolist(),
        "steps": draw.integers(0, 3, count).tolist(),
        "most": draw.choice([5, 10**6], count).tolist(),
    }


@pytest.mark.parametrize("style", ["random", "nearly all", "one"])
@pytest.mark.parametrize("seed", range(3))
def test_guesses_for_rows_that_no_event_names(seed: int, style: str) -> None:
    limits = replace(USED, max_copied=16 * (seed % 2))  # without copies, undo logs undo a call
    draw = np.random.default_rng(seed)
    guesses = Guesses(seed, style)
    with CHAIN.open() as serial, open_guessing(CHAIN, 3, guesses, limits) as db:
        for one in (serial, db):
            fill(one, seed)
        for _ in range(12):
            events = walks(draw, int(draw.integers(1, 8)))
            for name, part in (("walk", events), ("look", {"id": events["id"]})):
                assert db.run(name, part) == serial.run(name, part)
        assert db.table("nodes").sort_by("id") == serial.table("nodes").sort_by("id")
    assert guesses.right + guesses.wrong == 24
    assert guesses.wrong
    if style == "nearly all":
        assert guesses.right


def test_trained_predictions_are_used_and_equal_the_serial_order() -> None:
    draw = np.random.default_rng(5)
    with CHAIN.open() as serial:
        rows = fill(serial, 1)
        trace = [("walk", walks(draw, 600)), ("look", {"id": draw.integers(0, NODES, 300).tolist()})]
        predictor = penstock.predict(CHAIN, trace, tables=rows, partitions=3).predictor
        with open_guessing(CHAIN, 3, predictor) as db, CHAIN.open(partitions=3) as without:
            for one in (db, without):
                fill(one, 1)
            for _ in range(40):
                events = walks(draw, 20)
                for name, part in (("walk", events), ("look", {"id": events["id"]})):
                    assert db.run(name, part) == serial.run(name, part)
                    without.run(name, part)
            assert db.table("nodes").sort_by("id") == serial.table("nodes").sort_by("id")
            state, plain = db._state, without._state
            assert isinstance(state, PartitionedTables)
            assert isinstance(plain, PartitionedTables)
            runs = state.predicted
            assert runs is not None
            assert runs.transactions > 800
            assert runs.late > 0
            assert plain.forwarded == 1_600 > state.forwarded
            assert f"predicted: {runs.transactions} transactions" in db.explain()


def test_a_replica_predicts_before_and_after_it_takes_over(tmp_path: Path) -> None:
    class Homes(Guesses):
        def bind(self, database: str, partitions: int, placements: Mapping[str, Placement]) -> Guesses:
            self._placement = placements["nodes"]
            return super().bind(database, partitions, placements)

        def predict(self, program: Program, events: pa.RecordBatch) -> Prediction:
            homes = self._placement.partitions_of(self._placement.columns, [events.column("id")])
            masks = np.uint64(1) << homes.astype(np.uint64)
            return Prediction(masks, masks, np.ones(events.num_rows, np.bool_))

    draw, predictor = np.random.default_rng(3), Homes(0, "")
    with CHAIN.open() as serial, CHAIN.open(tmp_path) as db:
        for one in (serial, db):
            fill(one, 1)
        events = walks(draw, 5) | {"steps": [0] * 5}  # no transaction needs another partition
        assert db.run("walk", events) == serial.run("walk", events)
        assert db._log is not None
        db._log._writer.flush()
        following = CHAIN.follow(tmp_path, poll_interval="1 day", partitions=2, predictor=predictor)
        following.catch_up()
        assert predictor.right == 1
        with following.take_over() as new:
            assert new.run("walk", events) == serial.run("walk", events)
            assert new.table("nodes").sort_by("id") == serial.table("nodes").sort_by("id")
        assert predictor.right == 2
        with contextlib.suppress(FencedError):
            db.close()


def test_predictions_that_forward_most_transactions_pause() -> None:
    limits = PredictionLimits(useless_pause=2)
    draw, guesses = np.random.default_rng(1), Guesses(0, "nearly all")
    with CHAIN.open() as serial, open_guessing(CHAIN, 2, guesses, limits) as db:
        for one in (serial, db):
            fill(one, 2)
        state = db._state
        assert isinstance(state, PartitionedTables)
        assert state.predicted is not None
        program = CHAIN.procedures["walk"].program()
        declined, asked = [], []
        for number in range(12):
            guesses._style = "one" if number == 6 else "nearly all"
            events = walks(draw, 8)
            assert db.run("walk", events) == serial.run("walk", events)
            declined.append(state.predicted.declines(program))
            asked.append(guesses.asked)
        assert declined == [True] * 6 + [False] + [True] * 5
        assert asked == [1, 1, 1, 2, 2, 2, 3, 4, 4, 4, 5, 5]
        assert guesses.right + guesses.wrong == 1
        assert db.table("nodes").sort_by("id") == serial.table("nodes").sort_by("id")


def test_calls_that_would_copy_many_rows_leave_the_rows_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = replace(USED, max_copied=NODES / 4)
    draw, guesses = np.random.default_rng(1), Guesses(0, "all")
    with CHAIN.open() as serial, open_guessing(CHAIN, 2, guesses, limits) as db:
        for one in (serial, db):
            fill(one, 2)
        state = db._state
        assert isinstance(state, PartitionedTables)
        monkeypatch.setattr(run, "can_undo_calls", lambda program: False)
        for number in range(8):
            events = walks(draw, 3)
            assert db.run("walk", events) == serial.run("walk", events)
            # No call moves the rows to the partitions.
            assert not number or state.gathered.names == {"nodes"}
        assert guesses.asked == 0
        events = walks(draw, 4)
        assert db.run("walk", events) == serial.run("walk", events)
        assert guesses.asked == 1  # there is no pause
        assert state.gathered.names == set()
        assert db.table("nodes").sort_by("id") == serial.table("nodes").sort_by("id")


def test_calls_with_many_rows_are_undone_by_logs_that_grow() -> None:
    homes = np.zeros(0, np.int64)

    class Homes(Guesses):
        def predict(self, program: Program, events: pa.RecordBatch) -> Prediction:
            masks = np.uint64(1) << homes[events.column("id").to_numpy()].astype(np.uint64)
            return Prediction(masks, masks, np.ones(events.num_rows, np.bool_))

    predictor = Homes(0, "")
    limits = replace(USED, max_copied=0)
    with CHAIN.open() as serial, open_guessing(CHAIN, 2, predictor, limits) as db:
        state = db._state
        assert isinstance(state, PartitionedTables)
        placement = state.placements["nodes"]
        homes = placement.partitions_of(placement.columns, [pa.array(range(NODES))])
        far = [int(np.flatnonzero(homes != home)[0]) for home in homes]  # the next node is elsewhere
        for one in (serial, db):
            one.load("nodes", {"id": range(NODES), "next": far, "n": [0] * NODES})
            one.load("rates", {"id": [1], "rate": [2]})
        assert state.predicted is not None
        logs = state.predicted._logs
        for last_steps in (0, 1):
            for log in logs.values():
                log.arrays = Run.own_room(1)[1]
            ids = [number % NODES for number in range(5 * NODES)]
            events = {"id": ids, "steps": [0] * (len(ids) - 1) + [last_steps], "most": [99] * len(ids)}
            assert db.run("walk", events) == serial.run("walk", events)
            assert db.table("nodes").sort_by("id") == serial.table("nodes").sort_by("id")
        assert (predictor.right, predictor.wrong) == (1, 1)
        assert all(len(logs[id(part)].arrays[0]) > 8 for part in state.partition_tables)
        assert all(log.run is None for log in logs.values())  # no log keeps the events of a call


def test_calls_before_which_many_gathered_rows_would_move_leave_them_gathered() -> None:
    guesses, database = Guesses(0, "all"), chain()
    database.table("others", "id bigint, n bigint", key="id", partition_by="id")
    with open_guessing(database, 2, guesses, replace(USED, max_copied=3)) as db:
        fill(db, 2)
        db.load("others", {"id": range(NODES), "n": range(NODES)})
        gathered = db._state.gathered  # type: ignore[union-attr]
        assert gathered.choose(["others"], 0, 1, knows_rows=False)
        for _ in range(2):
            db.run("look", {"id": [1, 2, 3]})
            assert (guesses.asked, gathered.names) == (0, {"others", "nodes"})
        db.run("look", {"id": [1] * 8})
        assert (guesses.asked, gathered.names) == (1, set())


@pytest.mark.parametrize(("nodes", "late"), [(2, 1), (NODES, 0)])
def test_a_call_has_no_more_waves_if_these_would_move_more_rows_than_it_has_events(
    nodes: int, late: int
) -> None:
    class Fixed(Guesses):
        def predict(self, program: Program, events: pa.RecordBatch) -> Prediction:
            masks = np.array([3, mask, 3], np.uint64)  # the third one would need another wave
            return Prediction(masks, np.zeros(3, np.uint64), np.ones(3, np.bool_))

    with open_guessing(CHAIN, 2, Fixed(0, "")) as db:
        db.load("nodes", {"id": range(nodes), "next": range(nodes), "n": [7] * nodes})
        state = db._state
        assert isinstance(state, PartitionedTables)
        placement = state.placements["nodes"]
        mask = 1 << int(placement.partitions_of(placement.columns, [pa.array([1])])[0])
        assert db.run("look", {"id": [0, 1, 0]})["n"].to_pylist() == [7, 7, 7]
        assert state.predicted is not None
        assert state.predicted.late == late
        assert state.predicted.transactions == 3


def test_a_late_transaction_beside_a_write_that_was_not_predicted_runs_again() -> None:
    class Fixed(Guesses):
        def predict(self, program: Program, events: pa.RecordBatch) -> Prediction:
            return Prediction(np.array([3, 2], np.uint64), np.zeros(2, np.uint64), np.ones(2, np.bool_))

    fixed = Fixed(0, "")
    with CHAIN.open() as serial, open_guessing(CHAIN, 2, fixed) as db:
        state = db._state
        assert isinstance(state, PartitionedTables)
        placement = state.placements["nodes"]
        places = placement.partitions_of(placement.columns, [pa.array(range(NODES))])
        first, second = (int(np.flatnonzero(places == place)[0]) for place in (0, 1))
        for one in (serial, db):
            one.load("nodes", {"id": [first, second], "next": [second, second], "n": [0, 0]})
            one.load("rates", {"id": [1], "rate": [2]})
        events = {"id": [first, second], "steps": [1, 0], "most": [99, 99]}
        assert db.run("walk", events) == serial.run("walk", events)
        assert db.table("nodes").sort_by("id") == serial.table("nodes").sort_by("id")
    assert (fixed.right, fixed.wrong) == (0, 1)


def test_a_large_undo_log_is_dropped_after_its_call() -> None:
    log, small = UndoLog(), len(UndoLog().arrays[0])
    while len(log.arrays[0]) <= MAX_KEPT_ENTRIES:
        log.grow()
    log.release()
    assert len(log.arrays[0]) == small
