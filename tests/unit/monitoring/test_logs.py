"""Durable transitions are logged, one line each, where the program or the environment asks for them."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.checkpointing.p_stream import PStreamWriter
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.options import Budget
from tests.long_tests import long_but
from tests.oracles.naive import Update
from tests.unit.state_store.test_clock_record import Ticking, parcel, queue_task

PROGRAM = """
import logging, sys
from penstock import PStreamWriter
import pyarrow as pa
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
schema = pa.schema({"n": pa.int64()})
with PStreamWriter(sys.argv[1], schema, writer="w") as writer:
    writer.append(pa.table({"n": [1, 2]}, schema))
"""


def test_a_bucket_logs_each_version_of_its_state(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = queue_task(tmp_path, Policy.IN_PLACE, Budget())
    with caplog.at_level(logging.INFO, "penstock"):
        pointer, _, _ = task.run("q", 6, 0, None, parcel([Update(1, 1, 1)]), Ticking(1))
        _, _, metrics = task.run("q", 7, 0, pointer, parcel([Update(1, 2, 2)]), Ticking(1))
    lines = [line for line in caplog.messages if line.startswith("state written")]
    assert lines[1] == (
        "state written [query=q operator=queue batch=7 bucket=0 version=2 "
        f"bytes={metrics.state_bytes_written}]"
    )
    assert len(lines) == 2


def test_a_writer_logs_each_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    schema = pa.schema({"n": pa.int64()})
    with (
        caplog.at_level(logging.INFO, "penstock"),
        PStreamWriter(tmp_path / "p", schema, writer="w", threads=1) as writer,
    ):
        for batch in range(2):
            writer.append(pa.table({"n": range(batch + 1)}, schema))
            writer.flush()
    assert [
        line.partition(" writer=")[2] for line in caplog.messages if line.startswith("rows committed")
    ] == [
        "w batch=0 rows=1]",
        "w batch=1 rows=2]",
    ]


INFO = ("info", [r"INFO penstock\.checkpointing\.p_stream\.writer: rows committed \[.* batch=0 rows=2\]"])
OTHERS = [
    ("warning", []),
    ("loud", [r"unknown level \[PENSTOCK_LOG=loud levels=debug,info,warning,error\]", r".*rows committed"]),
]


@pytest.mark.parametrize(("level", "shown"), long_but([INFO, *OTHERS], INFO))
def test_the_environment_asks_for_the_log_on_standard_error(
    tmp_path: Path, level: str, shown: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "p")],
        env={**os.environ, "PENSTOCK_LOG": level}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert len(lines) == len(shown), lines
    for line, expected in zip(lines, shown, strict=True):
        assert re.search(expected, line), line
    assert done.stdout == "", "no line is written twice"
