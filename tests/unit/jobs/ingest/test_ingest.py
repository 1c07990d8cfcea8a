"""``penstock ingest``, without Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

from penstock.checkpointing.p_stream import PStream, PStreamReader
from penstock.cli import app
from penstock.ddl import parse_schema, schema_text
from penstock.errors import InvalidUsageError
from penstock.jobs.ingest import ReadSizes, Report, Settings, Totals, ingest_sources, sources
from penstock.jobs.ingest.ingest import KINDS
from tests.servers import processes

_PATIENCE_S = 60.0


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["ingest", *arguments])


def rows_of(place: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = PStreamReader(place).read().to_pylist()
    return rows


def until(condition: Callable[[], bool]) -> None:
    assert processes.until(condition, _PATIENCE_S), "it did not happen"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "stream"


def written(name: str, text: str | bytes) -> str:
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    return name


# ------------------------------------------------------------------------------------------- kinds


def test_csv_makes_a_stream_of_the_columns_that_it_seems_to_have(place: Path) -> None:
    written(
        "a.csv",
        "n,x,day,at,zoned,tag\n1,1.5,2024-01-02,2024-01-02 03:04:05,2024-01-02T03:04:05.5Z,a\n2,,,,,\n",
    )
    result = penstock(str(place), "a.csv", "--from", "csv")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    columns, *_, totals = result.stderr.splitlines()  # kernels may be compiled
    assert columns == ("columns: n bigint, x double, day date, at timestamp_ntz, zoned timestamp, tag string")
    assert totals.startswith("2 rows, ")
    first, second = rows_of(place)
    assert first["zoned"].isoformat() == "2024-01-02T03:04:05.500000+00:00"
    assert first["at"].isoformat() == "2024-01-02T03:04:05"
    assert list(second.values()) == [2, *[None] * 5]


def test_what_is_printed_as_columns_is_what_schema_takes(place: Path) -> None:
    text = (
        "a timestamp, `b c` decimal(9, 2) NOT NULL, c array<struct<x: bigint, y: map<string, double>>>, "
        "d timestamp_ntz, e binary, f boolean, g tinyint, h smallint, i int, j float, k date"
    )
    schema = parse_schema(text)
    assert schema_text(schema) == text
    assert parse_schema(schema_text(schema)).equals(schema)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "the end is where a name should be"),
        ("a", "the end is where a type should be"),
        ("a vector", "'vector' is where a type should be"),
        ("a int b int", "'b int' is where ',' or the end should be"),
        ("a array<int", "the end is where '>' should be"),
        ("a int; b int", "'; b int' is no part of a schema"),
        ("a decimal(39)", "a decimal has 1 to 38 digits"),
        ("a int, a int", "two columns have the same name"),
    ],
)
def test_a_schema_that_is_none_is_refused(text: str, fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact.replace("(", r"\(")):
        parse_schema(text)


def test_csv_without_a_header_takes_its_names_from_the_schema(place: Path) -> None:
    written("a.tsv", "1\tx\n2\tNULL\n")
    options = ("--no-header", "--delimiter", "\\t", "--schema", "n int, tag string", "--null", "NULL")
    assert penstock(str(place), "a.tsv", "--from", "csv", *options).exit_code == 0
    assert rows_of(place) == [{"n": 1, "tag": "x"}, {"n": 2, "tag": None}]
    written("b.tsv", "3\ty\n")
    assert penstock(str(place), "b.tsv", "--from", "csv", "--no-header", "--delimiter", "\t").exit_code == 0
    assert [row["n"] for row in rows_of(place)] == [1, 2, 3]
    written("c.csv", "\ufeff4,5\n\n6,7\n")
    assert penstock("other", "c.csv", "--from", "csv", "--no-header").exit_code == 0
    assert rows_of(Path("other")) == [{"f0": 4, "f1": 5}, {"f0": 6, "f1": 7}]


def test_columns_may_be_in_another_order_and_those_that_the_stream_has_not_are_told(place: Path) -> None:
    written("a.csv", "more,tag,n\r\n9,x,1\r\n")
    result = penstock(str(place), "a.csv", "--from", "csv", "--schema", "n int, tag string")
    assert "a.csv: not in the stream, and left out: more\n" in result.stderr
    written("a.ndjson", '{"tag": "y", "n": 2, "other": {}}\n{"n": 3}')
    result = penstock(str(place), "a.ndjson", "--from", "ndjson")
    assert "a.ndjson: not in the stream, and left out: other\n" in result.stderr
    assert rows_of(place) == [{"n": 1, "tag": "x"}, {"n": 2, "tag": "y"}, {"n": 3, "tag": None}]
    written("b.csv", "n\n1\n")
    result = penstock(str(place), "b.csv", "--from", "csv")
    assert result.exit_code == 2
    assert "the file lacks columns of the p-stream" in result.stderr
    assert "missing=tag known=n" in result.stderr


def test_json_is_an_array_or_lines(place: Path) -> None:
    written("a.json", '[\n {"n": 1, "at": "2024-01-02T03:04:05+01:00"},\n {"n": 2, "s": "],[\\""}\n]\n')
    written("b.json", '{"n": 3}\n')
    written("c.json", " [ ] ")
    written("d.json", "")
    schema = "n int, s string, at timestamp"
    result = penstock(
        str(place), "a.json", "b.json", "c.json", "d.json", "--from", "json", "--schema", schema
    )
    assert result.exit_code == 0, result.stderr
    rows = rows_of(place)
    assert [(row["n"], row["s"]) for row in rows] == [(1, None), (2, '],["'), (3, None)]
    assert rows[0]["at"].isoformat() == "2024-01-02T02:04:05+00:00"


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow stream"])
def test_tables_are_read_batch_by_batch_from_where_they_were(place: Path, kind: str) -> None:
    table = pa.table({"n": range(25), "tag": pa.array(["a", None, "b", "c", "d"] * 5).dictionary_encode()})
    if kind == "parquet":
        pyarrow.parquet.write_table(table, "t")
    else:
        make = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with make("t", table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    settings = Settings(str(place), kind.partition(" ")[0], ("t",), sizes=ReadSizes(batch_rows=10))
    stops = iter([False, False, True, True])
    assert ingest_sources(settings, stopped=lambda: next(stops)).rows == 10
    assert ingest_sources(settings).rows == 15
    assert ingest_sources(settings).rows == 0
    assert rows_of(place) == table.to_pylist()
    assert PStream(place).schema.field("tag").type == pa.string()
    other = pa.table({"n": ["x"], "tag": ["x"]})
    pyarrow.parquet.write_table(other, "u")
    with pytest.raises(InvalidUsageError, match="do not fit the p-stream's columns") as caught:
        ingest_sources(Settings(str(place), "parquet", ("u",)))
    assert caught.value.context["types"] == "n is string, not int64"
    written("t", "cut")
    with pytest.raises(InvalidUsageError, match="another format or is damaged"):
        ingest_sources(settings)


@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
def test_an_arrow_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path, make: Any) -> None:
    table = pa.table({"n": range(400_000)})
    file = tmp_path / "t"
    with make(str(file), table.schema) as writer:
        writer.write_table(table, max_chunksize=100_000)
    source = sources.ArrowFile(file, "t")
    source.begin(table.schema, {})
    batches = source.read()
    first = next(batches)
    os.truncate(file, file.stat().st_size // 3)
    assert isinstance(first, sources.Rows)
    assert first.table.column("n").to_pylist() == list(range(100_000)), "it is in memory"
    with pytest.raises(InvalidUsageError, match=r"cannot be read|damaged"):
        list(batches)


# ------------------------------------------------------------------------------------- exactly once


def test_the_same_command_again_reads_what_was_appended_and_nothing_twice(place: Path) -> None:
    written("a.csv", "n\n1\n2\n")
    written("b.csv", "n\n10\n")
    command = (str(place), "*.csv", "--from", "csv")
    assert penstock(*command).exit_code == 0
    assert penstock(*command).stderr.startswith("0 rows, ")
    with Path("a.csv").open("a") as file:
        file.write("3\n4")
    written("c.csv", "n\n20\n")
    assert penstock(*command).exit_code == 0
    assert [row["n"] for row in rows_of(place)] == [1, 2, 10, 3, 4, 20]
    writer = PStream(place).log.writers["ingest"]
    absolute = str(Path("a.csv").absolute())
    assert writer.clock[f"bytes:{absolute}"] == len("n\n1\n2\n3\n4")
    assert set(writer.clock) == {
        f"{what}:{Path(one).absolute()}" for what in ("bytes", "head") for one in ("a.csv", "b.csv", "c.csv")
    }


def test_a_file_that_was_replaced_or_cut_is_refused(place: Path) -> None:
    command = (str(place), "a.csv", "--from", "csv")
    written("a.csv", "n\n1\n2\n")
    assert penstock(*command).exit_code == 0
    written("a.csv", "n\n5\n6\n7\n")
    replaced = penstock(*command)
    assert replaced.exit_code == 2
    assert "the beginning of the file has changed since it was read: file=" in replaced.stderr
    written("a.csv", "n\n1\n")
    cut = penstock(*command)
    assert cut.exit_code == 2
    assert (
        "beginning of the file has changed" in cut.stderr
        or "shorter than the part already read" in cut.stderr
    )
    assert penstock(*command, "--writer", "second").exit_code == 0
    assert [row["n"] for row in rows_of(place)] == [1, 2, 1]


def test_columns_are_found_though_a_record_is_bad_and_what_is_before_it_is_committed(place: Path) -> None:
    written("a.csv", "n,tag\n1,a\n2,b\n3\n4,d\n")
    result = penstock(str(place), "a.csv", "--from", "csv")
    assert result.exit_code == 1
    absolute = Path("a.csv").absolute()
    assert result.stderr.splitlines()[-1] == (
        f"a record cannot be read: it has 1 fields, not 2: file={absolute} line=4 offset=14. Hint: correct "
        "it and run the same command again, skip such records with --on-error skip, or make a new "
        "p-stream whose types are given by --schema."
    )
    assert [row["n"] for row in rows_of(place)] == [1, 2]
    written("a.csv", "n,tag\n1,a\n2,b\n3,c\n4,d\n")
    assert penstock(str(place), "a.csv", "--from", "csv").exit_code == 0
    assert [row["n"] for row in rows_of(place)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("csv", "n,tag\nx,a\n", "column n is no int"),
        ("csv", 'n,tag\n1,""\n2,\n', "column tag is null"),
        ("ndjson", '{"n": 1}\n', "column tag is null"),
        ("csv", "n,tag\n1,a,b\n", "it has 3 fields, not 2"),
        ("csv", b"n,tag\n1,\xff\n", "column tag is no string"),
        ("ndjson", '{"n": "x", "tag": ""}\n', "column n is no int"),
        ("ndjson", '{"n": 1\n', "it is no JSON, at its byte 8: Expecting ',' delimiter"),
        ("ndjson", "[1]\n", "it is no object"),
        ("ndjson", b'{"tag": "\xff"}\n', "it is not UTF-8"),
        ("json", '[{"n": 5, "tag": ""}, {"n": 1.5, "tag": ""}]', "column n is no int"),
    ],
)
def test_bad_records_are_named_or_passed_over(place: Path, kind: str, text: str | bytes, why: str) -> None:
    written("f", text)
    command = (str(place), "f", "--from", kind, "--schema", "n int, tag string NOT NULL")
    failed = penstock(*command)
    assert failed.exit_code == 1
    assert f"a record cannot be read: {why}: file=" in failed.stderr
    skipped = penstock(*command, "--on-error", "skip")
    assert skipped.exit_code == 0
    assert "skipped, at byte" in skipped.stderr
    assert skipped.stderr.rstrip().endswith("1 skipped")


@pytest.mark.parametrize(("kind", "form"), [("ndjson", "%s\n%s\n"), ("json", "[%s, %s]")])
def test_times_of_json_with_a_zone_are_instants(place: Path, kind: str, form: str) -> None:
    first = '{"a": "2024-01-02T03:04:05Z", "b": "2024-01-02T03:04:05", "c": "2024-01-02", "n": 1}'
    second = '{"a": "2024-01-02T03:04:05+02:00", "b": null, "c": null, "n": 2}'
    written("f", form % (first, second))
    result = penstock(str(place), "f", "--from", kind)
    assert "a timestamp, b timestamp_ntz, c timestamp_ntz, n bigint" in result.stderr
    assert [row["a"].isoformat() for row in rows_of(place)] == [
        "2024-01-02T03:04:05+00:00",
        "2024-01-02T01:04:05+00:00",
    ]


def test_times_of_json_with_a_zone_are_instants_in_structs_and_lists(place: Path) -> None:
    first = '{"s": {"at": "2024-01-02T03:04:05+02:00", "b": "2024-01-02T03:04:05", "n": 1}, "l": []}'
    second = '{"s": null, "l": [{"at": "2024-01-02T03:04:05Z"}, null]}'
    written("f", f"{first}\n{second}\n")
    result = penstock(str(place), "f", "--from", "ndjson")
    assert (
        "s struct<at: timestamp, b: timestamp_ntz, n: bigint>, l array<struct<at: timestamp>>"
        in result.stderr
    )
    one, other = rows_of(place)
    assert one["s"]["at"].isoformat() == "2024-01-02T01:04:05+00:00"
    assert one["s"]["b"].isoformat() == "2024-01-02T03:04:05"
    assert other["s"] is None
    assert [item and item["at"].isoformat() for item in other["l"]] == ["2024-01-02T03:04:05+00:00", None]


def test_times_of_json_with_fractions_of_a_second_are_times(place: Path) -> None:
    first = '{"a": "2024-01-02T03:04:05.019Z", "b": "2024-01-02 03:04:05.5", "c": "2024-01-02T03:04:05", '
    other = '{"a": "2024-01-02T03:04:05Z", "b": null, "c": "2024-01-02T03:04:05.25", '
    first += '"no": "2024-01-02T03:04:05.5Z", "long": "2024-01-02T03:04:05.123456789", '
    other += '"no": "2024-01-02T03:04:05 or so", "long": "2024-01-02T03:04:05", '
    written("f", first + '"l": ["2024-01-02T03:04:05.5Z"]}\n' + other + '"l": []}\n')
    result = penstock(str(place), "f", "--from", "ndjson")
    assert (
        "a timestamp, b timestamp_ntz, c timestamp_ntz, no string, long string, l array<timestamp>"
        in result.stderr
    )
    one, two = rows_of(place)
    assert one["a"].isoformat() == "2024-01-02T03:04:05.019000+00:00"
    assert one["b"].isoformat() == "2024-01-02T03:04:05.500000"
    assert two["c"].isoformat() == "2024-01-02T03:04:05.250000"
    assert one["l"][0].isoformat() == "2024-01-02T03:04:05.500000+00:00"


def test_times_without_a_zone_are_of_utc_and_no_digit_is_lost(place: Path) -> None:
    written("a.csv", "t\n2024-01-02 03:04:05\n2024-01-02T03:04:05+02:00\n2024-01-02 03:04:05.1234560\n")
    assert penstock(str(place), "a.csv", "--from", "csv", "--schema", "t timestamp").exit_code == 0
    assert [row["t"].isoformat() for row in rows_of(place)] == [
        "2024-01-02T03:04:05+00:00",
        "2024-01-02T01:04:05+00:00",
        "2024-01-02T03:04:05.123456+00:00",
    ]
    written("b.csv", "t\n2024-01-02 03:04:05.1234567\n")
    lost = penstock(str(place), "b.csv", "--from", "csv")
    assert "column t is no timestamp:" in lost.stderr


# --------------------------------------------------------------------------------- pipes and signals


def command(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    program = "from penstock.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", program, "ingest", *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])}, text=True,
        stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def test_lines_of_stdin_are_read_to_their_end(place: Path) -> None:
    process = command(str(place), "--from", "stdin", "--format", "csv", stdin=subprocess.PIPE)
    _, said = process.communicate("n,tag\n1,a\n2,b")
    assert process.returncode == 0, said
    assert rows_of(place) == [{"n": 1, "tag": "a"}, {"n": 2, "tag": "b"}]


def test_a_socket_is_read_to_its_end(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b'{"n": 1}\n{"n"')
                until(lambda: (place / "p-stream").exists() and len(rows_of(place)) == 1)
                connection.sendall(b": 2}\n")

        thread = threading.Thread(target=serve)
        thread.start()
        totals = ingest_sources(Settings(str(place), "socket", (f"127.0.0.1:{port}",), schema="n int"))
        thread.join()
    assert totals.rows == 2
    assert [row["n"] for row in rows_of(place)] == [1, 2]
    refused = penstock(str(place), f"127.0.0.1:{port}", "--from", "socket")
    assert refused.exit_code == 1
    assert "nothing answers at the address" in refused.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_commits_what_was_read(place: Path, number: signal.Signals, code: int) -> None:
    written("a.csv", "n\n1\n")
    options = ("--follow", "--schema", "n int", "--interval", "1h")
    with command(str(place), "*.csv", "--from", "csv", *options) as process:
        until(lambda: (place / "p-stream").exists() and "ingest" in PStream(place).log.writers)
        process.send_signal(number)
        _, said = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == code, said
    told, stopped = said.splitlines()[-2:]
    assert stopped == f"stopped by {number.name}"
    assert re.match(rf"{PStream(place).end} rows?, ", told)
    rest = penstock(str(place), "a.csv", "--from", "csv")
    assert rest.exit_code == 0
    assert [row["n"] for row in rows_of(place)] == [1]


def test_files_that_grow_and_new_ones_are_followed(place: Path) -> None:
    written("1.csv", "n\n1\n")
    stop = threading.Event()
    thread = threading.Thread(
        target=lambda: ingest_sources(
            Settings(str(place), "csv", ("[0-9].csv",), follow=True, interval="0ms"), stopped=stop.is_set
        )
    )
    thread.start()

    def numbers() -> list[int]:
        return [row["n"] for row in rows_of(place)] if (place / "p-stream").exists() else []

    try:
        until(lambda: numbers() == [1])
        with Path("1.csv").open("a") as file:
            file.write("2\n3")
        until(lambda: numbers() == [1, 2])
        with Path("1.csv").open("a") as file:
            file.write("3\n")
        until(lambda: numbers() == [1, 2, 33])
        written("2.csv", "n\n4\n")
        until(lambda: numbers() == [1, 2, 33, 4])
    finally:
        stop.set()
        thread.join()


def test_a_following_run_waits_for_the_first_rows(place: Path) -> None:
    stop = threading.Event()
    seen: list[pa.Schema] = []

    class Seen(Report):
        def report_schema(self, schema: pa.Schema) -> None:
            seen.append(schema)

        def report_progress(self, totals: Totals) -> None:
            if totals.rows:
                stop.set()

    settings = Settings(str(place), "csv", ("*.csv",), follow=True)
    thread = threading.Thread(target=lambda: ingest_sources(settings, Seen(), stop.is_set))
    thread.start()
    written("a.csv", "n,")
    with Path("a.csv").open("a") as file:
        file.write("m\n1,2\n")
    thread.join(_PATIENCE_S)
    assert not thread.is_alive()
    assert seen == [pa.schema({"n": pa.int64(), "m": pa.int64()})]
    assert rows_of(place) == [{"n": 1, "m": 2}]


def test_bytes_that_are_committed_later_are_reported_without_new_rows(place: Path) -> None:
    written("a.csv", "n\n1\n")
    stop = threading.Event()

    class Seen(Report):
        def report_progress(self, totals: Totals) -> None:
            if totals.written_bytes:
                stop.set()

    settings = Settings(str(place), "csv", ("*.csv",), follow=True, interval="200ms")
    thread = threading.Thread(target=lambda: ingest_sources(settings, Seen(), stop.is_set))
    thread.start()
    thread.join(_PATIENCE_S)
    is_reported = stop.is_set()
    stop.set()
    thread.join()
    assert is_reported


# ------------------------------------------------------------------------------------ wrong commands


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("a.csv", "--from", "xml"), f"known={', '.join(KINDS)}"),
        (("--from", "csv"), "no file is given"),
        (("none.csv", "--from", "csv"), "the file cannot be read"),
        (("none*.csv", "--from", "csv"), "there is no such file"),
        (("a.csv", "--from", "stdin"), "stdin and a file are both given"),
        (("nowhere", "--from", "socket"), "the address is not valid"),
        (("--from", "socket"), "the kind socket needs exactly one address"),
        (("--from", "stdin", "--format", "xml"), "the format of lines is unknown"),
        (("--from", "stdin", "--follow"), "only files and a WebSocket can be followed"),
        (("a.csv", "--from", "csv", "--delimiter", "ab"), "the delimiter is not one character"),
        (("a.csv", "--from", "csv", "--on-error", "ignore"), "the value of --on-error is unknown"),
        (("a.csv", "--from", "csv", "--goal", "best"), "there is no such goal"),
        (("a.csv", "--from", "csv", "--interval", "5"), "has no unit"),
        (("a.csv", "--from", "csv", "--writer", "../x"), "the name is not allowed"),
        (("a.csv", "--from", "csv", "--schema", "n"), "the schema is wrong"),
        (("a.csv", "--from", "csv", "--schema", "n array<int>"), "text cannot be read as one of these types"),
        (("twice.csv", "--from", "csv"), "two columns have the same name"),
        (("empty.csv", "--from", "csv"), "there are no rows to infer the columns from"),
        (("a.csv", "--from", "ndjson"), "a record cannot be read: it is no JSON"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(place: Path, arguments: tuple[str, ...], text: str) -> None:
    written("a.csv", "n\n1\n")
    written("twice.csv", "n,n\n1,2\n")
    written("empty.csv", "")
    result = penstock(str(place), *arguments)
    assert result.exit_code == (1 if text.startswith("a record") else 2), result.stderr
    assert text in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_the_schema_must_be_the_stream_s(place: Path) -> None:
    written("a.csv", "n\n1\n")
    assert penstock(str(place), "a.csv", "--from", "csv").exit_code == 0
    other = penstock(str(place), "a.csv", "--from", "csv", "--schema", "n int")
    assert other.exit_code == 2
    assert "the columns differ from the columns of the p-stream" in other.stderr


@pytest.mark.parametrize("schema", ["m int", "n int, m int", "n timestamp"])
def test_a_schema_that_does_not_fit_creates_no_stream(place: Path, schema: str) -> None:
    written("a.csv", "n,o\n1.5,2\n")
    refused = penstock(str(place), "a.csv", "--from", "csv", "--schema", schema)
    assert refused.exit_code == (1 if schema == "n timestamp" else 2), refused.output
    assert not place.exists()
    assert penstock(str(place), "a.csv", "--from", "csv", "--schema", "n double").exit_code == 0
    assert rows_of(place) == [{"n": 1.5}]


def test_inspect_shows_positions_without_checksums(place: Path) -> None:
    written("a.csv", "n\n1\n")
    assert penstock(str(place), "a.csv", "--from", "csv").exit_code == 0
    shown = CliRunner().invoke(app, ["inspect", "pstream", str(place)]).stdout
    assert "bytes:" in shown
    assert "head:" not in shown


def test_a_bad_first_record_that_is_skipped_creates_the_stream(place: Path) -> None:
    written("a.csv", "n\nx\n1\n")
    options = ("a.csv", "--from", "csv", "--schema", "n int", "--on-error", "skip")
    assert penstock(str(place), *options).exit_code == 0
    assert rows_of(place) == [{"n": 1}]


def test_quiet_says_nothing(place: Path) -> None:
    written("a.csv", "n,m\n1,2\n")
    result = penstock(str(place), "a.csv", "--from", "csv", "--quiet", "--schema", "n int")
    assert (result.exit_code, result.output) == (0, "")


def test_records_longer_than_a_chunk_are_read(place: Path) -> None:
    text = json.dumps({"text": "x" * 5000})
    written("a.ndjson", f"{text}\n{text}\n")
    settings = Settings(str(place), "ndjson", ("a.ndjson",), sizes=ReadSizes(chunk_bytes=64))
    assert ingest_sources(settings).rows == 2
    written("b.ndjson", text)
    sizes = ReadSizes(chunk_bytes=64, most_record_bytes=1024)
    with pytest.raises(InvalidUsageError, match="a record has no end"):
        ingest_sources(Settings(str(place), "ndjson", ("b.ndjson",), sizes=sizes))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("csv", "n,text\n1,a\n2,b\n"),
        ("csv", "n,text\n1,a\nx,b\n"),
        ("ndjson", '{"n": 1, "text": "a"}\n\n{"n": "x", "text": "b"}\n'),
        ("json", ' [{"n": 1, "text": "a"},\n {"n": 2, "text": "b"}]\n'),
    ],
)
def test_all_bytes_of_a_file_are_read(place: Path, kind: str, text: str) -> None:
    schema = "n bigint, text string"
    settings = Settings(str(place), kind, (written("file", text),), schema=schema, skip_bad=True)
    totals = ingest_sources(settings)
    assert totals.rows + totals.bad == 2
    assert totals.read_bytes == len(text)
