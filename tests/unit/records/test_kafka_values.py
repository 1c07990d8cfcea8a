"""Values of Kafka in Avro and Protobuf, and the client of schema registries."""

from __future__ import annotations

import datetime as dt
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import InvalidUsageError, UnavailableError, redact
from penstock.records import registry as client
from penstock.records.avro import avro_decoder
from penstock.records.decoder import NOT_FRAMED, UNKNOWN_SCHEMA
from penstock.records.framing import read_frames
from penstock.records.protobuf import protobuf_decoder
from penstock.records.registry import SchemaRegistry
from tests.servers.registry import Registry, frame


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as started:
        yield started


def record(*fields: tuple[str, Any], name: str = "Quote", **defaults: Any) -> dict[str, Any]:
    """Return an Avro schema; `defaults` has default values of fields."""
    listed = [
        {"name": field, "type": kind} | ({"default": defaults[field]} if field in defaults else {})
        for field, kind in fields
    ]
    return {"type": "record", "name": name, "fields": listed}


def avro(schema: Any, value: Any, *others: Any) -> bytes:
    """Return a value in Avro; `others` are schemas that the schema refers to."""
    named: dict[str, Any] = {}
    for other in others:
        fastavro.parse_schema(other, named)
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema, named), value)
    return buffer.getvalue()


def read(decoder: Any, values: list[bytes | None]) -> tuple[list[dict[str, Any]], list[str | None]]:
    """Decode values as the middle of a longer column, which Arrow does not copy."""
    column = pa.array([b"before", *values, b"after"], pa.binary()).slice(1, len(values))
    rows, reasons = decoder.decode(column)
    assert rows.schema == decoder.schema
    return rows.to_pylist(), reasons


def test_every_type_of_avro_becomes_a_column() -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    fields: dict[str, tuple[Any, Any, Any]] = {
        "flag": ("boolean", True, pa.bool_()),
        "i": ("int", -(2**31), pa.int32()),
        "l": ("long", 2**63 - 1, pa.int64()),
        "f": ("float", 1.5, pa.float32()),
        "d": ("double", 0.1, pa.float64()),
        "text": ("string", "ß", pa.string()),
        "bytes": ("bytes", b"\0\xff", pa.binary()),
        "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary()),
        "kind": ({"type": "enum", "name": "E", "symbols": ["BUY", "SELL"]}, "SELL", pa.string()),
        "day": ({"type": "int", "logicalType": "date"}, dt.date(1969, 12, 31), pa.date32()),
        "ms": (
            {"type": "long", "logicalType": "timestamp-millis"},
            dt.datetime(2026, 1, 31, 1, 2, 3, 4000, dt.UTC),
            pa.timestamp("ms", "UTC"),
        ),
        "us": (
            {"type": "long", "logicalType": "timestamp-micros"},
            dt.datetime(1960, 1, 31, 1, 2, 3, 5, dt.UTC),
            pa.timestamp("us", "UTC"),
        ),
        "local": (
            {"type": "long", "logicalType": "local-timestamp-micros"},
            dt.datetime(2026, 1, 31, 1, 2, 3, 5),
            pa.timestamp("us"),
        ),
        "clock": ({"type": "int", "logicalType": "time-millis"}, 5, pa.int32()),
        "price": (price, Decimal("-1234567.89"), pa.decimal128(9, 2)),
        "maybe": (["null", "string"], None, pa.string()),
        "list": ({"type": "array", "items": ["null", "int"]}, [1, None], pa.list_(pa.int32())),
        "map": ({"type": "map", "values": "long"}, {"a": 1}, pa.map_(pa.string(), pa.int64())),
        "inner": (record(("x", "int"), name="In"), {"x": 1}, pa.struct([("x", pa.int32())])),
        "again": (["null", "In"], {"x": 2}, pa.struct([("x", pa.int32())])),
    }
    unreadable: list[tuple[str, Any]] = [("union", ["int", "string"]), ("tree", ["null", "All"])]
    schema = record(*((name, kind) for name, (kind, _, _) in fields.items()), *unreadable, name="All")
    decoder = avro_decoder(json.dumps(schema), None)
    assert decoder.schema == pa.schema([(name, kind) for name, (_, _, kind) in fields.items()])
    row = {name: value for name, (_, value, _) in fields.items()}
    number = {"clock": dt.time(0, 0, 0, 5000)}  # the writer takes a time
    encoded = avro(schema, row | number | {"union": "x", "tree": None})
    rows, reasons = read(decoder, [encoded, None])
    assert rows == [row | {"map": [("a", 1)]}, dict.fromkeys(row)]
    assert reasons == [None, None]


