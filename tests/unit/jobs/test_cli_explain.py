"""penstock explain: pipelines as graphs, from YAML."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

from penstock.checkpointing.p_stream import PStreamWriter
from penstock.cli import app
from penstock.conf.pipeline import FilesSource, KafkaSource, Pipeline, example_names, load_pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.graph import graph_of
from penstock.jobs.pipelines.schemas import read_sample, schema_of
from penstock.market import MARKET_SCHEMA

_WINDOWS = """\
source:
  type: files
  format: csv
  path: in
  schema: seconds BIGINT, kind INT, category INT, cpu FLOAT
filter: kind = 1
window:
  time: seconds
  size: 60 s
  slide: 1 s
  unit: s
group_by: [category, category div 2 AS half]
aggregates:
  load: avg(cpu)
  n: count(*)
having: load > 0.5
persist: always
sink:
  type: noop
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(_WINDOWS)


def _write_streams() -> None:
    """Make the p-streams that the examples read."""
    time = ("time", pa.timestamp("us", "UTC"))
    trade = [time, ("symbol", pa.string()), ("price", pa.float64())]
    reading = [time, ("value", pa.float64()), ("topic", pa.string())]
    for place, columns in (("trades", trade), ("readings", reading)):
        with PStreamWriter(place, pa.schema(columns)):
            pass


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_the_default_of_persist_is_not_called_never() -> None:
    text = penstock("explain", "market").stdout
    assert "no p-stream is asked for" in text
    assert "persist is" not in text


def test_an_existing_pipeline_is_explained() -> None:
    result = penstock("explain", "market", "--set", "persist=always")
    assert result.exit_code == 0
    assert "update queue (symbol) newest by time, linecutting, budget 500" in result.stdout
    assert "p-stream source: time, symbol, price, volume" in result.stdout
    assert "newest of (symbol) by" not in result.stdout
    result = penstock("explain", "market", "--set", "persist=always", "--set", "queue.policy=in_place")
    assert "newest of (symbol) by" in result.stdout


@pytest.mark.parametrize("name", example_names())
def test_every_example_is_explained(name: str) -> None:
    _write_streams()
    result = penstock("explain", name)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "as planned" in result.stdout


