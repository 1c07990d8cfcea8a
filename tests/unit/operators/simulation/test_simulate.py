"""The comparison of policies under a simulated overload, and the command that shows it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.errors import InvalidUsageError
from penstock.operators.scheduling.policy import Policy
from penstock.operators.simulation import compare_policies
from penstock.operators.simulation.policies import MAX_LOAD, MAX_SKEW


def staleness(updates: int, *, load: float = 5.0, skew: float = 0.5) -> dict[str, float]:
    rows: list[dict[str, Any]] = compare_policies(load, 10, skew, updates).to_pylist()
    return {row["queue"]: row["application_staleness"] for row in rows if row["results"] is not None}


def test_an_append_queue_grows_stale_with_the_run_and_update_queues_do_not() -> None:
    short, long = staleness(500), staleness(2_000)
    assert list(short) == ["append", *map(str, Policy), "random"]
    assert long["append"] > 3 * short["append"]
    for policy in Policy:
        assert long[policy] < min(2 * short[policy], long["append"] / 5)


def test_all_queues_are_equally_fresh_without_overload() -> None:
    found = staleness(500, load=0.5)
    assert max(found.values()) == pytest.approx(min(found.values()))


@pytest.mark.parametrize(
    ("load", "keys", "skew", "updates"),
    [(0, 1, 0, 1), (1, 0, 0, 1), (1, 1, -1, 1), (math.inf, 1, 0, 1)]
    + [(1, 1, skew, 1) for skew in (1e308, math.inf, math.nan)]
    + [(1e308, 1, 0, 1)],
)
def test_what_cannot_be_simulated_is_refused(load: float, keys: int, skew: float, updates: int) -> None:
    with pytest.raises(InvalidUsageError, match=r"cannot be simulated: .* must be positive") as told:
        compare_policies(load, keys, skew, updates)
    assert list(told.value.context) == [
        {(0, 1): "load", (math.inf, 1): "load", (1e308, 1): "load", (1, 0): "keys"}.get((load, keys), "skew")
    ]


def test_the_greatest_skew_and_load_have_finite_results() -> None:
    for load, skew in ((10, MAX_SKEW), (MAX_LOAD, 1.0)):
        assert all(map(math.isfinite, staleness(100, load=load, skew=skew).values()))


def test_the_command_shows_a_row_for_each_queue() -> None:
    shown = CliRunner().invoke(app, ["simulate", "--updates", "200", "--keys", "5"])
    assert shown.exit_code == 0
    for name in ("append", *map(str, Policy), "random", "lower bound"):
        assert name in shown.stdout


def test_the_optimum_of_few_keys_is_above_the_bound_and_below_every_policy() -> None:
    rows: list[dict[str, Any]] = compare_policies(4.0, 2, 1.0, 2_000).to_pylist()
    found = {row["queue"]: row["queue_staleness"] for row in rows}
    assert list(found)[-2:] == ["optimum", "lower bound"]
    assert found["lower bound"] < found["optimum"]
    for name in (*Policy, "random"):
        assert found["optimum"] < 1.1 * found[name]


def test_a_load_that_is_no_whole_number_has_a_bound() -> None:
    rows: list[dict[str, Any]] = compare_policies(3.5, 2, 1.0, 1_000).to_pylist()
    found = {row["queue"]: row["queue_staleness"] for row in rows}
    assert "optimum" not in found
    assert 0 < found["lower bound"] < min(found[policy] for policy in Policy)
