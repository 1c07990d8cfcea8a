"""Queues over Kafka's records: decode the survivors, or decode all records first.

    python -m benchmarks.kafka.kafka_conflation [--engine spark|local] [--format json|avro] [--levels N]
                                          [--rounds N] [--records N] [--only CONTENDER ...] [--mock]
                                          [--quick]

A real broker on this machine holds order books of 1,000 keys, in two partitions: two fields, and ten for each
level (``--levels 1`` is about 250 bytes as JSON, 10 is 2,200). With ``--mock`` it is librdkafka's broker for
tests, in a process of its own. A pipeline reads them in micro-batches of a quarter, keeps the newest of each
key by Kafka's key and offset, and sends it to a sink that takes all.

===================  =======================================================================================
decode first         a filter that is always true, so that values are decoded before the queue
decode survivors     what pipelines do: the queue over encoded records, and then the decoder
undecoded            no format, so that values are never decoded: no way to decode later can be faster
Spark combines       Spark's own aggregation keeps the newest of each key of a micro-batch, in place of the
                     queue, and Spark decodes these (JSON, on Spark)
read only            no queue, and nothing is decoded: no way to choose the survivors can be faster (on Spark)
===================  =======================================================================================

Figures are over the micro-batches after the first, medians of all rounds: records a second, and the processor
time of all processes but the broker, without Java's compilers, for a record. Other work on the machine hardly
changes the second. Each run has its own process; the contenders take turns.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import fastavro
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks.harness import ProcessorProbe, machine, median, run_contender, scratch, session
from penstock.conf.pipeline import Pipeline
from penstock.jobs.following.batches import Batch
from penstock.jobs.pipelines.run import run_to_end
from tests.servers.kafka import Broker, Record, connector_jars

KEYS: Final = 1_000
MOCK_TOPICS: Final = 8
TYPES: Final = {"string": "STRING", "long": "LONG", "double": "DOUBLE", "int": "INT"}
LEVEL: Final = {"price": "double", "size": "int", "venue": "string", "orders": "int", "note": "string"}
FIRST, SURVIVORS, UNDECODED = "decode first", "decode survivors", "undecoded"
COMBINES, READS = "Spark combines", "read only"
KAFKA_QUEUE: Final = {"key": "kafka_key", "time": "kafka_offset"}
SECTIONS: Final[dict[str, dict[str, Any]]] = {
    FIRST: {"queue": KAFKA_QUEUE, "filter": "kafka_offset >= 0"},
    SURVIVORS: {"queue": KAFKA_QUEUE},
    UNDECODED: {"source": {}, "queue": {"key": "key", "time": "offset"}},
}


def fields(levels: int) -> dict[str, str]:
    """Return the names of a record's fields, with their types in Avro."""
    sides = [f"{side}{level or ''}" for level in range(levels) for side in ("bid", "ask")]
    return {"symbol": "string", "seq": "long"} | {
        f"{side}_{name}": kind for side in sides for name, kind in LEVEL.items()
    }


def columns(levels: int) -> str:
    return ", ".join(f"{name} {TYPES[kind]}" for name, kind in fields(levels).items())


def avro_schema(levels: int) -> dict[str, Any]:
    found = [{"name": name, "type": kind} for name, kind in fields(levels).items()]
    return {"type": "record", "name": "Book", "fields": found}


def records_of(first: int, end: int, kind: str, levels: int) -> Iterator[Record]:
    """Yield the records with these numbers."""
    schema = fastavro.parse_schema(avro_schema(levels))
    for number in range(first, end):
        some = {"price": 100 + number % 977 / 8, "size": number % 500, "venue": "XNYS"}
        some |= {"orders": number % 9, "note": "regular session"}
        book: dict[str, Any] = {"symbol": f"SYM{number * 7_919 % KEYS:05d}", "seq": number}
        book |= {name: some[name.partition("_")[2]] for name in fields(levels) if name not in book}
        if kind == "json":
            encoded = json.dumps(book).encode()
        else:
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, schema, book)
            encoded = buffer.getvalue()
        yield Record(book["symbol"].encode(), encoded)


