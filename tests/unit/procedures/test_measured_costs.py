"""The mode of each batch is the cheapest one that was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.procedures.parallel.measured_costs import MeasuredCosts

MODES = ("serial", "chains", "levels", "split")


def run(costs: MeasuredCosts, batches: int, cost_s: Callable[[str], float]) -> Counter[str]:
    """Run batches of 1,000 transactions at these costs, and return how many ran in each mode."""
    ran: Counter[str] = Counter()
    for _ in range(batches):
        mode = costs.choose()
        ran[mode] += 1
        costs.note(mode, 1_000, 1_000 * cost_s(mode))
    return ran


def cheapest(best: str) -> Callable[[str], float]:
    return lambda mode: 1e-5 if mode == best else 3e-5


def test_a_program_that_takes_no_time_is_run_serially() -> None:
    assert run(MeasuredCosts(MODES), 200, lambda mode: 1e-6) == {"serial": 200}


def test_the_cheapest_mode_runs_most_batches() -> None:
    for best in MODES:
        ran = run(MeasuredCosts(MODES), 1_000, cheapest(best))
        assert ran[best] > 900
        assert min(ran.values()) >= 2, "each is tried"


def test_the_first_batch_of_a_mode_may_compile_and_does_not_count() -> None:
    costs, seen = MeasuredCosts(MODES), set()

    def cost_s(mode: str) -> float:
        first = mode not in seen
        seen.add(mode)
        return 1.0 if first and mode != "serial" else cheapest("chains")(mode)

    assert run(costs, 1_000, cost_s)["chains"] > 900


def test_a_mode_that_becomes_cheaper_is_found_and_losers_are_tried_ever_less() -> None:
    costs = MeasuredCosts(MODES)
    run(costs, 300, cheapest("serial"))
    early, late = (run(costs, 1_000, cheapest("serial"))["split"] for _ in range(2))
    assert 0 < late < early
    assert run(costs, 3_000, cheapest("split"))["split"] > 1_500
