"""The comparison of policies under a simulated overload, and the command that shows it."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.errors import InvalidUsageError
from penstock.operators.scheduling.policy import Policy
from penstock.operators.simulation import compare_policies


def staleness(updates: int, *, load: float = 5.0) -> dict[str, float]:
    rows: list[dict[str, Any]] = compare_policies(load, 10, 0.5, updates).to_pylist()
    return {row["queue"]: row["application_staleness"] for row in rows}


def test_an_append_queue_grows_stale_with_the_run_and_update_queues_do_not() -> None:
    short, long = staleness(500), staleness(2_000)
    assert list(short) == ["append", *map(str, Policy)]
    assert long["append"] > 3 * short["append"]
    for policy in Policy:
        assert long[policy] < min(2 * short[policy], long["append"] / 5)


def test_all_queues_are_equally_fresh_without_overload() -> None:
    found = staleness(500, load=0.5)
    assert max(found.values()) == pytest.approx(min(found.values()))


@pytest.mark.parametrize(("load", "keys", "skew", "updates"), [(0, 1, 0, 1), (1, 0, 0, 1), (1, 1, -1, 1)])
def test_what_cannot_be_simulated_is_refused(load: float, keys: int, skew: float, updates: int) -> None:
    with pytest.raises(InvalidUsageError, match=r"cannot be simulated: .* must be positive"):
        compare_policies(load, keys, skew, updates)


def test_the_command_shows_a_row_for_each_queue() -> None:
    shown = CliRunner().invoke(app, ["simulate", "--updates", "200", "--keys", "5"])
    assert shown.exit_code == 0
    for name in ("append", *map(str, Policy)):
        assert name in shown.stdout
