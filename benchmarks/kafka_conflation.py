"""Queues over Kafka's JSON records: decode the survivors, or decode all records first.

    python -m benchmarks.kafka_conflation [--rounds N] [--records N] [--quick]

A real broker on this machine holds records of about 250 bytes (twelve fields) of 1,000 keys, in two
partitions. A pipeline reads them in micro-batches of a quarter, keeps the newest of each key by Kafka's key
and offset, and sends it to a sink that takes all. ``decode first`` has a filter that is always true, so that
values are decoded before the queue. ``undecoded`` has no format, so that values are never decoded: an upper
bound. A figure is records a second over the micro-batches after the first, the median of all rounds. Each run
has its own process; the contenders take turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import machine, median, run_contender, scratch, session
from penstock.conf.pipeline import Pipeline
from penstock.jobs.pipelines.batches import Batch
from penstock.jobs.pipelines.late_decoding import decodes_late
from penstock.jobs.pipelines.run import run_to_end
from tests.kafka import Broker, Record, connector_jars

KEYS = 1_000
COLUMNS = "symbol STRING, seq LONG, " + ", ".join(
    f"{side}_{field} {kind}"
    for side in ("bid", "ask")
    for field, kind in (
        ("price", "DOUBLE"),
        ("size", "INT"),
        ("venue", "STRING"),
        ("orders", "INT"),
        ("note", "STRING"),
    )
)
SECTIONS: dict[str, dict[str, Any]] = {
    "undecoded": {"source": {}, "queue": {"key": "key", "time": "offset"}},
    "decode survivors": {"queue": {"key": "kafka_key", "time": "kafka_offset"}},
    "decode first": {"queue": {"key": "kafka_key", "time": "kafka_offset"}, "filter": "kafka_offset >= 0"},
}


def record(number: int) -> Record:
    """Return the quote with this number."""
    key = number * 7_919 % KEYS
    value: dict[str, Any] = {"symbol": f"SYM{key:05d}", "seq": number}
    for side in ("bid", "ask"):
        value |= {f"{side}_price": 100 + number % 977 / 8, f"{side}_size": number % 500}
        value |= {f"{side}_venue": "XNYS", f"{side}_orders": number % 9, f"{side}_note": "regular session"}
    return Record(f"SYM{key:05d}".encode(), json.dumps(value).encode())


def run_one(contender: str, address: str, records: int) -> dict[str, Any]:
    """Run one pipeline over all records and return the speed of its micro-batches."""
    decoded = {"value_format": "json", "schema": COLUMNS, "kafka_columns": ["key", "offset"]}
    sections = {"source": decoded} | SECTIONS[contender]
    options = {"kafka.bootstrap.servers": address, "subscribe": "quotes", "startingOffsets": "earliest"}
    options["maxOffsetsPerTrigger"] = str(records // 4)
    batches: list[Batch] = []
    with tempfile.TemporaryDirectory() as checkpoint:
        pipeline = Pipeline.model_validate(
            sections
            | {
                "source": {"type": "kafka", "options": options} | sections["source"],
                "sink": {"type": "noop"},
                "query": {"trigger": "available_now", "checkpoint": checkpoint},
            }
        )
        assert decodes_late(pipeline) is (contender == "decode survivors")
        spark = session()
        for jar in connector_jars():
            spark.sql(f"ADD JAR '{jar}'")
        run_to_end(pipeline, batches.append, spark)
    assert sum(batch.rows_in for batch in batches) == records
    later = [batch for batch in batches[1:] if batch.rows_in]
    seconds = sum(batch.duration_ms for batch in later) / 1000
    return {"records_per_s": sum(batch.rows_in for batch in later) / seconds}


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="few records, one round: does it run?")
    parser.add_argument("--contender", nargs=2, metavar=("NAME", "ADDRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    records = 20_000 if options.quick else options.records
    if options.contender:
        contender, address = options.contender
        print(json.dumps(run_one(contender, address, records)))
        return
    speeds: dict[str, list[float]] = {contender: [] for contender in SECTIONS}
    with scratch("kafka") as name, Broker(Path(name)) as broker:
        broker.make_topic("quotes", partitions=2)
        for partition in (0, 1):
            begin, end = partition * records // 2, (partition + 1) * records // 2
            for first in range(begin, end, 50_000):
                sent = (record(number) for number in range(first, min(first + 50_000, end)))
                broker.send("quotes", sent, partition)
        for _ in range(1 if options.quick else options.rounds):
            for contender, found in speeds.items():
                arguments = ("--contender", contender, broker.address, "--records", str(records))
                found.append(run_contender("kafka_conflation", *arguments)["records_per_s"])
                print(f"{contender}: {found[-1]:.0f}", file=sys.stderr, flush=True)
    print(f"\n{machine()}\n")
    print(f"{'contender':17} {'k records/s':>11} {'relative':>8}   rounds")
    slowest = median(speeds["decode first"])
    for contender, found in speeds.items():
        rounds = " ".join(f"{speed / 1e3:.0f}" for speed in found)
        print(f"{contender:17} {median(found) / 1e3:11.0f} {median(found) / slowest:8.2f}   {rounds}")


if __name__ == "__main__":
    main()
