"""SIGKILL of pipelines on the local engine, at any of its fail points."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import _failpoints
from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
from penstock.conf.pipeline import Pipeline
from penstock.jobs.pipelines.run import run_to_end
from tests.samples.local_steps import SCHEMA, STEPS, steps_at, updates

POINTS = [*_failpoints.LOCAL_POINTS, "state.after_publish", "sink.before_commit"]
JOINED = [step for step in STEPS if step != "budget"] + ["join", "union"]


def _pipeline(place: Path, steps: dict[str, Any]) -> Pipeline:
    source = {"type": "pstream", "path": str(place.parent / "in"), "max_rows_per_trigger": 60}
    return Pipeline.model_validate(
        {
            "engine": "local",
            "source": source,
            "sink": {"type": "pstream", "path": str(place / "out")},
            "query": {
                "name": place.name,
                "trigger": "available_now",
                "checkpoint": str(place / "checkpoint"),
                "spark": {"spark.sql.shuffle.partitions": "2"},
            },
            **steps_at(place, steps),
        }
    )


def _rows(place: Path) -> list[str]:
    return sorted(map(repr, PStreamReader(place / "out").read().to_pylist()))


@pytest.mark.long
@pytest.mark.parametrize("name", JOINED)
def test_kills_neither_lose_nor_repeat_a_result(tmp_path: Path, name: str) -> None:
    for stream, first in {"in": 0, "other": 1}.items():
        with PStreamWriter(tmp_path / stream, SCHEMA, threads=1) as writer:
            for number in range(6):  # segments, which a micro-batch does not cut
                writer.append(updates(60, 60 * number + first))
                writer.flush()
    other = {"source": {"type": "pstream", "path": str(tmp_path / "other"), "max_rows_per_trigger": 60}}
    both: dict[str, dict[str, Any]] = {
        "join": {
            "projection": ["k", "t", "v AS w"],
            "join": {"with": other, "key": "k", "time": "t", "unit": "s", "within": "5 s", "buckets": 2},
        },
        "union": {"union": {"inputs": {"other": other}, "key": "k", "time": "t", "buckets": 2}},
    }
    steps = both.get(name) or STEPS[name]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    totals = run_to_end(_pipeline(whole, steps))
    assert totals.batches > len(POINTS)
    run = _pipeline(killed, steps)
    file = killed / "p.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(run.model_dump(mode="json", by_alias=True, exclude_unset=True)))
    command = [sys.executable, "-m", "penstock.cli", "run", str(file)]
    for point in POINTS:
        marker = tmp_path / point
        environment = os.environ | {"PENSTOCK_FAILPOINTS": f"{point}=kill@{marker}"}
        ended = subprocess.run(command, env=environment, check=False, capture_output=True)
        assert (ended.returncode, marker.exists()) == (-signal.SIGKILL, True), ended.stderr.decode()
    subprocess.run(command, check=True, capture_output=True)
    assert _rows(killed) == _rows(whole)
    assert len(_rows(killed)) > 12
