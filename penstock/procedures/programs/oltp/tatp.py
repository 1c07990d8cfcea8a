"""TATP: the registers of a mobile network (H-Store, appendix A.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.databases import database
from penstock.procedures.language import abort
from penstock.procedures.programs.oltp.benchmark import Draws, OltpBenchmark, table_of
from penstock.procedures.programs.packaged import Integers, events_of

__all__ = ["KINDS", "TATP", "TatpScale"]

KINDS = range(7)
(GET_SUBSCRIBER, GET_DESTINATION, GET_ACCESS, UPDATE_SUBSCRIBER, UPDATE_LOCATION, INSERT_FORWARDING,
 DELETE_FORWARDING) = KINDS  # fmt: skip
_SHARES = np.repeat(KINDS, [35, 10, 35, 2, 14, 2, 2])
_HOURS = 8
"""Call forwarding starts at a multiple of this number of hours: at 0, 8 or 16 hours."""
_FIELDS = ", ".join(
    [f"bit_{n} tinyint NOT NULL" for n in range(1, 11)]
    + [f"hex_{n} tinyint NOT NULL" for n in range(1, 11)]
    + [f"byte2_{n} smallint NOT NULL" for n in range(1, 11)]
)

_network = database("tatp")
_network.table(
    "subscribers",
    f"s_id bigint, sub_nbr string NOT NULL, {_FIELDS}, msc_location bigint NOT NULL, "
    "vlr_location bigint NOT NULL",
    key="s_id",
    partition_by="s_id",
    indexes=["sub_nbr"],
)
_network.table(
    "access_info",
    "s_id bigint, ai_type bigint, data1 smallint NOT NULL, data2 smallint NOT NULL, data3 string NOT NULL, "
    "data4 string NOT NULL",
    key=("s_id", "ai_type"),
    partition_by="s_id",
)
_network.table(
    "facilities",
    "s_id bigint, sf_type bigint, is_active boolean NOT NULL, error_cntrl smallint NOT NULL, "
    "data_a smallint NOT NULL, data_b string NOT NULL",
    key=("s_id", "sf_type"),
    partition_by="s_id",
)
_network.table(
    "forwarding",
    "s_id bigint, sf_type bigint, start_time bigint, end_time bigint NOT NULL, numberx string NOT NULL",
    key=("s_id", "sf_type", "start_time"),
    partition_by="s_id",
)


@_network.procedure(
    event="kind bigint NOT NULL, s_id bigint NOT NULL, sub_nbr string NOT NULL, type bigint NOT NULL, "
    "start bigint NOT NULL, until bigint NOT NULL, value bigint NOT NULL, numberx string NOT NULL",
    returns="location bigint, text string, data bigint",
)
def transact(e: Any, subscribers: Any, access_info: Any, facilities: Any, forwarding: Any) -> Any:
    """Run a transaction of the kind ``e.kind``; a missing row, which the specification allows, rejects it."""
    if e.kind == GET_SUBSCRIBER:
        row = subscribers[e.s_id]
        return row.vlr_location, row.sub_nbr, row.byte2_10
    if e.kind == GET_ACCESS:
        access = access_info[e.s_id, e.type]
        return None, access.data3, access.data1
    if e.kind == GET_DESTINATION:
        facility = facilities[e.s_id, e.type]
        if not facility.is_active:
            abort("not active")
        number = None
        count = 0
        for start in range(0, e.start + 1, _HOURS):
            forward = forwarding.get((e.s_id, e.type, start))
            if forward is not None and e.until < forward.end_time:
                number = forward.numberx
                count += 1
        if count == 0:
            abort("not forwarded")
        return None, number, count
    if e.kind == UPDATE_SUBSCRIBER:
        subscribers[e.s_id].bit_1 = e.value % 2
        facilities[e.s_id, e.type].data_a = e.value % 256
        return None, None, None
    subscriber = subscribers.by("sub_nbr")[e.sub_nbr].first()
    if subscriber is None:
        abort("unknown number")
    if e.kind == UPDATE_LOCATION:
        subscriber.vlr_location = e.value
        return e.value, None, None
    s_id = subscriber.s_id
    if e.kind == INSERT_FORWARDING:
        if (s_id, e.type) not in facilities:
            abort("no facility")
        forwarding.insert(s_id=s_id, sf_type=e.type, start_time=e.start, end_time=e.until, numberx=e.numberx)
        return None, None, None
    del forwarding[s_id, e.type, e.start]
    return None, None, None


@dataclass(frozen=True)
class TatpScale:
    """The size of TATP's database.

    Parameters
    ----------
    subscribers : int
        The number of subscribers.
    """

    subscribers: int = 100_000


def _numbers(ids: Integers) -> pa.Array[Any]:
    return pa.array([f"{number:015d}" for number in ids.tolist()])


def _first_rows(scale: TatpScale) -> dict[str, pa.Table]:
    draws = Draws(1)
    count = scale.subscribers
    s_id = np.arange(1, count + 1)
    fields = {f"bit_{n}": draws.integers(count, 0, 1) for n in range(1, 11)}
    fields |= {f"hex_{n}": draws.integers(count, 0, 15) for n in range(1, 11)}
    fields |= {f"byte2_{n}": draws.integers(count, 0, 255) for n in range(1, 11)}
    locations = {name: draws.integers(count, 1, (1 << 32) - 1) for name in ("msc_location", "vlr_location")}
    access = _some_of(draws, s_id, 4)
    facility = _some_of(draws, s_id, 4)
    number, kind = facility
    forwards = [draws.fractions(len(number)) < 0.5 for _ in range(3)]
    start = np.concatenate([np.full(int(some.sum()), _HOURS * n) for n, some in enumerate(forwards)])
    owner, owner_kind = (np.concatenate([part[some] for some in forwards]) for part in (number, kind))
    columns = {
        "subscribers": {"s_id": s_id, "sub_nbr": _numbers(s_id), **fields, **locations},
        "access_info": {
            "s_id": access[0], "ai_type": access[1], "data1": draws.integers(len(access[0]), 0, 255),
            "data2": draws.integers(len(access[0]), 0, 255), "data3": draws.texts(len(access[0]), 3, 3),
            "data4": draws.texts(len(access[0]), 5, 5),
        },
        "facilities": {
            "s_id": number, "sf_type": kind, "is_active": draws.fractions(len(number)) < 0.85,
            "error_cntrl": draws.integers(len(number), 0, 255),
            "data_a": draws.integers(len(number), 0, 255), "data_b": draws.texts(len(number), 5, 5),
        },
        "forwarding": {
            "s_id": owner, "sf_type": owner_kind, "start_time": start,
            "end_time": start + draws.integers(len(start), 1, 8), "numberx": draws.digits(len(start), 15),
        },
    }  # fmt: skip
    return {name: table_of(_network, name, table) for name, table in columns.items()}


def _some_of(draws: Draws, owners: Integers, most: int) -> tuple[Integers, Integers]:
    """Give each owner one to `most` numbers from 1 on; return the owner of each number, and the numbers."""
    counts = draws.integers(len(owners), 1, most)
    rows = int(counts.sum())
    return np.repeat(owners, counts), np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts) + 1


def _requests(scale: TatpScale, count: int, seed: int) -> pa.RecordBatch:
    draws = Draws(seed + 1)
    kinds = _SHARES[draws.integers(count, 0, 99)]
    # This draw is non-uniform, as specified.
    mixed = draws.integers(count, 0, 65_535) | draws.integers(count, 1, scale.subscribers)
    s_id = mixed % scale.subscribers + 1
    start = _HOURS * draws.integers(count, 0, 2)
    # A query asks for any hour; a row ends one to eight hours after its start.
    until = np.where(
        kinds == GET_DESTINATION, draws.integers(count, 1, 24), start + draws.integers(count, 1, 8)
    )
    columns = [
        kinds, s_id, _numbers(s_id), draws.integers(count, 1, 4), start, until,
        draws.integers(count, 1, (1 << 32) - 1), draws.digits(count, 15),
    ]  # fmt: skip
    return events_of(transact, columns)


TATP = OltpBenchmark(
    "tatp",
    "look up and change a subscriber's registers",
    _network,
    transact,
    TatpScale(),
    TatpScale(subscribers=30),
    _first_rows,
    _requests,
    {
        "a forwarding has its facility": """
            SELECT * FROM forwarding ANTI JOIN facilities USING (s_id, sf_type)""",
        "a facility and an access have their subscriber": """
            SELECT s_id FROM (SELECT s_id FROM facilities UNION ALL SELECT s_id FROM access_info)
            ANTI JOIN subscribers USING (s_id)""",
        "a forwarding ends after its start": "SELECT * FROM forwarding WHERE end_time <= start_time",
    },
)
"""TATP: four of five transactions only read."""
