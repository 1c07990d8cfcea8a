"""Headers with a field that is missing or strange, behind right checksums: an error that names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpointing import PUnit
from penstock.checkpointing.fields import Fields
from penstock.checkpointing.files import LocalFiles
from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.graph.facts import facts_of
from penstock.checkpointing.p_stream import PStream, PStreamReader, PStreamWriter
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.survey import survey_p_stream
from penstock.errors import CorruptDataError, InvalidUsageError, UnavailableError
from penstock.state_store.bucket_store import BucketStore, Handle
from penstock.state_store.clock_record import ClockRecord, Readings
from penstock.state_store.survey import survey_bucket
from tests.checkpoints.graph_directories import write_graph
from tests.checkpoints.states import RowState
from tests.samples.hostile import every_change, rewrite, unit_in

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("text", pa.string())])
ROWS = pa.table({"k": range(4), "text": ["a", None, "b", "c"]}, SCHEMA)


def _refused(use: Callable[[], object], file: Path, what: str) -> bool:
    """Return whether a file is refused by an error with its name. Only Penstock's errors are allowed."""
    try:
        use()
    except CorruptDataError as error:
        assert str(error.context["file"]).startswith(str(file)), what
        return True
    except UnavailableError as error:
        assert "too long" in str(error), what
        return True
    return False


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give a p-stream whose log has a start and an entry of each kind after it."""
    place = tmp_path / "s"
    for n in range(2):
        with PStreamWriter(place, SCHEMA, threads=1, unit_rows=2, writer=f"w{n}") as writer:
            writer.append(ROWS, clock={"f": n + 1})
    stream = PStream(place, cleanup=CleanupRule(min_log_entries=1))
    for reader in ("r", "q"):
        stream.subscribe(reader)
    stream.trim_from("r", 2)
    stream.log.shorten()
    stream = PStream(place)
    stream.subscribe("s")
    stream.unsubscribe("q")
    stream.unsubscribe("s")
    stream.trim_from("r", 4)
    stream.trim(now=True)
    with PStreamWriter(place, threads=1, writer="w3") as writer:
        writer.append(ROWS, clock={"f": 9})
    return place


def _use(place: Path) -> None:
    survey_p_stream(PStream(place))
    reader = PStreamReader(place)
    reader.read()
    stream = PStream(place)
    stream.pieces(stream.start, stream.end)
    stream.readers()


def test_a_log_is_refused_whatever_field_is_strange(place: Path) -> None:
    kinds = set()
    start = max((place / "log").glob("*.start"))
    entries = [file for file in (place / "log").glob("*.entry") if file.stem > start.stem]
    for file in [place / "p-stream", start, *sorted(entries)]:
        content, unit = file.read_bytes(), unit_in(file)
        if unit.kind in kinds:
            continue
        kinds.add(unit.kind)
        refused = changes = 0
        for what, meta in every_change(unit.meta):
            rewrite(file, PUnit(unit.kind, meta))
            refused += _refused(lambda: _use(place), place, f"{unit.kind} {what}")
            changes += 1
        assert refused > changes // 2
        rewrite(file, PUnit("other", unit.meta))
        assert _refused(lambda: _use(place), file, "kind")
        file.write_bytes(content)
    assert kinds == {"p-stream", "start", "commit", "subscribe", "unsubscribe", "release"}


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("k", pa.int32()), ("text", pa.string())]),
        pa.schema([("k", pa.int64()), ("text", pa.binary())]),
        pa.schema([("k", pa.int64())]),
    ],
)
def test_rows_of_another_schema_are_refused(tmp_path: Path, schema: pa.Schema) -> None:
    values = {"k": [1, 2], "text": ["a", "b"]}
    with PStreamWriter(tmp_path / "other", schema, threads=1) as writer:
        writer.append(pa.table({name: values[name] for name in schema.names}, schema))
    _change_schema(tmp_path / "other")
    with pytest.raises(CorruptDataError, match=r"another type|lacks a column") as caught:
        PStreamReader(tmp_path / "other").read()
    assert "segment" in str(caught.value.context["file"])


def test_nulls_in_a_column_that_has_none_are_refused(tmp_path: Path) -> None:
    with PStreamWriter(tmp_path / "s", pa.schema([("k", pa.int64()), ("text", pa.string())])) as writer:
        writer.append(pa.table({"k": [1, None], "text": ["a", "b"]}))
    _change_schema(tmp_path / "s")
    with pytest.raises(CorruptDataError, match="not nullable has nulls"):
        PStreamReader(tmp_path / "s").read()
    assert PStreamReader(tmp_path / "s", columns=["text"]).read().num_rows == 2


def _change_schema(place: Path) -> None:
    made = place.parent / "made"
    PStream(made, SCHEMA)
    (place / "p-stream").write_bytes((made / "p-stream").read_bytes())


def test_progress_beyond_the_end_is_refused(place: Path) -> None:
    (notes,) = (place / "readers").glob("r-*")
    (notes / f"{10**20 - 1}.progress").write_bytes(b"")
    with pytest.raises(CorruptDataError, match="released rows beyond the end"):
        PStreamReader(place, reader="r")


def test_a_state_file_is_refused_whatever_field_of_its_chain_is_strange(tmp_path: Path) -> None:
    store, table, handle = BucketStore(LocalFiles(tmp_path)), RowState(SCHEMA), Handle()
    for keys in ([1, 2], [3]):
        table.put(pa.record_batch([keys, [None] * len(keys)], schema=SCHEMA))
        handle = store.commit(table, handle)
    pointer = handle.pointer
    assert pointer is not None
    file = tmp_path / pointer.file_name
    unit = unit_in(file)
    meta = {**unit.meta, "snapshot": [9, "s", 9, 1], "superseded": [[1, "000000000001-x.punit"]]}
    refused = changes = 0
    for what, new in every_change(meta):
        rewrite(file, PUnit(unit.kind, new, unit.blocks))
        changes += 1
        refused += _refused(lambda: store.load(pointer, RowState(SCHEMA)), tmp_path, what)
        survey_bucket(store.files)
    assert refused > changes // 2


def test_a_record_of_the_clock_is_refused_whatever_is_strange(tmp_path: Path) -> None:
    record = ClockRecord(LocalFiles(tmp_path), Handle())
    record.publish(Readings([1, 2], 3))
    (file,) = tmp_path.iterdir()
    unit = unit_in(file)
    for what, meta in every_change(unit.meta):
        rewrite(file, PUnit(unit.kind, meta))
        _refused(record.read, file, what)
    rewrite(file, PUnit("other", unit.meta))
    assert _refused(record.read, file, "kind")


def test_a_field_is_named_with_its_place() -> None:
    fields: Any = Fields({"a": [[1, {"b": "x"}]]}, "f")
    (row,) = fields.rows("a", 2)
    with pytest.raises(CorruptDataError, match=r"field=a\[0\]\[1\]\.b expected=a whole number") as caught:
        row.fields(1).number("b")
    assert caught.value.context["file"] == "f"
    with pytest.raises(CorruptDataError) as caught:
        Fields({}).flag("c")
    assert "file" not in caught.value.context


def test_the_document_of_a_graph_is_refused_whatever_is_strange(tmp_path: Path) -> None:
    write_graph(tmp_path)
    (file,) = tmp_path.glob("graph-*.json")
    document = json.loads(file.read_bytes())
    refused = changes = 0
    for what, new in every_change(document):
        if what.startswith("('plan',"):
            continue
        file.write_text(json.dumps(new))
        changes += 1
        try:
            facts_of(GraphDirectory(tmp_path))
        except CorruptDataError as error:
            refused += 1
            assert str(error.context["file"]).startswith(str(tmp_path)), what
        except InvalidUsageError as error:
            assert "another format" in str(error) or "location" in str(error), what
    assert refused > changes // 3
    file.write_text("[" * 100_000)
    with pytest.raises(CorruptDataError):
        facts_of(GraphDirectory(tmp_path))
    for log in ("", "v1\n{}\n" + json.dumps({"identity": 5, "offset": "x"})):
        file.write_text(json.dumps(document))
        (tmp_path / "queries" / "results" / "offsets" / "1").write_text(log)
        with pytest.raises(CorruptDataError):
            facts_of(GraphDirectory(tmp_path))
