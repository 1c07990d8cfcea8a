"""A file is published once, as a whole and synced; if the file system refuses, an error says so."""

from __future__ import annotations

import errno
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock import _durable
from penstock._durable import direct
from penstock.errors import ConflictError, UnavailableError


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _refuse(monkeypatch: pytest.MonkeyPatch, call: str, number: int, *, skip: int = 0) -> None:
    """Make ``os.<call>`` fail with `number` after `skip` calls."""
    real, left = getattr(os, call), [skip]

    def failing(*arguments: Any, **options: Any) -> Any:
        if left[0] == 0:
            raise OSError(number, os.strerror(number))
        left[0] -= 1
        return real(*arguments, **options)

    monkeypatch.setattr(os, call, failing)


@pytest.mark.parametrize("direct_io", [False, True])
def test_a_published_file_has_its_content_and_is_private(tmp_path: Path, direct_io: bool) -> None:
    _durable.publish(tmp_path / "f", b"content", direct_io=direct_io)
    _durable.publish(tmp_path / "empty", memoryview(b""), direct_io=direct_io)
    assert _durable.read(tmp_path / "f") == b"content"
    assert _durable.read(tmp_path / "empty") == b""
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert _names(tmp_path) == ["empty", "f"]


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, (4 << 20) - 1, 4 << 20, (9 << 20) + 5])
def test_direct_io_writes_and_reads_the_same(tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    pieces = [content[: size // 3], content[size // 3 : size // 3 + 1], content[size // 3 + 1 :]]
    _durable.publish(tmp_path / "f", *pieces, direct_io=True)
    assert (tmp_path / "f").read_bytes() == content
    places = {0, 1, 4095, 4096, 4097, size // 2, size - 1, size, size + 5000}
    for at in places:
        for length in (0, 1, 4095, 4096, size, size + 10_000):
            found = _durable.read(tmp_path / "f", at, length, direct_io=True)
            assert found == content[at : at + length]


def test_what_was_read_by_direct_io_stays_as_it_was(tmp_path: Path) -> None:
    for name in "ab":
        _durable.publish(tmp_path / name, name.encode() * 5000, direct_io=True)
    first, second = (_durable.read(tmp_path / name, 10, 4990, direct_io=True) for name in "ab")
    assert (first, second) == (b"a" * 4990, b"b" * 4990)


def test_a_forked_process_has_room_of_its_own_for_direct_io(tmp_path: Path) -> None:
    _durable.publish(tmp_path / "before", b"x", direct_io=True)
    child = os.fork()
    if not child:
        _durable.publish(tmp_path / "child", b"c", direct_io=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert direct._buffer().tobytes()[:1] == b"x"
    assert _durable.read(tmp_path / "child") == b"c"


def test_threads_have_room_of_their_own_for_direct_io(tmp_path: Path) -> None:
    contents = {str(number): random.Random(number).randbytes(300_000) for number in range(24)}
    with ThreadPoolExecutor(4) as pool:
        for done in [
            pool.submit(_durable.publish, tmp_path / name, content, direct_io=True)
            for name, content in contents.items()
        ]:
            done.result()
    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _durable.publish(tmp_path / "f", b"x" * 10_000, direct_io=True)
    assert _durable.read(tmp_path / "f", 5, direct_io=True) == b"x" * 9_995
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(UnavailableError, match="the file became shorter"):
        _durable.read(tmp_path / "f", 0, 10_000, direct_io=True)


def test_a_short_direct_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, preadv = os.write, os.preadv
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:8192]))
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:4096]], at))
    content = random.Random(0).randbytes(50_000)
    _durable.publish(tmp_path / "f", content, direct_io=True)
    assert _durable.read(tmp_path / "f", 5, 60_000, direct_io=True) == content[5:]


def test_where_there_is_no_direct_io_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_DIRECT")
    with pytest.raises(UnavailableError, match="this file system may have no direct I/O"):
        _durable.publish(tmp_path / "f", b"x", direct_io=True)
    _durable.publish(tmp_path / "f", b"x")
    with pytest.raises(UnavailableError, match=r"the system has no direct I/O.* Hint: this file system may"):
        _durable.read(tmp_path / "f", 0, 1, direct_io=True)
    assert _names(tmp_path) == ["f"]