def test_damaged_values_spoil_no_others() -> None:
    schema = record(("a", "string"), ("b", "long"))
    decoder = avro_decoder(json.dumps(schema), None)
    good = [avro(schema, {"a": "x" * n, "b": n}) for n in range(300)]
    rng = np.random.default_rng(5)
    values: list[bytes | None] = list(good)
    bad = sorted(rng.choice(300, 40, replace=False).tolist())
    for place, row in enumerate(bad):
        changes = (good[row][:-1], good[row] + b"\0", b"", b"\xff" * 12)
        values[row] = changes[place % 4]
    rows, reasons = read(decoder, values)
    assert [row for row, reason in enumerate(reasons) if reason is not None] == bad
    assert all(row == {"a": "x" * n, "b": n} for n, row in enumerate(rows) if n not in bad)
    assert all(rows[row] == {"a": None, "b": None} for row in bad)


def test_an_integer_that_no_column_holds_is_a_bad_value() -> None:
    wide = record(("a", "long"))
    decoder = avro_decoder(json.dumps(record(("a", "int"))), None)
    rows, reasons = read(decoder, [avro(wide, {"a": value}) for value in (7, 2**40, -8)])
    assert rows == [{"a": 7}, {"a": None}, {"a": -8}]
    assert [reason is None for reason in reasons] == [True, False, True]


def test_values_of_older_and_newer_schemas_are_read_as_one(registry: Registry) -> None:
    old = record(("symbol", "string"), ("size", "int"), ("gone", "string"))
    new = record(("symbol", "string"), ("size", "long"), ("venue", "string"), venue="none")
    other = record(("symbol", "long"), ("size", "int"))
    numbers = [registry.add("quotes-value", json.dumps(schema)) for schema in (old, other, new)]
    decoder = avro_decoder(None, SchemaRegistry(registry.url, "quotes-value"))
    values = [
        frame(numbers[0], avro(old, {"symbol": "A", "size": 1, "gone": "x"})),
        frame(numbers[2], avro(new, {"symbol": "B", "size": 2**40, "venue": "X"})),
        frame(numbers[1], avro(other, {"symbol": 5, "size": 1})),
        frame(999, b""),
        b"\1" + frame(numbers[2], avro(new, {"symbol": "B", "size": 2, "venue": "X"}))[1:],
        b"\0\0",
        b"",
        None,
    ]
    nothing = dict.fromkeys(("symbol", "size", "venue"))
    for _ in range(3):
        rows, reasons = read(decoder, values)
        assert rows == [
            {"symbol": "A", "size": 1, "venue": "none"},
            {"symbol": "B", "size": 2**40, "venue": "X"},
            *[nothing] * 6,
        ]
        assert [reason is None for reason in reasons] == [True] * 2 + [False] * 5 + [True]
        assert reasons[3:7] == [UNKNOWN_SCHEMA, NOT_FRAMED, NOT_FRAMED, NOT_FRAMED]
    assert registry.requests[f"/schemas/ids/{numbers[0]}"] == 1


def test_schemas_that_refer_to_others_are_read(registry: Registry) -> None:
    venue = record(("name", "string"), name="shop.Venue")
    quote = record(("venue", ["null", "shop.Venue"]), ("size", "int"))
    registry.add("venue", json.dumps(venue))
    number = registry.add("quotes", json.dumps(quote), references=[("shop.Venue", "venue", 1)])
    decoder = avro_decoder(None, SchemaRegistry(registry.url, "quotes"))
    value = {"venue": {"name": "X"}, "size": 3}
    assert read(decoder, [frame(number, avro(quote, value, venue))]) == ([value], [None])

    registry.add("place", 'syntax = "proto3"; package shop; message Place { string name = 1; }', "PROTOBUF")
    text = 'syntax = "proto3"; package shop; import "common/place.proto"; message Sale { Place place = 1; }'
    sale = registry.add("sales", text, "PROTOBUF", references=[("common/place.proto", "place", 1)])
    sales = protobuf_decoder(None, None, SchemaRegistry(registry.url, "sales"))
    assert read(sales, [frame(sale, b"\x0a\x03\x0a\x01Y", [0])]) == ([{"place": {"name": "Y"}}], [None])


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Ping { int32 n = 1; }
message Trade {
  enum Side { BUY = 0; SELL = 1; }
  message Leg { string symbol = 1; repeated int64 sizes = 2; }
  string symbol = 1;
  optional double price = 2;
  Side side = 3;
  repeated Leg legs = 4;
  map<string, int32> counts = 5;
  google.protobuf.Timestamp time = 6;
  uint64 number = 7;
  oneof way { string road = 8; bytes rail = 9; }
}
"""


def message(descriptors: bytes, name: str) -> Any:
    """Return the class of a message; Google's own implementation is the oracle of the decoder."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the file that protoc makes of `PROTO`."""
    place = tmp_path_factory.mktemp("proto")
    (place / "trade.proto").write_text(PROTO)
    out = place / "trade.desc"
    arguments = [f"-I{place}", "--include_imports", f"--descriptor_set_out={out}", str(place / "trade.proto")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True)
    return out


