"""The commands that look at state, without Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from penstock import compression
from penstock.checkpointing import PUnit, encode
from penstock.checkpointing.files import LocalFiles, open_files
from penstock.cli import app
from penstock.errors import CorruptDataError
from penstock.jobs.commands import common
from penstock.jobs.inspect import block, state
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.state_store.bucket_store import RETAIN_VERSIONS, BucketStore, FileId, Handle, Pointer, Version
from tests.checkpoints.states import DictState, links_of, names_of
from tests.oracles.naive import Update
from tests.samples.streams import STREAM, enqueue
from tests.servers.s3 import SECRET, S3Server


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def _commits(store: BucketStore, count: int) -> list[Handle]:
    state, handles = DictState(), [Handle()]
    for number in range(count):
        state[number] = bytes([number])
        handles.append(store.commit(state, handles[-1]))
    return handles[1:]


def _orphan(store: BucketStore, held: Handle) -> Path:
    """Let another attempt commit upon `held`; return its file."""
    name = links_of(store.commit(DictState({99: b"another attempt"}), held))[-1]
    return Path(store.files.path_of(name))


def _unfinished(store: BucketStore, version: int, size: int = 100) -> Path:
    """Leave an unfinished file, as a killed process does; return it."""
    path = Path(store.files.path_of(f".{version:012d}-{'0' * 32}.punit.{'1' * 32}.tmp"))
    path.write_bytes(bytes(size))
    return path


@pytest.fixture
def stores(tmp_path: Path) -> list[BucketStore]:
    """Two buckets of one operator: four versions, an orphan and an unfinished file, and one version."""
    operator = LocalFiles(tmp_path / "state" / "query" / "prices")
    stores = [BucketStore(operator.child(f"{bucket:05d}")) for bucket in (0, 1)]
    _orphan(stores[0], _commits(stores[0], 4)[0])
    _unfinished(stores[0], 1)
    _commits(stores[1], 1)
    return stores


@pytest.fixture
def place(stores: list[BucketStore], tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_gc_says_what_it_would_free_and_then_frees_it(stores: list[BucketStore], place: Path) -> None:
    before = names_of(stores[0])
    dry = penstock("gc", str(place), "--dry-run")
    assert dry.exit_code == 0
    lines = dry.stdout.splitlines()
    assert lines[0] == f"{stores[0].files.location}: 1 file, 100 bytes"
    assert lines[1:] == [f"would free {lines[0].partition(': ')[2]} in 1 of 2 buckets"]
    assert names_of(stores[0]) == before
    freed = penstock("gc", str(place))
    assert (freed.exit_code, freed.stdout) == (0, dry.stdout.replace("would free", "freed"))
    assert len(before - names_of(stores[0])) == 1
    again = penstock("gc", str(place))
    assert (again.exit_code, again.stdout) == (0, "freed 0 files, 0 bytes in 0 of 2 buckets\n")


@pytest.mark.parametrize("command", [("gc",), ("inspect", "state")])
def test_a_path_that_is_no_state_location_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("precious")
    for path in (tmp_path, tmp_path / "other", tmp_path / "nothing"):
        result = penstock(*command, str(path))
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            f"there is no state at this location: location={path}. Hint: give a state_location, "
            "the directory of a query, operator or bucket in one, or the directory of a database; gc also "
            "takes a p-stream. By default the state_location of a pipeline is CHECKPOINT/state.\n"
        )
    assert (tmp_path / "other" / "file").exists()
    unknown = penstock(*command, "ftp://host/state")
    assert unknown.exit_code == 2
    assert "no file system is known" in unknown.stderr
    assert penstock(*command, str(tmp_path), "--retain-versions", "0").exit_code == 2


def test_the_default_of_the_command_line_is_that_of_the_library() -> None:
    assert common.RETAIN_VERSIONS == RETAIN_VERSIONS


def test_ctrl_c_stops_gc_and_says_what_is_gone(
    stores: list[BucketStore], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unfinished(stores[0], 1).rename(_unfinished(stores[0], 1).with_name(f".{1:012d}-x.punit.y.tmp"))
    _unfinished(stores[0], 1)
    delete = LocalFiles.delete

    def once(files: LocalFiles, name: str) -> None:
        monkeypatch.setattr(LocalFiles, "delete", interrupted)
        delete(files, name)

    def interrupted(files: LocalFiles, name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalFiles, "delete", once)
    result = penstock("gc", str(place))
    assert result.exit_code == 130
    assert result.stdout.startswith("freed 1 file, ")
    monkeypatch.undo()
    assert penstock("gc", str(place)).stdout.splitlines()[-1].startswith("freed 1 file, ")


def test_gc_deletes_nothing_where_damage_hides_what_is_needed(stores: list[BucketStore], place: Path) -> None:
    path = Path(stores[0].files.path_of(_pointer(stores[0], 3).file_name))
    path.write_bytes(path.read_bytes()[:-8])
    before = names_of(stores[0])
    result = penstock("gc", str(place))
    assert result.exit_code == 1
    assert names_of(stores[0]) == before
    assert f"{stores[0].files.location}: no garbage is collected: files are damaged" in result.stderr
    assert result.stdout == "freed 0 files, 0 bytes in 0 of 2 buckets\n"


def test_gc_keeps_every_version_that_can_be_loaded(stores: list[BucketStore], place: Path) -> None:
    handle = stores[0].read_version(_pointer(stores[0], 1))[0]
    set_back = stores[0].commit(DictState({1: b"set back"}), handle)
    stores[0].commit(DictState({1: b"and on"}), set_back)
    versions = {name for name in names_of(stores[0]) if not name.startswith(".")}
    assert len(versions) == 7
    assert penstock("gc", str(place)).exit_code == 0
    assert names_of(stores[0]) == versions


def _pointer(store: BucketStore, version: int) -> Pointer:
    name = next(name for name in names_of(store) if name.startswith(f"{version:012d}-"))
    return Pointer(Version(version), FileId(name.partition("-")[2].removesuffix(".punit")))


def test_inspect_shows_every_bucket(stores: list[BucketStore], place: Path) -> None:
    result = penstock("inspect", "state", str(place))
    assert (result.exit_code, result.stderr.strip()) == (0, "")
    title, whose, _, header, _, first, second, _ = result.stdout.splitlines()
    assert title.strip() == str(place / "query" / "prices")
    assert re.fullmatch(
        r"prices of query query, last written \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", whose.strip()
    )
    assert _cells(header) == [
        "bucket", "newest", "proven", "versions", "chain", "chain size", "rows", "waiting", "files", "size",
        "garbage",
    ]  # fmt: skip
    newest, proven = _pointer(stores[0], 4), _pointer(stores[0], 3)
    cells = _cells(first)
    assert cells[:5] == ["00000", f"4-{newest.file_id[:6]}", f"3-{proven.file_id[:6]}", "1..3", "1 + 3"]
    assert cells[6:9] == ["-", "-", "6"]
    assert cells[10] == "1 (100 bytes)"
    assert _cells(second)[2:5] == ["-", "-", "1 + 0"]


def test_a_table_for_a_narrow_terminal_has_all_facts(
    stores: list[BucketStore], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = penstock("inspect", "state", str(place)).stdout
    monkeypatch.setattr(state, "console", lambda: Console(width=80))  # a test's output is no terminal
    narrow = penstock("inspect", "state", str(place)).stdout.splitlines()
    assert max(map(len, narrow)) <= 80
    rows = [[cell.strip() for cell in line.split("│")] for line in narrow if "│" in line]
    assert len(rows) == 2 * len(stores)
    facts = [fact for line in wide.splitlines() if line.startswith("│") for fact in _cells(line)]
    assert sorted(facts) == sorted(fact for row in rows for fact in row if fact)
    pointer = _pointer(stores[0], 4)
    assert (rows[0][1], rows[1][1][:2]) == (f"4-{pointer.file_id[:6]}", "3-")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("┃│").replace("┃", "│").split("│")]


def test_inspect_writes_json(tmp_path: Path) -> None:
    store = BucketStore(LocalFiles(tmp_path / "query" / "prices" / "00003"))
    queue = UpdateQueue(STREAM, Policy.IN_PLACE)
    enqueue(queue, [Update(key, 1, 0) for key in range(5)], 0)
    first = store.commit(queue, Handle())
    queue.dequeue(2, 1)
    second = store.commit(queue, first)
    result = penstock("inspect", "state", str(tmp_path), "--json")
    assert result.exit_code == 0
    newest, proven = (
        {"version": link.pointer.version, "file_id": link.pointer.file_id} for link in reversed(second.links)
    )
    written_us = max(path.stat().st_mtime_ns for path in Path(store.files.location).iterdir()) // 1000
    assert json.loads(result.stdout) == {
        "buckets": [
            {
                "location": store.files.location,
                "query": "query",
                "query_name": None,
                "operator": "prices",
                "bucket": "00003",
                "files": 2,
                "size_bytes": second.size_bytes,
                "written_us": written_us,
                "newest": [newest],
                "proven": proven,
                "likely": newest,
                "versions": [1],
                "chain": {
                    "base_files": 1,
                    "base_bytes": first.size_bytes,
                    "deltas": 1,
                    "delta_bytes": second.size_bytes - first.size_bytes,
                },
                "rows": 5,
                "waiting": 3,
                "expired": None,
                "garbage_files": 0,
                "garbage_bytes": 0,
                "withheld": None,
                "damage": [],
            }
        ]
    }


@pytest.mark.parametrize(
    "command", [("gc", "--dry-run"), ("inspect", "state"), ("inspect", "state", "--json")]
)
def test_damage_is_named_and_ends_with_1(
    stores: list[BucketStore], place: Path, command: tuple[str, ...]
) -> None:
    path = Path(stores[1].files.location) / next(iter(names_of(stores[1])))
    path.write_bytes(path.read_bytes()[:-8])
    specification = place / "query" / "prices" / "operator.punit"
    specification.write_bytes(encode(PUnit("operator", {}))[:-1])
    result = penstock(*command, str(place))
    assert result.exit_code == 1
    told = result.stdout if "--json" in command else result.stderr
    for file in (path, specification):
        assert str(file) in told
    assert "cut within a block" in told
    assert "00000" in result.stdout, "the others are shown all the same"


def test_a_file_system_that_refuses_is_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.scandir", refuse)
    result = penstock("inspect", "state", str(place))
    assert result.exit_code == 1
    assert "Permission denied" in result.stderr


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as started:
        yield started


def test_both_commands_take_a_uri_and_show_no_secret(server: S3Server) -> None:
    uri = server.uri("state")
    store = BucketStore(open_files(uri).child("query").child("prices").child("00000"))
    handles = _commits(store, 4)
    unfinished = f".{1:012d}-{'0' * 32}.punit.{'1' * 32}.tmp"
    store.files.publish(unfinished, b"begun")
    shown = penstock("inspect", "state", uri)
    assert shown.exit_code == 0
    assert "s3://" in shown.stdout
    freed = penstock("gc", uri)
    assert freed.exit_code == 0
    assert freed.stdout.splitlines()[-1].startswith("freed 1 file, ")
    assert SECRET not in shown.output + freed.output
    assert names_of(store) == set(links_of(handles[-1]))


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from penstock.cli import app\n"
        "for arguments in (['gc', '--help'], ['inspect', '--help'], ['inspect', 'state', '--help']):\n"
        "    assert CliRunner().invoke(app, arguments).exit_code == 0\n"
        "print(sorted({'pyspark', 'py4j', 'numba', 'pandas', 'numpy', 'pyarrow'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_commands_load_no_spark(place: Path) -> None:
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from penstock.cli import app\n"
        f"for arguments in (['gc', {str(place)!r}], ['inspect', 'state', {str(place)!r}]):\n"
        "    assert CliRunner().invoke(app, arguments).exit_code == 0\n"
        "print(sorted({'pyspark', 'py4j', 'pandas'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_inspect_block_shows_what_columns_chose_and_why(tmp_path: Path) -> None:
    rows = pa.table({"n": list(range(5000)), "s": ["a", None] * 2500, "x": [i / 4 for i in range(5000)]})
    file = tmp_path / "rows.blocks"
    with file.open("wb") as sink:
        compression.BlockWriter(sink).write(rows)
    result = penstock("inspect", "block", str(file), "--why")
    assert result.exit_code == 0, result.stderr
    for text in ("values: delta>ns", "codes:", "validity:", "decimal_2", "cost for 'balanced'", "distinct"):
        assert text in result.stdout, text
    found = json.loads(penstock("inspect", "block", str(file), "--json", "--why", "--goal", "small").stdout)
    assert [column["column"] for column in found["columns"]] == ["n", "s", "x"]
    assert found["columns"][0]["statistics"]["ascending"]
    costs = [choice["cost"] for choice in found["columns"][2]["candidates"]]
    assert costs == sorted(costs)
    (tmp_path / "bound.block").write_bytes(compression.encode(rows["x"], "quantized_0.2>delta>ns"))
    found = json.loads(penstock("inspect", "block", str(tmp_path / "bound.block"), "--json", "--why").stdout)
    chosen = [choice["cascade"] for choice in found["columns"][0]["candidates"] if choice["chosen"]]
    assert chosen == ["quantized_0.2>delta>ns"], "what the block has, whatever the goal"
    assert "ns (chosen)" in penstock("inspect", "block", str(tmp_path / "bound.block"), "--why").stdout
    (tmp_path / "one.block").write_bytes(compression.encode(rows["n"]))
    assert "int64" in penstock("inspect", "block", str(tmp_path / "one.block")).stdout


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is empty"),
        (b"x" * 50, "this is not a table's block"),
        (None, "the file cannot be read"),
    ],
)
def test_inspect_block_refuses_what_is_none(tmp_path: Path, content: bytes | None, text: str) -> None:
    file = tmp_path / "f"
    if content is not None:
        file.write_bytes(content)
    result = penstock("inspect", "block", str(file))
    assert result.exit_code != 0
    assert text in result.stderr


def test_inspect_block_reads_a_block_at_a_time_and_says_that_a_file_is_cut_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "rows.blocks"
    with file.open("wb") as sink:
        writer = compression.BlockWriter(sink, codecs={"n": "plain"})
        size = sum(writer.write(pa.table({"n": range(at, at + 100_000)})) for at in range(3))
    blocks = block.read_blocks(file)
    _, _, first = next(blocks)
    os.truncate(file, size // 2)
    assert first.read().to_pylist() == list(range(100_000)), "it is in memory"
    with pytest.raises(CorruptDataError, match="a table's block is cut") as caught:
        next(blocks)
    assert caught.value.context["file"] == file
