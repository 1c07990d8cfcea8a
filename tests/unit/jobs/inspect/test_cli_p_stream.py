"""The commands that look at p-streams and clean them up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from penstock.checkpointing.p_stream import Coder, PStream, PStreamReader, PStreamWriter, SegmentWriter
from penstock.cli import app

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("text", pa.string())])


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def inspected(place: Path) -> dict[str, Any]:
    result = penstock("inspect", "pstream", str(place), "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"n": range(first, first + count), "text": ["abc"] * count}, SCHEMA)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Ten commits of 100 rows by one writer; one reader is at 350, another at 0."""
    place = tmp_path / "stream"
    with PStreamWriter(place, SCHEMA, writer="a", interval="0ms", threads=1) as writer:
        for number in range(10):
            writer.append(rows(100 * number, 100), clock={"source": number})
            writer.flush()
    for name in ("fast", "slow"):
        PStreamReader(place, reader=name)
    PStream(place).trim_from("fast", 350)
    return place


def orphan(place: Path, batch: int) -> Path:
    """Leave a segment that an attempt of the writer's batch did not commit."""
    files = PStream(place).segments
    segments = SegmentWriter(files, Coder("fast", threads=1), "a", batch)
    segments.add(rows(0, 10))
    (segment,) = segments.finish()
    return Path(files.path_of(segment.name))


def unfinished(path: Path) -> Path:
    temporary = path.with_name(f".{path.name}.{'1' * 32}.tmp")
    temporary.write_bytes(bytes(10))
    return temporary


def test_inspect_shows_what_is_there_and_who_uses_it(place: Path) -> None:
    result = penstock("inspect", "pstream", str(place))
    assert result.exit_code == 0, result.stderr
    for text in ("0 to 1,000: 1,000", "10 with rows; entry ", "10 with 10 p-units", "values: ", "source 9"):
        assert text in result.stdout, (text, result.stdout)
    assert [
        line.split()[1::2] for line in result.stdout.splitlines() if "fast" in line or "slow" in line
    ] == [
        ["fast", "350", "650"],
        ["slow", "0", "1,000"],
    ]


def test_inspect_says_that_a_stream_has_direct_io(tmp_path: Path) -> None:
    PStream(tmp_path / "fast", pa.schema({"n": pa.int64()}), direct_io=True)
    assert inspected(tmp_path / "fast")["direct_io"] is True
    assert "direct I/O" in penstock("inspect", "pstream", str(tmp_path / "fast")).stdout


def test_inspect_writes_all_of_it_as_json(place: Path) -> None:
    found = inspected(place)
    stream = PStream(place)
    assert found["identity"] == stream.identity
    assert found["direct_io"] is False
    assert found["schema"] == [
        {"name": "n", "type": "int64", "nullable": False},
        {"name": "text", "type": "string", "nullable": True},
    ]
    assert [found[name] for name in ("start", "end", "commits", "segments", "p_units")] == [
        0,
        1000,
        10,
        10,
        10,
    ]
    assert found["size_bytes"] == sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    stored = sum(path.stat().st_size for path in (place / "segments").iterdir())
    assert found["segment_bytes"] == stored
    assert found["bytes_per_row"] == round(stored / 1000, 3)
    assert [column["column"] for column in found["columns"]] == ["n", "text"]
    assert found["columns"][0]["rows"] == 100
    (writer,) = found["writers"]
    newest = stream.log.commits[-1]
    assert (writer["name"], writer["batch"], writer["clock"]) == ("a", 9, {"source": 9})
    assert writer["time_us"] == found["last_commit_us"] == newest.time_us
    assert found["readers"] == [
        {"name": "fast", "offset": 350, "unreleased": 650},
        {"name": "slow", "offset": 0, "unreleased": 1000},
    ]
    assert (found["releasable_rows"], found["garbage_files"], found["damage"]) == (0, 0, [])


def test_an_empty_stream_is_shown(tmp_path: Path) -> None:
    PStream(tmp_path / "s", SCHEMA)
    found = inspected(tmp_path / "s")
    assert (found["end"], found["bytes_per_row"], found["columns"], found["writers"]) == (0, None, [], [])
    shown = penstock("inspect", "pstream", str(tmp_path / "s"), "--check")
    assert shown.exit_code == 0
    for users in ("writers", "readers"):
        assert [line.split() for line in shown.stdout.splitlines() if users in line] == [[users, "none"]]


