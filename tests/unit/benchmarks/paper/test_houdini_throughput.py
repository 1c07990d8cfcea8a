"""The simulation of predictions in virtual time, by hand, and its figures."""

from __future__ import annotations

import pytest

from benchmarks.paper.h_store.houdini_throughput import COSTS, Plan, Request, attempts, plans_of, simulate
from penstock.procedures.programs.oltp import tatp

ALONE, MESSAGE, REMOTE = COSTS.begin_us + COSTS.query_us, 2 * COSTS.local_us, 2 * COSTS.remote_us


def seconds(*work: tuple[Request, Plan | None]) -> float:
    """Return the virtual time of transactions on four partitions, in microseconds."""
    return len(work) / simulate(work, 4)[0] * 1e6


def test_partitions_run_their_transactions_side_by_side() -> None:
    here, there = Request((1,), 0), Request((2,), 1)
    assert seconds((here, Plan(0, 1)), (there, Plan(1, 2))) == pytest.approx(ALONE)
    assert seconds((here, Plan(0, 1)), (here, Plan(0, 1))) == pytest.approx(2 * ALONE)
    everywhere = Plan(0, 15)  # it waits for both nodes before it commits
    locked = ALONE + COSTS.prepare_us + REMOTE
    assert seconds((here, everywhere), (there, Plan(1, 2))) == pytest.approx(locked + ALONE)


def test_a_partition_that_is_finished_is_free_before_the_end() -> None:
    both = Request((2, 1), 0)
    held = COSTS.begin_us + 2 * COSTS.query_us + MESSAGE
    whole = held + COSTS.prepare_us + MESSAGE
    later = Request((2,) * 20, 1)  # longer than the rest of the first one
    first = COSTS.begin_us + COSTS.query_us + MESSAGE
    length = COSTS.begin_us + 20 * COSTS.query_us
    assert seconds((both, Plan(0, 3)), (later, Plan(1, 2))) == pytest.approx(whole + length)
    assert seconds((both, Plan(0, 3, {1: 0})), (later, Plan(1, 2))) == pytest.approx(first + length)


def test_a_wrong_prediction_locks_all_partitions() -> None:
    request = Request((1, 2, 1), 0)
    for wrong in (Plan(0, 1), Plan(0, 3, {1: 0})):
        tried = list(attempts(request, wrong, 4))
        assert tried == [(wrong, 1), (Plan(0, 15), 3)]
    assert next(iter(attempts(request, Plan(0, 3, {0: 1}), 4)))[1] == 2
    assert list(attempts(request, Plan(0, 3, {1: 1}), 4)) == [(Plan(0, 3, {1: 1}), 3)]
    assert request.right() == Plan(0, 3, {0: 2, 1: 1})


def test_without_predictions_a_transaction_is_sent_on_once() -> None:
    elsewhere = Request((4, 4), 0)
    assert list(attempts(elsewhere, None, 4)) == [(Plan(0, 1), 0), (Plan(2, 4), 2)]
    assert list(attempts(Request((4, 8), 2), None, 4)) == [(Plan(2, 4), 1), (Plan(3, 8), 0), (Plan(2, 15), 2)]
    assert list(attempts(Request((15, 4), 2), None, 4)) == [(Plan(2, 4), 0), (Plan(2, 15), 2)]


def test_a_query_that_deviates_sends_no_message() -> None:
    redirected = COSTS.begin_us + COSTS.remote_us + ALONE
    assert seconds((Request((4,), 0), None)) == pytest.approx(redirected)


def test_a_partition_runs_later_requests_until_one_is_redirected_to_it() -> None:
    redirected, there = Request((4,), 0), Request((4,), 2)
    work = [(redirected, None), (there, Plan(2, 4)), (there, Plan(2, 4))]
    assert seconds(*work) == pytest.approx(COSTS.begin_us + COSTS.remote_us + ALONE)
    assert simulate(work, 4)[1] == 1


def test_each_client_waits_for_its_answer() -> None:
    work = [(Request((1,), 0), Plan(0, 1))] * 16  # of each client
    last = Request((2,) * 1_000, 1), Plan(1, 2)
    assert seconds(*work, last) == pytest.approx(ALONE + COSTS.begin_us + 1_000 * COSTS.query_us)


@pytest.mark.long
def test_predictions_of_tatp_are_faster_than_none() -> None:
    planned = plans_of("tatp_name", 301, 4, [0.0, 0.5], clustered=False, scale=tatp.TatpScale(60))
    assert len(planned) >= 150
    requests = [request for request, _ in planned]
    modes: dict[str, list[tuple[Request, Plan | None]]] = {
        "single": [(one, None) for one in requests],
        "all": [(one, Plan(one.arrives, 15)) for one in requests],
        "never sure": [(one, plans[0.0]) for one, plans in planned],
        "global": [(one, plans[0.5]) for one, plans in planned],
        "oracle": [(one, one.right()) for one in requests],
    }
    rates = {name: simulate(work, 4)[0] for name, work in modes.items()}
    assert rates["oracle"] >= rates["global"] > rates["single"]
    assert rates["global"] > rates["never sure"]
    assert rates["oracle"] > 2 * rates["all"]
