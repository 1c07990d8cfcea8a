"""Bad records on the local engine: counted, kept, skipped, refused, and rejected once."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import _failpoints
from penstock.checkpointing.p_stream import PStream, PStreamReader
from penstock.conf.kafka_source import KafkaSource
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.checks.checking import check_pipeline
from penstock.jobs.local.pipeline import check_local_pipeline, open_pipeline
from penstock.jobs.local.sources import open_source
from penstock.jobs.pipelines.run import run_to_end
from penstock.jobs.pipelines.schemas import encoding_of, schema_of
from penstock.local_engine.records.bad_records import BadRecords
from penstock.local_engine.records.files import RecordFilesInput, _uri_of_spark
from penstock.local_engine.records.json_decoder import JsonDecoder
from penstock.local_engine.records.kafka import KafkaInput, _limit
from penstock.local_engine.records.kafka_options import KafkaOptions
from penstock.local_engine.records.kafka_values import RecordDecoder
from penstock.spark_ext.border.types import as_arrow_of_spark, spark_schema
from penstock.spark_ext.sources import task_rows
from tests.long_tests import long_but

COLUMNS = "k STRING, t BIGINT, v DOUBLE"
GOOD = {"json": ['{"k": "a", "t": 1, "v": 1}', '{"k": "b", "t": 2, "v": 2}'], "csv": ["a,1,1", "b,2,2"]}
BAD = {
    "json": ['{"k": "c"', '{"k": "d", "t": "x", "v": 4}', "[1]", '{"k": "e", "t": 5', '{"k": "f"}}'],
    "csv": ["c", 'd,"x",4', "e,5,5,5"],
}
READ_IN_PART: dict[str, list[tuple[str, int | None, float | None]]] = {
    "json": [("d", None, 4.0)],
    "csv": [("c", None, None), ("d", None, 4.0), ("e", 5, 5.0)],
}


def as_spark_names(file: Path) -> str:
    return f"file:{file}"  # these names have no characters to quote


def test_files_of_bad_records_have_the_names_that_spark_writes() -> None:
    names = {
        "/in/a+b,c=d@e.json": "file:/in/a+b,c=d@e.json",
        "/in/x (1) ü.json": "file:/in/x%20(1)%20ü.json",
        "/in/day=2/50%#?.json": "file:/in/day=2/50%25%23%3F.json",
    }
    assert {name: _uri_of_spark(Path(name)) for name in names} == names


def pipeline(place: Path, format: str, **source: Any) -> Pipeline:
    given = {"type": "files", "format": format, "path": str(place / "in"), "schema": COLUMNS}
    return Pipeline.model_validate(
        {
            "engine": "local",
            "source": given | source,
            "queue": {"key": "k", "time": "t", "nulls": "drop"},
            "sink": {"type": "pstream", "path": str(place / "out")},
            "query": {"trigger": "available_now", "checkpoint": str(place / "checkpoint")},
        }
    )


def write(place: Path, name: str, lines: list[str]) -> Path:
    (place / "in").mkdir(exist_ok=True)
    file = place / "in" / name
    file.write_text("\n".join(lines) + "\n")
    return file


def out(place: Path) -> list[str]:
    return sorted(row["k"] for row in PStreamReader(place / "out").read().to_pylist())


@pytest.mark.parametrize(
    ("format", "on_error"),
    long_but(
        [("json", "keep"), ("json", "skip"), ("csv", "keep"), ("csv", "skip")],
        ("json", "keep"),
        ("csv", "skip"),
    ),
)
def test_bad_records_of_files_are_counted_and_rejected_once_over_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, on_error: str
) -> None:
    run = pipeline(tmp_path, format, on_error=on_error, reject_to=str(tmp_path / "rejected"))
    files, bad = [], BAD[format]
    synced: list[str | None] = []
    monkeypatch.setattr(task_rows, "make_durable", synced.append)
    for number, point in enumerate(["task_rows.before_commit", "task_rows.after_commit"]):
        files.append(write(tmp_path, f"{number}", [GOOD[format][number], *bad, ""]))
        running = open_pipeline(run)
        with _failpoints.armed({point: "error"}), pytest.raises(_failpoints.InjectedError):
            running.step()
        totals = run_to_end(run)
        kept = len(bad) if on_error == "keep" else 0
        timed = sum(time is not None for _, time, _ in READ_IN_PART[format])
        assert (totals.bad_records, totals.rows_in) == (len(bad), 1 + kept)
        assert totals.dropped == (len(bad) - timed if on_error == "keep" else 0)
    assert sorted({*out(tmp_path)}) == (
        ["a", "b"] if on_error == "skip" or format == "json" else ["a", "b", "e"]
    )
    rejected = PStreamReader(tmp_path / "rejected").read().to_pylist()
    assert [(row["file"], row["value"].decode()) for row in rejected] == [
        (as_spark_names(file), text) for file in files for text in bad
    ]
    assert {row["source"] for row in rejected} == {"source"}
    assert {row["topic"] for row in rejected} == {None}
    assert all(row["reason"] for row in rejected)
    (place,) = {*synced}
    assert place is not None and place.startswith(f"{tmp_path}/checkpoint"), "only the checkpoint is synced"


def test_a_restart_may_begin_to_reject_bad_records_and_end_it(tmp_path: Path) -> None:
    good, bad = GOOD["json"], BAD["json"]
    rejects = {"reject_to": str(tmp_path / "rejected")}
    for number, options in enumerate(({}, rejects, {})):
        write(tmp_path, f"{number}", [good[number % 2], *bad])
        run = pipeline(tmp_path, "json", on_error="skip", **options)
        assert run_to_end(run).bad_records == len(bad)
    rejected = PStreamReader(tmp_path / "rejected").read().to_pylist()
    assert {row["file"] for row in rejected} == {as_spark_names(tmp_path / "in" / "1")}


def test_a_p_stream_with_other_columns_than_rejected_records_is_refused(tmp_path: Path) -> None:
    PStream(tmp_path / "rejected", pa.schema({"k": pa.string()}))
    write(tmp_path, "0", BAD["json"])
    hint = (
        r"reject_to=\S+/rejected missing=.* Hint: a p-stream keeps its columns; choose a .* for reject_to\.$"
    )
    with pytest.raises(InvalidUsageError, match=hint):
        run_to_end(pipeline(tmp_path, "json", on_error="skip", reject_to=str(tmp_path / "rejected")))


def test_a_restart_may_begin_to_record_late_rows_and_end_it(tmp_path: Path) -> None:
    queue = {"key": "k", "time": "t"}
    late = {"late_to": str(tmp_path / "late")}
    for number, options in enumerate(({}, late, {})):
        write(tmp_path, f"{number}", [json.dumps({"k": "a", "t": 10 - number, "v": number})])
        file = tmp_path / "p.yaml"
        changed = pipeline(tmp_path, "json").model_dump(mode="json", by_alias=True, exclude_unset=True)
        file.write_text(json.dumps(changed | {"queue": queue | options}))
        assert run_to_end(check_pipeline(str(file), [])[0]).rows_in == 1
    rows = PStreamReader(tmp_path / "late").read().to_pylist()
    assert [(row["k"], row["t"], row["watermark"]) for row in rows] == [("a", 9, 10)]


def test_fields_of_a_bad_record_that_can_be_read_are_kept(tmp_path: Path) -> None:
    for format, expected in READ_IN_PART.items():
        place = tmp_path / format
        place.mkdir()
        write(place, "0", [*GOOD[format], *BAD[format]])
        source = open_source(pipeline(place, format).source, "source", "UTC", place / "log")
        end = source.find_end(None)
        assert end is not None
        rows = pa.Table.from_batches(list(source.read(None, end))).to_pylist()
        found = [(row["k"], row["t"], row["v"]) for row in rows if row["k"] not in ("a", "b", None)]
        assert found == expected


def test_a_bad_record_ends_a_run_that_is_to_fail_without_its_value(tmp_path: Path) -> None:
    write(tmp_path, "0", [GOOD["json"][0], '{"k": "secret"'])
    with pytest.raises(InvalidUsageError, match=r"a record cannot be read.*on_error: skip") as caught:
        run_to_end(pipeline(tmp_path, "json", on_error="fail"))
    assert "secret" not in str(caught.value)
    assert caught.value.context["file"].endswith("in/0")


TIMED = "a BIGINT, b STRING, ts TIMESTAMP"


@pytest.mark.parametrize("format", ["json", "csv"])
def test_a_text_that_is_no_time_is_a_bad_record(tmp_path: Path, format: str) -> None:
    lines = {
        "json": ['{"a": 1, "ts": "2026-01-02T03:04:05Z"}', '{"a": 2, "ts": "n/a"}'],
        "csv": ["1,x,2026-01-02T03:04:05Z", "2,x,n/a"],
    }
    write(tmp_path, "0", lines[format])
    source = pipeline(tmp_path, format, schema=TIMED, on_error="skip").source
    opened = open_source(source, "source", "UTC", tmp_path / "log")
    assert isinstance(opened, RecordFilesInput)
    end = opened.find_end(None)
    assert end is not None
    (records,) = opened.read_records(None, end)
    assert (records.rows["a"].to_pylist(), list(records.bad)) == ([1, 2], [1])
    assert records.rows["ts"].is_valid().to_pylist() == [True, False]


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_time_without_a_zone_is_in_utc_by_default_as_in_a_run_on_spark(tmp_path: Path, format: str) -> None:
    lines = {"csv": "a,2026-01-02T03:04:05", "json": '{"k": "a", "t": "2026-01-02T03:04:05"}'}
    write(tmp_path, "0", [lines[format]])
    run_to_end(pipeline(tmp_path, format, schema="k STRING, t TIMESTAMP"))
    (row,) = PStreamReader(tmp_path / "out").read().to_pylist()
    assert row == {"k": "a", "t": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("format", "bad"),
    [
        ("csv", b"x" * 200_000 + b",1,1,1"),
        ("json", b'{"k": "c", "v": ' + b"[" * 100_000),
    ],
)
def test_a_record_that_no_parser_takes_is_bad(tmp_path: Path, format: str, bad: bytes) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0").write_bytes(b"\n".join([GOOD[format][0].encode(), bad]))
    source = open_source(pipeline(tmp_path, format).source, "source", "UTC", tmp_path / "log")
    end = source.find_end(None)
    assert end is not None
    rows = pa.Table.from_batches(list(source.read(None, end))).to_pylist()
    assert [row["k"] for row in rows] == ["a", None]


def test_a_lone_carriage_return_ends_a_line_as_on_spark(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0").write_bytes(b"a,1,1\nc,1\r,1,1")
    source = open_source(pipeline(tmp_path, "csv").source, "source", "UTC", tmp_path / "log")
    end = source.find_end(None)
    assert end is not None
    rows = pa.Table.from_batches(list(source.read(None, end))).to_pylist()
    assert [tuple(row.values()) for row in rows] == [("a", 1, 1.0), ("c", 1, None), (None, 1, 1.0)]


def test_lines_of_files_with_a_header_and_other_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0").write_bytes(b'k|t|v\r\n"a|b"|1|1.5\r\n\r\n c |2|')
    run_to_end(pipeline(tmp_path, "csv", options={"header": "true", "sep": "|"}))
    assert out(tmp_path) == [" c ", "a|b"]


_values = st.dictionaries(
    st.sampled_from(["k", "t", "v", "other"]),
    st.one_of(st.none(), st.integers(-5, 5), st.booleans(), st.text('a"\\\n}{', max_size=3), st.just(0.5)),
)
_texts = st.one_of(_values.map(json.dumps), st.text('{}":, \na1', max_size=6), st.just(""), _values.map(repr))


@settings(max_examples=40)
@example(['{"t": 1}} {"value": {"t": 5}', '{"t": 2}'])
@given(st.lists(_texts, max_size=12))
def test_json_is_decoded_as_record_by_record(texts: list[str]) -> None:
    schema = pa.schema({"k": pa.string(), "t": pa.int64(), "v": pa.float64()})
    decoded, reasons = JsonDecoder(schema, "UTC").decode(
        pa.array([text.encode() for text in texts], pa.binary())
    )
    expected = [_decode_alone(text) for text in texts]
    assert decoded.to_pylist() == [row for row, _ in expected]
    assert [reason is None for reason in reasons] == [good for _, good in expected]


def _decode_alone(text: str) -> tuple[dict[str, Any], bool]:
    """Return the fields that a record has, and whether all of it can be read."""
    row: dict[str, Any] = dict.fromkeys("ktv")
    if not text:
        return row, True
    try:
        found = json.loads(text)
    except ValueError:
        return row, False
    if not isinstance(found, dict):
        return row, False
    good = True
    for name, kinds in {"k": (str,), "t": (int,), "v": (int, float)}.items():
        value = found.get(name)
        if name == "k" and value is not None and not isinstance(value, str):
            row[name] = json.dumps(value)
        elif value is None or (isinstance(value, kinds) and not isinstance(value, bool)):
            row[name] = value
        else:
            good = False
    return row, good


def test_only_types_that_json_has_here_are_read() -> None:
    for kind in (pa.binary(), pa.map_(pa.string(), pa.int64()), pa.list_(pa.binary())):
        with pytest.raises(InvalidUsageError, match="reads no such type in JSON: column=c"):
            JsonDecoder(pa.schema({"c": kind}), "UTC")


NESTED = pa.schema(
    {
        "s": pa.struct({"id": pa.int64(), "name": pa.string(), "more": pa.struct({"v": pa.float64()})}),
        "l": pa.list_(pa.struct({"id": pa.int64(), "name": pa.string()})),
        "n": pa.list_(pa.int64()),
    }
)


@pytest.mark.parametrize(
    ("record", "row", "is_good"),
    [
        ({"s": {"id": 1, "name": 5}}, {"s": {"id": 1, "name": "5", "more": None}}, True),
        ({"l": [{"id": 1, "name": [2]}]}, {"l": [{"id": 1, "name": "[2]"}]}, True),
        (
            {"s": {"id": "x", "name": "a", "more": {"v": "y"}}, "n": [3]},
            {"s": {"id": None, "name": "a", "more": {"v": None}}, "n": [3]},
            False,
        ),
        ({"l": [{"id": "x", "name": "a"}, None]}, {"l": [{"id": None, "name": "a"}, None]}, False),
        ({"n": [1, "x"], "s": 7, "l": {}}, {}, False),
    ],
)  # fmt: skip
def test_the_readable_parts_of_structs_and_lists_are_read(
    record: dict[str, Any], row: dict[str, Any], is_good: bool
) -> None:
    decoded, (reason,) = JsonDecoder(NESTED, "UTC").decode(pa.array([json.dumps(record).encode()]))
    assert decoded.to_pylist() == [dict.fromkeys(NESTED.names) | row]
    assert (reason is None) == is_good


def test_times_in_structs_and_lists_are_read() -> None:
    instant = pa.timestamp("us", "UTC")
    schema = pa.schema({"s": pa.struct({"at": instant, "day": pa.date32()}), "l": pa.list_(instant)})
    day, at = date(2026, 1, 31), datetime(2026, 1, 31, 9, 30, 1, tzinfo=UTC)
    records = [
        {"s": {"at": "2026-01-31T09:30:01Z", "day": "2026-01-31"}, "l": ["2026-01-31T10:30:01+01:00", None]},
        {"s": None, "l": []},
        {"s": {"at": int(at.timestamp()), "day": "x"}, "l": ["x"]},
    ]
    expected = [{"s": {"at": at, "day": day}, "l": [at, None]}, {"s": None, "l": []}]
    expected.append({"s": {"at": at, "day": None}, "l": None})
    for some in (slice(2), slice(3)):  # all records at once, and one by one because of a bad record
        texts = pa.array([json.dumps(record).encode() for record in records[some]])
        decoded, reasons = JsonDecoder(schema, "UTC").decode(texts)
        assert decoded.to_pylist() == expected[some]
        assert [reason is not None for reason in reasons] == [False, False, True][some]
    local = pa.array([b'{"l": ["2026-01-31T09:30:01"]}'])
    decoded, _ = JsonDecoder(schema, "America/New_York").decode(local)
    assert decoded.to_pylist() == [{"s": None, "l": [at + timedelta(hours=5)]}]


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        ("1.10", "1.1"),
        ("0.12345678901234567890", "0.12345678901234568"),
        ("1e400", None),
        ("12345678901234567890", "12345678901234567890"),
        ("true", "true"),
    ],
)
def test_a_number_for_a_text_has_the_form_that_spark_gives_it(text: str, shortest: str | None) -> None:
    schema = pa.schema({"k": pa.string(), "s": pa.struct({"k": pa.string()})})
    record = f'{{"k": {text}, "s": {{"k": {text}}}}}'.encode()
    for keeps, form in ((True, text), (False, shortest)):
        decoded, reasons = JsonDecoder(schema, "UTC", keeps_numbers=keeps).decode(pa.array([record]))
        assert form is None or decoded.to_pylist() == [{"k": form, "s": {"k": form}}]
        assert reasons == [None]


def test_a_record_as_deep_as_the_parser_takes_does_not_end_the_query() -> None:
    schema = pa.schema({"k": pa.string(), "t": pa.int64()})
    texts = [b'{"k": ' + b"[" * deep + b"]" * deep + b', "t": 1}' for deep in range(800, 1_100)]
    _, reasons = JsonDecoder(schema, "UTC").decode(pa.array(texts))
    assert reasons[0] is None and reasons[-1] is not None


ZONE = "Europe/Berlin"


def test_times_at_a_change_of_the_clocks_are_read_as_in_spark() -> None:
    decoder = JsonDecoder(pa.schema({"ts": pa.timestamp("us", "UTC")}), ZONE)
    begins = [datetime(2026, 3, 29), datetime(2026, 10, 25)]
    times = [begin + timedelta(minutes=15 * number) for begin in begins for number in range(20)]
    decoded, reasons = decoder.decode(pa.array([f'{{"ts": "{one.isoformat()}"}}'.encode() for one in times]))
    assert reasons == [None] * len(times)
    # Python reads a time that the clocks skip or repeat with the offset before the change, as Spark does.
    assert decoded["ts"].to_pylist() == [one.replace(tzinfo=ZoneInfo(ZONE)).astimezone(UTC) for one in times]


def kafka(**fields: Any) -> KafkaSource:
    return KafkaSource.model_validate({"type": "kafka", "options": {}} | fields)


def test_changes_of_debezium_are_rows_with_a_flag_for_deletes() -> None:
    def change(op: Any, before: Any, after: Any, lsn: int, *, nested: bool = False) -> bytes:
        event = {"before": before, "after": after, "op": op, "source": {"lsn": lsn, "ts_ms": 10 * lsn}}
        return json.dumps({"schema": {}, "payload": event} if nested else event).encode()

    values = [
        change("r", None, {"id": 1, "name": "a"}, 1),
        change("u", {"id": 1}, {"id": 1, "name": "c"}, 3, nested=True),
        change("d", {"id": 2, "name": None}, None, 4),
        None,
        b'{"id": 1}',
        change("t", None, None, 6),
        change("x", {"id": 1}, {"id": 1}, 7),
    ]
    source = kafka(value_format="debezium", schema="id INT, name STRING", kafka_columns=["offset"])
    schema = as_arrow_of_spark(spark_schema(schema_of(source)))
    decoder = RecordDecoder(source, schema, "UTC", **encoding_of(source))
    count = len(values)
    raw = pa.table(
        {
            "value": pa.array(values, pa.binary()), "topic": ["x"] * count,
            "partition": pa.array([0] * count, pa.int32()), "offset": list(range(count)),
        }
    )  # fmt: skip
    records = decoder.decode(raw)
    assert [tuple(row.values()) for row in records.rows.to_pylist()][:3] == [
        (1, "a", False, "r", 10, 1, 0),
        (1, "c", False, "u", 30, 3, 1),
        (2, None, True, "d", 40, 4, 2),
    ]
    assert list(records.bad) == [3, 4, 5]
    assert records.facts()["offset"] == [4, 5, 6]


def test_options_of_sparks_connector_are_known() -> None:
    servers = {"kafka.bootstrap.servers": "b:1"}
    parsed = KafkaOptions.parse(
        servers
        | {
            "subscribePattern": "a-.*",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "5",
            "kafka.sasl.jaas.config": 'x required username="u" password="p\\"q";',
        }
    )
    assert parsed.matches(("a-1", 0)) and not parsed.matches(("ba-1", 0))
    every = KafkaOptions.parse({"subscribePattern": ".*"})
    assert every.matches(("a-1", 0)) and not every.matches(("__consumer_offsets", 0))
    assert (parsed.max_offsets, parsed.start) == (5, -2)
    assert parsed.client["sasl.username"] == "u" and parsed.client["sasl.password"] == 'p"q'
    assert parsed.client["isolation.level"] == "read_uncommitted", "as the Java client"
    some = KafkaOptions.parse({"assign": '{"t": [0, 2]}', "startingTimestamp": "7"})
    assert some.matches(("t", 2)) and not some.matches(("t", 1))
    assert (some.start, some.start_kind) == (7, "time")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "a", "startingOfsets": "latest"}, "did you mean startingoffsets"),
        ({"subscribe": "a", "startingOffsets": "first"}, "is not JSON of topics"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "is not a number"),
        ({"subscribe": "a", "kafka.auto.offset.reset": "latest"}, "is fixed"),
        ({"subscribe": "a", "kafka.ssl.truststore.location": "x"}, "only in Kafka's Java client"),
        ({"subscribe": "a", "failOnDataLoss": "no"}, "is wrong"),
        ({"subscribePattern": "("}, "is not a regular expression"),
    ],
)
def test_wrong_options_of_kafka_are_refused_when_a_pipeline_is_checked(
    tmp_path: Path, options: dict[str, str], text: str
) -> None:
    source: dict[str, Any] = {"type": "kafka", "value_format": "json", "schema": COLUMNS}
    source["options"] = {"kafka.bootstrap.servers": "b:1"} | options
    document = pipeline(tmp_path, "json").model_dump(mode="json", by_alias=True, exclude_unset=True)
    with pytest.raises(ValueError, match=text):
        check_local_pipeline(Pipeline.model_validate(document | {"source": source}))


@pytest.mark.parametrize(
    "source",
    [
        {"type": "files", "format": "json", "path": "in", "schema": f"{COLUMNS}, wrong BINARY"},
        {"type": "kafka", "value_format": "json", "schema": f"{COLUMNS}, wrong BINARY"},
        {"type": "kafka", "value_format": "debezium", "schema": f"{COLUMNS}, wrong TIMESTAMP"},
    ],
)
def test_types_that_json_has_not_here_are_refused_when_a_pipeline_is_checked(
    tmp_path: Path, source: dict[str, Any]
) -> None:
    if source["type"] == "kafka":
        source = source | {"options": {"kafka.bootstrap.servers": "b:1", "subscribe": "a"}}
    document = pipeline(tmp_path, "json").model_dump(mode="json", by_alias=True, exclude_unset=True)
    with pytest.raises(ValueError, match="reads no such type in JSON: column=wrong"):
        check_local_pipeline(Pipeline.model_validate(document | {"source": source}))


class Consumer:
    """A client of Kafka whose topic ``t`` has a partition with `END` records."""

    END = 2_500_000

    def __init__(self) -> None:
        self.errors: list[Any] = []
        self.topics = ["t"]
        self.listed = self.asked = 0

    def list_topics(self, timeout: float) -> Any:
        self.listed += 1
        return SimpleNamespace(topics={name: SimpleNamespace(partitions={0: None}) for name in self.topics})

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        self.asked += 1
        if partition.topic not in self.topics:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return 0, self.END

    def offsets_for_times(self, asked: list[Any], timeout: float) -> list[Any]:
        error = self.errors.pop() if self.errors else None
        offset = -1001 if error else 7
        return [SimpleNamespace(topic="t", partition=0, offset=offset, error=error) for _ in asked]


def open_kafka(place: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> tuple[KafkaInput, Consumer]:
    consumer = Consumer()
    monkeypatch.setattr(KafkaInput, "_connect", lambda self: consumer)
    source = kafka(kafka_columns=["offset"])
    schema = spark_schema(schema_of(source))
    decoder = RecordDecoder(source, as_arrow_of_spark(schema), "UTC", **encoding_of(source))
    (place / "log").mkdir()
    texts = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"} | options
    if "subscribePattern" in options:
        del texts["subscribe"]
    return KafkaInput(texts, schema, decoder, BadRecords("source", "keep"), place / "log"), consumer


def test_an_error_of_a_partition_is_no_answer_about_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"}
    opened, consumer = open_kafka(tmp_path, monkeypatch, **options)
    consumer.errors = [KafkaError(KafkaError._TIMED_OUT)]
    assert opened.find_end(None) is None, "the broker is asked again"
    assert opened.find_end(None) is not None
    assert opened._first == {("t", 0): 7}


def test_a_first_start_reads_a_long_topic_in_several_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, _ = open_kafka(tmp_path, monkeypatch, startingOffsets="earliest")
    opened.stop_at_present()
    end, ends = None, []
    while opened.is_new(end, next_end := opened.find_end(end)):
        end = next_end
        ends.append(end)
    assert ends == [{"t": {"0": stop}} for stop in (1_000_000, 2_000_000, Consumer.END)]


def test_idle_polls_ask_and_warn_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr("penstock.local_engine.records.kafka.monotonic_s", lambda: now[0])
    opened, consumer = open_kafka(
        tmp_path, monkeypatch, subscribePattern=".*", startingOffsets="latest", failOnDataLoss="false"
    )
    consumer.topics = ["t", "gone"]
    end = opened.find_end(None)
    consumer.topics = ["t"]
    for poll in range(2_000):  # every 2 ms for 4 s
        now[0] = 0.002 * poll
        opened.find_end(end)
    assert consumer.listed <= 6 and consumer.asked <= 250
    assert sum("topic=gone" in one.getMessage() for one in caplog.records) == 1


@given(st.dictionaries(st.integers(0, 4), st.integers(0, 50)), st.integers(1, 60))
def test_a_micro_batch_has_a_share_of_each_partition(new: dict[int, int], most: int) -> None:
    begin = {("t", number): 100 for number in new}
    ends = {("t", number): 100 + count for number, count in new.items()}
    taken = {one: end - 100 for one, end in _limit(begin, ends, most).items()}
    assert all(0 <= taken[one] <= ends[one] - 100 for one in ends)
    assert all(taken[one] for one in ends if ends[one] > 100), "no partition starves"
    assert sum(taken.values()) <= most + len(new)
    if sum(new.values()) <= most:
        assert taken == {one: end - 100 for one, end in ends.items()}
