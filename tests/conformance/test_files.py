"""The common promises of all implementations of `Files`, and the additional ones of each."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from obstore.store import MemoryStore
from pyarrow import fs

from penstock.checkpointing.files import (
    FileFacts,
    Files,
    LocalFiles,
    ObjectFiles,
    locations,
    open_files,
    remote,
    stores,
)
from penstock.errors import ConflictError, InvalidUsageError, UnavailableError
from penstock.testing.files import LARGE, FilesTests
from tests.servers.s3 import BUCKET, SECRET, Request, S3Server
from tests.servers.stores import Azurite, GoogleServer


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as started:
        yield started


@pytest.fixture(scope="module")
def google() -> Iterator[GoogleServer]:
    with GoogleServer() as started:
        yield started


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    started = Azurite()
    yield started
    started.remove()


@pytest.fixture
def s3(server: S3Server) -> Iterator[S3Server]:
    server.requests.clear()
    yield server
    server.refuse = server.lose_reply = None


def _fresh(server: S3Server) -> Files:
    return open_files(server.uri(f"state/{uuid.uuid4().hex}"))


def _like_hdfs(root: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Return files that are written and moved, as on HDFS, by pyarrow's file system of this machine."""
    monkeypatch.setattr(locations, "_connect", lambda _: (fs.LocalFileSystem(), str(root)))
    return open_files(f"hdfs://{uuid.uuid4().hex}/state")


class TestLocalFiles(FilesTests):
    @pytest.fixture(params=[False, True], ids=["page cache", "direct I/O"])
    def files(self, request: pytest.FixtureRequest, tmp_path: Path) -> Files:
        return LocalFiles(tmp_path / "state", direct_io=request.param)


class TestS3(FilesTests):
    @pytest.fixture
    def files(self, server: S3Server) -> Files:
        return _fresh(server)


class TestGoogle(FilesTests):
    @pytest.fixture
    def files(self, google: GoogleServer) -> Files:
        return open_files(google.uri(f"state/{uuid.uuid4().hex}"))


class TestAzure(FilesTests):
    @pytest.fixture
    def files(self, azurite: Azurite) -> Files:
        return open_files(azurite.uri(f"state/{uuid.uuid4().hex}"))


class TestMemory(FilesTests):
    """obstore's own store, over which the protocol's models run."""

    @pytest.fixture
    def files(self, monkeypatch: pytest.MonkeyPatch) -> Files:
        memory = MemoryStore()
        monkeypatch.setattr(stores, "_connect", lambda _: (memory, "state"))
        return open_files(f"s3://{uuid.uuid4().hex}/state")


class TestFilesThatAreMoved(FilesTests):
    exclusive = False

    @pytest.fixture
    def files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
        return _like_hdfs(tmp_path / "state", monkeypatch)


# ------------------------------------------------------------------------------------------ a disk


def test_local_files_and_directories_are_private(tmp_path: Path) -> None:
    open_files(tmp_path / "state").child("query").publish("f", b"x")
    assert (tmp_path / "state" / "query" / "f").stat().st_mode & 0o777 == 0o600
    for made in (tmp_path / "state", tmp_path / "state" / "query"):
        assert made.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_an_io_error_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    directory = open_files(tmp_path / "state")
    directory.publish("before", b"x")

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(UnavailableError) as caught:
        directory.publish("f", b"content")
    monkeypatch.undo()
    assert str(caught.value.context["file"]) == directory.path_of("f")
    assert caught.value.context["reason"] == "Input/output error"
    assert directory.list() == [FileFacts("before", 1)]
    directory.publish("f", b"content")


def test_a_read_of_a_disk_that_fails_is_no_missing_file(tmp_path: Path) -> None:
    directory = open_files(tmp_path / "state")
    directory.child("sub").publish("f", b"x")
    with pytest.raises(UnavailableError):
        directory.read("sub")
    with pytest.raises(UnavailableError):
        directory.delete("sub")
    with pytest.raises(UnavailableError, match="cannot list state"):
        directory.child("sub").child("f").list()


# ------------------------------------------------------------------------------------------ S3


def test_the_requests_of_every_call_are_few_and_known(s3: S3Server) -> None:
    directory = _fresh(s3)
    calls: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: directory.publish("f", b"x"), ["PUT"]),
        (lambda: directory.publish("large", bytes(LARGE)), ["PUT"]),
        (lambda: directory.read("large"), ["GET"]),
        (lambda: directory.read_range("large", 5, 10), ["GET"]),
        (directory.list, ["List"]),
        (lambda: directory.delete("large"), ["POST"]),
        (lambda: directory.delete("large"), ["POST"]),
    ]
    for call, requests in calls:
        s3.requests.clear()
        call()
        assert s3.operations == requests
    s3.requests.clear()
    with pytest.raises(ConflictError):
        directory.publish("f", b"y")
    assert s3.operations == ["PUT", "HEAD"]


