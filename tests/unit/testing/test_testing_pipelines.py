"""Pipelines under test: rows and a clock in, rows, staleness and metrics out."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock.testing
from penstock.checkpointing.p_stream import PStreamReader
from penstock.cli import app
from penstock.conf.document import PipelineError
from penstock.errors import InvalidUsageError

if TYPE_CHECKING:
    from penstock.testing.pipelines import CrashPoint
    from penstock.testing.plugin import OpenPipeline

pytest_plugins = ["penstock.testing.plugin"]

QUOTES = """
source: {type: files, format: json, path: nowhere, schema: "k STRING, ts TIMESTAMP, v DOUBLE"}
filter: v > 0
queue: {key: k, time: ts, buckets: 1}
sink: {type: console}
"""
WINDOWS = """
source: {type: files, format: json, path: nowhere, schema: "k STRING, ts TIMESTAMP, v DOUBLE"}
window: {time: ts, size: 10 s, watermark_delay: 5 s}
group_by: [k]
aggregates: {n: count(*), total: sum(v)}
sink: {type: console}
"""
JOIN = """
source: {type: files, format: json, path: nowhere, schema: "k STRING, ts TIMESTAMP, v DOUBLE"}
join:
  with: {source: {type: files, format: json, path: nowhere, schema: "k STRING, ts TIMESTAMP, ask DOUBLE"}}
  key: k
  time: ts
  within: 5 s
