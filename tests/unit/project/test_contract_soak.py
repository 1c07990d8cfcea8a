"""The judge of the soak of freshness contracts."""

from __future__ import annotations

import random

import pytest

from tests.crash.pipelines.contract_oracle import (
    CLEAR,
    Oracle,
    Tick,
    count_false_alarms,
    find_breaches,
    find_floor,
    longest_gap,
)
from tests.crash.pipelines.contract_table import LIMIT_S

STEP_S = 0.25


def ticks_of(late: str, runs: str | None = None) -> list[Tick]:
    """Return a tick for each letter: ``x`` is late, ``r`` runs."""
    runs = runs or "r" * len(late)
    return [
        Tick(number * STEP_S, 2 * CLEAR * (one == "x"), alive == "r")
        for number, (one, alive) in enumerate(zip(late, runs, strict=True))
    ]


def test_a_breach_that_is_reported_in_time_is_excused() -> None:
    (breach,) = find_breaches(ticks_of("." * 8 + "x" * 40), [(1.0, True), (5.0, False)])
    assert (breach.begin_s, breach.alive_s, breach.reported) == (2.0, 3.0, True)
    assert breach.is_excused()


def test_a_breach_that_nobody_reports_is_found() -> None:
    (breach,) = find_breaches(ticks_of("x" * 40), [(1.0, True)])
    assert not breach.reported
    assert not breach.is_excused()


def test_a_report_comes_too_late() -> None:
    first, second = find_breaches(ticks_of("x" * 40 + "." * 60 + "x" * 40), [(7.0, False)])
    assert first.reported
    assert not first.is_excused()
    assert second.begin_s == 25.0
    assert not second.reported, "the report of another breach does not count"


def test_a_dead_process_reports_nothing_and_is_excused_until_it_runs() -> None:
    dead = "x" * 60
    (breach,) = find_breaches(ticks_of(dead, "d" * 48 + "r" * 12), [])
    assert breach.is_excused()
    assert (breach.alive_s, breach.dead_s) == (3.0, 11.75)
    assert "11.8 s in which the process was dead or started" in str(breach)
    (breach,) = find_breaches(ticks_of(dead, "d" * 30 + "r" * 30), [])
    assert not breach.is_excused()


def test_a_report_of_a_breach_is_false_if_the_promise_was_kept_for_a_whole_window() -> None:
    window_s = 2 * LIMIT_S
    calm = ticks_of("x" * 8 + "." * 200)
    early, late = 2.0 + window_s - STEP_S, 2.0 + window_s
    assert count_false_alarms(calm, [(1.0, False), (early, False)]) == (0, 0)
    assert count_false_alarms(calm, [(late, True), (late + 1, False), (late + 2, False)]) == (2, 3)
    assert count_false_alarms(ticks_of("." * 80 + "x" * 40), [(21.0, False), (25.0, False)]) == (0, 0)
    # A process that has just started cannot know.
    assert count_false_alarms(ticks_of("." * 100, "d" * 50 + "r" * 50), [(late, False)]) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_staleness_equals_its_definition(seed: int) -> None:
    draws = random.Random(seed)
    oracle, sent, delivered = Oracle(), [], dict.fromkeys("abcd", -1)
    now = 0.0
    for time in range(200):
        now += draws.random()
        key = draws.choice("abcd")
        oracle.send(key, time, now)
        sent.append((key, time, now))
        if draws.random() < 0.4:
            some, newest, _ = draws.choice(sent)
            oracle.deliver(some, newest)
            delivered[some] = max(delivered[some], newest)
        ages = {
            key: [now - at for other, one, at in sent if other == key and one > delivered[key]]
            for key, *_ in sent
        }
        late = sum(max(some, default=0.0) > LIMIT_S for some in ages.values())
        assert oracle.share_late(now) == late / len(ages)


@pytest.mark.parametrize("seed", range(5))
def test_the_floor_shows_what_stays_and_not_how_cycles_of_garbage_meet(seed: int) -> None:
    draws = random.Random(seed)
    phases = [draws.random() for _ in range(3)]

    def used(at_s: int, leak: float) -> int:
        cycles = zip((37, 61, 90), (200, 300, 400), phases, strict=True)
        return 250 + int(leak * at_s) + sum(int(high * ((at_s / s + p) % 1)) for s, high, p in cycles)

    def grows(leak: float) -> bool:
        samples = [(float(at_s), used(at_s, leak)) for at_s in range(0, 3600, 5)]
        halves = (samples[:360], samples[360:])
        first, second = (find_floor(half, 150.0) for half in halves)
        return second > 1.3 * first

    assert not grows(0.0)
    assert grows(0.2)
    assert find_floor([], 150.0) == 0
    # A slice counts if it is at least half as long as the others.
    assert find_floor([(0.0, 5), (140.0, 6), (150.0, 9), (210.0, 8)], 150.0) == 5
    assert find_floor([(0.0, 5), (140.0, 6), (150.0, 9), (230.0, 8)], 150.0) == 8
    assert longest_gap([1.0, 2.0, 5.0, 6.0]) == 3.0
