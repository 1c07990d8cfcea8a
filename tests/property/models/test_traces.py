"""The model allows every step of the runtime, with any kills, and refuses broken runtimes (0006)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from penstock.checkpointing.files import stores
from penstock.checkpointing.p_stream import PStream, PStreamWriter
from penstock.checkpointing.trace import tracing
from penstock.errors import PenstockError
from tests.long_tests import long_but
from tests.models.broken_runtime import BROKEN
from tests.models.engine import stroll
from tests.models.replay import Event, NotAllowedError, replay


@pytest.mark.parametrize("seed", long_but(range(6), 0))
def test_the_model_allows_what_the_runtime_does(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = replay(stroll(tmp_path, seed, monkeypatch))
    assert made.queries["results"].committed > 10
    events = "commit planned arrived checkpointed done release trim deleted recovered found persisted"
    assert set(events.split()) <= set(made.counts), "every step of the protocol is taken"


@pytest.mark.parametrize("seed", long_but(range(3), 0))
def test_the_model_allows_what_the_runtime_does_in_an_object_store(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryStore()
    monkeypatch.setattr(stores, "_connect", lambda uri: (memory, urlsplit(uri).path.strip("/")))
    made = replay(stroll(tmp_path, seed, monkeypatch, data=f"s3://{tmp_path.name}-{seed}/data"))
    assert made.queries["results"].committed > 10
    events = "commit planned arrived checkpointed done release trim deleted recovered found persisted"
    assert set(events.split()) <= set(made.counts), "every step of the protocol is taken"
    assert list(obstore.list(memory).collect()), "the data are in the store"


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_runtime_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN[name](monkeypatch)
    for seed in range(10):
        events: list[dict[str, Any]] = []
        # The runtime may notice by itself, later.
        with contextlib.suppress(PenstockError):
            stroll(tmp_path / str(seed), seed, monkeypatch, events=events)
        try:
            replay(events)
        except NotAllowedError as error:
            print(seed, error)
            return
    raise AssertionError("the model allowed what a broken runtime did")


_READER = {"reads": [["source", "reader"]], "writes": None, "state": None}
_GRAPH = {"event": "graph", "graph": "g", "queries": {"q": _READER}}


def commit(number: int, end: int, segment: str, writer: str = "w") -> list[Event]:
    """Return the events of a commit of ten rows before `end` that is about to be added."""
    entry = {"log": "source/log", "number": number, "writer": writer, "session": ""}
    rows = {"offset": end - 10, "end": end, "batch": end // 10, "segments": [segment]}
    return [{"event": "persisted", "segment": segment}, {"event": "commit", **entry, **rows}]


def committed(number: int, writer: str = "w") -> Event:
    return {"event": "committed", "log": "source/log", "number": number, "writer": writer, "session": ""}


def planned(end: int) -> Event:
    return {"event": "planned", "stream": "source", "reader": "reader", "start": 0, "end": end}


def test_a_commit_that_was_killed_before_its_effect_gives_way_to_the_next_under_its_number() -> None:
    """A reader sees the rows of the second commit before the writer reports the commit."""
    made = replay([_GRAPH, *commit(1, 10, "a"), *commit(1, 10, "b"), planned(10), committed(1)])
    assert made.ends["source"] == 10
    assert not made.pending["source"]


def test_of_two_writers_that_commit_under_one_number_the_one_that_took_effect_counts() -> None:
    tried = [*commit(1, 10, "a", "first"), *commit(1, 10, "b", "second")]
    made = replay(
        [_GRAPH, *tried, committed(1, "first"), *commit(2, 20, "b", "second"), committed(2, "second")]
    )
    assert made.ends["source"] == 20
    assert not made.pending["source"]


def test_a_commit_that_lost_its_number_to_a_reader_takes_effect_under_the_next(tmp_path: Path) -> None:
    schema = pa.schema({"n": pa.int64()})
    events: list[Event] = [_GRAPH]

    def sink(event: dict[str, Any]) -> None:
        events.append({**event, "log": "source/log"} if "log" in event else event)
        if event["event"] == "commit" and len(with_rows()) == 1:
            PStream(tmp_path / "source").log.subscribe("reader", lambda: 0)

    def with_rows() -> list[Event]:
        return [event for event in events if event["event"] == "commit" and event["end"] > 0]

    with tracing(sink), PStreamWriter(tmp_path / "source", schema, threads=1) as writer:
        writer.append(pa.table({"n": [1, 2]}))
    assert len(with_rows()) == 2, "the reader took the number that the writer tried first"
    assert replay(events).ends["source"] == 2