sink: {type: console}
"""


def row(key: str, second: int, value: float, name: str = "v") -> dict[str, Any]:
    return {"k": key, "ts": f"2026-01-01T00:00:{second:02}Z", name: value}


@pytest.fixture
def quotes(tmp_path: Path) -> str:
    file = tmp_path / "quotes.yaml"
    file.write_text(QUOTES)
    return str(file)


def test_rows_go_in_and_the_newest_of_each_key_come_out(quotes: str, penstock_pipeline: OpenPipeline) -> None:
    test = penstock_pipeline(quotes)
    test.send([row("a", 1, 1), row("a", 3, 3), row("b", 2, 2), row("c", 1, -1)])
    assert sorted(one["v"] for one in test.rows()) == [2.0, 3.0]
    assert test.rows() == []
    test.send([row("a", 2, 5)])
    assert test.rows() == []
    assert test.metrics[-1]["late"] == 1
    assert [one["batch_id"] for one in test.metrics] == [0, 1]


def test_time_passes_only_by_advance_and_makes_waiting_keys_stale(
    quotes: str, penstock_pipeline: OpenPipeline
) -> None:
    test = penstock_pipeline(quotes, ["queue.budget=1", "queue.policy=fifo"])
    test.send([row("a", 1, 1), row("b", 2, 2)])
    assert [one["k"] for one in test.rows()] == ["a"]
    assert (test.waiting_keys, test.staleness_ms["max"]) == (1, 0.0)
    test.advance("7 s")
    assert [one["k"] for one in test.rows()] == ["b"]
    assert (test.waiting_keys, test.staleness_ms["max"]) == (0, 7000.0)
    assert (test.now.minute, test.now.second) == (0, 7)


def test_a_pipeline_triggers_at_its_interval(quotes: str, penstock_pipeline: OpenPipeline) -> None:
    test = penstock_pipeline(quotes, ["queue.budget=1", "query.trigger=2 s"])
    test.send([row(key, 1, 1) for key in "abcdef"])
    test.advance("6 s")
    assert len(test.rows()) == 4, "one before, and one at each of three triggers"


@pytest.mark.parametrize("at", ["plan", "write", "commit"])
def test_restarts_and_crashes_neither_lose_nor_repeat_rows(
    quotes: str, penstock_pipeline: OpenPipeline, at: CrashPoint
) -> None:
    test = penstock_pipeline(quotes, ["queue.budget=2", "queue.policy=fifo"])
    test.send([row(key, 1, 1) for key in "abcdef"])
    seen = test.rows()
    test.restart()
    test.crash(at)
    for _ in range(3):
        seen += test.rows()
        test.advance("1 s")
    assert [one["k"] for one in seen] == list("abcdef")


def test_windows_close_behind_the_watermark(tmp_path: Path, penstock_pipeline: OpenPipeline) -> None:
    (tmp_path / "w.yaml").write_text(WINDOWS)
    test = penstock_pipeline(tmp_path / "w.yaml")
    test.send([row("a", 1, 1), row("a", 9, 2), row("b", 3, 5), row("a", 14, 7)])
    assert test.rows() == []
    test.send([row("a", 29, 1)])
    closed = sorted((one["k"], one["window"]["start"].second, one["n"], one["total"]) for one in test.rows())
    assert closed == [("a", 0, 2, 3.0), ("a", 10, 1, 7.0), ("b", 0, 1, 5.0)]
    test.send([row("a", 2, 1)])
    assert test.rows() == []
    assert test.metrics[-1]["late"] == 1


def test_both_sides_of_a_join_get_rows(tmp_path: Path, penstock_pipeline: OpenPipeline) -> None:
    (tmp_path / "j.yaml").write_text(JOIN)
    test = penstock_pipeline(tmp_path / "j.yaml")
    test.send([row("a", 1, 1)])
    test.send([row("a", 2, 9, "ask"), row("a", 20, 8, "ask")], to="with")
    assert [(one["v"], one["ask"]) for one in test.rows()] == [(1.0, 9.0)]
    with pytest.raises(InvalidUsageError, match=r"no source 'wit'.*did you mean 'with'"):
        test.send([], to="wit")


def test_rows_may_be_an_arrow_table(quotes: str, penstock_pipeline: OpenPipeline) -> None:
    test = penstock_pipeline(quotes)
    test.send(pa.table({"k": ["a"], "v": [1], "ts": pa.array([5], pa.timestamp("s", "UTC"))}))
    assert test.table()["ts"].to_pylist()[0].second == 5


def test_times_and_dates_may_be_nested(tmp_path: Path, penstock_pipeline: OpenPipeline) -> None:
    nested = "k STRING, ts TIMESTAMP, d DATE, s STRUCT<at: TIMESTAMP, days: ARRAY<DATE>>"
    text = QUOTES.replace("k STRING, ts TIMESTAMP, v DOUBLE", nested).replace("filter: v > 0\n", "")
    (tmp_path / "p.yaml").write_text(text)
    test = penstock_pipeline(tmp_path / "p.yaml")
    at = "2026-01-01T00:00:01Z"
    test.send(
        [{"k": "a", "ts": at, "d": "2026-01-02T00:00:00", "s": {"at": at, "days": ["2026-01-03", None]}}]
    )
    (one,) = test.rows()
    assert one["d"] == date(2026, 1, 2)
    assert one["s"] == {"at": one["ts"], "days": [date(2026, 1, 3), None]}


def test_rows_that_do_not_fit_are_refused(quotes: str, penstock_pipeline: OpenPipeline) -> None:
    test = penstock_pipeline(quotes)
    with pytest.raises(InvalidUsageError, match=r"no column 'vv'.*did you mean 'v'"):
        test.send([{"k": "a", "vv": 1}])
    with pytest.raises(InvalidUsageError, match="does not fit its column: column=v"):
        test.send([{"k": "a", "v": "much"}])
    with pytest.raises(InvalidUsageError, match=r"column=ts .*reason=Invalid isoformat string: 'soon'"):
        test.send([{"k": "a", "ts": "soon"}])
    with pytest.raises(InvalidUsageError, match="column=v "):
        test.send(pa.table({"k": ["a"], "v": ["much"]}))
    for rows in ({"k": "a"}, ({"k": key} for key in "ab"), "a", ["a"]):
        with pytest.raises(InvalidUsageError, match="neither a list of mappings nor an Arrow table"):
            test.send(rows)
    with pytest.raises(InvalidUsageError, match=r"overrides are not a list: got=queue.budget=1"):
        penstock_pipeline(quotes, "queue.budget=1")


def test_a_function_that_makes_other_rows_at_a_second_run_is_found(
    quotes: str, penstock_pipeline: OpenPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counting.py").write_text(
        "import pyarrow as pa\ncalls = []\ndef count(rows):\n    calls.append(1)\n"
        "    return rows.set_column(2, 'v', pa.array([float(len(calls))] * rows.num_rows))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    schema = "queue.output_schema='k STRING, ts TIMESTAMP, v DOUBLE'"
    test = penstock_pipeline(quotes, ["queue.apply=counting:count", schema])
    test.send([row("a", 1, 1)])
    test.crash("write")
    with pytest.raises(InvalidUsageError, match="runs again has other results"):
        test.trigger()


def test_what_the_local_engine_cannot_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(WINDOWS)
    with (
        pytest.raises(PipelineError, match=r"a test runs on the local engine; test this .* on Spark\.$"),
        penstock.testing.pipeline(tmp_path / "w.yaml", ["filter=upper(reverse(k)) = 'A'"]),
    ):
        pass


CASES = """
cases:
  - name: the newest wins
    steps:
      - given: [{k: a, ts: 2026-01-01T00:00:01Z, v: 1}, {k: a, ts: "2026-01-01T00:00:03Z", v: 3}]
      - expect: [{k: a, v: 3, ts: 2026-01-01T00:00:03Z}]
  - name: keys wait
    set: {queue.budget: 1, queue.policy: fifo}
    steps:
      - given: [{k: a, ts: 2026-01-01T00:00:01Z, v: 1}, {k: b, ts: 2026-01-01T00:00:01Z, v: 1}]
      - crash: write
      - expect: {rows: [{k: a}], waiting_keys: 1}
      - restart
      - advance: 5 s
      - expect: {rows: [{k: b}], waiting_keys: 0, staleness_ms: {max: 5000}}
