"""Freshness contracts: their form, the controller in virtual time, classes of keys, and exact state."""

from __future__ import annotations

import json
import logging
import math
import re
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

from penstock.checkpointing.fields import Fields
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.freshness.class_state import ClassState, Stretch
from penstock.operators.freshness.classes import KeyClasses, list_urgent, pop_urgent
from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.freshness.controller import (
    ControllerState,
    Decision,
    Fit,
    allowed_budgets,
    greatest_work,
    plan,
    update_controller,
)
from penstock.operators.freshness.standing import Standing
from penstock.operators.queues.adaptive_queue import AdaptiveQueue, Semantics
from penstock.operators.queues.repartition import merge_states, read_state
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.schedulers import new_scheduler
from penstock.operators.scheduling.staleness import Staleness, StalenessMeter
from penstock.operators.simulation.micro_batches import Engine, MicroBatch, run_micro_batches
from penstock.operators.update_stream.operator_options import QueueOptions, WindowOptions
from tests.long_tests import long_but
from tests.samples.freshness import SECOND, Traffic, contract_of, new_queues, run, stream_of
from tests.samples.streams import through_bytes

CLASSES = {"gold": "1 s", "other": "4 s"}


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ({"p95": "2 s"}, "p95 fresh within 2 s"),
        ({"p99.9": "20ms"}, "p99.9 fresh within 20 ms"),
        ({"p95": CLASSES, "by": "tier"}, "p95 fresh within gold 1 s, other 4 s by tier"),
    ],
)
def test_a_contract_says_what_was_written(written: dict[str, Any], shown: str) -> None:
    assert FreshnessContract.parse(written).describe() == shown


@pytest.mark.parametrize(
    "written",
    [
        "2 s", {}, {"95": "2 s"}, {"p0": "2 s"}, {"p100": "2 s"}, {"p95": "2 s", "p50": "1 s"}, {"p95": 2},
        {"p95": "1 us"}, {"p95": {"gold": "1 s"}}, {"p95": "2 s", "by": "tier"}, {"p95": {}, "by": "tier"},
        {"p95": {"other": "2 s", "gold": "1 s"}, "by": "tier"}, {"p95": CLASSES, "by": 7},
        {"p95": CLASSES, "by": "sum(x)"}, {"p95": {"all": "1 s"}, "by": "tier"},
    ],
)  # fmt: skip
def test_other_forms_are_refused(written: Any) -> None:
    with pytest.raises(InvalidUsageError):
        FreshnessContract.parse(written)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"budget": 5}, "sets the budget"),
        ({"semantics": "append"}, "cannot promise freshness"),
        ({"semantics": "adaptive", "freshness": {"p95": CLASSES, "by": "tier"}}, "need update semantics"),
        ({"working_copy": "rocksdb", "freshness": {"p95": CLASSES, "by": "tier"}}, "in memory"),
    ],
)
def test_options_that_contradict_a_contract_are_refused(options: dict[str, Any], fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        QueueOptions(**({"freshness": {"p95": "2 s"}} | options))


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"budget": 5}, "sets the budget"),
        ({"freshness": {"p95": CLASSES, "by": "tier"}}, "no classes"),
        ({"mode": "append"}, "append mode"),
    ],
)
def test_options_that_contradict_a_contract_of_windows_are_refused(
    options: dict[str, Any], fact: str
) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        WindowOptions(**({"freshness": {"p95": "2 s"}, "mode": "lazy"} | options))


def test_allowed_budgets_are_those_with_a_short_staleness() -> None:
    draw = Random(1)
    found = 0
    for _ in range(300):
        limit, fixed, work = draw.uniform(1, 100), draw.uniform(0, 20), draw.uniform(0, 60)
        tried = np.linspace(0.01, 100, 5_000)
        good = tried[(fixed + tried) * np.maximum(2, 1 + work / tried) <= limit]
        allowed = allowed_budgets(limit, fixed, work)
        assert (allowed is not None) == (len(good) > 0) or len(good) == 0
        if allowed is None or not len(good):
            continue
        found += 1
        assert good[0] == pytest.approx(max(allowed[0], 0.01), abs=0.03)
        assert good[-1] == pytest.approx(allowed[1], abs=0.03)
    assert found > 50


