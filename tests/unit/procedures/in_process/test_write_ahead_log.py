"""The write-ahead log of a database keeps what it acknowledged, through crashes and other processes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock._durable import appended
from penstock._durable.appended import AppendedFile
from penstock.errors import CorruptDataError, FencedError, UnavailableError
from penstock.procedures.in_process.write_ahead_log import WriteAheadLog


def calls(begin: int, count: int) -> pa.Table:
    return pa.table({"call": [f"call {number}" * (number % 40) for number in range(begin, begin + count)]})


def write(place: Path, counts: list[int], room_bytes: int = 0) -> list[int]:
    """Write records; return the used size of the file before the first and after each."""
    log = WriteAheadLog(place)
    if room_bytes:
        log._file.close()
        log._file.path.unlink()
        log._oldest = log._file = log._create(log._part, room_bytes)
    sizes, offset = [log._file.size_bytes], 0
    for count in counts:
        log.append(offset, calls(offset, count))
        offset += count
        sizes.append(log._file.size_bytes)
    assert log._file.path.stat().st_size == max(sizes[-1], room_bytes)
    log.close()
    return sizes


def read(place: Path) -> list[tuple[int, pa.Table]]:
    log = WriteAheadLog(place)
    try:
        return list(log.read_earlier())
    finally:
        log.close()


def prefix(counts: list[int], records: int) -> list[tuple[int, pa.Table]]:
    offsets = [sum(counts[:number]) for number in range(records)]
    return [(offset, calls(offset, count)) for offset, count in zip(offsets, counts, strict=False)]


COUNTS = [1, 3, 1, 30, 2]


def test_records_are_read_by_the_next_session_until_the_parts_are_deleted(tmp_path: Path) -> None:
    write(tmp_path, COUNTS)
    assert read(tmp_path) == prefix(COUNTS, 5)
    log = WriteAheadLog(tmp_path)
    assert list(log.read_earlier()) == prefix(COUNTS, 5)
    log.append(37, calls(37, 1))
    log.begin_part()
    log.append(38, calls(38, 2))
    log.close()
    assert read(tmp_path) == [(38, calls(38, 2))]


@pytest.mark.parametrize("seed", range(3))
def test_a_cut_file_has_the_whole_records_before_the_cut(tmp_path: Path, seed: int) -> None:
    sizes = write(tmp_path / "log", COUNTS)
    (file,) = (tmp_path / "log").iterdir()
    content, draw = file.read_bytes(), random.Random(seed)
    cuts = {0, 5, *sizes, *(size + 7 for size in sizes[:-1]), *draw.sample(range(len(content)), 20)}
    for cut in sorted(cuts):
        place = tmp_path / f"cut {cut}"
        place.mkdir()
        (place / file.name).write_bytes(content[:cut])
        assert read(place) == prefix(COUNTS, sum(size <= cut for size in sizes[1:]))


@pytest.mark.parametrize("room_bytes", [0, 2048, 1 << 16])
@pytest.mark.parametrize("seed", range(3))
def test_sectors_that_power_loss_left_empty_end_the_log(tmp_path: Path, seed: int, room_bytes: int) -> None:
    sizes = write(tmp_path / "log", COUNTS[:4], room_bytes)
    (file,) = (tmp_path / "log").iterdir()
    content, draw = file.read_bytes(), random.Random(seed)
    begin, end = sizes[-2:]
    sectors = [begin, *range(begin - begin % 512 + 512, end, 512), end]
    assert len(sectors) > 4
    empty = draw.sample(range(len(sectors) - 1), draw.randint(1, 3))
    changed = bytearray(content)
    for number in empty:
        changed[sectors[number] : sectors[number + 1]] = bytes(sectors[number + 1] - sectors[number])
    place = tmp_path / "lost"
    place.mkdir()
    (place / file.name).write_bytes(changed)
    assert read(place) == prefix(COUNTS, 3)


def flips(content: bytes, places: range) -> Iterator[tuple[int, bytes]]:
    draw = random.Random(7)
    for place in sorted({*range(16), *places, *draw.sample(range(16, len(content)), 40)}):
        yield place, content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


@pytest.mark.parametrize("room_bytes", [0, 1 << 16])
def test_a_flipped_bit_is_damage_wherever_it_is(tmp_path: Path, room_bytes: int) -> None:
    *_, last, size = write(tmp_path / "log", COUNTS, room_bytes)
    (file,) = (tmp_path / "log").iterdir()
    content = file.read_bytes()
    for flipped, changed in flips(content[:size], range(last, last + 24, 3)):
        if 12 <= flipped < 16:
            continue  # reserved
        place = tmp_path / f"flip {flipped}"
        place.mkdir()
        (place / file.name).write_bytes(changed + content[size:])
        with pytest.raises(CorruptDataError) as raised:
            read(place)
        assert str(place / file.name) in str(raised.value)


def test_a_session_is_fenced_by_the_next_even_if_that_one_is_gone(tmp_path: Path) -> None:
    first = WriteAheadLog(tmp_path)
    first.append(0, calls(0, 1))
    second = WriteAheadLog(tmp_path)
    with pytest.raises(FencedError):
        first.append(1, calls(1, 1))
    third = WriteAheadLog(tmp_path)
    third.begin_part()
    assert not any(path.name.startswith(f"{2:020}") for path in tmp_path.iterdir())
    with pytest.raises(FencedError):
        first.append(2, calls(2, 1))
    with pytest.raises(FencedError):
        second.append(2, calls(2, 1))
    third.append(1, calls(1, 1))
    for log in (first, second, third):
        log.close()


LITTLE_ROOM = 1, 6 << 10


def little_room(place: Path) -> WriteAheadLog:
    """Return a log that fills parts with few zeros, and early."""
    log = WriteAheadLog(place)
    log.bytes_before_room, log.part_bytes = LITTLE_ROOM
    return log


def wait_for_room(log: WriteAheadLog) -> None:
    assert log._next is not None
    log._next.result()


def test_a_log_goes_on_in_parts_of_zeros_and_is_read_in_order(tmp_path: Path) -> None:
    log = little_room(tmp_path)
    counts = COUNTS * 4
    sizes = set()
    for number, offset in enumerate(sum(counts[:n]) for n in range(len(counts))):
        log.append(offset, calls(offset, counts[number]))
        if log._next is not None:
            wait_for_room(log)
        sizes.add(log._file.path.stat().st_size)
    parts = log._part.number
    assert parts > 2
    assert 6 << 10 in sizes
    log.close()
    assert read(tmp_path) == prefix(counts, len(counts))
    log = little_room(tmp_path)
    assert list(log.read_earlier()) == prefix(counts, len(counts))
    log.append(sum(counts), calls(0, 1))
    log.begin_part()
    assert [path.name[:20] for path in tmp_path.iterdir()] == [f"{log._part.session:020}"]
    log.close()


@pytest.mark.parametrize("how", ["append", "begin_part"])
def test_a_fenced_session_goes_on_in_no_new_part(tmp_path: Path, how: str) -> None:
    old = little_room(tmp_path)
    old.append(0, calls(0, 1))
    wait_for_room(old)
    next_part = tmp_path / old._part.following.name
    newer = little_room(tmp_path)
    assert [offset for offset, _ in newer.read_earlier()] == [0]
    newer.begin_part()
    assert not next_part.exists()
    # A thread of the old session may be late, and create the part now.
    old._next = None
    old._continue_in_next_part(1)
    wait_for_room(old)
    with pytest.raises(FencedError):
        old.append(2, calls(50, 1)) if how == "append" else old.begin_part()
    assert next_part.exists()
    newer.append(2, calls(2, 1))
    newer.close()
    assert read(tmp_path) == [(2, calls(2, 1))]
    old.close()


def test_a_part_of_zeros_whose_header_was_not_written_has_no_records(tmp_path: Path) -> None:
    log = WriteAheadLog(tmp_path)
    log.append(0, calls(0, 1))
    for room_bytes in (16, 6 << 10):
        (tmp_path / log._part.following.name).write_bytes(bytes(room_bytes))  # the process was killed then
        assert read(tmp_path) == [(0, calls(0, 1))]
    log.close()


@pytest.mark.parametrize("how", ["append", "begin_part"])
@pytest.mark.parametrize("where", ["_write_zeros", "append", "full"])
def test_a_log_goes_on_if_the_disk_has_no_space_for_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, how: str
) -> None:
    log = WriteAheadLog(tmp_path)
    log.append(0, calls(0, 1))
    log.bytes_before_room, log.part_bytes = LITTLE_ROOM
    with monkeypatch.context() as patched:
        if where == "full":  # other appends need the rest
            little = os.statvfs_result([512, 512, 100, 23, 23, 0, 0, 0, 0, 255])
            patched.setattr(os, "fstatvfs", lambda _: little)
        else:

            def refuse(file: AppendedFile, *_: object) -> None:
                os.write(file._descriptor, bytes(1000))
                raise OSError(28, "no space")

            patched.setattr(AppendedFile, where, refuse)
        log._continue_in_next_part(1)
        with pytest.raises(UnavailableError, match="free some space"):
            wait_for_room(log)
    assert not (tmp_path / log._part.following.name).exists()
    if how == "begin_part":
        log.begin_part()
        log.append(1, calls(1, 1))
        expected = [1]
    else:
        log.append(1, calls(1, 1))
        assert log._part.number == 0
        log.append(2, calls(2, 1))
        wait_for_room(log)
        log.append(3, calls(3, 1))
        expected = [0, 1, 2, 3]
    assert log._part.number == 1
    log.close()
    assert read(tmp_path) == [(number, calls(number, 1)) for number in expected]


def test_only_what_is_synced_survives_and_only_that_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power is lost at each sync in turn: the file is as long as it was at the last sync."""
    synced: dict[Path, int] = {}

    def sync(descriptor: int) -> None:
        synced[Path(f"/proc/self/fd/{descriptor}").readlink()] = os.fstat(descriptor).st_size

    monkeypatch.setattr(appended, "_sync_content", sync)
    log = WriteAheadLog(tmp_path / "log")
    acknowledged = 0
    for number, count in enumerate(COUNTS):
        log.append(acknowledged, calls(acknowledged, count))
        acknowledged += count
        place = tmp_path / f"after {number}"
        place.mkdir()
        for path, size in synced.items():
            (place / path.name).write_bytes(path.read_bytes()[:size])
        assert sum(len(rows) for _, rows in read(place)) == acknowledged
    log.close()
