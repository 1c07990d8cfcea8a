"""Writes the fixtures of the present format versions, where they are missing.

Fixtures are never changed: a new format version gets new ones beside them. Run it as
``python -m tests.golden.make_fixtures``.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from penstock import compression as blocks
from penstock.checkpointing import FORMAT_VERSION, PUnit, encode
from penstock.checkpointing.files import LocalFiles
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.stream import UpdateStream
from penstock.state_store.bucket_store import BucketStore, Handle
from tests.golden import windows
from tests.oracles.naive import Update
from tests.samples.streams import ARRIVAL_STREAM, enqueue, served_of

HERE = Path(__file__).parent
P_UNIT = HERE / f"p_unit_v{FORMAT_VERSION}.punit"
STATE = HERE / f"state_v{FORMAT_VERSION}"
TOKENS = HERE / "tokens_v2.block"
SYMBOLS = HERE / "symbols_v1.block"
WINDOWS = HERE / f"windows_v{FORMAT_VERSION}"


def p_unit() -> PUnit:
    """Return a unit with two blocks, many types, nulls and text beyond ASCII."""
    mixed = pa.table(
        {
            "i": pa.array([1, None, -(1 << 63)]),
            "s": pa.array(["", None, "h\u00e9llo"]),
            "d": pa.array([Decimal("-1.50"), None, Decimal("99.99")], pa.decimal128(10, 2)),
            "t": pa.array([datetime(2006, 1, 3, 9, 30, tzinfo=UTC), None, None], pa.timestamp("us", "UTC")),
            "day": pa.array([date(1969, 12, 31), None, date(2006, 1, 3)]),
            "b": pa.array([True, None, False]),
            "l": pa.array([[1, None], None, []], pa.list_(pa.int32())),
            "st": pa.array([{"a": 1.5, "b": "x"}, None, {"a": None, "b": ""}]),
        }
    )
    empty = pa.RecordBatch.from_pylist([], pa.schema([("n", pa.int8())]))
    meta = {
        "version": 3,
        "text": "Z\u00fcrich",
        "nothing": None,
        "list": [1, 2.5, "x"],
        "nested": {"a": True},
    }
    return PUnit("golden", meta, {"mixed": mixed.to_batches()[0], "empty": empty})


def texts_of_golden_tokens() -> pa.Array:
    """Return texts of three forms, some of none, and nulls."""
    texts = [
        f"/item/{n * 37 % 1000}/view?id={n % 7}" if n % 3 else f"GET {n:04} by user{n}" for n in range(2000)
    ]
    return pa.array(
        [None if n % 50 == 0 else "h\u00e9llo" if n % 51 == 0 else text for n, text in enumerate(texts)]
    )


def texts_of_golden_symbols() -> pa.Array:
    """Return texts without forms for more than one frame, with nulls and some rare bytes."""
    words = ["green", "t\u00fcr", "of", "rivers", "\U0001f600", "a", "walking"]
    texts = [" ".join(words[n * k % 11 % 7] for k in range(1, 3 + n % 9)) for n in range(4000)]
    return pa.array([None if n % 90 == 0 else text for n, text in enumerate(texts)])


def golden_queue(stream: UpdateStream = ARRIVAL_STREAM) -> UpdateQueue:
    return UpdateQueue(stream, Policy.LINECUTTING)


FIRST = [Update(key, 10 + key, key, 1_000 + key) for key in range(4)]
SECOND = [Update(1, 20, 100, 5_000), Update(7, 21, 101, 5_001), Update(0, 1, 102, 5_002)]


def first_version(queue: UpdateQueue) -> None:
    enqueue(queue, FIRST, 2_000)
    queue.observe_cost(50, 10)
    served_of(queue, 2, 2_500)
    queue.account_staleness(3_000)


def second_version(queue: UpdateQueue) -> None:
    enqueue(queue, SECOND, 6_000)
    served_of(queue, 1, 6_500)
    queue.account_staleness(7_000)


def main() -> None:
    """Write what is missing."""
    if not P_UNIT.exists():
        P_UNIT.write_bytes(encode(p_unit()))
    if not TOKENS.exists():
        TOKENS.write_bytes(blocks.encode(texts_of_golden_tokens(), "tokens"))
    if not SYMBOLS.exists():
        SYMBOLS.write_bytes(blocks.encode(texts_of_golden_symbols(), "fsst>base_delta>ns"))
    if not STATE.exists():
        STATE.mkdir()
        store, queue, handle = BucketStore(LocalFiles(STATE)), golden_queue(), Handle()
        for step in (first_version, second_version):
            step(queue)
            handle = store.commit(queue, handle)
    for kind in windows.KINDS:
        place = WINDOWS / kind
        if not place.exists():
            place.mkdir(parents=True)
            state, in_windows, handle = windows.new_state(kind), BucketStore(LocalFiles(place)), Handle()
            for number in range(windows.VERSIONS):
                windows.step(state, kind, number)
                handle = in_windows.commit(state, handle)


if __name__ == "__main__":
    main()
