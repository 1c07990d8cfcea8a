"""`penstock.predict`: from a trace to models, their mappings and their accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app
from penstock.designing.traces.queries import Query
from penstock.designing.traces.recording import record
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.databases import database_in
from penstock.predicting.accuracy import judge
from penstock.predicting.mappings import find_bounds
from penstock.predicting.models.markov import ABORT, BEGIN, COMMIT, MarkovModel
from penstock.predicting.models.predictor import Predictor
from penstock.predicting.training import Samples, train
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.language import abort
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.procedures.partitions.placement import place_tables
from penstock.procedures.replicas.replica import Replica
from tests.transactions.procedures import interpreted

STORES, ITEMS, PARTITIONS = 8, 10, 4


def shop() -> Database:
    """Return a database with a procedure whose path depends on its event, and one that may abort."""
    database = penstock.database("shop")
    stock = "store bigint, item bigint, count bigint NOT NULL"
    database.table("stock", stock, key=("store", "item"), partition_by="store")
    database.table("stores", "store bigint, orders bigint NOT NULL", key="store", partition_by="store")
    database.table("orders", "store bigint, number bigint", key=("store", "number"), partition_by="store")

    @database.procedure(event="store bigint, sources array<bigint>, item bigint")
    def order(e: Any, stores: Any, stock: Any, orders: Any) -> Any:
        store = stores[e.store]
        store.orders += 1
        for source in e.sources:
            row = stock[(source, e.item)]
            row.count -= 1
        orders.insert(store=e.store, number=store.orders)

    @database.procedure(event="store bigint, item bigint, least bigint")
    def take(e: Any, stock: Any) -> Any:
        row = stock[(e.store, e.item)]
        row.count -= 1
        if row.count < e.least:
            abort("too few")

    @database.procedure(event="store bigint, item bigint", returns="count bigint")
    def look(e: Any, stock: Any) -> Any:
        return stock[(e.store, e.item)].count

    for procedure in database.procedures.values():
        program = procedure.program()
        assert isinstance(program, Program)
        program.__dict__["kernel"] = interpreted(program)
    return database


def rows() -> dict[str, dict[str, Any]]:
    pairs = [(store, item) for store in range(STORES) for item in range(ITEMS)]
    stores, items = zip(*pairs, strict=True)
    return {
        "stock": {"store": stores, "item": items, "count": [1_000] * len(pairs)},
        "stores": {"store": range(STORES), "orders": [0] * STORES},
    }


def requests(count: int = 200, seed: int = 1) -> dict[str, dict[str, Any]]:
    draw = np.random.default_rng(seed)
    store, item = draw.integers(0, STORES, count), draw.integers(0, ITEMS, count)
    sources = [
        [int(one) if draw.random() < 0.9 else int(draw.integers(STORES)) for _ in range(draw.integers(1, 4))]
        for one in store
    ]
    return {
        "order": {"store": store, "sources": sources, "item": item},
        "take": {"store": store, "item": item, "least": np.where(draw.random(count) < 0.3, 5_000, 0)},
        "look": {"store": store, "item": item},
    }


def test_the_accuracy_is_measured_and_features_make_it_better() -> None:
    together = penstock.predict(shop(), requests(), tables=rows(), clustered=False)
    apart = penstock.predict(shop(), requests(), tables=rows())
    assert together.total.transactions == apart.total.transactions == 300
    (models,) = [one for one in apart.predictor.procedures if one.procedure == "take"]
    assert "value(least)" in map(str, models.features)
    assert len(models.models) > 1
    # Without `least`, a model cannot know whether a transaction is rejected.
    assert together.accuracy["take"].share("no_undo") < apart.accuracy["take"].share("no_undo")
    # The length of the list limits how often the loop runs, so one model is enough.
    assert together.accuracy["order"].share("total") > 0.95
    assert apart.accuracy["look"].share("total") == 1.0
    assert apart.accuracy["look"].share("no_undo") == 1.0


def test_a_transaction_that_aborts_never_lacks_its_undo_log() -> None:
    result = penstock.predict(shop(), requests(), tables=rows())
    take = result.accuracy["take"]
    assert take.share("undo") == 1.0
    assert 0.5 < take.share("no_undo") < 0.8  # a model for those whose `least` is low


def test_mappings_are_exact_where_the_compiler_knows_them() -> None:
    text = penstock.predict(shop(), requests(), tables=rows(), clustered=False).explain().splitlines()
    for line in (
        "predictor of shop for 4 partitions",
        "  look: 1 model, 4 states",
        "    read stores: store is e.store, the compiler knows",
        "    read stock: store is e.sources, in 100.0% of the trace",
        "    insert orders: store is e.store, the compiler knows",
        "    read stock: once for each element of e.sources",
    ):
        assert line in text, "\n".join(text)
    assert not any("number is e" in line for line in text)


def test_the_digits_of_a_text_are_the_number_of_a_row() -> None:
    made = penstock.database("phones")
    owner = "id bigint, number string NOT NULL, calls bigint NOT NULL"
    made.table("owners", owner, key="id", partition_by="id", indexes=["number"])

    @made.procedure(event="number string")
    def call(e: Any, owners: Any) -> Any:
        owner = owners.by("number")[e.number].first()
        if owner is None:
            abort("unknown number")
        owner.calls += 1

    texts = [f"{number:06}" for number in range(30)]
    rows = {"owners": {"id": range(30), "number": texts, "calls": [0] * 30}}
    events = {"number": [*(texts[n * 7 % 30] for n in range(100)), *["12x", None, "9" * 25] * 2]}
    result = penstock.predict(made, {"call": events}, tables=rows, clustered=False)
    assert (
        "    write owners: id is the digits of e.number, in 100.0% of the trace"
        in result.explain().splitlines()
    )
    assert result.total.share("base") == 1.0
    read = Predictor.parse(result.to_json())
    assert read.procedures[0].sources == result.predictor.procedures[0].sources
    placement = place_tables(made.tables, PARTITIONS, {})
    (models,) = read.procedures
    program = made.procedures["call"].program()
    parameters = models.parameters(program.event, placement, PARTITIONS)
    values = parameters.read(pa.record_batch({"number": ["000007", "7", "7x", None, "9" * 25]}))
    home = placement["owners"].partitions_of(placement["owners"].columns, [pa.array([7])])[0]
    assert [values.signature(event) for event in range(5)] == [(home,)] * 2 + [(-1,)] * 3


def test_queries_are_recorded_in_order_with_their_partitions() -> None:
    made = shop()
    events = {"store": [0, 1], "sources": [[0, 5], [7]], "item": [0, 99]}
    (trace,) = record(made, [("order", events)], rows())
    assert [str(name) for name in trace.names] == [
        "read stores", "write stores", "read stock", "write stock", "insert orders"
    ]  # fmt: skip
    placements = place_tables(made.tables, PARTITIONS, {})
    place = placements["stores"].partitions_of(placements["stores"].columns, [pa.array(range(STORES))])
    home, other, second, third = (1 << int(place[store]) for store in (0, 5, 1, 7))
    assert trace.place(placements, PARTITIONS) == [
        [Query(0, home), Query(1, home), Query(2, home), Query(3, home), Query(2, other), Query(3, other),
         Query(4, home)],
        [Query(0, second), Query(1, second), Query(2, third)],
    ]  # fmt: skip
    assert trace.aborted.tolist() == [False, True]
    assert trace.counters().tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0]


def test_an_aborted_transaction_leaves_what_an_index_finds() -> None:
    made = penstock.database("t")
    made.table("t", "k bigint, team bigint", key="k", partition_by="k", indexes=["team"])

    @made.procedure(event="k bigint, team bigint, fails boolean")
    def move(e: Any, t: Any) -> Any:
        row = t.by("team")[e.team].first()
        if row is not None:
            t[row.k].team = 0
        if e.fails:
            abort("no")

    events = {"k": [1, 1, 1], "team": [5, 5, 5], "fails": [True, False, False]}
    (trace,) = record(made, [("move", events)], {"t": {"k": [1], "team": [5]}})
    assert np.diff(trace.starts).tolist() == [3, 3, 1]


def model_of(*transactions: tuple[list[tuple[int, int]], bool]) -> MarkovModel:
    model = MarkovModel(3, [False, True])
    for queries, aborted in transactions:
        model.add([Query(*one) for one in queries], aborted=aborted)
    model.process()
    return model


def test_probability_tables_say_what_follows_a_state() -> None:
    # Three transactions read in partition 0; one writes there, one writes in partition 1, one aborts.
    model = model_of(([(0, 1), (1, 1)], False), ([(0, 1), (1, 2)], False), ([(0, 1)], True))
    (first,) = model.edges[BEGIN]
    assert model.abort[[BEGIN, first, COMMIT, ABORT]] == pytest.approx([1 / 3, 1 / 3, 0, 1])
    assert model.single[first] == pytest.approx(2 / 3)
    assert model.reads[first] == pytest.approx([1, 0, 0])
    assert model.changes[first] == pytest.approx([1 / 3, 1 / 3, 0])
    assert model.finish[first] == pytest.approx([2 / 3, 2 / 3, 1])


def test_tables_of_states_that_follow_each_other_in_both_orders_are_exact() -> None:
    model = model_of(([(0, 1), (1, 1)], False), ([(1, 1), (0, 1)], False), ([(1, 1), (0, 1)], True))
    matrix = np.zeros((len(model), len(model)))
    for vertex, edges in enumerate(model.edges):
        for child in edges:
            matrix[vertex, child] = model.probability(vertex, child)
    matrix[ABORT, ABORT] = 1.0
    assert model.abort == pytest.approx(np.linalg.matrix_power(matrix, 500)[:, ABORT], abs=1e-6)


def test_a_wrong_end_of_a_partition_is_a_wrong_prediction() -> None:
    made = shop()
    events = {"store": [0] * 30, "sources": [[5, 0]] * 30, "item": [0] * 30}
    placements = place_tables(made.tables, PARTITIONS, {})
    (trace,) = record(made, [("order", events)], rows())
    samples = Samples.of(trace, placements, PARTITIONS)
    models = train(samples, 0.5, clustered=False)
    parameters = models.parameters(trace.program.event, placements, PARTITIONS)
    values = parameters.read(trace.events)
    found = models.walker(parameters, 0.5).estimate(values, 0, 0)
    right = judge(found, models.models[0], samples.queries[0], aborted=False, threshold=0.5)
    assert (right.base, right.partitions, right.undo, right.finish, right.early) == (True,) * 5
    again = [*samples.queries[0], samples.queries[0][2]]  # the other partition once more
    late = judge(found, models.models[0], again, aborted=False, threshold=0.5)
    assert (late.base, late.partitions, late.undo, late.finish) == (True, True, True, False)


def test_predictions_of_a_call_are_those_of_its_events_by_themselves() -> None:
    made = penstock.database("kinds")
    made.table("rows", "id bigint, n bigint NOT NULL", key="id", partition_by="id")

    @made.procedure(event="kind bigint, id bigint, others array<bigint>")
    def change(e: Any, rows: Any) -> Any:
        if e.kind == 1:
            for other in e.others:
                rows[other].n += 1
        else:
            rows[e.id].n += 1

    draw = np.random.default_rng(4)
    kinds, ids = draw.integers(0, 2, 300), draw.integers(0, 20, 300)
    others = [draw.integers(0, 20, draw.integers(0, 3)).tolist() for _ in range(300)]
    events = {"kind": kinds, "id": ids, "others": others}
    result = penstock.predict(
        made,
        {"change": events},
        tables={"rows": {"id": range(20), "n": [0] * 20}},
        kind="kind",
        clustered=False,
    )
    program = made.procedures["change"].program()
    assert isinstance(program, Program)
    placements = place_tables(made.tables, PARTITIONS, {})
    batch = pa.record_batch({"kind": kinds, "id": ids, "others": pa.array(others, pa.list_(pa.int64()))})
    running = result.predictor.bind("kinds", PARTITIONS, placements)
    for part in (batch.slice(0, 100), batch.slice(100)):
        found = running.predict(program, part)
        assert found is not None
        for models in result.predictor.procedures:
            parameters = models.parameters(program.event, placements, PARTITIONS)
            values, walker = parameters.read(part), models.walker(parameters, 0.5)
            assert models.kind is not None
            for event in np.flatnonzero(part.column("kind").to_numpy() == models.kind[1]).tolist():
                one = walker.estimate(values, event, 0)
                assert found.partitions[event] == one.partitions
                assert (found.written[event], found.undo[event]) == (one.written, one.needs_undo)


def test_observed_accesses_replace_predictions_once_the_workload_shifts() -> None:
    made = penstock.database("one")
    made.table("rows", "id bigint, n bigint NOT NULL", key="id", partition_by="id")

    @made.procedure(event="id bigint")
    def change(e: Any, rows: Any) -> Any:
        rows[e.id].n += 1

    rows = {"rows": {"id": range(20), "n": [0] * 20}}
    result = penstock.predict(made, {"change": {"id": [*range(20)] * 5}}, tables=rows, clustered=False)
    program = made.procedures["change"].program()
    assert isinstance(program, Program)
    placements = place_tables(made.tables, PARTITIONS, {})
    running = result.predictor.bind("one", PARTITIONS, placements)
    batch = pa.record_batch({"id": [3] * 250})
    first = running.predict(program, batch)
    assert first is not None
    right = int(first.partitions[0])
    shifted = 0b1111 ^ right
    for touched, expected in ((right, right), (shifted, right), (shifted, shifted)):
        for _ in range(4):
            found = running.predict(program, batch)
            assert found is not None
            assert set(found.partitions.tolist()) == {expected}
            running.observe(np.full(250, touched))
    assert running.count_recomputations() == 1


def test_a_predictor_is_stored_as_a_file(tmp_path: Path) -> None:
    result = penstock.predict(shop(), requests(), tables=rows())
    (tmp_path / "predictor.json").write_text(result.to_json())
    read = Predictor.load(tmp_path / "predictor.json")
    assert read.to_json() == result.to_json()
    for one, other in zip(read.procedures, result.predictor.procedures, strict=True):
        for model, same in zip(one.models, other.models, strict=True):
            assert (model.states, model.edges) == (same.states, same.edges)
            assert (model.abort == same.abort).all()
    for text, fact in (
        ("{", "this is no predictor"),
        ('{"version": 9}', "the predictor has another version"),
        ('{"version": 2}', "a predictor is damaged"),
    ):
        with pytest.raises(InvalidUsageError, match=fact):
            Predictor.parse(text)
    with pytest.raises(InvalidUsageError, match="cannot read a predictor"):
        Predictor.load(tmp_path / "none")


def test_a_predictor_for_other_partitions_is_refused() -> None:
    result = penstock.predict(shop(), requests(40), tables=rows(), clustered=False)
    tables = shop().tables
    result.predictor.bind("shop", 4, place_tables(tables, 4, {}))
    for name, partitions, ranges in (("bank", 4, {}), ("shop", 3, {}), ("shop", 4, {"stock": [1, 2, 3]})):
        with pytest.raises(InvalidUsageError, match="the predictor is"):
            result.predictor.bind(name, partitions, place_tables(tables, partitions, ranges))


def test_the_log_of_an_open_database_is_a_trace(tmp_path: Path) -> None:
    with shop().open(tmp_path / "shop") as db:
        for name, table in rows().items():
            db.load(name, table)
        db.checkpoint()
        db.run("look", requests(60)["look"])
        assert db._log is not None
        db._log._writer.flush()  # a second passes otherwise
        result = penstock.predict(shop(), log=tmp_path / "shop", clustered=False)
    assert result.accuracy["look"].transactions == 30
    assert result.total.share("total") == 1.0


def test_a_drawing_has_a_box_for_each_state() -> None:
    result = penstock.predict(shop(), requests(), tables=rows(), clustered=False)
    drawing = ElementTree.fromstring(result.to_svg("look"))
    texts = [one.text for one in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("read stock") == PARTITIONS
    assert {"begin", "commit", "abort", "partition 3"} <= set(texts)
    with pytest.raises(InvalidUsageError, match="did you mean 'look'"):
        result.to_svg("lok")


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({}, "a trace comes from requests or from a log"),
        ({"requests": {}}, "the trace has no transaction"),
        ({"requests": {"look": {"store": [1], "item": [1]}}}, "the trace is too short"),
        ({"requests": {"lok": {"store": [1]}}}, "did you mean 'look'"),
        ({"requests": requests(30), "partitions": 1}, "this is no number of partitions"),
        ({"requests": requests(30), "threshold": 0}, "the threshold is not above 0"),
        ({"requests": requests(30), "tables": {"stok": {}}}, "there is no such table"),
    ],
)
def test_an_unusable_trace_or_option_is_refused(options: dict[str, Any], fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        penstock.predict(shop(), **options)


def test_the_command_writes_the_predictor_and_a_drawing_and_serve_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out, svg = tmp_path / "bank.py", tmp_path / "predictor.json", tmp_path / "pay.svg"
    file.write_text(
        "import penstock\n\n"
        'bank = penstock.database("bank")\n'
        'bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id", partition_by="id")\n\n\n'
        '@bank.procedure(event="id bigint, amount bigint")\n'
        "def pay(e, accounts):\n"
        "    accounts[e.id].balance += e.amount\n"
    )
    pq.write_table(pa.table({"id": [n % 9 for n in range(60)], "amount": [1] * 60}), tmp_path / "pay.parquet")
    pq.write_table(pa.table({"id": range(9), "balance": [0] * 9}), tmp_path / "accounts.parquet")
    options = [
        "--requests", f"pay={tmp_path / 'pay.parquet'}", "--rows", f"accounts={tmp_path / 'accounts.parquet'}"
    ]  # fmt: skip
    done = CliRunner().invoke(
        app, ["predict", str(file), *options, "--partitions", "2", "-o", str(out), "--svg", f"pay={svg}"]
    )
    assert done.exit_code == 0, done.output
    assert "    read accounts: id is e.id, the compiler knows" in done.output.splitlines()
    assert Predictor.load(out).partitions == 2
    assert svg.read_text().startswith("<svg")
    seen = []

    def serve(made: OpenDatabase | Replica, *_: object, **options: object) -> None:
        state = made._state if isinstance(made, OpenDatabase) else made._follower.copy.state
        assert isinstance(state, PartitionedTables)
        seen.append(state.predicted)
        raise InvalidUsageError("it is seen")

    monkeypatch.setattr("penstock.procedures.served.server.DatabaseServer", serve)
    where = ["--location", str(tmp_path / "bank")]
    for more in ([], where, [*where, "--follow"]):
        command = ["serve", str(file), "--partitions", "2", "--predictor", str(out), *more]
        assert "it is seen" in CliRunner().invoke(app, command).output
    assert len(seen) == 3
    assert None not in seen
    refused = CliRunner().invoke(app, ["serve", str(file), "--predictor", str(out)])
    assert "a predictor is for partitions" in refused.output
    made = database_in(file, None)
    with pytest.raises(InvalidUsageError, match="this is no predictor"):
        made.open(partitions=2, predictor=str(out))  # type: ignore[arg-type]
    for wrong, fact in (
        ("pay", "write PROCEDURE=FILE"),
        (f"pay={tmp_path / 'none'}", "cannot read requests"),
    ):
        refused = CliRunner().invoke(app, ["predict", str(file), "--requests", wrong])
        assert refused.exit_code == 2
        assert fact in refused.output


def test_an_attribute_that_is_null_or_a_list_limits_queries() -> None:
    made = penstock.database("phones")
    made.table("owners", "id bigint, calls bigint NOT NULL", key="id", partition_by="id")
    made.table("names", "name string, id bigint NOT NULL", key="name", partition_by="name")

    @made.procedure(event="id bigint, name string, others array<bigint>")
    def call(e: Any, owners: Any, names: Any) -> Any:
        if e.id is None:
            owners[names[e.name].id].calls += 1
        else:
            owners[e.id].calls += 1
        for other in e.others:
            if other != 0:
                owners[other].calls += 1

    rows = {
        "owners": {"id": range(9), "calls": [0] * 9},
        "names": {"name": list("abcdefghi"), "id": range(9)},
    }
    numbers = range(120)
    events = {
        "id": [None if n % 3 else n % 9 for n in numbers],
        "name": ["abcdefghi"[n % 9] if n % 3 else None for n in numbers],
        "others": [[1 + n % 8] * (n % 4) for n in numbers],
    }
    (trace,) = record(made, [("call", events)], rows)
    named = [(str(trace.names[one.query]), one.attribute, one.limit.value) for one in find_bounds(trace)]
    assert ("read names", "name", "null") in named
    assert ("read names", "id", "value") in named
    assert ("read owners", "id", "null") not in named  # it is read by the name, too
    assert not any(limit == "length" for _, _, limit in named)  # owners are read once more than the list has
    result = penstock.predict(made, {"call": events}, tables=rows, clustered=False)
    assert Predictor.parse(result.to_json()).procedures[0].bounds == find_bounds(trace)
    assert "    read names: not if e.name is null" in result.explain().splitlines()
