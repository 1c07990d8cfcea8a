"""The benchmark's queries: the part that reaches a p-stream, and the work of its reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.queries import QUERIES
from penstock.operators.scan.scanner import Scanner
from penstock.operators.types import scan_schema

GOLDEN = Path(__file__).parents[2] / "golden" / "explain"


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_is_explained_as_before(name: str) -> None:
    """``python -m tests.golden.make_explanations`` accepts the present texts."""
    assert QUERIES[name]().plan().explain() == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("name", "stored", "groups", "partials"),
    [
        ("CM1", "timestamp category cpu", "category", "sum count"),
        ("CM2", "timestamp jobId cpu", "jobId", "sum count count"),
        ("SG1", "timestamp value", "", "sum count count"),
        ("SG2", "timestamp value plug household house", "plug household house", "sum count count"),
        (
            "LRB2",
            "timestamp vehicle highway direction position",
            "vehicle highway direction segment",
            "count",
        ),
        (
            "LRB3",
            "timestamp vehicle highway direction position",
            "vehicle highway direction segment",
            "count",
        ),
        (
            "LRB1",
            "timestamp speed highway direction position",
            "highway direction segment",
            "sum count count",
        ),
        ("YSB", "ad_id event_time", "ad_id", "count"),
        ("NQ5", "auction date_time", "auction", "count"),
        ("SM", "timestamp mf01 mf02 mf03", "", "sum count sum count sum count count"),
    ],
)
def test_a_p_stream_holds_what_the_query_needs_and_its_reader_makes_fragments(
    name: str, stored: str, groups: str, partials: str
) -> None:
    plan = QUERIES[name]().plan()
    (stream,) = plan.streams
    assert stream.schema.names == stored.split()
    assert stream.ingest is not None
    assert stream.ingest.output == tuple(stored.split())
    (reader,) = stream.readers
    assert reader.fragments is not None
    assert list(reader.fragments.group_by) == groups.split()
    assert [partial.kind for partial in reader.fragments.partials] == partials.split()
    assert [node.label for node in plan.remaining][:2] == (
        ["lookup", "assemble"] if name == "YSB" else ["assemble", plan.remaining[1].label]
    )


@pytest.mark.parametrize("name", QUERIES)
def test_what_the_planner_says_a_reader_returns_it_returns(name: str) -> None:
    (stream,) = QUERIES[name]().plan().streams
    for reader in stream.readers:
        assert Scanner(reader, stream.schema).schema == scan_schema(reader, stream.schema)


def test_sides_of_a_join_share_a_p_stream_and_each_has_fragments_of_its_own() -> None:
    plan = QUERIES["SG3"]().plan()
    (stream,) = plan.streams
    assert stream.schema.names == ["timestamp", "value", "plug", "household", "house"]
    groups = [reader.fragments.group_by for reader in stream.readers if reader.fragments is not None]
    assert groups == [("plug", "household", "house"), ()]
    assert [node.label for node in plan.remaining] == (
        ["assemble", "assemble", "join of windows", "aggregate", "sink"]
    )
