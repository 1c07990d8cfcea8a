"""P-streams in an object store: several writers, lost replies, and a writer that another one has fenced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pyarrow as pa
import pytest

from penstock.checkpointing.p_stream import Coder, PStream, PStreamReader, PStreamWriter, SegmentWriter
from penstock.errors import FencedError
from tests.servers.s3 import Request, S3Server

SCHEMA = pa.schema({"writer": pa.int64(), "n": pa.int64()})
WRITERS, COMMITS = 4, 12


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def test_several_writers_commit_each_row_once_though_replies_get_lost(s3: S3Server) -> None:
    place, draw = s3.uri("stream"), Random(7)
    PStream(place, SCHEMA)
    lost: list[str] = []

    def lose(request: Request) -> bool:
        if request.operation != "PUT" or draw.random() > 0.1:
            return False
        lost.append(request.path)
        return True

    s3.lose_reply = lose
    barrier = threading.Barrier(WRITERS)

    def write(number: int) -> None:
        with PStreamWriter(place, SCHEMA, writer=f"w{number}", threads=1, interval="1ms") as writer:
            barrier.wait()
            for n in range(COMMITS):
                writer.append(pa.table({"writer": [number], "n": [n]}, SCHEMA))
                writer.flush()

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    s3.lose_reply = None
    read = PStreamReader(place).read()
    for number in range(WRITERS):
        rows = read.filter(pa.compute.equal(read["writer"], number))
        assert rows["n"].to_pylist() == list(range(COMMITS)), "each row once, in the order of its writer"
    assert read.num_rows == WRITERS * COMMITS
    assert {path.split("/")[-2] for path in lost} == {"log", "segments"}


def test_a_commit_that_arrives_after_the_writer_was_fenced_changes_nothing(s3: S3Server) -> None:
    place = s3.uri("stream")
    stream, other = PStream(place, SCHEMA), PStream(place)
    coder = Coder("fast", threads=1)
    stream.log.begin("w", "old session")
    segments = SegmentWriter(stream.segments, coder, "w", 0)
    segments.add(pa.table({"writer": [1], "n": [1]}, SCHEMA))
    written = segments.finish()
    coder.close()
    late, go_on = threading.Event(), threading.Event()

    def delay(request: Request) -> None:
        if request.operation == "PUT" and "/log/" in request.path and not late.is_set():
            late.set()
            assert go_on.wait(60)

    s3.refuse = delay
    with ThreadPoolExecutor(1) as pool:
        zombie = pool.submit(stream.log.commit, "w", 0, written, session="old session")
        assert late.wait(60)
        other.log.begin("w", "new session")
        go_on.set()
        with pytest.raises(FencedError):
            zombie.result()
    assert PStreamReader(place).read().num_rows == 0