def run_on_spark(
    spark: SparkSession, options: dict[str, str], checkpoint: str, combine: str
) -> list[tuple[int, float, float]]:
    """Return rows, seconds and ends of micro-batches of a query that only reads, or lets Spark combine."""

    def keep_newest(rows: DataFrame, number: int) -> None:
        newest = rows.groupBy("key").agg(sf.max_by("value", "offset").alias("value"))
        decoded = newest.select("key", sf.from_json(sf.col("value").cast("string"), combine).alias("decoded"))
        decoded.select("key", "decoded.*").write.format("noop").mode("overwrite").save()

    stream = spark.readStream.format("kafka").options(**options).load().writeStream
    stream = stream.option("checkpointLocation", checkpoint)
    writer = stream.format("noop") if not combine else stream.foreachBatch(keep_newest)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    found = []
    for one in query.recentProgress:
        took = one.durationMs["triggerExecution"] / 1000
        found.append((one.numInputRows, took, datetime.fromisoformat(one.timestamp).timestamp() + took))
    return found


def run_pipeline(
    spark: SparkSession | None, options: dict[str, str], checkpoint: str, given: argparse.Namespace
) -> list[tuple[int, float, float]]:
    """Return rows, seconds and ends of the micro-batches of a contender's pipeline."""
    decoded = {
        "value_format": given.format,
        "schema": columns(given.levels),
        "kafka_columns": ["key", "offset"],
    }
    if given.format == "avro":
        decoded["value_schema"] = json.dumps(avro_schema(given.levels))
    sections = {"source": decoded} | SECTIONS[given.contender]
    source = {"type": "kafka", "options": options} | sections["source"]
    query = {"trigger": "available_now", "checkpoint": checkpoint}
    pipeline = Pipeline.model_validate(
        sections | {"engine": given.engine, "source": source, "sink": {"type": "noop"}, "query": query}
    )
    assert pipeline.decodes_late is (given.contender == SURVIVORS)
    found: list[tuple[int, float, float]] = []

    def note(batch: Batch) -> None:
        found.append((batch.rows_in, batch.duration_ms / 1000, time.time()))

    run_to_end(pipeline, note, spark)
    return found


