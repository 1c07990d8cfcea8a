"""Voter: viewers call to vote for a contestant, at most twice each (H-Store §3.6, Fig. 3.10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.databases import database
from penstock.procedures.language import abort
from penstock.procedures.programs.oltp.benchmark import Draws, OltpBenchmark, table_of
from penstock.procedures.programs.packaged import events_of

__all__ = ["MOST_VOTES", "PHONES_OF_AREA", "VOTER", "VoterScale"]

MOST_VOTES = 2
AREA_CODES = 300
STATES = 51
PHONES_OF_AREA = 10_000_000

_show = database("voter")
_show.table("contestants", "contestant bigint, name string NOT NULL", key="contestant")
_show.table("areas", "area bigint, state bigint NOT NULL", key="area")
_show.table("votes", "phone bigint, number bigint, contestant bigint NOT NULL, state bigint NOT NULL",
            key=("phone", "number"))  # fmt: skip
_show.table("callers", "phone bigint, votes bigint NOT NULL", key="phone")
_show.table("totals", "contestant bigint, state bigint, votes bigint NOT NULL", key=("contestant", "state"))


@_show.procedure(event="phone bigint NOT NULL, contestant bigint NOT NULL", returns="votes bigint")
def vote(e: Any, contestants: Any, areas: Any, votes: Any, callers: Any, totals: Any) -> Any:
    """Count a vote; return how many votes the contestant has in the caller's state."""
    if e.contestant not in contestants:
        abort("unknown contestant")
    caller = callers.get(e.phone)
    number = 1
    if caller is None:
        callers.insert(phone=e.phone, votes=1)
    else:
        if caller.votes == MOST_VOTES:
            abort("too many votes")
        caller.votes += 1
        number = caller.votes
    state = 0
    area = areas.get(e.phone // PHONES_OF_AREA)
    if area is not None:
        state = area.state
    votes.insert(phone=e.phone, number=number, contestant=e.contestant, state=state)
    total = totals.get((e.contestant, state))
    if total is None:
        totals.insert(contestant=e.contestant, state=state, votes=1)
        return 1
    total.votes += 1
    return total.votes


@dataclass(frozen=True)
class VoterScale:
    """The size of a show.

    Parameters
    ----------
    contestants : int
        The number of contestants.
    phones : int
        The number of callers.
    """

    contestants: int = 6
    phones: int = 10_000_000


def _first_rows(scale: VoterScale) -> dict[str, pa.Table]:
    draws = Draws(1)
    contestants = {
        "contestant": np.arange(1, scale.contestants + 1),
        "name": draws.texts(scale.contestants, 8, 16),
    }
    areas = {"area": np.arange(AREA_CODES), "state": draws.integers(AREA_CODES, 1, STATES - 1)}
    return {
        "contestants": table_of(_show, "contestants", contestants),
        "areas": table_of(_show, "areas", areas),
    }


def _requests(scale: VoterScale, count: int, seed: int) -> pa.RecordBatch:
    draws = Draws(seed + 1)
    caller = draws.integers(count, 0, scale.phones - 1)
    phones = caller % AREA_CODES * PHONES_OF_AREA + caller // AREA_CODES
    # One of a thousand votes is for an unknown contestant.
    contestants = np.where(
        draws.fractions(count) < 0.001,
        scale.contestants + 1,
        draws.integers(count, 1, scale.contestants),
    )
    return events_of(vote, [phones, contestants])


VOTER = OltpBenchmark(
    "voter",
    "vote for a contestant by phone",
    _show,
    vote,
    VoterScale(),
    VoterScale(phones=200),
    _first_rows,
    _requests,
    {
        "a caller has its votes": """
            SELECT * FROM callers FULL JOIN (SELECT phone, count(*) AS found FROM votes GROUP BY ALL)
            USING (phone) WHERE votes IS DISTINCT FROM found OR votes > 2""",
        "a total has its votes": """
            SELECT * FROM totals
            FULL JOIN (SELECT contestant, state, count(*) AS found FROM votes GROUP BY ALL)
            USING (contestant, state) WHERE votes IS DISTINCT FROM found""",
    },
)
"""Voter: one insert and two counters per transaction."""