"""


def run_cases(quotes: str, cases: str, *options: str) -> tuple[int, str]:
    Path(quotes).with_name("quotes.cases.yaml").write_text(cases)
    ran = CliRunner().invoke(app, ["test", quotes, *options])
    return ran.exit_code, ran.output


def test_cases_in_yaml_pass(quotes: str) -> None:
    code, text = run_cases(quotes, CASES)
    assert code == 0, text
    assert "2 passed, 0 failed" in text
    assert "1 passed, 0 failed" in run_cases(quotes, CASES, "--only", "wait")[1]


BANK = """\
import penstock
from penstock import abort

bank = penstock.database("bank")
bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id")


@bank.procedure(returns="left bigint")
def withdraw(e, accounts):
    if e.id not in accounts:
        accounts.insert(id=e.id, balance=10)
    account = accounts[e.id]
    account.balance -= e.amount
    if account.balance < 0:
        abort("short")
    return account.balance
"""
BANK_PIPELINE = """\
source: {type: files, format: json, path: in, schema: "id LONG, amount LONG"}
database: {file: "PLACE/bank.py", procedure: withdraw, keep: id}
sink: {type: console}
"""
BANK_CASES = """\
cases:
  - name: no account is overdrawn, whatever crashes
    steps:
      - given: [{id: 1, amount: 8}, {id: 1, amount: 3}, {id: 2, amount: 10}]
      - crash: write
      - expect:
          rows: [{id: 1, left: 2}, {id: 1, left: null, rejected: short}, {id: 2, left: 0}]
          committed: 2
          rejected: 1
      - restart
      - given: [{id: 1, amount: 2}]
      - crash: commit
      - expect: [{id: 1, left: 0}]
