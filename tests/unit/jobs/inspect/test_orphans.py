"""``penstock gc --orphans`` lists only files that are surely unreachable; it deletes on request."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from penstock.checkpointing.files import LocalFiles
from penstock.checkpointing.p_stream import PStream, PStreamWriter
from penstock.cli import app
from penstock.state_store.bucket_store import BucketStore, Handle
from tests.checkpoints.graph_directories import write_graph
from tests.checkpoints.states import DictState

NUMBERS = pa.schema({"n": pa.int64()})


def gc(place: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["gc", str(place), "--orphans", *arguments])


def write_state(place: Path, query: str) -> None:
    """Write two versions of one bucket, and what a killed process left beside the first."""
    store = BucketStore(LocalFiles(place / query / "prices").child("00000"))
    handle = store.commit(DictState({1: b"one"}), Handle())
    store.commit(DictState({1: b"two"}), handle)
    (place / query / "prices" / "00000" / f".{1:012d}-{'0' * 32}.punit.{'1' * 32}.tmp").write_bytes(b"half")
    (place / query / "prices" / ".operator.punit.x.tmp").write_bytes(b"half")


def files_of(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


def test_without_a_checkpoint_nothing_says_what_is_needed(tmp_path: Path) -> None:
    write_state(tmp_path, "one")
    before = files_of(tmp_path)
    result = gc(tmp_path, "--delete")
    assert (result.exit_code, files_of(tmp_path)) == (0, before)
    kept, last = result.stdout.splitlines()
    assert kept.startswith(f"kept: {tmp_path}/one/prices: its checkpoint is not known; pass --checkpoint, or")
    assert last == "freed 0 files, 0 bytes"


def test_a_query_that_is_gone_for_good_goes_when_told_to(tmp_path: Path) -> None:
    write_state(tmp_path, "one")
    write_state(tmp_path, "two")
    before = files_of(tmp_path)
    dry = gc(tmp_path, "--drop-query", "one")
    assert files_of(tmp_path) == before
    assert f"{tmp_path}/one/prices: 4 files, " in dry.stdout
    assert dry.stdout.splitlines()[-1].endswith("; --delete does")
    assert gc(tmp_path, "--drop-query", "one", "--dry-run", "--delete").stdout == dry.stdout
    freed = gc(tmp_path, "--drop-query", "one", "--delete")
    assert freed.exit_code == 0
    assert files_of(tmp_path) == {name for name in before if name.startswith("two")}
    assert [path.name for path in tmp_path.iterdir()] == ["two"], "no empty directories are left"
    unknown = gc(tmp_path, "--drop-query", "three")
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "there is no state of this query: query=three found=two" in unknown.stderr


@pytest.mark.parametrize("option", [("--delete",), ("--drop-query", "one")])
def test_options_of_orphans_are_for_orphans(tmp_path: Path, option: tuple[str, ...]) -> None:
    write_state(tmp_path, "one")
    before = files_of(tmp_path)
    result = CliRunner().invoke(app, ["gc", str(tmp_path), *option])
    assert (result.exit_code, files_of(tmp_path)) == (2, before)
    assert "Hint: add --orphans" in result.stderr


def test_a_graph_knows_which_state_is_of_none_of_its_queries(tmp_path: Path) -> None:
    write_graph(tmp_path)
    for query in ("id of results", "id of one that was deleted"):
        write_state(tmp_path / "state", query)
    before = files_of(tmp_path)
    result = gc(tmp_path)
    assert (result.exit_code, files_of(tmp_path)) == (0, before)
    assert "id of one that was deleted/prices: 4 files" in result.stdout
    assert "no query of the graph has this id" in result.stdout
    assert gc(tmp_path, "--drop-query", "id of results").exit_code == 2
    assert gc(tmp_path, "--delete").exit_code == 0
    gone = before - files_of(tmp_path)
    mine = {name for name in gone if name.startswith("state/id of results")}
    assert [name.rpartition("/")[2][:2] for name in mine] == [".0"], "what the killed process left"
    assert {name for name in before if name.startswith("state/id of one")} == gone - mine


def test_state_stays_where_a_query_of_the_graph_may_have_lost_its_id(tmp_path: Path) -> None:
    write_graph(tmp_path)
    (tmp_path / "queries" / "results" / "metadata").unlink()
    write_state(tmp_path / "state", "id of results")
    before = files_of(tmp_path)
    result = gc(tmp_path, "--delete")
    assert files_of(tmp_path) == before
    assert "kept: " in result.stdout
    assert "it may be of results, whose checkpoint has no id" in result.stdout


def test_a_checkpoint_without_state_in_it_is_refused(tmp_path: Path) -> None:
    for name in ("offsets", "state/0/00000"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "state/0/00000/1.delta").write_bytes(b"of Spark")
    (tmp_path / "metadata").write_text('{"id": "one"}')
    result = gc(tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Hint: give the query's state_location, and its checkpoint with --checkpoint" in result.stderr


def test_of_a_p_stream_what_may_still_be_committed_stays(tmp_path: Path) -> None:
    with PStreamWriter(tmp_path, NUMBERS, threads=1) as writer:
        writer.append(pa.table({"n": [1]}, NUMBERS))
    stream = PStream(tmp_path)
    (segment,) = stream.log.commits[0].segments
    place = Path(stream.segments.path_of(segment.name))
    over = place.with_name(f".{segment.name}.{'0' * 32}.tmp")
    over.write_bytes(b"half")
    before = files_of(tmp_path)
    dry = gc(tmp_path)
    assert (dry.exit_code, files_of(tmp_path)) == (0, before)
    assert "would free 1 file, 4 bytes; --delete does" in dry.stdout
    assert gc(tmp_path, "--delete").exit_code == 0
    assert before - files_of(tmp_path) == {str(over.relative_to(tmp_path))}


def test_a_path_without_anything_of_penstock_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "metadata").write_text(json.dumps({"id": "one"}))
    (tmp_path / "offsets").mkdir()
    result = gc(tmp_path, "--delete")
    assert result.exit_code == 2
    assert "there is no state at this location" in result.stderr
    assert (tmp_path / "file").exists()