@pytest.mark.parametrize("given", ["text", "proto", "descriptors"])
def test_messages_of_protobuf_become_columns(descriptors: Path, given: str) -> None:
    schema = {"text": PROTO, "proto": str(descriptors.with_suffix(".proto")), "descriptors": str(descriptors)}
    decoder = protobuf_decoder(schema[given], "shop.Trade", None)
    trade = message(descriptors.read_bytes(), "shop.Trade")
    one = trade(symbol="A", price=0.0, side=1, counts={"x": 3}, number=2**64 - 1, rail=b"\xff")
    one.time.FromDatetime(dt.datetime(2026, 1, 31, 1, 2, 3, 5))
    one.legs.add(symbol="L", sizes=[1, -(2**63)])
    bad = one.SerializeToString()[:-1]
    rows, reasons = read(decoder, [one.SerializeToString(), b"", None, bad, one.SerializeToString()])
    first = {
        "symbol": "A",
        "price": 0.0,
        "side": "SELL",
        "legs": [{"symbol": "L", "sizes": [1, -(2**63)]}],
        "counts": [("x", 3)],
        "time": dt.datetime(2026, 1, 31, 1, 2, 3, 5, dt.UTC),
        "number": 2**64 - 1,
        "road": None,
        "rail": b"\xff",
    }
    empty = {"symbol": "", "side": "BUY", "legs": [], "counts": [], "number": 0}
    nothing = dict.fromkeys(first)
    assert rows == [first, nothing | empty, nothing, nothing, first]
    assert [reason is None for reason in reasons] == [True, True, True, False, True]


def test_only_values_with_the_message_are_read(registry: Registry, descriptors: Path) -> None:
    trade, ping, leg = (
        message(descriptors.read_bytes(), f"shop.{name}") for name in ("Trade", "Ping", "Trade.Leg")
    )
    number = registry.add("trades", PROTO, "PROTOBUF")
    newer = PROTO.replace("message Ping { int32 n = 1; }", "").replace(
        "string symbol = 1;\n", "string s = 1;\n"
    )
    moved = registry.add("trades", newer, "PROTOBUF")
    decoder = protobuf_decoder(PROTO, "shop.Trade", SchemaRegistry(registry.url))
    encoded = trade(symbol="A").SerializeToString()
    values = [
        frame(number, encoded, [1]),
        frame(number, ping(n=1).SerializeToString(), [0]),
        frame(moved, encoded, [0]),  # a field has another name there; its number counts
        frame(number, leg(symbol="B").SerializeToString(), [1, 0]),
        frame(number, encoded, [200]),
        frame(999, encoded, [1]),
        encoded,
        frame(number, encoded, [1])[:5],
    ]
    rows, reasons = read(decoder, [*values, *values[::-1]])
    good = [True, False, True, *[False] * 5]
    assert [reason is None for reason in reasons] == good + good[::-1]
    assert [row["symbol"] for row in rows[:8]] == ["A", None, "A", *[None] * 5]
    legs = protobuf_decoder(PROTO, "shop.Trade.Leg", SchemaRegistry(registry.url))
    assert [row["symbol"] for row in read(legs, values)[0][2:5]] == [None, "B", None]