"""


def test_cases_of_transactions_pass_over_crashes_and_fail_with_the_difference(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(BANK)
    (tmp_path / "p.yaml").write_text(BANK_PIPELINE.replace("PLACE", str(tmp_path)))
    (tmp_path / "p.cases.yaml").write_text(BANK_CASES)
    ran = CliRunner().invoke(app, ["test", str(tmp_path / "p.yaml")])
    assert (ran.exit_code, ran.stdout.splitlines()[-1]) == (0, "1 passed, 0 failed"), ran.output
    wrong = BANK_CASES.replace("committed: 2", "committed: 3").replace("rejected: 1", "rejected: 0")
    (tmp_path / "p.cases.yaml").write_text(wrong)
    ran = CliRunner().invoke(app, ["test", str(tmp_path / "p.yaml")])
    assert ran.exit_code == 1
    assert [line.strip() for line in ran.stdout.splitlines()[2:6]] == [
        "- committed: 3", "+ committed: 2", "- rejected: 0", "+ rejected: 1",
    ]  # fmt: skip


def test_a_case_that_fails_shows_the_difference(quotes: str) -> None:
    code, text = run_cases(quotes, CASES.replace("v: 3, ts:", "v: 4, ts:").replace("max: 5000", "max: 4999"))
    assert code == 1
    assert "0 passed, 2 failed" in text
    assert "step 2, expect:" in text
    assert '-k: "a", v: 4, ts: 2026-01-01T00:00:03Z' in text
    assert '+k: "a", v: 3, ts: 2026-01-01T00:00:03Z' in text
    assert "- staleness_ms max: at most 4999" in text


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("advance: 5 s", "advanc: 5 s", "a step has no 'advanc': "),
        ("waiting_keys: 1", "waiting: 1", "expect has no 'waiting'"),
        ("cases:", "case:", "the file has no cases"),
        ("  - restart", "  - 7", "a step is neither a name nor a mapping"),
        ("waiting_keys: 1", "waiting_keys: few", "waiting_keys is not a number: got=few"),
        ("{max: 5000}", "{mx: 5000}", "staleness_ms has no 'mx'"),
        ("{max: 5000}", "{max: low}", "staleness_ms.max is not a number: got=low"),
        ("{max: 5000}", "5", "staleness_ms is not a mapping"),
        ("set: {queue.budget: 1, queue.policy: fifo}", "set: [queue.budget]", "set is not a mapping"),
        ("rows: [{k: b}]", "rows: [b]", "rows is not a list of rows"),
        ("expect: [{k: a, v: 3, ts: 2026-01-01T00:00:03Z}]", "given: {k: a}", "given is not a list of rows"),
    ],
)
def test_what_is_wrong_with_cases_is_told_before_one_runs(quotes: str, old: str, new: str, fact: str) -> None:
    assert old in CASES
    code, text = run_cases(quotes, CASES.replace(old, new))
    assert code == 2, text
    assert fact in text
    assert "case=" in text or fact == "the file has no cases"


@pytest.mark.parametrize(
    ("old", "new", "place", "fact"),
    [
        (
            "expect: [{k: a, v: 3",
            "expect: [{k: a, w: 3",
            "step 2, expect:",
            "no column w: they have k, ts, v",
        ),
        ("{k: a, ts: 2026-01-01T00:00:01Z, v: 1}", "{kk: a}", "step 1, given:", "no column 'kk'"),
        ("v: 1}", "v: much}", "step 1, given:", "does not fit its column: column=v"),
        ("00:00:01Z", "noon", "step 1, given:", "column=ts"),
        ("2026-01-01T00:00:01Z", "2026-02-30T00:00:01Z", "step 1, given:", "column=ts"),
        (
            "2026-01-01T00:00:01Z",
            "1767225601",
            "step 1, given:",
            "1767225601 is a number; write a time such as",
        ),
    ],
)
def test_a_step_that_is_wrong_fails_its_case_and_the_other_cases_run(
    quotes: str, old: str, new: str, place: str, fact: str
) -> None:
    first, second = CASES.split("  - name: keys wait", 1)
    assert old in first, old
    code, text = run_cases(quotes, first.replace(old, new, 1) + "  - name: keys wait" + second)
    assert code == 1, text
    assert place in text
    assert fact in text
    assert "1 passed, 1 failed" in text


def test_an_override_or_start_of_a_case_that_is_wrong_fails_the_case(quotes: str) -> None:
    changed = CASES.replace("policy: fifo", "polcy: fifo")
    assert changed != CASES
    code, text = run_cases(quotes, changed)
    assert (code, "1 passed, 1 failed" in text, "--set" in text) == (1, True, False), text
    assert "set:" in text
    assert "did you mean 'policy'" in text
    for start in ("soon", 5):
        code, text = run_cases(quotes, CASES.replace("    steps:", f"    start: {start}\n    steps:", 1))
        assert (code, f"the start is not a time: start={start}" in text) == (1, True), text


LATE = """
source: {type: files, format: json, path: nowhere, schema: "k STRING, ts TIMESTAMP, v DOUBLE"}
window: {time: ts, size: 10 s, late_to: PLACE/late}
group_by: [k]
aggregates: {n: count(*)}
sink: {type: console}
"""
LATE_CASES = """
cases:
  - name: a row behind the watermark is late
    steps:
      - given: [{k: a, ts: 2026-01-01T00:00:01Z}, {k: a, ts: 2026-01-01T00:00:21Z}]
      - expect: {rows: [{k: a, n: 1}], late_rows: []}
      - given: [{k: b, ts: 2026-01-01T00:00:05Z, v: 7}]
      - crash: write
      - expect: {rows: [], late: 1, late_rows: [{k: b, v: 7, reason: late}]}
      - restart
      - expect: {late_rows: []}
