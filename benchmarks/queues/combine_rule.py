"""When does conflating before the shuffle pay? Measures the map-side rule of `Packer`.

    python -m benchmarks.queues.combine_rule

Without Spark, on one core, 2 M rows (key long, ts timestamp, value double) go through the packer, with and
without conflating, and then through the operator. Conflating leaves 5 % to 100 % of the rows. It pays if the
sum of both times is smaller. The saved cost of the shuffle is not counted, and would favour conflating.
"""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

from benchmarks.harness import machine, median
from penstock._clock import SimulatedClock
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.border.packing import Packer
from penstock.spark_ext.border.parcels import from_parcel

ROWS = 2_000_000
SHARES = (0.05, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)


def batches(share: float, seed: int) -> list[pa.RecordBatch]:
    """Return rows of which about `share` are left after conflating chunks of a million."""
    generator = np.random.default_rng(seed)
    # Uniform keys: of n rows over k keys, k (1 - exp(-n / k)) are distinct; solve for k by bisection.
    low, high = 1.0, 1e12
    for _ in range(200):
        keys = (low * high) ** 0.5
        left = keys * -np.expm1(-1e6 / keys) / 1e6
        low, high = (keys, high) if left < share else (low, keys)
    key = generator.integers(0, max(int(low), 1), ROWS) * 2_654_435_761 % 2**40
    if share == 1.0:
        key = generator.permutation(ROWS).astype(np.int64)
    table = pa.table(
        {
            "key": key.astype(np.int64),
            "ts": pa.array(np.arange(ROWS), pa.timestamp("us", tz="UTC")),
            "value": generator.random(ROWS),
        }
    )
    return table.to_batches(max_chunksize=50_000)


def run(rows: list[pa.RecordBatch], combine: bool) -> tuple[float, float, int]:
    """Return seconds in the packer, seconds in the operator, and bytes between them."""
    stream = UpdateStream(rows[0].schema, ("key",), "ts")
    packer = Packer(stream, 2, "error", combine)
    begin = time.perf_counter()
    parcels = [row for batch in packer(rows) for row in batch.to_pylist()]
    packed = time.perf_counter()
    for label in {parcel["bucket"] for parcel in parcels}:
        queue = UpdateQueue(stream, Policy.FIFO)
        mine = [
            Arrivals.from_batch(from_parcel(parcel["payload"]), stream.schema)
            for parcel in parcels
            if parcel["bucket"] == label
        ]
        query = Query(None, stream.schema, stream.key)
        serve(queue, Arrivals.concat(mine), query=query, budget=Budget(), clock=SimulatedClock(1))
    served = time.perf_counter()
    return packed - begin, served - packed, sum(len(parcel["payload"]) for parcel in parcels)


def main() -> None:
    """Print the table."""
    print(f"{machine()}\n")
    print(f"{'left':>6} {'packer s':>20} {'operator s':>20} {'sum, ratio':>11} {'MB':>14}")
    print(f"{'':6} {'conflate':>10} {'not':>9} {'conflate':>10} {'not':>9}")
    for share in SHARES:
        results: dict[bool, list[tuple[float, float, int]]] = {True: [], False: []}
        for seed in range(4):
            rows = batches(share, seed)
            for combine in (True, False):
                results[combine].append(run(rows, combine))
        pack, operate = ({c: median([r[i] for r in results[c][1:]]) for c in (True, False)} for i in (0, 1))
        ratio = (pack[True] + operate[True]) / (pack[False] + operate[False])
        size = {c: results[c][-1][2] / 1e6 for c in (True, False)}
        print(f"{share:6.2f} {pack[True]:10.3f} {pack[False]:9.3f} "
              f"{operate[True]:10.3f} {operate[False]:9.3f} {ratio:11.2f} "
              f"{size[True]:7.1f} {size[False]:6.1f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