def test_gc_drops_a_reader_that_is_gone_and_trims_what_the_others_have_passed(place: Path) -> None:
    nothing = penstock("gc", str(place))
    assert (nothing.exit_code, nothing.stdout) == (0, "freed 0 rows, 0 files, 0 bytes\n")
    segments = sorted((place / "segments").iterdir())
    size = sum(path.stat().st_size for path in segments[:3])
    dry = penstock("gc", str(place), "--drop-reader", "slow", "--dry-run")
    assert dry.exit_code == 0, dry.stderr
    assert dry.stdout == (
        f"reader slow: would be dropped at row 0\nwould free 300 rows, 3 files, {size} bytes\n".replace(
            f"{size} bytes", _decimal(size)
        )
    )
    assert set(PStream(place).readers()) == {"fast", "slow"}
    assert sorted((place / "segments").iterdir()) == segments
    done = penstock("gc", str(place), "--drop-reader", "slow")
    assert done.stdout == dry.stdout.replace("would be ", "").replace("would free", "freed")
    assert sorted((place / "segments").iterdir()) == segments[3:]
    assert PStream(place).readers() == {"fast": 350}
    assert inspected(place)["start"] == 350
    assert PStreamReader(place).read()["n"].to_pylist() == list(range(350, 1000))
    unknown = penstock("gc", str(place), "--drop-reader", "slow")
    assert unknown.exit_code == 2
    assert unknown.stderr.startswith("the p-stream has no such reader: reader=slow known=fast")


def test_a_dry_run_counts_the_files_that_the_run_deletes_with_a_reader(place: Path) -> None:
    files = [path for path in place.rglob("*") if path.is_file()]
    dry = penstock("gc", str(place), "--drop-reader", "fast", "--dry-run")
    assert "would free 0 rows, 1 file," in dry.stdout, "the progress of the reader"
    done = penstock("gc", str(place), "--drop-reader", "fast")
    assert done.stdout == dry.stdout.replace("would be ", "").replace("would free", "freed")
    assert sum(not path.exists() for path in files) == 1


def _decimal(size_bytes: int) -> str:
    from rich.filesize import decimal

    return decimal(size_bytes)


def test_gc_deletes_what_attempts_left_that_are_over_and_nothing_that_may_be_committed(place: Path) -> None:
    old, late = orphan(place, 9), orphan(place, 10)
    old_part, late_part = unfinished(old), unfinished(late)
    stream = PStream(place)
    number = stream.log.readers["fast"].number
    note = unfinished(place / "readers" / f"fast-{number}" / f"{100:020}.progress")
    entry = unfinished(place / "log" / f"{stream.log.number + 1:020}.entry")
    other = place / "segments" / "README"
    other.write_text("precious")
    found = inspected(place)
    garbage = [old, old_part, note]
    assert found["garbage_files"] == len(garbage)
    assert found["garbage_bytes"] == sum(path.stat().st_size for path in garbage)
    assert found["pending_files"] == 3
    assert penstock("gc", str(place), "--dry-run").stdout.startswith("would free 0 rows, 3 files")
    assert penstock("gc", str(place)).stdout.startswith("freed 0 rows, 3 files")
    assert not any(path.exists() for path in garbage)
    assert all(path.exists() for path in (late, late_part, entry, other))
    assert inspected(place)["garbage_files"] == 0
    assert PStreamReader(place).read().num_rows == 1000


def test_unfinished_entries_that_a_start_stands_for_are_garbage(place: Path) -> None:
    stream = PStream(place)
    old = unfinished(place / "log" / f"{1:020}.entry")
    for _ in range(70):
        stream.log.begin("b", "any")
    stream.log.shorten()
    assert inspected(place)["garbage_files"] == 1
    assert penstock("gc", str(place)).exit_code == 0
    assert not old.exists()


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_damage_is_named_and_ends_with_1(place: Path, damage: str) -> None:
    segment = sorted((place / "segments").iterdir())[4]
    if damage == "cut":
        segment.write_bytes(segment.read_bytes()[:-1])
    else:
        segment.unlink()
    for result in (
        penstock("inspect", "pstream", str(place)),
        penstock("inspect", "pstream", str(place), "--json"),
        penstock("gc", str(place)),
    ):
        assert result.exit_code == 1
        assert result.stderr.startswith(f"{segment}: the segment is {damage}")