def test_opening_and_naming_ask_nothing(s3: S3Server) -> None:
    directory = _fresh(s3).child("c")
    pickle.loads(pickle.dumps(directory))
    assert directory.location
    assert directory.path_of("f")
    assert s3.operations == []


@pytest.mark.parametrize("size", [1000, LARGE])
@pytest.mark.parametrize("status", [400, 403])
def test_an_upload_that_fails_leaves_no_object(s3: S3Server, size: int, status: int) -> None:
    directory = _fresh(s3)
    directory.publish("before", b"x")
    s3.refuse = lambda _: status
    with pytest.raises(UnavailableError) as refused:
        directory.publish("f", bytes(size))
    assert refused.value.context["file"] == directory.path_of("f")
    assert SECRET not in str(refused.value)
    s3.refuse = None
    assert directory.list() == [FileFacts("before", 1)]
    directory.publish("f", bytes(size))
    assert len(directory.read("f")) == size


def test_a_call_whose_reply_was_lost_knows_its_own_object(s3: S3Server) -> None:
    directory = _fresh(s3)
    s3.lose_reply = lambda request: request.operation == "PUT" and s3.operations.count("PUT") == 1
    directory.publish("f", b"content")
    assert s3.operations == ["PUT", "PUT", "HEAD"]
    assert bytes(directory.read("f")) == b"content"


def test_a_call_whose_reply_was_lost_knows_the_object_of_another_with_the_same_content(s3: S3Server) -> None:
    directory = _fresh(s3)
    directory.publish("f", b"content")
    s3.requests.clear()
    s3.lose_reply = lambda request: request.operation == "PUT" and s3.operations.count("PUT") == 1
    with pytest.raises(ConflictError):
        directory.publish("f", b"content")
    assert s3.operations == ["PUT", "PUT", "HEAD"]


@pytest.mark.parametrize("status", [409, 412])
def test_a_name_that_only_a_failed_request_took_is_free_again(s3: S3Server, status: int) -> None:
    directory = _fresh(s3)
    conflicts = [status]
    s3.refuse = lambda request: conflicts.pop() if request.operation == "PUT" and conflicts else None
    directory.publish("f", b"content")
    assert s3.operations == ["PUT", "HEAD", "PUT"]
    assert bytes(directory.read("f")) == b"content"


def test_a_name_that_is_always_called_taken_but_never_is_ends_in_an_error(s3: S3Server) -> None:
    directory = _fresh(s3)
    s3.refuse = lambda request: 412 if request.operation == "PUT" else None
    with pytest.raises(UnavailableError, match="keep creating and deleting"):
        directory.publish("f", b"content")


def test_a_request_that_arrives_after_another_process_took_the_name_changes_nothing(s3: S3Server) -> None:
    directory = _fresh(s3)
    late, go_on = threading.Event(), threading.Event()

    def delay(request: Request) -> None:
        if request.operation == "PUT" and not late.is_set():
            late.set()
            assert go_on.wait(60)

    s3.refuse = delay
    with ThreadPoolExecutor(1) as pool:
        zombie = pool.submit(directory.publish, "f", b"zombie")
        assert late.wait(60)
        directory.publish("f", b"successor")
        go_on.set()
        with pytest.raises(ConflictError):
            zombie.result()
    assert bytes(directory.read("f")) == b"successor"


def test_markers_of_directories_that_other_programs_make_are_no_files(s3: S3Server) -> None:
    directory = _fresh(s3)
    directory.publish("f", b"x")
    path = urlsplit(directory.location).path
    for marker in ("", "sub/"):
        url = f"http://127.0.0.1:{s3.port}/{BUCKET}{path}/{marker}"
        urllib.request.urlopen(urllib.request.Request(url, data=b"", method="PUT")).close()
    assert directory.list() == [FileFacts("f", 1), FileFacts("sub", 0, is_directory=True)]
    assert directory.child("sub").list() == []


def test_a_request_that_fails_for_a_moment_is_repeated(s3: S3Server) -> None:
    directory = _fresh(s3)
    failures = [503]
    s3.refuse = lambda _: failures.pop() if failures else None
    directory.publish("f", b"content")
    assert not failures
    assert bytes(directory.read("f")) == b"content"


