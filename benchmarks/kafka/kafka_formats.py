"""Decoding of Kafka's values without Spark.

Usage: ``python -m benchmarks.kafka.kafka_formats [--rounds N] [--quick]``.

A batch has 10,000 framed values of twelve fields, as `benchmarks.kafka.kafka_conflation` has them in JSON,
and a schema registry on this machine has their schemas. ``avro, older`` are values of an earlier version,
which are resolved to the newest. ``by hand`` decodes value by value, as programs for mapInArrow do: JSON by
``json.loads``, Protobuf by Google's classes, and pyarrow makes columns of the dicts. A figure is values a
second of one core's CPU time, the best of all rounds.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa

from benchmarks.harness import machine
from penstock.records.avro import avro_decoder
from penstock.records.protobuf import protobuf_decoder
from penstock.records.registry import SchemaRegistry
from tests.servers.registry import Registry, frame

VALUES = 10_000
TYPES = {
    "string": (pa.string(), "string"),
    "long": (pa.int64(), "int64"),
    "int": (pa.int32(), "int32"),
    "double": (pa.float64(), "double"),
}
FIELDS = [("symbol", "string"), ("seq", "long")] + [
    (f"{side}_{name}", kind)
    for side in ("bid", "ask")
    for name, kind in (
        ("price", "double"), ("size", "int"), ("venue", "string"), ("orders", "int"), ("note", "string")
    )
]  # fmt: skip


def row(number: int) -> dict[str, Any]:
    """Return the quote with this number."""
    value: dict[str, Any] = {"symbol": f"SYM{number % 1_000:05d}", "seq": number}
    for side in ("bid", "ask"):
        value |= {f"{side}_price": 100 + number % 977 / 8, f"{side}_size": number % 500}
        value |= {f"{side}_venue": "XNYS", f"{side}_orders": number % 9, f"{side}_note": "regular session"}
    return value


def avro_schema(fields: list[tuple[str, str]]) -> dict[str, Any]:
    return {"type": "record", "name": "Quote", "fields": [{"name": n, "type": t} for n, t in fields]}


def avro_values(number: int, schema: dict[str, Any], rows: list[dict[str, Any]]) -> pa.Array:
    parsed, values = fastavro.parse_schema(schema), []
    for one in rows:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, one)
        values.append(frame(number, buffer.getvalue()))
    return pa.array(values)


def message_class() -> Any:
    """Return Google's class of the message `Quote`."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    file = FileDescriptorProto(name="quote.proto", syntax="proto3")
    message = file.message_type.add(name="Quote")
    for place, (name, kind) in enumerate(FIELDS, 1):
        number = {"string": 9, "long": 3, "int": 5, "double": 1}[kind]
        message.field.add(name=name, number=place, type=number, label=1)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("Quote"))


def contenders(registry: Registry) -> dict[str, Callable[[], object]]:
    """Return what decodes a batch, by name."""
    rows = [row(number) for number in range(VALUES)]
    kinds = pa.struct([(name, TYPES[kind][0]) for name, kind in FIELDS])
    older = [(name, "int" if kind == "long" else kind) for name, kind in FIELDS]
    proto = "".join(f"{TYPES[kind][1]} {name} = {place};" for place, (name, kind) in enumerate(FIELDS, 1))
    proto = f'syntax = "proto3"; message Quote {{ {proto} }}'
    schemas = [avro_schema(older), avro_schema(FIELDS)]
    numbers = [registry.add("avro", json.dumps(schema)) for schema in schemas]
    old, new = (avro_values(number, one, rows) for number, one in zip(numbers, schemas, strict=True))
    avro = avro_decoder(None, SchemaRegistry(registry.url, "avro"))
    number = registry.add("protobuf", proto, "PROTOBUF")
    protobuf = protobuf_decoder(None, None, SchemaRegistry(registry.url, "protobuf"))
    quote = message_class()
    encoded = [quote(**one).SerializeToString() for one in rows]
    messages = pa.array([frame(number, one, [0]) for one in encoded])
    texts = [json.dumps(one) for one in rows]

    def by_hand() -> pa.Array:
        found = [quote.FromString(one) for one in encoded]
        return pa.array([{name: getattr(one, name) for name, _ in FIELDS} for one in found], kinds)

    return {
        "avro": lambda: avro.decode(new),
        "avro, older": lambda: avro.decode(old),
        "protobuf": lambda: protobuf.decode(messages),
        "protobuf by hand": by_hand,
        "json by hand": lambda: pa.array([json.loads(text) for text in texts], kinds),
    }


def measure(decode: Callable[[], object], rounds: int) -> float:
    """Return the values a second of CPU time."""
    decode()
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        decode()
        best = min(best, time.process_time() - begin)
    return VALUES / best


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="one round: does it run?")
    options = parser.parse_args()
    pa.set_cpu_count(1)
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}\n")
    print(f"{'contender':18} {'k values/s':>10} {'relative':>8}")
    with Registry() as registry:
        found = {
            name: measure(decode, 1 if options.quick else options.rounds)
            for name, decode in contenders(registry).items()
        }
    for name, speed in found.items():
        print(f"{name:18} {speed / 1e3:10.0f} {speed / found['json by hand']:8.2f}")


if __name__ == "__main__":
    main()
