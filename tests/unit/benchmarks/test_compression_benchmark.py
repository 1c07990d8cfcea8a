"""The benchmark of compression still runs in each of its modes: tiny inputs, times of no interest."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.compression import (
    compression,
    compression_figures,
    compression_libraries,
    compression_parts,
    compression_texts,
    texts,
)
from benchmarks.compression.peers import Ours, peers
from benchmarks.streams import DATA, GENERATED, REAL, load, replica

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_stream_depends_on_its_seed_alone(name: str) -> None:
    stream = load(name, rows=500, seed=3)
    assert stream is not None
    assert stream.whole is stream.long
    assert stream.whole.num_rows == 500
    assert stream.whole.equals(GENERATED[name](500, 3))
    assert not stream.whole.equals(GENERATED[name](500, 4))


@pytest.mark.parametrize(("name", "columns", "width"), [
    ("cluster", 12, 64), ("smart_grid", 6, 28), ("linear_road", 7, 32), ("sensors", 14, 64),
])  # fmt: skip
def test_a_real_file_has_the_columns_and_the_width_that_the_paper_states(
    name: str, columns: int, width: int
) -> None:
    stream = load(name, rows=40_000)
    if stream is None:
        pytest.skip("the real files are not part of the project")
    assert stream.whole.num_columns == columns
    assert stream.whole.nbytes == width * stream.whole.num_rows
    assert stream.long.num_rows == 40_000
    assert stream.long.slice(0, stream.whole.num_rows).equals(stream.whole)


def test_a_missing_file_is_no_stream(tmp_path: Path) -> None:
    assert load("cluster", tmp_path) is None


def test_a_replica_moves_times_on_and_repeats_the_rest() -> None:
    table = pa.table({"time": pa.array([10, 12, 16]), "value": pa.array([1.0, 2.0, 3.0], pa.float32())})
    assert replica(table, 7, ("time",)).to_pydict() == {
        "time": [10, 12, 16, 18, 20, 24, 26],
        "value": [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0],
    }


def test_each_contender_returns_what_it_was_given_and_each_table_has_its_row() -> None:
    stream = load("market", rows=20_000)
    assert stream is not None
    those = [Ours("fast", "fast"), *peers()]
    records = compression.measure(stream, those, 1)
    lines = list(compression.report(records))
    for contender in those:
        assert any(line.split()[:1] == [contender.name] for line in lines), contender.name
    assert any(line.startswith("market.price") and "decimal" in line for line in lines)


def test_a_bandwidth_table_compares_on_the_columns_that_both_can_code() -> None:
    pytest.importorskip("pcodec", reason="pcodec is not installed")
    stream = load("market", rows=2000)
    assert stream is not None
    those = [*compression.bandwidth_goals(), *peers(["parquet-snappy", "pcodec"])]
    lines = list(compression.report_bandwidth(compression.measure(stream, those, 1)))
    assert any(line.startswith("penstock ") and "5/5" in line for line in lines)
    assert any(line.startswith("parquet-snappy") and "5/5" in line for line in lines)
    # The stream, its numbers, and all columns.
    assert [line.split()[1] for line in lines if line.startswith("pcodec")] == ["4/5", "4/4", "4/5"]


def test_a_peer_that_is_better_at_once_is_named() -> None:
    record = {"stream": "s", "column": "c", "type": "int32", "varying": True, "rows": 10, "whole_bytes": 100}
    record |= {"long_rows": 10, "long_bytes": 100, "decide_s": 0.0, "cascade": "ns"}

    def timed(contender: str, size: int, took: float, as_is: float) -> compression.Record:
        times = {"encode_s": [took], "decode_s": [took]}
        times |= {"whole_encode_s": [as_is], "whole_decode_s": [as_is]}
        return {**record, "contender": contender, "coded_bytes": size, **times}

    ours = timed("fast", 20, 2.0, 2.0)
    for peer, note in [
        (timed("other", 10, 1.0, 1.0), "better at once than fast!"),
        (timed("other", 10, 1.0, 3.0), "better at once than fast (replicas)"),
        (timed("other", 10, 3.0, 1.0), "better at once than fast (as is)"),
    ]:
        assert list(compression.table([ours, peer]))[-1].endswith(note)
    for peer in (timed("other", 30, 1.0, 1.0), timed("other", 10, 3.0, 3.0)):
        assert "better" not in list(compression.table([ours, peer]))[-1]


def test_results_are_saved_as_text_and_as_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = load("market", rows=2000)
    assert stream is not None
    records = compression.measure(stream, [Ours("fast", "fast")], 1)
    monkeypatch.setattr(compression, "in_processes", lambda *_: records)
    monkeypatch.setattr(sys, "argv", ["compression", "--quick", "--save", str(tmp_path)])
    compression.main()
    assert "all columns" in (tmp_path / "compression.txt").read_text()
    assert len((tmp_path / "compression.csv").read_text().splitlines()) == 1 + 5


def test_a_stream_without_its_file_has_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compression, "one_core", lambda: None)
    compression.child(argparse.Namespace(stream="cluster", data=tmp_path, rows=10, mode="compare"))
    assert capsys.readouterr().out.strip() == '{"records": []}'


def test_costs_of_codecs_are_printed_as_the_chooser_has_them() -> None:
    lines = list(compression_parts.codec_costs(quick=True))
    assert any(line.startswith('    "delta": Cost(') for line in lines)
    assert any(line.startswith('    "zstd": Cost(') for line in lines)


def test_texts_and_numbers_that_are_coded_once_are_measured() -> None:
    array = texts.columns(500)["path"]
    lines = list(compression_texts.compare(array, array.nbytes, 1, ["fast", "parquet-zstd"]))
    assert [line.split()[0] for line in lines][:3] == ["fast", "parquet-zstd", "once"]
    assert any(line.startswith("fsst>lz4") for line in lines)
    assert any(line.startswith("prices") for line in compression_texts.numbers_once(500, 1))


def test_kept_contexts_and_trained_dictionaries_are_measured() -> None:
    assert any("zstandard" in line for line in compression_libraries.contexts(2000, 1))
    assert any("dictionary" in line for line in compression_libraries.dictionaries(2, 1))


@pytest.mark.parametrize("number", [6, 12])
def test_a_figure_is_drawn(number: int, tmp_path: Path) -> None:
    draw = {6: compression_figures.figure_6, 12: compression_figures.figure_12}[number]
    file = tmp_path / "figure.svg"
    assert len(list(draw(file, quick=True))) > 3
    assert file.read_text().startswith("<?xml")


def test_first_uses_are_timed_one_by_one() -> None:
    steps = [name for name, _, _ in compression_parts.first_use(rows=500)]
    assert steps[0] == "import"
    assert "decode nexmark, balanced" in steps


def test_the_folder_of_the_real_files_lies_beside_the_repository() -> None:
    assert DATA.parts[-2:] == ("shared", "data")
    assert len(REAL) == 4