def test_a_file_is_published_once(tmp_path: Path) -> None:
    _durable.publish(tmp_path / "f", b"first")
    with pytest.raises(ConflictError) as caught:
        _durable.publish(tmp_path / "f", b"second")
    assert caught.value.context["file"] == tmp_path / "f"
    assert _durable.read(tmp_path / "f") == b"first"
    assert _names(tmp_path) == ["f"]


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    _durable.publish(tmp_path / "f", b"longer than three", b"", b"ends")
    assert _durable.read(tmp_path / "f") == b"longer than threeends"


def test_a_file_is_synced_before_it_has_its_name_and_its_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def recorder(name: str) -> Any:
        real = getattr(os, name)

        def recorded(*arguments: Any) -> Any:
            whole = name == "fsync" and Path(f"/proc/self/fd/{arguments[0]}").is_dir()
            calls.append(f"{name} directory" if whole else name)
            return real(*arguments)

        return recorded

    for name in ("write", "fsync", "link"):
        monkeypatch.setattr(os, name, recorder(name))
    _durable.publish(tmp_path / "f", b"x")
    assert calls == ["write", "fsync", "link", "fsync directory"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize(
    ("call", "direct_io"),
    [
        *((call, direct_io) for call in ("open", "write", "fsync", "link") for direct_io in (False, True)),
        ("ftruncate", True),
    ],
)
def test_a_refusal_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, direct_io: bool
) -> None:
    _durable.publish(tmp_path / "before", b"x")
    _refuse(monkeypatch, call, number)
    with pytest.raises(UnavailableError) as caught:
        _durable.publish(tmp_path / "f", b"content", direct_io=direct_io)
    monkeypatch.undo()
    assert _names(tmp_path) == ["before"]
    assert caught.value.context == {"file": tmp_path / "f", "reason": os.strerror(number)}
    _durable.publish(tmp_path / "f", b"content")


def test_a_disk_that_fills_up_halfway_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def filling(descriptor: int, data: memoryview) -> int:
        if len(data) < 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:5])

    monkeypatch.setattr(os, "write", filling)
    with pytest.raises(UnavailableError, match="No space left"):
        _durable.publish(tmp_path / "f", b"0123456789abcdef")
    assert _names(tmp_path) == []


def test_a_directory_that_cannot_be_synced_is_reported_and_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse(monkeypatch, "fsync", errno.EIO, skip=1)
    with pytest.raises(UnavailableError):
        _durable.publish(tmp_path / "f", b"content")
    assert not [name for name in _names(tmp_path) if name.endswith(".tmp")]


def test_reading_tells_a_missing_file_from_a_refusal(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _durable.read(tmp_path / "none")
    with pytest.raises(UnavailableError) as caught:
        _durable.read(tmp_path)
    assert caught.value.context["file"] == tmp_path


def test_deleting_twice_is_no_error_but_a_refusal_is(tmp_path: Path) -> None:
    _durable.publish(tmp_path / "f", b"x")
    _durable.delete(tmp_path / "f")
    _durable.delete(tmp_path / "f")
    with pytest.raises(UnavailableError):
        _durable.delete(tmp_path)


def test_directories_are_made_with_their_parents_private_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(_durable, "sync_directory", synced.append)
    target = tmp_path / "a" / "b" / "c"
    _durable.make_directory(target)
    _durable.make_directory(target)
    assert target.is_dir()
    assert target.stat().st_mode & 0o777 == 0o700
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


@pytest.mark.parametrize("name", ["x" * 300, "a/" + "y" * 300, "f/below"], ids=len)
def test_a_directory_that_cannot_be_made_is_an_error_with_a_hint(tmp_path: Path, name: str) -> None:
    _durable.publish(tmp_path / "f", b"a file, no directory")
    with pytest.raises(UnavailableError, match="choose a location that this user may write"):
        _durable.make_directory(tmp_path / name)


def test_a_file_in_the_place_of_a_directory_is_an_error(tmp_path: Path) -> None:
    _durable.publish(tmp_path / "f", b"a file, no directory")
    with pytest.raises(UnavailableError, match="choose a location that this user may write"):
        _durable.make_directory(tmp_path / "f")


def test_a_directory_that_may_not_be_searched_is_an_error_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, **_: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(UnavailableError, match="Permission denied"):
        _durable.make_directory(tmp_path / "a" / "b")
