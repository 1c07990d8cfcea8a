"""The runtime does what the model of the protocol allows, whatever is killed; broken, it does not (0006)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from tests.models.broken_runtime import BROKEN
from tests.models.engine import stroll
from tests.models.replay import NotAllowedError, replay


@pytest.mark.parametrize("seed", range(6))
def test_the_model_allows_what_the_runtime_does(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = replay(stroll(tmp_path, seed, monkeypatch))
    assert made.queries["results"].committed > 10
    events = "commit planned arrived checkpointed done release trim deleted recovered found persisted"
    assert set(events.split()) <= set(made.counts), "every step of the protocol is taken"


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


def test_a_commit_that_was_killed_before_its_effect_gives_way_to_the_next_under_its_number() -> None:
    """A reader sees the rows of the second commit before its writer says that it took effect."""
    log, reads = "source/log", [["source", "reader"]]
    commit = {
        "event": "commit", "log": log, "number": 1, "offset": 0, "end": 10, "batch": 0, "segments": ["a"],
    }  # fmt: skip
    made = replay(
        [
            {
                "event": "graph",
                "graph": "g",
                "queries": {"q": {"reads": reads, "writes": None, "state": None}},
            },
            {"event": "persisted", "segment": "a"},
            commit,
            {"event": "persisted", "segment": "b"},
            {**commit, "segments": ["b"]},
            {"event": "planned", "stream": "source", "reader": "reader", "start": 0, "end": 10},
            {"event": "committed", "log": log, "number": 1},
        ]
    )
    assert made.ends["source"] == 10
    assert not made.pending["source"]
