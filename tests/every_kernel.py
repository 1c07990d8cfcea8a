"""Calls every kernel of the library: ``python -m tests.every_kernel`` compiles them, once for all tests."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.checkpointing.p_stream.update_log.newest import newest_rows
from penstock.compression import decode, encode
from penstock.designing import cost_kernels
from penstock.designing.traces.queries import Query, QueryName
from penstock.operators.joins.join import UpdateJoin
from penstock.operators.joins.spec import JoinedStream
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scan.fragments import Fragmenter, merge_fragments
from penstock.operators.scan.selection import select_rows
from penstock.operators.scan.spec import Fragments, Partial, PartialKind
from penstock.operators.scheduling.policy import Policy
from penstock.operators.simulation.optimum import find_optimum
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.conflation import Conflation
from penstock.operators.update_stream.stream import UpdateStream
from penstock.predicting.models import runtime_kernels
from penstock.predicting.models.estimates import Walker
from penstock.predicting.models.markov import MarkovModel
from penstock.predicting.models.parameters import EventParameters, Parameters
from penstock.procedures.engine import TableSet
from penstock.procedures.indexes import trees
from penstock.procedures.local import set_kernels
from penstock.procedures.parallel.evaluation import Evaluation
from penstock.procedures.parallel.planning import MODES
from penstock.procedures.partitions import forwarding, placement
from penstock.procedures.partitions.predicted import guard_kernels
from penstock.procedures.programs import PROGRAMS
from penstock.procedures.rows import TableRows
from penstock.procedures.schema import TableSpec
from penstock.procedures.texts import TextNumbers
from penstock.procedures.workflows.rejections import take_texts
from penstock.speculating.in_process import footprints
from penstock.sql.comparisons import intervals_of, mask_of
from penstock.sql.evaluate import evaluate
from penstock.sql.expression import Expression
from penstock.state_store.keys.key_index import KeyIndex
from penstock.state_store.keys.key_set import KeySet
from penstock.state_store.tables.rocksdb_table import RocksdbTable
from penstock.state_store.tables.row_store import RowStore
from penstock.state_store.tables.table import Layout
from penstock.windows.append import sliding_kernels
from penstock.windows.append.pane_partials import PanePartials
from penstock.windows.append.sliding import slide
from penstock.windows.append.time_panes import TimePanes
from penstock.windows.sessions import session_kernels
from penstock.windows.update.queue import WindowQueue
from penstock.windows.update.results import WindowMode
from tests.oracles.naive import Update
from tests.oracles.naive_panes import Row
from tests.property.procedures.test_index_trees import Tree
from tests.property.procedures.test_transactions import COMPILED
from tests.property.windows.test_panes import entries_of, layout_of
from tests.samples.streams import ARRIVAL_STREAM, WEIGHTED_STREAM, enqueue, rows_of, served_of, through_bytes
from tests.transactions.procedures import bank, events_of

NUMBERS = pa.array(range(3000))


def use_every_kernel() -> None:
    """Call every kernel at least once."""
    _queues()
    _state()
    _windows()
    _codecs()
    newest_rows(pa.table({"key": NUMBERS, "time": NUMBERS}), ["key"], "time")
    _fragments_and_joins()
    _transactions()
    _partitions()


def _queues() -> None:
    find_optimum(np.array([0.6, 0.4]), 2)
    for policy in Policy:
        queue = UpdateQueue(ARRIVAL_STREAM, policy, cost_us=1.0)
        for now_us in (1000, 2000):
            enqueue(queue, [Update(k, now_us, k, now_us - k) for k in range(100)], now_us)
            served_of(queue, 70, now_us + 10)
            queue.account_staleness(now_us + 20)
        UpdateQueue(ARRIVAL_STREAM, policy).restore([through_bytes(next(queue.snapshot()))])
        queue = UpdateQueue(WEIGHTED_STREAM, policy, cost_us=1.0)
        enqueue(queue, [Update(k, 1000, k) for k in range(100)], 1000)
        served_of(queue, 70, 2000)
    stream = UpdateStream(pa.schema({"s": pa.string(), "i": pa.int64(), "t": pa.int64()}), ("s", "i"), "t")
    rows = pa.record_batch([["a", "bb"], [1, 2], [1, 2]], schema=stream.schema)
    queue = UpdateQueue(stream, Policy.IN_PLACE)
    queue.enqueue(Arrivals.from_rows(stream, rows), 5)
    queue.dequeue(2, 6)
    queue.numbers_of(stream.keys(rows))
    many = rows_of(ARRIVAL_STREAM, [Update(k, 1, 2, 3) for k in range(3000)])
    for one in (stream, ARRIVAL_STREAM):
        conflation = Conflation(one)
        conflation.add(rows if one is stream else many, 0)
        conflation.finish()
    for known in (KeySet(one_word=True), KeySet(one_word=False)):
        some = stream.keys(pa.record_batch([["a"], [1]], ["s", "i"]))
        known.add(some)
        known.contains(some)
        known.remove(some)


def _state() -> None:
    schema = pa.schema({"k": pa.int64(), "s": pa.string(), "l": pa.list_(pa.int8())})
    rows = pa.record_batch([NUMBERS, ["x"] * 3000, [[1]] * 3000], schema=schema)
    table = RocksdbTable(schema, ("k",))
    table.put(rows)
    table.get(rows)
    list(table.rows())
    table.close()
    index = KeyIndex()
    index.find_or_add(Layout(schema, ("s",)).keys_of(rows))
    index.subset(np.array([0]))
    store, some = RowStore(pa.schema([schema.field("s"), schema.field("l")])), np.arange(3000)
    store.resize(3000)
    for _ in range(3):
        store.put(some, rows.select(["s", "l"]))
    store.compact(some[:10])
    store.take(some[:10])


def _windows() -> None:
    ids, panes, none = np.array([0, 0, 0, 1, 1]), np.array([0, 3, 6, 0, 1]), np.zeros(0, np.int64)
    rows = pa.record_batch([panes], ["v"])
    for mode in (WindowMode.LAZY, WindowMode.EAGER):
        queue = WindowQueue(mode, 2, 2, rows.schema, Policy.IN_PLACE)
        for i in range(3):
            queue.enqueue(ids, panes + 10 * i, rows, i)
            queue.dequeue(2, i)
        queue.enqueue(none, none, rows.slice(0, 0), 4, watermark=100)
        queue.dequeue(9, 5)
        WindowQueue(mode, 2, 2, rows.schema, Policy.IN_PLACE).restore(queue.snapshot())
        queue.enqueue(ids, panes + 200, rows, 6)
        WindowQueue(mode, 2, 2, rows.schema, Policy.IN_PLACE).restore(queue.snapshot())
    layout = layout_of(4, 2)
    state = TimePanes(layout)
    state.run([entries_of([Row("a", pane, 1.0) for pane in range(2000)] * 2, layout)], 30)
    state.delta()
    for _ in range(2):
        state.run([entries_of([Row("a", pane, 1.0) for pane in range(100, 1900)], layout)], 40)
    TimePanes(layout).run([entries_of([Row("a", pane, 1.0) for pane in (0, 1000)], layout)], 2000)
    layout = layout_of(2000, 1, sets=False)
    state = TimePanes(layout)
    for begin in range(0, 8000, 2000):
        panes_of = (*range(begin, begin + 2000), begin + 2100)
        state.run([entries_of([Row("a", pane, 1.0) for pane in panes_of], layout)], begin + 1000)
        state.run([entries_of([Row("a", begin + 1500, 1.0)], layout)], begin + 1001)
    PanePartials(ids, panes[::-1].copy(), rows).sort()
    sliding_kernels.number_window_groups(ids, ids, 0, 9, np.empty(len(ids), np.int32))
    sliding_kernels.find_equal(np.ones(2, np.int32), np.ones(2), np.ones(2), np.empty(2, np.int64))
    session_kernels.find_sessions(ids, panes, panes, 2, np.empty(len(ids), np.int64))
    sliding_kernels.slide_distinct(ids, ids[:1], ids[-1:], ids.copy(), ids.copy())


def _codecs() -> None:
    numbers = NUMBERS.to_numpy()
    for kind in ("i1", "i2", "i4", "i8"):
        values = pa.array((numbers % 100).astype(kind))
        for codec in ("patched_ns", "run_length", "dictionary", "simple8b", "variable_byte"):
            decode(encode(values, codec))
        for codec in ("multiple", "delta", "xor"):
            decode(encode(values, codec))
    for most in (1, 1000):
        decode(encode(pa.array((np.arange(1 << 14) % most).astype(np.int16)), "dictionary"))
    texts = pa.array(["a", "b", "a", "nine bytes", "nine bytes"])
    for codec in ("base_delta>ns", "dictionary>base_delta>ns"):
        for some in (texts, texts[:3]):
            decode(encode(some, codec))
    decode(encode(pa.array([f"a/{n}" for n in range(3000)]), "tokens"))
    decode(encode(pa.array([f"a/{n}" for n in range(30_000)]), "fsst"))
    for kind in ("i1", "i2", "i4", "i8"):
        coded = pa.DictionaryArray.from_arrays(np.zeros(4, kind), texts[:1])
        decode(encode(coded, "dictionary>base_delta>ns", kind=pa.string()))
    same = evaluate(Expression.parse("t = 'a'"), pa.table({"t": texts}))
    for dictionaries in (False, True):
        select_rows(pa.table({"t": texts}), same.chunk(0), dictionaries=dictionaries)
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()):
        rows = pa.table({"n": pa.array([1, 2], kind)})
        mask_of(intervals_of(Expression.parse("n > 1"), rows.schema) or [], rows)
    for kind in ("f4", "f8"):
        for codec in ("decimal", "quantized_0.5", "auto"):
            decode(encode(pa.array(numbers.astype(kind) / 4), codec))


def _fragments_and_joins() -> None:
    kinds: tuple[PartialKind, ...] = ("count", "sum", "m2", "min", "max", "last")
    for keys in ((), ("k",), ("k", "l")):
        folding = Fragmenter(
            Fragments(1000, "t", "s", keys, tuple(Partial(kind, "v", kind) for kind in kinds)),
            dict.fromkeys(("t", "k", "l", *kinds), pa.int64()),
        )
        for values in (NUMBERS, pa.array([None, *range(2999)])):
            folding.add(pa.array([7] * 3000), [NUMBERS for _ in keys], [values for _ in kinds])
        folding.finish()
    sums = Fragments(1000, "t", "s", ("k",), (Partial("sum", "v", "sum"),))
    folding = Fragmenter(sums, dict.fromkeys(("t", "k", "sum"), pa.int64()))
    folding.add(pa.array([7] * 3000), [pa.array([1] * 3000)], [pa.array(np.full(3000, 1 << 62))])
    made = merge_fragments(sums, [folding.finish()])
    every = np.arange(made.num_rows)
    slide(sums.partials, {}, every, made.select(["sum"]), every, every + 1, closing=True)
    deviations = Fragments(1000, "t", "s", (), tuple(Partial(kind, "v", kind) for kind in kinds[:3]))
    for number in (pa.int64(), pa.float64()):
        folding = Fragmenter(deviations, {"t": pa.int64()} | dict.fromkeys(kinds[:3], number))
        folding.add(pa.array([7] * 3000), [], [NUMBERS.cast(number)] * 3)
        made = merge_fragments(deviations, [folding.finish()])
        slide(deviations.partials, {}, every, made, every, every + 1, closing=True)
    sums = Fragments(1000, "t", "s", (), (Partial("sum", "v", "sum"),))
    folding = Fragmenter(sums, {"t": pa.int64(), "sum": pa.float64()})
    folding.add(NUMBERS, [], [NUMBERS.cast(pa.float64())])
    stream = UpdateStream(pa.schema({"k": pa.int64(), "t": pa.int64()}), ("k",), "t")
    side = Arrivals.from_rows(stream, pa.record_batch([[1, 2], [1, 2]], ["k", "t"]))
    UpdateJoin(JoinedStream(stream, stream, 5, 5)).join(side, side)
    marks = UpdateStream(stream.schema.append(pa.field("d", pa.bool_())), ("k",), "t", deleted="d")
    deletes = Arrivals.from_rows(marks, side.rows.append_column("d", pa.array([False, True])))
    UpdateJoin(JoinedStream(marks, stream, 5, 5)).join(deletes, side)


def _transactions() -> None:
    for width in (1, 2, 3, 4):
        key = [f"k{place}" for place in range(width)]
        spec = TableSpec.parse("t", ", ".join(f"{name} bigint" for name in key), key, None)
        rows = pa.record_batch([NUMBERS] * width, schema=spec.schema)
        table = TableRows(spec, TextNumbers())
        table.upsert(rows, dirty=True)
        table.delta()
        table.change(*table.to_arrow({(place,) * width: None for place in range(3000)}), stored=True)
        table.delta()
    database = bank(COMPILED["everything"])
    TableSet(database.tables.values()).run(
        database.procedures["random"].program(), events_of(database.procedures["random"], [])
    )
    take_texts(["too little"], np.arange(2))
    ledger = PROGRAMS["SL"]
    for mode in MODES:
        state = TableSet(ledger.database.tables.values())
        state.evaluation = Evaluation(mode)
        for events in (ledger.opening(4), ledger.workload(4, 4, 1)):
            state.run(ledger.procedure.program(), events)
        state.close()
    set_kernels.new_set()
    tree = Tree()
    for slot in range(9):
        tree.change(slot, slot % 3, slot % 2)
    tree.change(4, 0, 0)
    place, slots = (tree.nodes, tree.facts, 0), np.arange(3)
    last = trees.tree_end(*place, True)
    trees.seek(*place, tree.nodes[last, : -trees.LINKS], True, False, *tree.order)
    tree.walked()
    for bound in ((1,), (1, tree.numbers[0])):
        trees.seek(*place, bound, False, True, *tree.order)
    trees.remove_all(*place, slots, *tree.order)
    trees.insert_all(*place, slots, *tree.order)
    trees.find_equal(*place, tree.nodes[:, : -trees.LINKS], slots, *tree.order)
    trees.build_tree(*place, np.array(tree.walked()))


def _partitions() -> None:
    some = np.arange(2)
    forwarding.forward(some, some, some, np.zeros(2, np.bool_))
    forwarding.find_first(np.arange(3), some, some, np.zeros(2, np.bool_))
    forwarding.find_homes(np.arange(3), some, some.copy())
    forwarding.merge_homes(some.copy(), some)
    forwarding.order_by_home(some, 2)
    yes, words = np.ones(1, np.bool_), np.zeros(64, np.uint64)
    footprints.choose_early(some, some, some, words, words, yes, yes, words.copy(), yes.copy())
    placement.find_ranges(some, some)
    masks, of_each = np.ones(2, np.uint64), np.zeros(2, np.int32)
    cost_kernels.add_accesses(some, masks, masks.copy())
    cost_kernels.merge(masks, masks, masks.copy())
    bases = np.zeros((1, 2), np.int8)
    cost_kernels.add_bases(masks, bases, some, of_each, some, np.uint64(3), masks.copy())
    cost_kernels.count_distributed(masks, some)
    loads = np.zeros((1, 2))
    cost_kernels.count_loads(masks, some, of_each, 2, loads)
    cost_kernels.skew_factor(loads, some[1:])
    guard_kernels.plan(masks, masks, np.uint64(3), True, some.copy(), np.zeros(2, np.bool_))
    guard = np.array([3, 2, 0, 0])
    guard_kernels.leaves(guard, some.copy(), 0, 0, 5)
    guard_kernels.needs_all(guard, some.copy(), 0)
    guard_kernels.is_write_forbidden(guard, 0)
    model = MarkovModel(2, [False])
    model.add([Query(0, 1)], aborted=False)
    model.process()
    parameters = Parameters([QueryName("read", "t")], [], [], {}, 2)
    walker = Walker([model], [False], parameters, 0.5)
    walker.estimate(EventParameters([], 1), 0, 0)
    walker.walk(EventParameters([], 1), np.zeros(1, np.int64), np.zeros(1, np.int64))
    runtime_kernels.find_numbers(masks, masks.copy(), np.full(2, -1), 0, some.copy(), some.copy())
    runtime_kernels.count_votes(np.zeros(2, np.int64), masks, masks, masks.copy(), some.copy())


if __name__ == "__main__":
    use_every_kernel()
