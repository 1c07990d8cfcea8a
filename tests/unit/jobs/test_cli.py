"""The command line, without Spark."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import JavaClient, JavaParameters, PythonParameters
from py4j.java_gateway import GatewayProperty
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner, Result

from penstock import __version__
from penstock.cli import app
from penstock.conf.pipeline import Pipeline, example_names, load_pipeline
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.jobs import class_archive, demo
from penstock.jobs.following.batches import Batch, Totals, batch_printer, summary_line
from penstock.jobs.pipelines import run as jobs_run
from penstock.jobs.signals import StopSignals

_ROOT = Path(__file__).parents[3]


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fake_run(monkeypatch: pytest.MonkeyPatch, body: Callable[..., Totals]) -> list[Pipeline]:
    """Put `body` in the place of the run; return the pipelines it is called with."""
    seen: list[Pipeline] = []

    def run_to_end(pipeline: Pipeline, on_batch: Callable[[Batch], None], **options: Any) -> Totals:
        seen.append(pipeline)
        return body(on_batch)

    monkeypatch.setattr(jobs_run, "run_to_end", run_to_end)
    return seen


def test_help_names_every_command() -> None:
    result = penstock("--help")
    assert result.exit_code == 0
    for command in ("run", "check", "examples", "demo", "simulate", "ingest", "inspect", "gc", "warm-up"):
        assert command in result.stdout
        assert penstock(command, "--help").exit_code == 0


def test_the_archive_of_classes_is_used_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = []

    def run(command: list[str], *, cwd: str, env: dict[str, str], **options: Any) -> Any:
        (option,) = [word for word in env["SPARK_SUBMIT_OPTS"].split() if "ArchiveClassesAtExit" in word]
        made.append(Path(option.partition("=")[2]))
        made[-1].write_text("classes")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert class_archive.archive_options() == {}
    for options, runs in (((), 1), (("--if-missing",), 1), ((), 2)):
        result = penstock("warm-up", *options)
        assert (result.exit_code, len(made)) == (0, runs), result.output
        assert ".jsa: 7 bytes" in result.stdout
    (archive,) = (tmp_path / "penstock").glob("*classes-*")
    assert archive.stat().st_mode & 0o777 == 0o600
    assert (
        f"-XX:SharedArchiveFile={archive}"
        in class_archive.archive_options()["spark.driver.defaultJavaOptions"]
    )


def test_without_a_home_there_is_no_archive_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert class_archive.archive_options() == {}
    result = penstock("warm-up")
    assert result.exit_code == 1
    assert "set XDG_CACHE_HOME or HOME" in result.stderr


def test_a_warm_up_without_java_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "none")
    result = penstock("warm-up")
    assert result.exit_code == 2
    assert "there is no Java. Hint: install Java 17" in result.stderr


def test_help_says_how_long_the_demo_runs() -> None:
    help_text = " ".join(penstock("demo", "--help").stdout.replace("│", " ").split())
    assert f"{demo.SECONDS} by default, {demo.FAST_SECONDS} with --fast" in help_text


def test_a_demo_whose_query_fails_says_why_without_the_jvms_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> int:
        raise StreamingQueryException(
            "[STREAM_FAILED] Query terminated with exception: Job aborted due to stage failure: "
            'Traceback (most recent call last):\n  File "w.py", line 1, in run\n'
            "penstock.errors.InvalidUsageError: a key is null: column=k. Hint: drop it.\n"
            "\tat org.apache.spark.Executor.run(Executor.scala:1)\nDriver stacktrace: SQLSTATE: XXKST"
        )

    monkeypatch.setattr(demo, "run_demo", fail)
    result = penstock("demo")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "the query failed: cause=a key is null: column=k. Hint: drop it.\n"


@pytest.mark.parametrize(
    ("words", "found"), [("penstock expl", ["explain"]), ("penstock state mi", ["migrate"])]
)
def test_a_shell_completes_commands(words: str, found: list[str]) -> None:
    asked = {
        "_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))
    }  # fmt: skip
    completed = CliRunner().invoke(app, [], prog_name="penstock", env=asked)
    assert completed.stdout.split() == found


def test_the_version_is_printed() -> None:
    result = penstock("--version")
    assert (result.exit_code, result.stdout) == (0, f"penstock {__version__}\n")


def test_without_a_command_the_help_is_shown() -> None:
    result = penstock()
    assert result.exit_code == 2
    assert "Usage" in result.output


@pytest.mark.parametrize("command", [("gc",), ("ingest",), ("explain",), ("warm-up",), ("inspect", "state")])
def test_help_fills_the_lines_of_a_narrow_terminal(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80"})
    assert max(map(len, result.stdout.splitlines())) <= 80
    prose, _, _ = result.stdout.partition("╭")
    paragraphs = [text for text in "\n".join(map(str.strip, prose.splitlines())).split("\n\n") if text]
    for paragraph in paragraphs:
        if "penstock ingest" in paragraph or "   " in paragraph:  # commands or columns, one a line
            continue
        for line, following in pairwise(paragraph.strip().splitlines()):
            assert len(line) + 1 + len(following.split()[0]) > 78, "the line has room for the next word"


def test_an_unknown_command_or_option_is_a_usage_error() -> None:
    assert penstock("rum").exit_code == 2
    assert penstock("run", "market", "--sett", "a=b").exit_code == 2
    assert penstock("run").exit_code == 2


def test_help_and_check_import_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from penstock.cli import app\n"
        "for arguments in (['--help'], ['run', '--help'], ['ingest', '--help'], ['examples'], "
        "['check', 'no']):\n"
        "    CliRunner().invoke(app, arguments)\n"
        "print(sorted({'pyspark', 'py4j', 'numba', 'pandas', 'pyarrow', 'matplotlib'} & "
        "sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    program = program.replace("['check', 'no']", "['check', 'market']").replace("'pandas', 'pyarrow', ", "")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_check_says_what_the_pipeline_does() -> None:
    result = penstock("check", "market", "--set", "queue.budget=9", "--set", "sink={type: noop}")
    assert result.exit_code == 0
    assert result.stdout == "market: valid: market -> linecutting queue of (symbol), budget 9 -> noop\n"


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        (
            "oracle://user:not-to-be-seen@host",
            "the address of the store is not valid: scheme=oracle. Hint: it begins with one",
        ),
        (
            "sqlite:///nodir/x.db",
            "the directory of the database does not exist: directory={here}/nodir. Hint:",
        ),
        (
            "duckdb:///nodir/x.db",
            "the directory of the database does not exist: directory={here}/nodir. Hint:",
        ),
        ("redis://host", "an upsert to redis needs redis, which is not installed. Hint: pip install"),
    ],
)
@pytest.mark.parametrize("engine", ["spark", "local"])
def test_check_refuses_a_store_that_a_run_could_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, problem: str, engine: str
) -> None:
    monkeypatch.setattr("penstock._extras.has_extra", lambda extra: extra != "redis")
    sink = f"sink: {{type: upsert, to: '{to}', table: prices}}"
    rest = "source: {type: market}\nqueue: {key: symbol, time: time}\nquery: {checkpoint: checkpoint}\n"
    (tmp_path / "p.yaml").write_text(f"{sink}\n{rest}")
    for place, override in (("p.yaml:1", ()), ("--set sink.to", ("--set", f"sink.to={to}"))):
        result = penstock("check", "p.yaml", "--set", f"engine={engine}", *override)
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"{place}: sink.to: {problem.format(here=tmp_path)}")
        assert "not-to-be-seen" not in line


def test_check_lists_all_problems_and_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "source: {type: rate}\nqueue:\n  key: value\n  tme: timestamp\nsink: {type: noop}\n", encoding="utf-8"
    )
    result = penstock("check", "p.yaml", "--set", "query.name=3")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "p.yaml:2: queue.time: is required. Hint: name the column whose greatest value is the newest.",
        "p.yaml:4: queue.tme: unknown field. Hint: did you mean 'time'?",
        "--set query.name=3: query.name: 3 is not text. Hint: put it in quotes.",
    ]


def test_examples_are_listed_and_printed(tmp_path: Path) -> None:
    listed = penstock("examples")
    assert listed.exit_code == 0
    lines = listed.stdout.splitlines()
    assert lines[0] == "To start from:"
    assert "Queries of benchmarks and papers:" in lines
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "] == example_names()
    printed = penstock("examples", "market")
    (tmp_path / "copy.yaml").write_text(printed.stdout, encoding="utf-8")
    assert load_pipeline("copy.yaml") == load_pipeline("market")
    missing = penstock("examples", "nothing")
    assert (missing.exit_code, missing.stderr) == (
        2,
        f"there is no example 'nothing'. Hint: the examples are {', '.join(example_names())}.\n",
    )


def test_run_shows_batches_and_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(
        number=0,
        rows_in=20_000,
        emitted=500,
        conflated=18_380,
        late=7,
        duplicates=3,
        dropped=0,
        waiting_keys=1_120,
        duration_ms=2_093,
        staleness_ms=340.4,
        staleness_p95_ms=1_210.0,
    )
    idle = Batch(
        number=1, rows_in=0, emitted=0, conflated=0, late=0, dropped=0, waiting_keys=1_120, duration_ms=9
    )

    def body(on_batch: Callable[[Batch], None]) -> Totals:
        on_batch(batch)
        on_batch(idle)
        return Totals().plus(batch)

    seen = fake_run(monkeypatch, body)
    result = penstock("run", "market", "--set", "queue.budget=500")
    assert result.exit_code == 0
    assert seen[0].queue is not None
    assert seen[0].queue.budget == 500
    assert result.stderr.splitlines() == [
        "batch 0     in    20,000  emitted      500  conflated    18,380  late 7  duplicates 3  "
        "waiting   1,120  stale 340 ms, p95 1.2 s  took 2.1 s",
        "stale: how long, per key, the oldest unserved update has waited in the queue;  "
        "average and 95th percentile over keys and time; not shown below 0.5 ms",
        "1 batch, 20,000 rows in, 500 emitted, 18,380 conflated, 7 late, 3 duplicates",
        "1,120 keys still wait: the newest row of each is gone with the temporary checkpoint; "
        "set query.checkpoint to keep it.",
    ]
    quiet = penstock("run", "market", "--no-progress", "--set", "query.checkpoint=ck")
    assert quiet.stderr.splitlines()[-1] == (
        "1,120 keys still wait: the newest row of each is in the state, "
        "and the next run with this checkpoint serves it."
    )
    assert len(quiet.stderr.splitlines()) == 2


def test_a_run_that_shows_nothing_for_long_says_that_it_is_starting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with batch_printer(silence_s=0.0):
        join_timers()
    assert capsys.readouterr().err.startswith("no micro-batch has ended yet: still starting")
    with StopSignals(), batch_printer(silence_s=0.0):
        signal.raise_signal(signal.SIGTERM)
        capsys.readouterr()
        join_timers()
    assert capsys.readouterr().err == ""


def test_a_run_whose_batches_have_no_rows_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    idle, busy = Batch(0, 0, 0, 0, 0, 0, 0, 10), Batch(1, 5, 5, 0, 0, 0, 0, 10)
    with batch_printer(silence_s=0.05) as show:
        show(idle)
        show(idle)
        join_timers()
    assert capsys.readouterr().err == "no micro-batch with rows has ended yet\n"
    with batch_printer(silence_s=3600.0) as show:
        show(idle)
        show(busy)
        join_timers()
    assert "no micro-batch" not in capsys.readouterr().err


def join_timers() -> None:
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()


@pytest.mark.parametrize(("bad", "hints"), [(0, 0), (3, 0), (5, 1)])
def test_a_batch_of_mostly_bad_records_is_followed_by_a_hint_once(
    capsys: pytest.CaptureFixture[str], bad: int, hints: int
) -> None:
    batch = Batch(0, 5, 0, 0, 0, 0, 0, 10, bad_records=bad)
    with batch_printer() as show:
        show(batch)
        show(batch)
    assert capsys.readouterr().err.count("the records that reject_to keeps") == hints


@pytest.mark.parametrize(
    ("rows", "bad", "line"),
    [
        (1, 1, "1 batch, 1 row in, 0 emitted, 1 bad record"),
        (2, 2, "1 batch, 2 rows in, 0 emitted, 2 bad records"),
    ],
)
def test_a_summary_counts_one_row_as_one(rows: int, bad: int, line: str) -> None:
    assert summary_line(Totals(batches=1, rows_in=rows, bad_records=bad)) == line


def test_a_summary_of_no_rows_says_so() -> None:
    assert summary_line(Totals(batches=1)) == "no new rows"
    assert summary_line(Totals(signal=2)) == "no micro-batch has ended"
    left = Totals(batches=2, emitted=3, waiting_keys=1_200)
    assert summary_line(left) == "2 batches, 0 rows in, 3 emitted"
    assert summary_line(left, shows_waiting=True) == "2 batches, 0 rows in, 3 emitted, 1,200 keys waiting"


@pytest.mark.parametrize(("number", "name", "code"), [(2, "SIGINT", 130), (15, "SIGTERM", 143)])
def test_a_run_that_a_signal_stopped_says_so(
    monkeypatch: pytest.MonkeyPatch, number: int, name: str, code: int
) -> None:
    fake_run(monkeypatch, lambda on_batch: Totals(batches=2, signal=number))
    result = penstock("run", "market")
    assert result.exit_code == code
    assert result.stderr.splitlines()[0] == f"stopped by {name}"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InvalidUsageError("filter: no column b", hint="a"), 2, "filter: no column b. Hint: a.\n"),
        (CorruptDataError("the file is torn", file="/x"), 1, "the file is torn: file=/x.\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_message_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def body(on_batch: Callable[[Batch], None]) -> Totals:
        raise error

    fake_run(monkeypatch, body)
    result = penstock("run", "market")
    assert (result.exit_code, result.stderr) == (code, message)


def test_a_jvm_that_was_killed_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(on_batch: Callable[[Batch], None]) -> Totals:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            java = JavaParameters(port=unused.getsockname()[1])
            client = JavaClient(java, PythonParameters(), GatewayProperty(False, None))
            client.send_command("no server listens there")
        raise AssertionError("there was an answer")

    fake_run(monkeypatch, body)
    result = penstock("run", "market")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "the JVM of Spark's driver does not answer: it has ended, or was killed" in line


def test_with_debug_the_traceback_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(on_batch: Callable[[Batch], None]) -> Totals:
        raise CorruptDataError("the file is torn")

    fake_run(monkeypatch, body)
    result = penstock("run", "market", "--debug")
    assert isinstance(result.exception, CorruptDataError)


def test_an_error_that_is_not_expected_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(on_batch: Callable[[Batch], None]) -> Totals:
        raise RuntimeError("a bug")

    fake_run(monkeypatch, body)
    assert isinstance(penstock("run", "market").exception, RuntimeError)


def test_a_repair_of_nothing_is_refused(tmp_path: Path) -> None:
    result = penstock("repair", str(tmp_path / "none"))
    assert (result.exit_code, result.stderr.splitlines()) == (
        2,
        [f"there is no such checkpoint: checkpoint={tmp_path / 'none'}."],
    )
    assert penstock("repair", str(tmp_path)).stdout == "no file is torn\n"


def test_a_run_refuses_a_wrong_column_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    started = fake_run(monkeypatch, lambda on_batch: Totals())
    result = penstock("run", "market", "--set", "queue.key=symbl")
    assert (result.exit_code, started) == (2, [])
    assert "there is no column 'symbl'. Hint: did you mean 'symbol'?" in result.stderr


def test_a_run_misses_its_input_before_spark_starts(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        f"source: {{type: files, format: json, path: {tmp_path}/none, schema: 'k STRING, t TIMESTAMP'}}\n"
        "queue: {key: k, time: t}\nsink: {type: console}\n"
    )
    result = penstock("run", str(file))
    assert result.exit_code == 2
    assert (
        result.stderr == f"{file}:1: source.path: there is no file or directory {str(tmp_path / 'none')!r}.\n"
    )


@pytest.mark.parametrize(
    ("words", "completed"), [("penstock repa", "repair"), ("penstock state r", "rescale")]
)
def test_shells_complete_commands(words: str, completed: str) -> None:
    typed = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": words}
    typed["COMP_CWORD"] = str(words.count(" "))
    assert CliRunner().invoke(app, [], prog_name="penstock", env=typed).output.split() == [completed]