def test_a_refusal_of_s3_is_unavailable_and_tells_no_secret(s3: S3Server) -> None:
    directory = _fresh(s3)
    directory.publish("f", b"content")
    s3.refuse = lambda _: 403
    calls: list[Callable[[], object]] = [
        lambda: directory.publish("g", b"x"),
        lambda: directory.read("f"),
        lambda: directory.delete("f"),
        directory.list,
    ]
    for call in calls:
        with pytest.raises(UnavailableError) as caught:
            call()
        assert caught.value.context["file"] in {
            directory.path_of("f"),
            directory.path_of("g"),
            directory.location,
        }
        assert "403" in caught.value.context["reason"]
        assert "AccessDenied" in caught.value.context["reason"]
        assert SECRET not in str(caught.value)
        assert SECRET not in repr(directory)
    s3.refuse = None
    assert bytes(directory.read("f")) == b"content"


def test_a_bucket_that_is_not_there_refuses_what_is_published(s3: S3Server) -> None:
    directory = open_files(s3.uri("state", bucket="none"))
    with pytest.raises(UnavailableError, match="NoSuchBucket"):
        directory.publish("f", b"x")
    with pytest.raises(FileNotFoundError):
        directory.read("f")


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    with S3Server() as gone:
        directory = open_files(f"{gone.uri('state')}&retry_limit_seconds=0.5")
        directory.publish("f", b"x")
    with pytest.raises(UnavailableError) as caught:
        directory.publish("g", b"x")
    assert "error sending request" in caught.value.context["reason"]
    assert str(gone.port) not in caught.value.context["reason"]


_FORK = """
import os, sys
from penstock.checkpointing.files import open_files
from penstock.errors import InvalidUsageError

directory = open_files(sys.argv[1])

def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except InvalidUsageError as error:
            assert "spawn" in str(error)
            os._exit(3)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

assert [in_child(lambda: directory.publish(f"child{n}", b"c")) for n in range(3)] == [0, 0, 0]
directory.publish("parent", b"p")
for work in (lambda: directory.read("parent"), directory.list, lambda: directory.publish("no", b"n")):
    assert in_child(work) == 3
directory.publish("after", b"a")
"""


def test_a_process_may_fork_before_it_uses_a_store_and_a_later_child_is_told(s3: S3Server) -> None:
    directory = _fresh(s3)
    assert isinstance(directory, ObjectFiles)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORK, directory.uri],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert [fact.name for fact in directory.list()] == ["after", "child0", "child1", "child2", "parent"]


def test_each_process_makes_its_own_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def connect(_: str) -> tuple[Any, str]:
        made.append(os.getpid())
        return fs.LocalFileSystem(), str(tmp_path)

    monkeypatch.setattr(locations, "_connect", connect)
    directory = open_files(f"hdfs://{uuid.uuid4().hex}/state")
    directory.list()
    directory.child("c").list()
    assert len(made) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    directory.list()
    assert made[1:] == [-1]


# ------------------------------------------------------------------------------------------- HDFS


class _Failing:
    """pyarrow's file system of this machine, of which one call fails."""

    def __init__(self, call: str) -> None:
        self._call, self._real = call, fs.LocalFileSystem()

    def __getattr__(self, name: str) -> Any:
        if name == self._call:

            def fail(*_: object, **__: object) -> None:
                raise OSError(errno.EIO, "Input/output error")

            return fail
        return getattr(self._real, name)


@pytest.mark.parametrize("call", ["get_file_info", "create_dir", "open_output_stream", "move"])
def test_a_move_or_write_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(locations, "_connect", lambda _: (_Failing(call), str(tmp_path / "state")))
    directory = open_files(f"hdfs://{uuid.uuid4().hex}/state")
    with pytest.raises(UnavailableError) as caught:
        directory.publish("f", b"x")
    assert caught.value.context["file"] == directory.path_of("f")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_of_hdfs_is_not_seen_under_its_name_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = _like_hdfs(tmp_path / "state", monkeypatch)
    seen: list[list[FileFacts]] = []
    real = remote._write

    def write(system: Any, path: str, views: Any) -> None:
        real(system, path, views)
        seen.append(directory.list())

    monkeypatch.setattr(remote, "_write", write)
    directory.publish("f", b"content")
    ((unfinished,),) = seen
    assert unfinished.is_unfinished
    assert unfinished.name.startswith(".f.")
    assert directory.list() == [FileFacts("f", 7)]


def test_a_read_that_ends_early_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short:
        def __enter__(self) -> Short:
            return self

        def __exit__(self, *_: object) -> None: ...

        def size(self) -> int:
            return 10

        def read_buffer(self, _: int) -> pa.Buffer:
            return pa.py_buffer(b"123")

    class System:
        def open_input_file(self, _: str) -> Short:
            return Short()

    monkeypatch.setattr(locations, "_connect", lambda _: (System(), str(tmp_path)))
    with pytest.raises(UnavailableError, match="ended early"):
        open_files(f"hdfs://{uuid.uuid4().hex}/state").read("f")