def test_windows_and_aggregates_are_explained() -> None:
    result = penstock("explain", "w.yaml", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert [node["kind"] for node in document["as_planned"]] == [
        *("source", "where", "select", "p-stream", "scan", "assemble", "where", "sink")
    ]
    (stream,) = document["p_streams"]
    assert list(stream["schema"]) == ["seconds", "category", "cpu"]
    assert stream["readers"][0]["fragments"]["group_by"] == ["category", "half"]
    assert penstock("check", "w.yaml").stdout == "w.yaml: valid: files -> windows of 60 s by 1 s -> noop\n"
    served = penstock("check", "w.yaml", "--set", "window.mode=lazy", "--set", "window.budget=800ms")
    assert "files -> lazy windows of 60 s by 1 s, in_place, budget 800ms -> noop" in served.stdout


def test_a_queue_may_stand_before_a_window() -> None:
    made = graph_of(load_pipeline("w.yaml", ["queue={key: category, time: seconds}", "having=null"]))
    assert made.schema.names == ["category", "half", "window", "load", "n"]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["filter=kidn = 1"],
            "--set filter=kidn = 1: filter: there is no column 'kidn': expression=kidn = 1. "
            "Hint: did you mean 'kind'?",
        ),
        (
            ["window.time=second"],
            "--set window.time=second: window.time: there is no column 'second'. "
            "Hint: did you mean 'seconds'?",
        ),
        (["aggregates={load: avg(cpuu)}"], "aggregates: there is no column 'cpuu'"),
        (["group_by=[catgory]"], "group_by: there is no column 'catgory'"),
        (["having=cpu > 1"], "having: there is no column 'cpu'"),
        (["projection=[kind]"], "window"),
        (["projection=['kind +']"], "projection: an expression cannot be parsed"),
        (
            ["window.unit=null"],
            "window.time: the time of a window is neither a timestamp nor an integer with a unit",
        ),
        (["persist={other: always}"], "persist: persist names no operator"),
        (
            ["source.schema=a VARIANT"],
            "source.schema: the schema is wrong: 'VARIANT' is where a type should be",
        ),
        (
            ["source.schema=a STRING b"],
            "source.schema: the schema is wrong: 'b' is where ',' or the end should be",
        ),
        (["queue={key: catgory, time: seconds}"], "queue: there is no column 'catgory'"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(overrides: list[str], problem: str) -> None:
    result = penstock("explain", "w.yaml", *[part for one in overrides for part in ("--set", one)])
    assert result.exit_code == 2
    assert problem in result.stderr


def test_the_line_of_a_field_is_named() -> None:
    Path("w.yaml").write_text(_WINDOWS.replace("kind = 1", "kidn = 1"))
    assert penstock("explain", "w.yaml").stderr.startswith("w.yaml:6: filter: there is no column 'kidn'")


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("window=null", "window: is required with aggregates. Hint: write its time and its size"),
        ("aggregates=null", "aggregates: is required with window"),
        ("aggregates={}", "aggregates: names no aggregate"),
        ("aggregates=[a]", "aggregates: a list is not a section of SQL aggregates"),
        ("window.size=long", "window.size: 'long' is not a duration"),
        ("window.slide=2 min", "window.slide: '2 min' is longer than the size"),
        ("window.unit=h", "window.unit: 'h' is not one of s, ms, us, ns"),
        ("window.tiem=a", "window.tiem: unknown field. Hint: did you mean 'time'?"),
        ("window={size: 1 s}", "window.time: is required. Hint: name the column of the time"),
        (
            "persist=allways",
            "persist: 'allways' is not one of auto, always, never. Hint: did you mean 'always'?",
        ),
        ("persist={source: yes}", "persist: true is not one of auto, always, never"),
        ("having=''", "having: is empty"),
    ],
)
def test_a_wrong_field_is_named(override: str, problem: str) -> None:
    result = penstock("check", "w.yaml", "--set", override)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_groups_need_aggregates() -> None:
    result = penstock("check", "market", "--set", "group_by=[symbol]", "--set", "having=price > 1")
    assert "group_by: needs aggregates, and there are none" in result.stderr
    assert "having: needs aggregates" in result.stderr


def _sample() -> pa.Table:
    return pa.table(
        {
            "seconds": list(range(100)),
            "kind": [row % 4 for row in range(100)],
            "category": [row % 3 for row in range(100)],
            "cpu": [0.5] * 100,
        }
    )


def test_a_sample_and_a_drawing() -> None:
    pyarrow.csv.write_csv(_sample(), "sample.csv")
    result = penstock("explain", "w.yaml", "--sample", "sample.csv", "--svg", "graph.svg")
    assert result.exit_code == 0
    assert "passes 25%" in result.stdout
    assert "stored in" in result.stdout
    assert Path("graph.svg").read_text().startswith("<svg")


def test_a_sample_is_read_by_its_name() -> None:
    table = _sample()
    pyarrow.csv.write_csv(table, "s.csv")
    pyarrow.parquet.write_table(table, "s.parquet")
    pyarrow.feather.write_feather(table, "s.arrow")
    Path("s.ndjson").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    for name in ("s.csv", "s.parquet", "s.arrow", "s.ndjson"):
        assert read_sample(Path(name)).to_pydict() == table.to_pydict()
    Path("s.txt").write_text("a\nb\n")
    assert read_sample(Path("s.txt")).to_pydict() == {"value": ["a", "b"]}
    for name, says in (
        ("s.xls", "unknown format"),
        ("no.csv", "no such file"),
        ("s.csv", "cannot be read"),
    ):
        if name == "s.csv":
            Path(name).write_text('a,b\n1,2,"3\n')
        with pytest.raises(InvalidUsageError, match=says):
            read_sample(Path(name))