def test_the_greatest_work_is_where_the_last_budget_is_allowed() -> None:
    draw = Random(2)
    for _ in range(200):
        limit, fixed = draw.uniform(1, 100), draw.uniform(0.1, 20)
        most = greatest_work(limit, fixed)
        assert allowed_budgets(limit, fixed, 1.001 * most + 1e-6) is None
        if most > 0:
            assert allowed_budgets(limit, fixed, 0.999 * most) is not None


def test_a_fit_separates_fixed_cost_and_cost_of_a_tuple_and_forgets_a_pause() -> None:
    draw, fit = Random(3), Fit(row_us=10.0)
    for _ in range(60):
        rows = draw.randint(50, 400)
        fit = fit.add(rows, 20_000 + 100 * rows + draw.randint(-500, 500), 0)
    assert fit.cost_us == pytest.approx(100, rel=0.1)
    assert fit.fixed_us == pytest.approx(20_000, rel=0.3)
    paused = fit.add(200, 3_600 * SECOND, 0)
    assert paused.cycle_us < 3 * fit.cycle_us


def test_without_variation_the_cost_within_the_operator_counts() -> None:
    fit = Fit(row_us=70.0)
    for _ in range(30):
        fit = fit.add(100, 50_000, 0)
    assert fit.cost_us == pytest.approx(70.0)
    assert fit.fixed_us == pytest.approx(43_000)


# Scenarios ------------------------------------------------------------------------------------------------

STEADY = Engine(fixed_us=100_000, cost_us=1_000)


def budgets(batches: list[MicroBatch]) -> list[int]:
    return [batch.metrics.budget_rows for batch in batches]


def turns(values: list[int]) -> int:
    """Return how often values change their direction; changes of up to 5 % are none."""
    kept = values[:1]
    for value in values:
        if abs(value - kept[-1]) > 0.05 * kept[-1]:
            kept.append(value)
    steps = [after - before for before, after in pairwise(kept)]
    return sum(one * two < 0 for one, two in pairwise(steps))


def within(batches: list[MicroBatch], name: str = "all") -> float:
    """Return the share of time and keys within the limit, as a user of the results measures it."""
    standings = [batch.metrics.freshness[name] for batch in batches if name in batch.metrics.freshness]
    late = sum(one.staleness.time_above(one.limit_us - one.fixed_us) for one in standings)
    return 1.0 - late / sum(one.staleness.key_time for one in standings)


def since(batches: list[MicroBatch], second: int) -> list[MicroBatch]:
    return [batch for batch in batches if batch.started_us >= second * SECOND]


def noisy(second: int) -> Engine:
    draw = Random(second)
    return Engine(round(100_000 * draw.uniform(0.7, 1.3)), 1_000 * draw.uniform(0.7, 1.3))


@pytest.mark.parametrize("rate", long_but([50, 400, 3_000], 3_000))
def test_under_steady_load_the_promise_holds_and_the_budget_rests(rate: int) -> None:
    batches = run(Traffic(lambda second: rate, 16), contract_of("2 s"), STEADY)
    assert within(since(batches, 5)) > 0.95
    later = budgets(since(batches, 8))
    assert max(later) <= 1.2 * min(later)
    assert turns(later) <= 2