def test_a_write_that_fails_halfway_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def __init__(self, path: str) -> None:
            self.path = Path(path)

        def write(self, view: memoryview) -> None:
            self.path.write_bytes(view[:3])
            raise pa.ArrowMemoryError("malloc of size 10 failed")

        def close(self) -> None: ...

    class System:
        def open_output_stream(self, path: str, compression: None) -> Stream:
            return Stream(path)

        def get_file_info(self, _: str) -> fs.FileInfo:
            return fs.FileInfo("f", fs.FileType.NotFound)

        def create_dir(self, _: str, recursive: bool) -> None: ...

        def delete_file(self, path: str) -> None:
            Path(path).unlink(missing_ok=True)

    monkeypatch.setattr(locations, "_connect", lambda _: (System(), str(tmp_path)))
    with pytest.raises(UnavailableError):
        open_files(f"hdfs://{uuid.uuid4().hex}/state").publish("f", b"content")
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------- locations


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b"),
        (Path("/a/b"), "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("FILE:///a/b%20c", "/a/b c"),
        ("/a/b%20c", "/a/b%20c"),
        ("relative", f"{Path.cwd()}/relative"),
        ("/a/c:/b", "/a/c:/b"),
    ],
    ids=str,
)
def test_a_path_and_a_file_uri_are_of_this_machine(location: str | Path, path: str) -> None:
    directory = open_files(location)
    assert isinstance(directory, LocalFiles)
    assert directory.location == path
    assert directory.path_of("f") == f"{path}/f"


@pytest.mark.parametrize(
    ("location", "hint"),
    [
        ("", "a path or a URI"),
        ("s3n://bucket/state", "write s3://"),
        ("wasbs://c@a.blob.core.windows.net/s", "write abfss://"),
        ("dbfs:/state", "begins with file://"),
        ("http://host/state", "begins with file://"),
        ("nonsense://host/state", "begins with file://"),
        ("s3:///state", "no bucket"),
        ("s3:/bucket/state", "no bucket"),
        ("s3://bucket/state#1", "%23"),
        ("file://host/state", "file:///absolute"),
        ("file:///state?x=y", "file:///absolute"),
        (Path("s3://bucket/state"), "as a str"),
    ],
    ids=str,
)
def test_a_location_that_cannot_be_is_refused_with_a_hint(location: str | Path, hint: str) -> None:
    with pytest.raises(InvalidUsageError, match=hint):
        open_files(location)


def test_a_mistake_in_the_rest_of_a_uri_is_found_by_the_first_use() -> None:
    directory = open_files(f"s3://key:{SECRET}@bucket/state?regoin=eu-central-1")
    calls: list[Callable[[], object]] = [
        lambda: directory.publish("f", b"x"),
        lambda: directory.read("f"),
        lambda: directory.delete("f"),
        directory.list,
    ]
    for call in calls:
        with pytest.raises(InvalidUsageError, match="regoin") as caught:
            call()
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://bucket/p?region=eu-1", "s3://bucket/p?region=eu-1"),
        ("s3://key:secret@bucket/p?region=eu-1&x=secret", "s3://***@bucket/p?region=eu-1&x=***"),
        ("s3://key:sec/ret@bucket/p", "s3://***@bucket/p"),
        ("abfss://container@account.dfs.core.windows.net/p?client_secret=secret",
         "abfss://container@account.dfs.core.windows.net/p?client_secret=***"),
        ("abfss://:secret@account.dfs.core.windows.net/container/p",
         "abfss://***@account.dfs.core.windows.net/container/p"),
        ("gs://anonymous@bucket/p?scheme=http", "gs://anonymous@bucket/p?scheme=http"),
        ("hdfs://user@host:8020/p/", "hdfs://user@host:8020/p/"),
    ],
)  # fmt: skip
def test_a_location_shows_what_it_is_but_no_secret(uri: str, shown: str) -> None:
    directory = open_files(uri)
    assert directory.location.rstrip("/") == shown.rstrip("/")
    assert "secret@" not in repr(directory)
    child = directory.child("c")
    assert child.location.partition("?")[0] == f"{shown.partition('?')[0].rstrip('/')}/c"
    assert child.path_of("f") == f"{shown.partition('?')[0].rstrip('/')}/c/f"


@pytest.mark.parametrize("bad", ["s3://key:not-to-be-seen@bucket/a b", "s3://key:not/to/be/seen@bucket/a b"])
def test_a_uri_that_cannot_be_parsed_shows_no_secret(bad: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        open_files(bad).list()
    assert "seen" not in str(caught.value)


def test_hdfs_without_its_libraries_is_unavailable_in_one_line() -> None:
    with pytest.raises(UnavailableError) as caught:
        open_files("hdfs://127.0.0.1:1/state").list()
    assert "\n" not in str(caught.value)