def test_frames_are_read_as_they_are_written() -> None:
    rng = np.random.default_rng(3)
    cases = []
    for _ in range(500):
        path = rng.integers(0, rng.choice([2, 70, 10**6]), rng.integers(1, 5)).tolist()
        cases.append((int(rng.integers(0, 2**32)), path, rng.bytes(int(rng.integers(0, 9)))))
    frames = read_frames(pa.array([frame(n, value, path) for n, path, value in cases]), indexes=True)
    assert frames.schemas.tolist() == [number for number, _, _ in cases]
    assert [[one for one in path if one >= 0] for path in frames.paths.tolist()] == [
        one for _, one, _ in cases
    ]
    assert frames.take(np.arange(500)).to_pylist() == [value for _, _, value in cases]
    order = rng.permutation(500)
    assert frames.take(order).to_pylist() == [cases[row][2] for row in order]


@pytest.mark.parametrize(
    ("schema", "message", "problem"),
    [
        ('{"type": "record"}', None, "the schema is not an Avro schema"),
        ('{"type": "array", "items": "int"}', None, "is not a record"),
        ("missing.avsc", None, "file of the schema cannot be read: file=missing.avsc reason=No such file"),
        (None, None, "the values have no schema"),
        ("message A {", "A", "the schema is not a Protobuf schema: reason=penstock_values.proto:1:"),
        ("message A {} message B {}", "C", "no such message: message=C known=A, B"),
        ("message A {} message B {}", "", "has several messages: message=none known=A, B"),
        ("missing.proto", "A", "file of the schema cannot be read"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(
    schema: str | None, message: str | None, problem: str
) -> None:
    with pytest.raises(InvalidUsageError, match=problem):
        if message is None:
            avro_decoder(schema, None)
        else:
            text = schema if schema is None or "{" not in schema else f'syntax = "proto3"; {schema}'
            protobuf_decoder(text, message or None, None)


def test_a_file_that_holds_no_descriptors_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "no.desc"
    file.write_bytes(b"\xff\xff")
    with pytest.raises(InvalidUsageError, match="holds no descriptors"):
        protobuf_decoder(str(file), "A", None)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "pause", lambda seconds: None)


@pytest.mark.usefixtures("short_pauses")
def test_a_registry_is_asked_again_while_it_is_busy(registry: Registry) -> None:
    number = registry.add("s", '"int"')
    registry.failures = 3
    assert SchemaRegistry(registry.url).by_id(number).text == '"int"'
    registry.failures = 4
    with pytest.raises(
        UnavailableError, match=r"does not answer: .*path=subjects/s/versions/latest reason=st.* 503"
    ):
        SchemaRegistry(registry.url, "s").newest()


@pytest.mark.usefixtures("short_pauses")
def test_a_registry_that_is_away_is_named() -> None:
    with Registry() as registry:
        url = registry.url
    with pytest.raises(
        UnavailableError, match=f"registry={url} path=schemas/ids/1 reason=Connection refused"
    ):
        SchemaRegistry(url).by_id(1)


def test_users_and_tokens_are_sent_and_never_shown(registry: Registry) -> None:
    number = registry.add("s", '"int"')
    registry.user = ("ann", "s3cr3t-pässword")
    good = SchemaRegistry(registry.url, user="ann", password=registry.user[1])
    assert good.by_id(number).text == '"int"'
    registry.user, registry.token = None, "tok3n-of-ann"
    assert SchemaRegistry(registry.url, "s", token=registry.token).newest().text == '"int"'
    wrong = SchemaRegistry(registry.url, "s", token="wr0ng-token")
    with pytest.raises(InvalidUsageError, match=r"refuses the user: .*status=401") as caught:
        wrong.newest()
    assert "wr0ng" not in str(caught.value)
    assert "wr0ng" not in repr(wrong)
    assert "s3cr3t" not in repr(good)
    assert redact(f"{registry.token} s3cr3t-pässword") == "*** ***"


def test_what_is_no_registry_and_what_it_does_not_know_are_told_apart(registry: Registry) -> None:
    with pytest.raises(InvalidUsageError, match=r"does not know this schema: .*subjects/a%2Fb/versions"):
        SchemaRegistry(registry.url, "a/b").newest()
    with pytest.raises(InvalidUsageError, match=r"does not come from a schema registry: .*status=404"):
        SchemaRegistry(f"{registry.url}/other", "s").newest()


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": "registry:8081"},
        {"url": "http://user:password@registry"},
        {"url": "http://registry", "user": "ann"},
        {"url": "http://registry", "user": "ann", "password": "p", "token": "t"},
    ],
)
def test_an_address_or_user_that_is_not_valid_is_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(InvalidUsageError, match="schema registry") as caught:
        SchemaRegistry(**arguments)
    assert "user:password" not in str(caught.value)