def test_check_finds_a_flipped_bit(place: Path) -> None:
    segment = sorted((place / "segments").iterdir())[4]
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    assert penstock("inspect", "pstream", str(place)).exit_code == 0
    result = penstock("inspect", "pstream", str(place), "--check")
    assert result.exit_code == 1
    assert str(segment) in result.stderr
    segment.write_bytes(bytes(len(content)))
    assert penstock("inspect", "pstream", str(place), "--check").exit_code == 1


def test_what_is_no_p_stream_is_refused(tmp_path: Path, place: Path) -> None:
    result = penstock("inspect", "pstream", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr.startswith("there is no p-stream at this location: location=")
    reader = penstock("gc", str(tmp_path), "--drop-reader", "x")
    assert (reader.exit_code, reader.stderr) == (
        2,
        "--drop-reader applies only to a p-stream. Hint: leave it out.\n",
    )
    checkpoint = penstock("gc", str(place), "--checkpoint", "x")
    assert (checkpoint.exit_code, checkpoint.stderr) == (
        2,
        "--checkpoint does not apply to a p-stream. Hint: leave it out.\n",
    )


def test_a_segment_can_be_inspected_as_a_file_of_blocks(place: Path) -> None:
    segment = next((place / "segments").iterdir())
    assert "int64" in penstock("inspect", "block", str(segment)).stdout


def test_looking_at_p_streams_does_not_load_spark(place: Path) -> None:
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from penstock.cli import app\n"
        f"for arguments in (['gc', {str(place)!r}], ['inspect', 'pstream', {str(place)!r}]):\n"
        "    assert CliRunner().invoke(app, arguments).exit_code == 0\n"
        "print(sorted({'pyspark', 'py4j', 'pandas'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_update_log_is_compacted_shown_and_kept_by_gc(tmp_path: Path) -> None:
    place = tmp_path / "log"
    with PStreamWriter(
        place, SCHEMA, writer="a", threads=1, key="n", time="n", delete_when="n = 3"
    ) as writer:
        for first in (0, 50):
            writer.append(rows(first, 100))
            writer.flush()
    PStreamReader(place, reader="r")
    PStream(place).claim("r", 120)
    result = penstock("compact", str(place))
    assert "200 rows became 150, of which 1 delete their key; deleted 0 older segments" in result.stdout
    assert "nothing to compact" in penstock("compact", str(place)).stdout
    with PStreamWriter(place, writer="a", threads=1) as writer:
        writer.append(rows(0, 50))
    found = inspected(place)
    kept = found["update_log"].pop("kept_bytes")
    assert kept > 0
    assert found["update_log"] == {
        "key": ["n"], "time": "n", "keep_deletes_us": 86_400_000_000, "delete_when": "n = 3",
        "compacted_end": 200, "keys": 150, "deletes": 1, "tail_rows": 50, "superseded_share_at_most": 0.25,
    }  # fmt: skip
    assert [writer["name"] for writer in found["writers"]] == ["a"]
    shown = penstock("inspect", "pstream", str(place)).stdout
    for text in ("the newest of (n) by n; deleted when n = 3", "150 keys, 1 of them deletes", "at most 25%"):
        assert text in shown, (text, shown)
    before = {path.name for path in (place / "segments").iterdir()}
    assert penstock("gc", str(place)).exit_code == 0
    assert {path.name for path in (place / "segments").iterdir()} == before, "readers may need all of them"
    assert len(PStream(place).pieces(0, 120, "r")) == 2
    assert "is not an update log" in penstock("compact", str(plain(tmp_path))).stderr


def plain(tmp_path: Path) -> Path:
    PStream(tmp_path / "plain", SCHEMA)
    return tmp_path / "plain"