@pytest.mark.long
def test_noise_does_not_make_the_budget_flutter() -> None:
    contract = contract_of("2 s")
    queues = new_queues(contract)
    rows, arrived = Traffic(lambda second: 3_000, 35).rows()
    batches, chosen = [], []
    for batch in run_micro_batches(
        queues, rows, arrived, lambda now: noisy(now // SECOND), contract, end_us=36 * SECOND
    ):
        batches.append(batch)
        assert queues[0].controller is not None
        chosen.append(queues[0].controller.budget_us)
    assert within(since(batches, 5)) > 0.95
    later = chosen[-len(since(batches, 10)) :]
    assert sum(after != before for before, after in pairwise(later)) < len(later) / 4
    assert max(later) < 1.5 * min(later)


def test_a_budget_follows_a_step_of_cost_and_comes_to_rest() -> None:
    def engine(second: int) -> Engine:
        return Engine(100_000, 1_000 if second < 15 else 4_000)

    batches = run(Traffic(lambda second: 2_000, 45), contract_of("4 s"), engine)
    assert within(since(batches, 5)) > 0.95
    before, after = since(batches, 12)[0].metrics, batches[-1].metrics
    assert after.budget_rows < before.budget_rows
    assert turns(budgets(since(batches, 18))) <= 2
    assert max(budgets(since(batches, 28))) <= 1.2 * min(budgets(since(batches, 28)))


def test_the_trigger_interval_follows_the_load_and_comes_to_rest() -> None:
    contract = contract_of("4 s")

    def rate(second: int) -> float:
        return 5_000 if 8 <= second < 16 else 20

    rows, arrived = Traffic(rate, 30, keys=2_500).rows()
    queues = new_queues(contract)
    batches = list(run_micro_batches(queues, rows, arrived, lambda now: STEADY, contract, paced=True))
    quiet = [batch for batch in batches if 3 * SECOND <= batch.started_us < 8 * SECOND]
    chosen = [batch.metrics.interval_ms for batch in quiet]
    # It waits between micro-batches while the work is small, as long as the promise allows.
    assert all(400 <= one <= 800 for one in chosen)
    assert max(chosen) <= 1.2 * min(chosen)
    starts = [batch.started_us for batch in quiet]
    assert all(after - before >= 400_000 for before, after in pairwise(starts))
    # While keys wait, the next micro-batch starts at once.
    loaded = [batch for batch in batches if 10 * SECOND <= batch.started_us < 16 * SECOND]
    assert all((batch.metrics.interval_ms == 0) == (batch.metrics.waiting_keys > 0) for batch in loaded)
    assert any(batch.metrics.interval_ms == 0 for batch in loaded)
    assert batches[-1].metrics.interval_ms >= 400
    assert within(since(batches, 3)) > 0.95


def test_a_ramp_to_an_overload_breaks_the_promise_and_says_what_would_help() -> None:
    batches = run(Traffic(lambda second: 300.0 * second, 9, keys=1_000), contract_of("1 s"), STEADY)
    early = [batch for batch in batches if batch.started_us < 3 * SECOND]
    assert all(batch.metrics.freshness["all"].is_kept for batch in early)
    last = batches[-1].metrics.freshness["all"]
    assert not last.is_kept
    assert last.needs is not None
    assert last.needs > 1.5
    assert "times the cores" in last.advise()
    # With so many cores it holds.
    cores = int(np.ceil(last.needs)) + 1
    contract = contract_of("1 s")
    rows, arrived = Traffic(lambda second: 300.0 * second, 9, keys=1_000).rows()
    more = list(run_micro_batches(new_queues(contract, cores), rows, arrived, lambda now: STEADY, contract))
    assert within(since(more, 5)) > 0.95


def test_after_a_burst_the_promise_is_kept_again() -> None:
    def rate(second: int) -> float:
        return 20_000 if second in (8, 9) else 300

    batches = run(Traffic(rate, 30, keys=5_000), contract_of("1 s"), STEADY)
    kept = [(batch.started_us // SECOND, batch.metrics.freshness["all"].is_kept) for batch in batches]
    broken = [second for second, is_kept in kept if not is_kept]
    assert 8 <= min(broken) <= 12
    assert max(broken) < 26
    assert kept[-1][1]


def test_a_slow_sink_counts_and_its_break_is_reported_in_time(caplog: pytest.LogCaptureFixture) -> None:
    def engine(second: int) -> Engine:
        return Engine(100_000, 100, sink_us=100 if second < 8 else 40_000)

    with caplog.at_level(logging.INFO):
        batches = run(Traffic(lambda second: 500, 45, keys=300), contract_of("2 s"), engine)
    assert within([batch for batch in batches if batch.started_us < 8 * SECOND]) > 0.95
    reported = [batch for batch in batches if not batch.metrics.freshness["all"].is_kept]
    # The bucket says so during the first micro-batch after it; that one waits for its sink much longer.
    assert 8 * SECOND <= reported[0].started_us <= 13 * SECOND
    # The budget is cut so that the sink does not hold back all other results.
    assert batches[-1].metrics.budget_rows < 150
    assert "times the cores" in batches[-1].metrics.freshness["all"].advise()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    facts = (
        r"class=all promised_ms=2000\.0 promised_share=0\.95 share_within=0\.\d+ newest_batch_p95_ms=[\d.]+ "
    )
    assert re.search(f"promise of freshness broken .*{facts}needs_times_the_cores=", warnings[0].message)


@pytest.mark.parametrize("buckets", [1, 2])
def test_a_first_micro_batch_that_compiles_kernels_is_soon_forgotten(buckets: int) -> None:
    def engine(second: int) -> Engine:
        return Engine(1_000_000, 20_000_000 if second < 15 else 20, sink_us=5_000)

    contract = contract_of("8 s")
    rows = Traffic(lambda second: 1_000, 90)
    batches = run(rows, contract, engine, new_queues(contract, buckets))
    assert batches[0].ended_us > 20 * SECOND
    assert within(since(batches, 60)) > 0.95
    assert batches[-1].metrics.freshness["all"].is_kept


def test_a_cost_that_was_learned_from_few_tuples_is_tried() -> None:
    # Each micro-batch served one tuple, so nothing told the cost of a tuple from the fixed cost.
    trapped = ControllerState(
        Fit(1.0, 1_000_000.0, 0.0, 0.0, 1_000_000.0, 50.0), (ClassState(100.0),), 1_000_000.0, 1, 1.0,
        50_497_475, 50_497_525, 1, 99,
    )  # fmt: skip
    contract = contract_of("8 s")
    queue = new_queues(contract)[0]
    queue.controller = trapped
    rows, arrived = Traffic(lambda second: 1_000 if second > 50 else 0, 80).rows()
    engine = Engine(994_950, 50, sink_us=5_000)
    batches = list(run_micro_batches([queue], rows, arrived, lambda now: engine, contract))
    assert batches[0].metrics.budget_rows <= 2
    assert within(since(batches, 70)) > 0.95


def test_a_fixed_cost_above_the_limit_is_named() -> None:
    batches = run(Traffic(lambda second: 100, 20), contract_of("500 ms"), Engine(600_000, 100))
    last = batches[-1].metrics.freshness["all"]
    assert last.needs is None
    assert not last.is_kept
    assert "fixed" in last.advise()


@pytest.mark.parametrize("policy", long_but(list(Policy), Policy.LINECUTTING, Policy.FRESHEST))
def test_the_more_important_class_keeps_its_promise_under_overload(policy: Policy) -> None:
    traffic = Traffic(lambda second: 3_000, 16, keys=3_000, gold=100)
    contract = contract_of({"gold": "2 s", "other": "2 s"})
    batches = since(run(traffic, contract, STEADY, new_queues(contract, policy=policy)), 8)
    assert within(batches, "gold") > 0.95
    assert within(batches, "other") < 0.9
    last = batches[-1].metrics.freshness
    assert last["gold"].is_kept
    assert not last["other"].is_kept
    assert last["gold"].needs is not None
    assert last["gold"].needs <= 1 < (last["other"].needs or 0)


@pytest.mark.long
def test_by_load_the_less_important_class_breaks_first() -> None:
    contract = contract_of(CLASSES)
    holds: dict[str, list[bool]] = {"gold": [], "other": []}
    for keys in (200, 2_000, 6_000, 20_000):
        traffic = Traffic(lambda second: 4_000, 14, keys=keys, gold=keys // 20)
        batches = since(run(traffic, contract, STEADY), 8)
        for name, seen in holds.items():
            seen.append(within(batches, name) >= 0.95)
    assert sum(holds["gold"]) > sum(holds["other"])
    for seen in holds.values():
        assert seen == sorted(seen, reverse=True)


def test_an_adaptive_queue_appends_until_its_promise_would_break() -> None:
    contract = contract_of("2 s")

    def rate(second: int) -> float:
        return 3_000 if 10 <= second < 16 else 200

    def mode_at(batches: list[MicroBatch], second: int) -> bool:
        return bool(since(batches, second)[0].metrics.append_buckets)

    queue = AdaptiveQueue(stream_of(), Policy.FRESHEST, Semantics.ADAPTIVE)
    rows, arrived = Traffic(rate, 24).rows()
    batches = []
    for batch in run_micro_batches([queue], rows, arrived, lambda now: STEADY, contract):
        batch.metrics.append_buckets = int(queue.appending)
        batches.append(batch)
    assert mode_at(batches, 6)
    assert not mode_at(batches, 14)
    assert mode_at(batches, 22)
    assert queue.switches == 2
    assert within(since(batches, 5)) > 0.95


# State ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", long_but([0, 1, 2], 0))
def test_a_restart_before_any_micro_batch_changes_nothing(seed: int) -> None:
    contract = contract_of(CLASSES)
    traffic = Traffic(lambda second: 1_500, 7, keys=1_000, gold=50, seed=seed)
    whole = run(traffic, contract, STEADY)

    rows, arrived = traffic.rows()
    holder = new_queues(contract)
    batches = []
    for batch in run_micro_batches(holder, rows, arrived, lambda now: STEADY, contract, end_us=8 * SECOND):
        batches.append(batch)
        loaded = new_queues(contract)[0]
        loaded.restore([through_bytes(unit) for unit in holder[0].snapshot()])
        holder[0] = loaded
    assert [one.metrics.to_json() | {"duration_ms": 0} for one in batches] == [
        one.metrics.to_json() | {"duration_ms": 0} for one in whole
    ]


def test_keys_that_move_to_other_buckets_keep_their_class_and_the_controller_begins_anew() -> None:
    contract = contract_of(CLASSES)
    queue = new_queues(contract)[0]
    run(Traffic(lambda second: 3_000, 3, keys=600, gold=60), contract, STEADY, [queue])
    state = read_state([through_bytes(unit) for unit in queue.snapshot()], ("key",))
    waiting, known = np.zeros(2, np.int64), np.zeros(2, np.int64)
    for bucket in range(2):
        loaded = new_queues(contract)[0]
        loaded.restore([through_bytes(unit) for unit in merge_states([state.select(bucket, 2)], 1.0).units()])
        assert loaded.controller is None
        waiting += loaded.waiting_by_promise
        known += loaded.accounts.count_classes(np.ones(loaded.keys, np.bool_))
    assert waiting.tolist() == queue.waiting_by_promise
    assert waiting.sum() > 0
    assert known.tolist() == [60, 540]


def test_the_state_survives_json_and_damage_is_found() -> None:
    contract = contract_of(CLASSES)
    queue = new_queues(contract)[0]
    run(Traffic(lambda second: 500, 5, gold=20), contract, STEADY, [queue])
    state = queue.controller
    assert state is not None
    assert state.fit.cycle_us > 0
    stored = json.loads(json.dumps(state.to_json()))
    assert ControllerState.from_fields(Fields(stored)) == state
    for name in stored:
        with pytest.raises(CorruptDataError):
            ControllerState.from_fields(Fields({**stored, name: "x"}))


def test_a_decision_depends_on_its_arguments_only() -> None:
    contract = contract_of("2 s")
    queue = new_queues(contract)[0]
    run(Traffic(lambda second: 3_000, 10), contract, STEADY, [queue])
    assert queue.controller is not None
    first = plan(contract, queue.controller, [150], 12 * SECOND, 11 * SECOND)
    assert plan(contract, queue.controller, [150], 12 * SECOND, 11 * SECOND) == first
    after = [
        update_controller(
            contract, first[0], [Staleness(key_time=1e6)], 13 * SECOND, served=9, left=3, serving_us=7
        )
        for _ in range(2)
    ]
    assert after[0] == after[1]


@pytest.mark.parametrize("pause", [5 * SECOND, 300 * SECOND])
def test_downtime_is_no_fixed_cost_until_two_cycles_in_a_row_are_so_long(pause: int) -> None:
    contract = contract_of("8 s")
    queue = new_queues(contract)[0]
    run(Traffic(lambda second: 3_000, 4), contract, STEADY, [queue])
    before = queue.controller
    assert before is not None

    def plan_after(state: ControllerState, cycle: int) -> tuple[ControllerState, Decision]:
        ended, served = state.started_us + 1, 100
        done = update_controller(
            contract, state, [Staleness()], ended, served=served, left=9, serving_us=100_000
        )
        assert ControllerState.from_fields(Fields(json.loads(json.dumps(done.to_json())))) == done
        return plan(contract, done, [150], state.started_us + cycle)

    usual = round(before.fit.expect(100))
    for _ in range(20):
        before, _ = plan_after(before, usual)
    after, decision = plan_after(before, pause)
    assert after.fit.fixed_us < 2 * before.fit.fixed_us
    assert np.isfinite(decision.needs[0])
    # After usual cycles, another one is a pause again.
    other, _ = plan_after(plan_after(after, usual)[0], pause)
    assert other.fit.fixed_us < 2 * before.fit.fixed_us
    twice, _ = plan_after(after, pause)
    assert twice.doubted is None
    assert twice.fit.fixed_us > 4 * before.fit.fixed_us


def test_a_pause_is_no_cost_even_if_fixed_costs_were_taken_for_costs_of_tuples() -> None:
    contract = contract_of("8 s")
    # The sink takes 10 ms for a tuple, and a cycle another second.
    fit = Fit(100.0, 2_000_000.0, 1.0, 20_000.0, 20_000.0, 10.0)
    state = ControllerState(
        fit, (ClassState(100.0),), 2e6, 100, 100.0, 48 * SECOND, 48_010_000, 100, interval_us=1_600_000
    )
    done = update_controller(
        contract, plan(contract, state, [100], 50 * SECOND, 49 * SECOND)[0], [Staleness()], 50_010_000,
        served=100, left=0, serving_us=1_000,
    )  # fmt: skip
    before, now, served = 50 * SECOND, 83 * SECOND, 0
    for _ in range(3):
        state, decision = plan(contract, done, [100], now, before)
        served = min(decision.rows, 100)
        done = update_controller(
            contract, state, [Staleness()], now + 10_000, served=served, left=100 - served, serving_us=1_000
        )
        before, now = now, now + SECOND + 10_000 * served
    assert served == 100


def test_a_promise_is_judged_over_the_last_seconds_and_no_longer() -> None:
    (promise,) = contract_of("8 s").promises
    state = ClassState()
    # 10 keys are late for 20 seconds, then in time.
    shares = []
    for second in range(60):
        late = 1e7 if second < 20 else 0.0
        state = state.add(promise, Stretch(second * SECOND, (second + 1) * SECOND, late, 1e7))
        shares.append(state.late_us / state.time_us)
        assert len(state.recent) <= 5
    assert shares[:20] == [1.0] * 20
    assert shares[20:36] == pytest.approx([1 - (second + 1) / 16 for second in range(16)], abs=0.05)
    assert shares[39:] == [0.0] * 21
    # One long stretch counts as a whole, and leaves the window at the same pace.
    long = ClassState().add(promise, Stretch(0, 40 * SECOND, 1e8, 4e8))
    assert (long.late_us, long.time_us) == (1e8, 4e8)
    later = long.at(promise, 44 * SECOND)
    assert later.late_us == pytest.approx(3e7)
    assert later.time_us == pytest.approx(1.2e8)
    assert not long.at(promise, 56 * SECOND).recent


def test_results_are_late_while_a_slow_sink_has_them() -> None:
    contract, meter, state = contract_of("8 s"), StalenessMeter(), ControllerState()
    begin, gone, broken = 10 * SECOND, 0, []
    # A sink takes 5 ms for a row, and 30 ms in the end. The operator takes 10 ms for all rows.
    for number in range(40):
        served, row_us = (50 + 10 * (number % 16), 5_000) if number < 37 else (200, 30_000)
        state, _ = plan(contract, state, [served], begin, begin)
        arrived = begin - np.arange(served) * gone // served
        meter.add(arrived, arrived, begin + 10_000)
        part = meter.take(200.0 * max(gone, SECOND))
        state = update_controller(
            contract, state, [part], begin + 10_000, served=served, left=9, serving_us=10_000
        )
        broken.append(state.classes[0].broken)
        gone = 20_000 + row_us * served
        begin += gone
    assert not any(broken[:38])
    assert broken[38:] == [True, True]  # the length of the first slow cycle is unknown until it has ended


def test_a_cycle_that_another_bucket_has_paced_is_no_time_of_the_sink() -> None:
    contract = contract_of("8 s")
    fit = Fit(rows=20.0, cycle_us=400_000.0, row_us=100.0)
    before = ControllerState(
        fit, (ClassState(),), 2e6, started_us=9 * SECOND, limit=100, interval_us=1_200_000
    )

    def plan_after(cycle_us: int, left: int = 0) -> ControllerState:
        done = update_controller(
            contract, before, [Staleness()], 9_010_000, served=20, left=left, serving_us=2_000
        )  # fmt: skip
        begin = before.started_us + cycle_us
        return plan(contract, done, [20], begin, begin - cycle_us + 10_000)[0]

    # Another bucket may have chosen 500 ms, so the cycle tells only that the work took no longer.
    paced = plan_after(500_000)
    assert paced.rest_us == 0.0
    assert paced.fit.fixed_us == pytest.approx(fit.fixed_us)
    assert plan_after(300_000).fit.fixed_us < fit.fixed_us
    # It did not wait: it took longer than the bucket's own interval, or keys waited.
    assert plan_after(1_500_000).rest_us == 1_490_000
    assert plan_after(500_000, left=1).rest_us == 490_000


def test_a_pause_after_the_first_micro_batch_is_no_cost() -> None:
    contract = contract_of("2 s")
    first, _ = plan(contract, ControllerState(), [150], SECOND)
    done = update_controller(
        contract, first, [Staleness()], 2 * SECOND, served=100, left=50, serving_us=1_000
    )
    after, _ = plan(contract, done, [150], 300 * SECOND)
    assert after.fit.cycle_us == 0.0


def test_a_state_that_was_stored_without_doubts_has_none() -> None:
    stored = json.loads(json.dumps(ControllerState(doubted=Fit(2.0)).to_json()))
    del stored["doubted"]
    assert ControllerState.from_fields(Fields(stored)) == ControllerState()


def test_an_idle_hour_is_no_fixed_cost() -> None:
    contract = contract_of("2 s")
    queue = new_queues(contract)[0]
    run(Traffic(lambda second: 100, 10), contract, STEADY, [queue])
    before = queue.controller
    assert before is not None
    hour = before.finished_us + 3_600 * SECOND
    after, _ = plan(contract, before, [5], hour, hour - 1_000)
    assert after.fit == before.fit
    busy, _ = plan(contract, replace(before, doubted=before.fit), [5], hour, before.finished_us - 1)
    assert busy.fit != before.fit


# Classes --------------------------------------------------------------------------------------------------


def test_a_key_is_in_the_class_of_its_newest_tuple() -> None:
    classes = KeyClasses("CASE WHEN key < 3 THEN 'gold' WHEN key < 5 THEN tier END", ("gold", "plain", "x"))
    rows, _ = Traffic(lambda second: 50, 1, keys=8).rows()
    expected = [0 if key < 3 else 1 if key < 5 else 2 for key in rows.column("key").to_pylist()]
    assert classes.number(rows).tolist() == expected


def test_staleness_by_class_adds_up_to_that_of_all_keys() -> None:
    contract = contract_of(CLASSES)
    batches = run(Traffic(lambda second: 2_000, 10, keys=900, gold=90), contract, STEADY)
    for batch in batches:
        parts = [one.staleness for one in batch.metrics.freshness.values()]
        whole = batch.metrics.application_staleness
        assert sum(part.area for part in parts) == pytest.approx(whole.area)
        assert sum(part.key_time for part in parts) == pytest.approx(whole.key_time)
        assert max(part.longest_us for part in parts) == whole.longest_us
    last = batches[-1].metrics.freshness
    assert last["gold"].staleness.key_time == pytest.approx(last["other"].staleness.key_time / 9, rel=0.05)


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("weighted", [False, True])
def test_urgent_keys_leave_first_by_class(policy: Policy, weighted: bool) -> None:  # a case
    draw = Random(f"{policy}{weighted}")
    for _ in range(50):
        count, limit = draw.randint(1, 30), draw.randint(0, 35)
        stale = np.array([draw.randint(0, 100) for _ in range(count)])
        classes = np.array([draw.randint(0, 2) for _ in range(count)])
        ids, bounds = np.arange(count), (draw.randint(0, 100), draw.randint(0, 100))
        scheduler = new_scheduler(policy, weighted=weighted)
        scheduler.reserve(count)
        waits = np.zeros(count, np.bool_)
        shares = np.full(count, 1 << 20)
        scheduler.arrive(ids, waits, np.ones(count), 1.0, 0, shares, 100 - stale)
        urgent = list_urgent(ids, stale, classes, bounds)
        chosen = pop_urgent(scheduler, limit, urgent, count, 100).tolist()
        assert len(set(chosen)) == len(chosen) == min(limit, count)
        ranks = [
            next((n for n, bound in enumerate(bounds) if classes[i] == n and stale[i] >= bound), 2)
            for i in range(count)
        ]
        assert [ranks[i] for i in chosen] == sorted(ranks)[: len(chosen)]
        assert len(scheduler) == count - len(chosen)


def test_the_time_above_a_limit_is_that_of_the_stretches() -> None:
    queue = UpdateQueue(stream_of(), Policy.FIFO)
    rows, arrived = Traffic(lambda second: 200, 4, keys=50).rows()
    batches = list(
        run_micro_batches([queue], rows, arrived, lambda now: STEADY, contract_of("1 s"), end_us=5 * SECOND)
    )
    whole = Staleness.merge(batch.metrics.application_staleness for batch in batches)
    for share in (0.99, 0.95, 0.7):
        limit_us = 1000 * whole.percentile_ms(share)
        assert whole.time_above(limit_us) == pytest.approx((1 - share) * whole.key_time, rel=0.02)
    for time_us in (0.01, 0.2, 0.6):
        above_us = time_us * whole.time_above(0.0)
        exceeded_us = whole.exceeded_us(above_us)
        assert exceeded_us is not None
        assert whole.time_above(exceeded_us) == pytest.approx(above_us)
    assert whole.exceeded_us(whole.time_above(0.0) + 1.0) is None
    assert whole.time_above(-1.0) == whole.key_time
    assert whole.time_above(whole.longest_us * 1.05) == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_promise_breaks_when_its_keys_have_been_late_for_too_long(seed: int) -> None:
    draws = np.random.default_rng(seed)
    limit_us, now, keys = 2 * SECOND, 100 * SECOND, 40
    arrived = now - draws.integers(0, int(draws.choice([1, 3])) * SECOND, keys)
    time_us, earlier_us = float(keys * 4 * SECOND), float(draws.choice([0.0, 3.0 * SECOND, 9.0 * SECOND]))
    parts = []
    for some in np.array_split(arrived, 3):
        meter = StalenessMeter()
        meter.add(some, some, now)
        part = meter.take(len(some) * 4.0 * SECOND)
        parts.append(Standing(limit_us, 0.95, part, 0.0, time_us / 3, None, 0.0, earlier_us / 3, now))
    breaks_us = Standing.merge(parts).breaks_us

    # The definition: from now on, each key is staler than the limit from its arrival and the limit on.
    allowed_us = 0.05 * time_us
    steps = now + np.arange(0, 4 * SECOND, 1_000)
    late_us = earlier_us + np.maximum(steps[:, None] - np.maximum(arrived + limit_us, 0), 0).sum(axis=1)
    expected = steps[np.argmax(late_us > allowed_us)] if earlier_us <= allowed_us else now
    assert breaks_us == pytest.approx(expected, abs=0.04 * limit_us)


def test_a_promise_without_keys_does_not_break() -> None:
    limit_us, now = 2 * SECOND, 100 * SECOND
    empty = Standing(limit_us, 0.95, Staleness(), 0.0, 0.0, None, 0.0, 0.0, now)
    assert empty.is_kept
    assert empty.breaks_us == math.inf
    # The other bucket has a key of this class.
    meter, arrived = StalenessMeter(), np.array([now - SECOND])
    meter.add(arrived, arrived, now)
    other = Standing(limit_us, 0.95, meter.take(4.0 * SECOND), 0.0, 4.0 * SECOND, None, 0.0, 0.0, now)
    assert now < other.breaks_us < math.inf
    assert Standing.merge([empty, other]).breaks_us == other.breaks_us


def test_a_tighter_contract_shortens_the_trigger_interval_at_once() -> None:
    def updated(limit: str, before: ControllerState) -> ControllerState:
        return update_controller(
            contract_of(limit), before, [Staleness()], 10 * SECOND, served=0, left=0, serving_us=0
        )

    before = ControllerState(fit=Fit(cycle_us=9e6), classes=(ClassState(),), started_us=9 * SECOND)
    before = updated("2200 ms", before)
    assert before.interval_us == 440_000
    assert updated("2 s", before).interval_us == 400_000


def test_metrics_of_buckets_merge_to_the_worst_need_and_all_time() -> None:
    contract = contract_of("2 s")
    parts = [
        run(Traffic(lambda second, rate=rate: rate, 10), contract, STEADY)[-1].metrics  # type: ignore[misc]
        for rate in (50, 3_000)
    ]
    merged = BatchMetrics.merge(
        [BatchMetrics.from_json(json.loads(json.dumps(one.to_json()))) for one in parts]
    )
    both = [part.freshness["all"] for part in parts]
    assert merged.freshness["all"].time_us == pytest.approx(sum(one.time_us for one in both))
    assert merged.freshness["all"].needs == max(one.needs or 0 for one in both)
    shown = merged.summary()["classes"]["all"]
    assert shown["promised_ms"] == 2_000
    assert shown["kept"] is True
    assert shown["advice"] == ""