def run_one(given: argparse.Namespace) -> dict[str, Any]:
    """Run one contender over all records and return the speed of its micro-batches."""
    options = {
        "kafka.bootstrap.servers": given.address,
        "subscribePattern": "books.*",
        "startingOffsets": "earliest",
    }
    options["maxOffsetsPerTrigger"] = str(given.records // 4)
    spark = None
    if given.engine == "spark":
        spark = session()
        for jar in connector_jars():
            spark.sql(f"ADD JAR '{jar}'")
    with tempfile.TemporaryDirectory() as checkpoint, ProcessorProbe() as probe:
        if spark is not None and given.contender in (COMBINES, READS):
            combine = columns(given.levels) if given.contender == COMBINES else ""
            found = run_on_spark(spark, options, checkpoint, combine)
        else:
            found = run_pipeline(spark, options, checkpoint, given)
    found = [one for one in found if one[0]]
    assert sum(rows for rows, _, _ in found) == given.records
    records = sum(rows for rows, _, _ in found[1:])
    spent = probe.between(found[0][2], found[-1][2])
    cpu_s = sum(seconds for kind, seconds in spent.items() if kind != "compilers")
    return {"records_per_s": records / sum(took for _, took, _ in found[1:]), "cpu_us": 1e6 * cpu_s / records}


@contextmanager
def real_broker(given: argparse.Namespace) -> Iterator[str]:
    """Run Kafka with the records; give its address."""
    with scratch("kafka") as name, Broker(Path(name)) as broker:
        broker.make_topic("books", partitions=2)
        for partition in (0, 1):
            begin, end = partition * given.records // 2, (partition + 1) * given.records // 2
            for first in range(begin, end, 20_000):
                sent = records_of(first, min(first + 20_000, end), given.format, given.levels)
                broker.send("books", sent, partition)
        yield broker.address


def serve_mock(given: argparse.Namespace) -> None:
    """Be librdkafka's broker for tests, with the records, until the standard input ends."""
    settings: dict[str, Any] = {"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0}
    producer = Producer(settings)
    (broker,) = producer.list_topics(timeout=60).brokers.values()
    # It keeps 5 MB of each partition, and topics have four.
    for topic in range(MOCK_TOPICS):
        producer.list_topics(f"books-{topic}", timeout=60)  # makes the topic
    for number, record in enumerate(records_of(0, given.records, given.format, given.levels)):
        topic, partition = divmod(number % (4 * MOCK_TOPICS), 4)
        producer.produce(f"books-{topic}", record.value, record.key, partition=partition)
        if number % 2_000 == 0:
            producer.flush(60)
    assert producer.flush(60) == 0
    print(f"{broker.host}:{broker.port}", flush=True)
    sys.stdin.read()


@contextmanager
def mock_broker(given: argparse.Namespace) -> Iterator[str]:
    """Run `serve_mock` in a process; give its address."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.kafka.kafka_conflation",
        "--serve-mock",
        "--format",
        given.format,
    ]
    command += ["--levels", str(given.levels), "--records", str(given.records)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdin is not None
        assert served.stdout is not None
        yield served.stdout.readline().strip()
        served.stdin.close()


def contenders(given: argparse.Namespace) -> list[str]:
    """Return the contenders of an engine and a format."""
    found = [FIRST, SURVIVORS, UNDECODED]
    if given.engine == "spark":
        found += [READS] if given.format == "avro" else [COMBINES, READS]
    return [name for name in found if given.only is None or name in given.only]


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    parser.add_argument("--format", choices=("json", "avro"), default="json")
    parser.add_argument("--levels", type=int, default=1, help="ten fields each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="+", metavar="CONTENDER")
    parser.add_argument("--quick", action="store_true", help="few records, one round: does it run?")
    parser.add_argument("--mock", action="store_true", help="librdkafka's broker for tests")
    parser.add_argument("--serve-mock", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.contender:
        print(json.dumps(run_one(given)))
        return
    if given.serve_mock:
        serve_mock(given)
        return
    if given.quick:
        given.records, given.rounds = 20_000, 1
    size = len(next(records_of(0, 1, given.format, given.levels)).value or b"")
    load = f"load {os.getloadavg()[0]:.1f} at the begin"
    runs: dict[str, list[dict[str, Any]]] = {contender: [] for contender in contenders(given)}
    with (mock_broker if given.mock else real_broker)(given) as address:
        arguments = ["--engine", given.engine, "--format", given.format, "--levels", str(given.levels)]
        arguments += ["--address", address, "--records", str(given.records)]
        for _ in range(given.rounds):
            for contender, found in runs.items():
                found.append(run_contender("kafka.kafka_conflation", "--contender", contender, *arguments))
                print(f"{contender}: {found[-1]}", file=sys.stderr, flush=True)
    print(f"{machine()}; {load}")
    print(f"{given.engine}, {given.format}, {size} bytes, {len(fields(given.levels))} fields\n")
    head = f"{'contender':17} {'k records/s':>11} {'relative':>8} {'CPU us a record':>16} {'relative':>8}"
    print(head, "  CPU of all rounds")
    compared = next(iter(runs.values()))
    for contender, found in runs.items():
        line = f"{contender:17}"
        for name, width, by, sign in (("records_per_s", 11, 1e3, 1), ("cpu_us", 16, 1, -1)):
            slowest, here = (median([run[name] for run in some]) for some in (compared, found))
            line += f" {here / by:{width}.1f} {(here / slowest) ** sign:8.2f}"
        print(line, "  ", " ".join(f"{run['cpu_us']:.0f}" for run in found))


if __name__ == "__main__":
    main()