"""


def test_a_test_sees_late_rows_and_leaves_the_real_p_stream_alone(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(LATE.replace("PLACE", str(tmp_path)))
    (tmp_path / "p.cases.yaml").write_text(LATE_CASES)
    ran = CliRunner().invoke(app, ["test", str(tmp_path / "p.yaml")])
    assert ran.exit_code == 0, ran.output
    wrong = LATE_CASES.replace("reason: late", "reason: early")
    (tmp_path / "p.cases.yaml").write_text(wrong)
    ran = CliRunner().invoke(app, ["test", str(tmp_path / "p.yaml")])
    assert '+k: "b", v: 7, reason: "late"' in ran.output
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.cases.yaml", "p.yaml"]


def test_without_late_to_there_are_no_late_rows(quotes: str, penstock_pipeline: OpenPipeline) -> None:
    with pytest.raises(InvalidUsageError, match=r"no operator keeps its late rows. Hint: give it late_to"):
        penstock_pipeline(quotes).late_rows()


def test_a_missing_file_of_cases_is_told(quotes: str) -> None:
    ran = CliRunner().invoke(app, ["test", quotes])
    assert ran.exit_code == 2
    assert "there is no file of cases" in ran.output
    ran = CliRunner().invoke(app, ["test", "nowhere.yaml"])
    assert ran.exit_code == 2
    assert "nowhere.yaml: " in ran.output
    assert "cases" not in ran.output


@pytest.mark.parametrize("zone", ["Europe/Zurich", "+05:30", "UTC"])
def test_times_without_a_zone_are_read_as_in_a_run(tmp_path: Path, zone: str) -> None:
    """Send a summer time, a time that the clocks skip, a time that they repeat, and a late time."""
    texts = ["2026-07-01T07:01:00", "2026-03-29T02:30:00", "2026-10-25T02:30:00", "2100-07-01T07:01:00"]
    texts += ["2026-07-01T07:01:00Z"]
    rows: list[dict[str, Any]] = [
        {"k": f"k{at}", "ts": text, "many": [{"at": text}]} for at, text in enumerate(texts)
    ]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("".join(json.dumps(one) + "\n" for one in rows))
    file = tmp_path / "p.yaml"
    file.write_text(
        "engine: local\n"
        f"source: {{type: files, format: json, path: '{tmp_path}/in',\n"
        "         schema: 'k STRING, ts TIMESTAMP, many ARRAY<STRUCT<at: TIMESTAMP>>'}\n"
        "queue: {key: k, time: ts, buckets: 1}\n"
        f"sink: {{type: pstream, path: '{tmp_path}/out'}}\n"
        f"query: {{checkpoint: '{tmp_path}/cp', trigger: available_now,\n"
        f"        spark: {{spark.sql.session.timeZone: '{zone}'}}}}\n"
    )
    assert CliRunner().invoke(app, ["run", str(file), "--no-progress"]).exit_code == 0
    with penstock.testing.pipeline(file) as test:
        test.send(rows)
        sent = {one["k"]: (one["ts"], one["many"]) for one in test.rows()}
    ran = {one["k"]: (one["ts"], one["many"]) for one in PStreamReader(tmp_path / "out").read().to_pylist()}
    assert sent == ran
    assert len(sent) == len(texts)


def test_expected_times_without_a_zone_are_in_the_zone_of_the_pipeline(quotes: str) -> None:
    """Run the same case in another zone, in which its times are others."""
    case = """