def test_columns_are_known_without_spark() -> None:
    kafka = {"type": "kafka", "options": {"kafka.bootstrap.servers": "b", "subscribe": "t"}}
    ddl = (
        "a DECIMAL(9,2), b ARRAY<INT>, c MAP<STRING, DOUBLE>, d STRUCT<e: DATE, f: BINARY>, g TIMESTAMP, "
        "h STRING"
    )
    source = KafkaSource.model_validate(kafka | {"value_format": "json", "schema": ddl})
    assert schema_of(source) == pa.schema(
        {
            "a": pa.decimal128(9, 2),
            "b": pa.list_(pa.int32()),
            "c": pa.map_(pa.string(), pa.float64()),
            "d": pa.struct({"e": pa.date32(), "f": pa.binary()}),
            "g": pa.timestamp("us", "UTC"),
            "h": pa.string(),
            "kafka_timestamp": pa.timestamp("us", "UTC"),
        }
    )
    assert "value" in schema_of(KafkaSource.model_validate(kafka)).names
    changes = {"value_format": "debezium", "schema": "id INT", "kafka_columns": ["key", "headers"]}
    assert schema_of(KafkaSource.model_validate(kafka | changes)).names == [
        *("id", "deleted", "change_op", "change_ms", "change_lsn", "kafka_key", "kafka_headers")
    ]
    pyarrow.parquet.write_table(_sample(), "s.parquet")
    files = {"type": "files", "format": "parquet", "path": "s.parquet"}
    assert schema_of(FilesSource.model_validate(files)) == _sample().schema
    with pytest.raises(InvalidUsageError, match=r"cannot be read.*write schema"):
        schema_of(FilesSource.model_validate(files | {"path": "none"}))
    rate = {
        "source": {"type": "rate"},
        "queue": {"key": "value", "time": "timestamp"},
        "sink": {"type": "noop"},
    }
    assert graph_of(Pipeline.model_validate(rate)).schema.names == ["timestamp", "value"]
    market = load_pipeline("market", ["projection=null", "queue.staleness_column=false"])
    assert graph_of(market).schema == MARKET_SCHEMA


def test_explaining_starts_no_spark() -> None:
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from penstock.cli import app\n"
        "CliRunner().invoke(app, ['explain', 'market'])\n"
        "print('penstock.dataflow' in sys.modules, {'pyspark', 'py4j', 'numba'} & "
        "sys.modules.keys())\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert shown.stdout == "True set()\n"


def test_check_finds_what_explain_finds_and_all_of_it() -> None:
    wrong = ("--set", "filter=kidn = 1", "--set", "having=cpu > 1")
    told = [penstock(command, "w.yaml", *wrong) for command in ("check", "explain")]
    assert told[0].stderr == told[1].stderr
    assert [line.partition(": ")[0] for line in told[0].stderr.splitlines()] == [
        "--set filter=kidn = 1",
        "--set having=cpu > 1",
    ]


@pytest.mark.parametrize("command", ["check", "run"])
def test_places_that_cannot_be_written_are_told_before_spark_starts(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    Path("file").touch()
    Path("in").mkdir()
    overrides = [
        "query.checkpoint=file",
        "query.metrics=in",
        "sink={type: parquet, path: file/o}",
    ]
    result = penstock(command, "w.yaml", *[part for one in overrides for part in ("--set", one)])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "--set query.checkpoint=file: query.checkpoint: file is no directory.",
        "--set query.metrics=in: query.metrics: in is a directory.",
        "--set sink={type: parquet, path: file/o}: sink.path: file/o cannot be made: "
        f"{Path('file').absolute()} is no directory.",
    ]


def test_a_drawing_that_cannot_be_written_is_one_line() -> None:
    result = penstock("explain", "w.yaml", "--svg", "nodir/x.svg")
    assert (result.exit_code, result.stderr) == (2, "nodir/x.svg: No such file or directory.\n")


def test_check_tells_of_columns_and_places_at_once() -> None:
    wrong = ["filter=prise > 1", "query.checkpoint=/proc/checkpoint", "query.metrics=/proc/none/metrics"]
    result = penstock("check", "market", *(part for one in wrong for part in ("--set", one)))
    assert result.exit_code == 2
    columns, *places = result.stderr.splitlines()
    assert columns.startswith("--set filter=prise > 1: filter: there is no column 'prise'")
    assert [line.partition(": ")[2].partition(":")[0] for line in places] == [
        "query.checkpoint",
        "query.metrics",
    ]
    assert all("/proc" in line for line in places), "also root cannot write there"
