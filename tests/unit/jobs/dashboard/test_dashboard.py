"""The dashboard's JSON, its guards, its history and its server; the page itself is tested in a browser."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from penstock.checkpointing.p_stream import PStreamWriter
from penstock.cli import app
from penstock.conf.pipeline import Pipeline
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.jobs.dashboard import storage
from penstock.jobs.dashboard.app import make_app
from penstock.jobs.dashboard.dashboard import Dashboard, choose_address
from penstock.jobs.dashboard.history import History
from penstock.jobs.dashboard.storage import Refreshed
from penstock.jobs.local.run import run_local
from tests.checkpoints.dashboards import write_checkpoint
from tests.checkpoints.graph_directories import write_graph
from tests.samples.batches import batch


def client(history: History | None = None, token: str | None = None, base: str = "http://127.0.0.1") -> Any:
    made = make_app(history or History(), lambda: None, title="market", token=token)
    return TestClient(made, base_url=base, follow_redirects=False)


def line(number: int, **fields: Any) -> str:
    return json.dumps(batch(number, **fields).entry()) + "\n"


def numbers(history: History, after: int = 0, most: int = 1000) -> list[int]:
    return [entry["batch_id"] for entry in history.read_after(after, most)]


# ------------------------------------------------------------------------------------------ history


def test_entries_come_once_and_in_order() -> None:
    history = History()
    history.add([batch(1), batch(2)])
    assert numbers(history) == [1, 2]
    known = history.read_after(0, 1000)[-1]["number"]
    assert numbers(history, known) == []
    history.add([batch(3), batch(4), batch(5)])
    assert numbers(history, known) == [3, 4, 5]
    assert numbers(history, known, most=2) == [3, 4]
    assert numbers(history, known + 2) == [5]


def test_only_the_newest_entries_are_kept() -> None:
    history = History(most_entries=3)
    history.add([batch(number) for number in range(10)])
    assert numbers(history) == [7, 8, 9]
    assert numbers(history, 8) == [8, 9]


def test_a_file_is_followed_over_torn_lines_and_new_files(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    history = History(path)
    assert numbers(history) == []
    path.write_text(line(1) + "{torn\n" + line(2)[:20])
    assert numbers(history) == [1]
    assert history.unreadable == 1
    with path.open("a") as file:
        file.write(line(2)[20:] + line(3))
    assert numbers(history, 1) == [2, 3]
    path.write_text(line(4))
    assert numbers(history, 3) == [4], "the file was emptied"
    replaced = tmp_path / "new"
    replaced.write_text(line(5) + line(6))
    replaced.rename(path)
    assert numbers(history, 4) == [5, 6]


def test_of_a_long_file_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(number) for number in range(100, 200)))
    history = History(path, most_bytes=5 * len(line(100)) + 7)
    assert numbers(history) == [195, 196, 197, 198, 199]
    assert history.unreadable == 0


# --------------------------------------------------------------------------------------------- HTTP


def test_the_page_and_its_files_are_served_and_ask_no_other_host() -> None:
    with client() as http:
        page = http.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        for name in ("page.css", "page.js", "uPlot.iife.min.js", "uPlot.min.css"):
            assert f'"{name}"' in page.text
            answer = http.get(f"/{name}")
            assert answer.status_code == 200
            assert "http://" not in answer.text.replace("http://www.w3.org/", "")
            assert "url(" not in answer.text
        assert "http" not in page.text.replace("http-equiv", "")
        for name in ("other.js", "..%2Fapp.py", "%2e%2e/app.py"):
            assert http.get(f"/{name}").status_code == 404


def test_batches_are_asked_for_from_a_number_on() -> None:
    history = History()
    history.add([batch(number, rows_in=number) for number in (5, 6)])
    with client(history) as http:
        answer = http.get("/api/batches").json()
        assert [entry["rows_in"] for entry in answer["entries"]] == [5, 6]
        assert answer["session"] == history.session
        assert [entry["number"] for entry in http.get("/api/batches?after=1").json()["entries"]] == [2]
        for wrong in ("-1", "x", "1" * 30, "٣"):
            assert http.get("/api/batches", params={"after": wrong}).status_code == 400
        assert http.get("/api/about").json()["title"] == "market"
        assert http.get("/api/graph?wait").json() == {}
        assert http.post("/api/batches").status_code == 405


def test_a_name_that_leads_here_is_no_way_in() -> None:
    assert client(base="http://evil.example").get("/api/batches").status_code == 400
    assert client(base="http://localhost:8816").get("/api/batches").status_code == 200


def test_with_a_token_only_those_who_have_it_see_anything() -> None:
    http = client(token="s3cret-1", base="http://watched.example")
    for path in ("/", "/page.js", "/api/batches"):
        assert http.get(path).status_code == 401
        assert http.get(path, params={"token": "s3cret-2"}).status_code == 401
        assert http.get(path, headers={"Authorization": "Bearer s3cret"}).status_code == 401
    assert http.get("/api/batches", headers={"Authorization": "bearer s3cret-1"}).status_code == 200
    first = http.get("/?token=s3cret-1")
    assert first.status_code in (302, 307)
    assert first.headers["location"] == "/", "the token leaves the address"
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert http.get("/").status_code == 200, "by the cookie"


# ----------------------------------------------------------------------------------- facts, server


def test_the_facts_of_a_checkpoint_are_graph_p_streams_state_and_compression(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path)
    graph = storage.describe_graph(str(checkpoint))
    assert [node["kind"] for node in graph["plan"]["as_planned"]] == [
        "source", "p-stream", "scan", "update queue", "sink",
    ]  # fmt: skip
    (stream,) = graph["streams"]
    assert (stream["name"], stream["end"], stream["readers"][0]["lag"]) == ("numbers", 30, 10)
    stored = storage.describe_storage(str(checkpoint), str(checkpoint / "state"))
    (numbers,) = stored["p_streams"]
    (column,) = numbers["columns"]
    assert (column["name"], column["rows"], column["raw_bytes"]) == ("n", 10, 80)
    assert 0 < column["coded_bytes"] < 80
    assert column["codecs"]
    (state,) = stored["state"]
    files = [path for path in (checkpoint / "state").rglob("*.punit") if path.parent.name == "00000"]
    assert state["bytes"] == sum(path.stat().st_size for path in files)
    assert (state["name"], state["buckets"], state["garbage_bytes"], state["damage"]) == ("queue", 1, 0, 0)
    assert {column["name"] for column in state["columns"]} == {"changes.k", "changes.v"}
    files[0].write_bytes(files[0].read_bytes()[:-9])
    assert storage.describe_storage(str(checkpoint), str(checkpoint / "state"))["state"][0]["damage"] >= 1


def test_a_checkpoint_without_state_shows_none(tmp_path: Path) -> None:
    write_graph(tmp_path)
    assert storage.describe_storage(str(tmp_path), str(tmp_path / "none"))["state"] == []


def test_state_outside_the_checkpoint_is_shown(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    elsewhere = (checkpoint / "state").rename(tmp_path / "elsewhere")
    with Dashboard("market", "0") as shown:
        shown.show_checkpoint(str(checkpoint), str(elsewhere))
        with urllib.request.urlopen(f"{shown.url}api/storage?wait") as answer:
            stored = json.load(answer)
    assert [state["name"] for state in stored["state"]] == ["queue"]


def test_the_command_wants_something_to_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["dashboard", "market"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "set query.checkpoint and query.metrics" in result.stderr
    open_to_all = ["dashboard", str(tmp_path), "--host", "0.0.0.0", "--port", "0"]
    refused = CliRunner().invoke(app, open_to_all, env={"PENSTOCK_TOKEN": ""})
    assert refused.exit_code == 2
    assert "other machines could see the dashboard without a token" in refused.stderr
    missing = CliRunner().invoke(app, [*open_to_all, "--token-file", "none"])
    assert "cannot read a file" in missing.stderr


def test_a_directory_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("source: {}")
    ran = CliRunner().invoke(app, ["dashboard", str(tmp_path)])
    assert ran.exit_code == 2
    assert "the directory is not a checkpoint" in ran.output


def test_facts_are_computed_seldom_and_errors_are_shown() -> None:
    calls: list[int] = []

    def compute() -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 1:
            raise CorruptDataError("a file is damaged", file="f")
        return {"calls": len(calls)}

    value = Refreshed(compute, 3600.0)
    assert value.value(wait=True) == {"error": "a file is damaged: file=f."}
    assert value.value(wait=True) == {"error": "a file is damaged: file=f."}
    assert len(calls) == 1
    value._next_s = 0.0
    assert value.value(wait=True) == {"calls": 2}


def test_slow_facts_take_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.0, 10.0])
    monkeypatch.setattr(storage, "monotonic_s", lambda: next(times))
    value = Refreshed(dict, 1.0)
    value.value(wait=True)
    assert value._next_s == 10.0 + 200.0


def test_a_server_answers_until_it_is_closed_and_its_port_is_taken() -> None:
    with Dashboard("market", "0") as shown:
        shown.history.add([batch(1, rows_in=7)])
        with urllib.request.urlopen(f"{shown.url}api/batches") as answer:
            assert json.load(answer)["entries"][0]["rows_in"] == 7
        port = shown.url.rstrip("/").rpartition(":")[2]
        with pytest.raises(InvalidUsageError, match=r"the dashboard cannot listen"):
            Dashboard("market", port)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(shown.url)
    assert not [one for one in threading.enumerate() if one.name == "penstock-dashboard"]


@pytest.mark.parametrize(
    ("address", "token", "fact"),
    [
        ("0.0.0.0:0", None, "without a token"),
        ("192.168.0.1:0", None, "without a token"),
        ("0.0.0.0:0", "two words", "a token has only"),
        ("0", "", "a token has only"),
    ],
)
def test_other_machines_need_a_token(address: str, token: str | None, fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        Dashboard("market", address, token=token)


def test_a_run_has_a_dashboard_if_it_is_asked_for_or_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_address(None) is None, "standard error is no terminal in tests"
    assert choose_address("off") is None
    assert choose_address("8816") == "8816"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert choose_address(None) == "0"
    monkeypatch.setattr("penstock.jobs.dashboard.dashboard.has_extra", lambda extra: False)
    assert choose_address(None) is None


def test_a_run_on_the_local_engine_is_shown(tmp_path: Path) -> None:
    with PStreamWriter(tmp_path / "in", pa.schema([("k", pa.int64()), ("t", pa.int64())])) as writer:
        writer.append({"k": [1, 2, 1], "t": [1, 2, 3]})
    pipeline = Pipeline.model_validate({
        "engine": "local", "source": {"type": "pstream", "path": str(tmp_path / "in")},
        "queue": {"key": "k", "time": "t"}, "sink": {"type": "noop"},
        "query": {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "available_now", "name": "newest"},
    })  # fmt: skip
    with Dashboard("newest", "0") as dashboard:
        run_local(pipeline, lambda batch: None, dashboard=dashboard)
        (entry,) = dashboard.history.read_after(0, 10)
        assert (entry["query"], entry["emitted"]) == ("newest", 2)
        with urllib.request.urlopen(f"{dashboard.url.rstrip('/')}/api/graph?wait") as answer:
            assert [query["name"] for query in json.load(answer)["queries"]] == ["results"]