cases:
  - steps:
      - given: [{k: a, ts: 2026-07-01T07:01:00, v: 1}, {k: b, ts: "2026-07-01T07:01:00Z", v: 1}]
      - expect: [{k: a, ts: 2026-07-01T07:01:00}, {k: b, ts: 2026-07-01T09:01:00}]
      - given: [{k: a, ts: 2026-07-01T07:02:00, v: 1}]
      - expect: [{k: a, ts: 2026-07-01T05:02:00Z}]
"""
    Path(quotes).with_name("quotes.cases.yaml").write_text(case)
    zone = "query.spark={spark.sql.session.timeZone: Europe/Zurich}"
    ran = CliRunner().invoke(app, ["test", quotes, "--set", zone])
    assert ran.exit_code == 0, ran.output
    assert CliRunner().invoke(app, ["test", quotes]).exit_code == 1


def test_decimals_are_numbers_or_texts(quotes: str) -> None:
    Path(quotes).write_text(QUOTES.replace("v DOUBLE", "v DECIMAL(30, 2)"))
    cases = """
cases:
  - name: decimals
    steps:
      - given: [{k: a, ts: 2026-01-01T00:00:01Z, v: 12.5}, {k: b, ts: 2026-01-01T00:00:01Z, v: "100.00"}]
      - expect: [{k: a, v: 12.5}, {k: b, v: "100.0"}]
      - given: [{k: c, ts: 2026-01-01T00:00:02Z, v: "1234567890123456789.01"}]
      - expect: [{k: c, v: "1234567890123456789.010"}]
      - given: [{k: d, ts: 2026-01-01T00:00:03Z, v: 0.01}]
      - expect: [{k: d, v: 1e-2}]
"""
    assert run_cases(quotes, cases)[0] == 0
    code, text = run_cases(quotes, cases.replace("v: 12.5}, ", "v: 12.555}, "))
    assert code == 1
    assert "a value does not fit its column: column=v" in text
    assert "reason='x' is not a number" in run_cases(quotes, cases.replace("100.00", "x"))[1]
    assert "v: 1234567890123456789.01\n" in run_cases(quotes, cases.replace("789.010", "789.02"))[1]


@pytest.mark.parametrize("at", ["plan", "write", "commit"])
def test_rows_that_arrive_after_a_crash_are_in_the_next_results(
    quotes: str, penstock_pipeline: OpenPipeline, at: CrashPoint
) -> None:
    test = penstock_pipeline(quotes)
    test.send([row("a", 1, 1)])
    test.crash(at)
    test.send([row("b", 2, 2)])
    test.crash(at)
    assert [one["k"] for one in test.rows()] == ["a", "b"]
    assert test.rows() == []
