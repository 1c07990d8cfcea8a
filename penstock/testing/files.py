"""Conformance tests of a file system."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from penstock.checkpointing import PUnit, decode, encode
from penstock.checkpointing.files import FileFacts, Files
from penstock.errors import ConflictError, InvalidUsageError

__all__ = ["LARGE", "FilesTests"]

LARGE = 11 * 1024 * 1024
"""A size above the limit at which clients of object stores divide an upload by default."""


class FilesTests:
    """The contract of `penstock.checkpointing.files.Files`. Each test has its own directory."""

    exclusive: ClassVar[bool] = True
    """True if only one of several writers can create a file at the same moment."""

    @pytest.fixture
    def files(self) -> Files:
        """Return an empty directory."""
        raise NotImplementedError  # not abstract, because pytest silently skips abstract classes

    @pytest.mark.parametrize("size", [1, 3, 100_000, LARGE])
    @pytest.mark.parametrize("wrap", [bytes, memoryview, pa.py_buffer], ids=["bytes", "memoryview", "buffer"])
    def test_what_was_published_is_read(self, files: Files, size: int, wrap: Callable[[bytes], Any]) -> None:
        """Publish content of several sizes, from several kinds of buffers."""
        content = os.urandom(size)
        files.publish("f", memoryview(wrap(content)))
        assert bytes(files.read("f")) == content

    def test_a_file_is_published_in_pieces(self, files: Files) -> None:
        """Publish content in pieces. Some pieces are empty."""
        content = os.urandom(LARGE)
        files.publish("f", b"", content[:1], memoryview(content[1:100]), b"", content[100:])
        assert bytes(files.read("f")) == content

    def test_a_part_of_a_file_is_read(self, files: Files) -> None:
        """Read ranges, including ranges that end or begin after the end of the file."""
        content = os.urandom(1000)
        files.publish("f", content)
        for at, size in ((0, 10), (990, 10), (995, 10), (1000, 5), (2000, 5), (17, 0)):
            assert bytes(files.read_range("f", at, size)) == content[at : at + size]
        with pytest.raises(FileNotFoundError):
            files.read_range("g", 0, 1)

    def test_a_p_unit_is_decoded_from_what_is_read(self, files: Files) -> None:
        """Publish and decode a p-unit."""
        unit = PUnit("kind", {"n": 1}, {"rows": pa.RecordBatch.from_pydict({"a": [1, 2, 3]})})
        files.publish("unit.punit", encode(unit))
        read = decode(files.read("unit.punit"), files.path_of("unit.punit"))
        assert read.blocks["rows"].equals(unit.blocks["rows"])

    def test_names_that_look_compressed_or_encoded_are_taken_as_they_are(self, files: Files) -> None:
        """Publish files under names that some file systems would change."""
        for name in ("a.gz", "b%20b", "c c", "d?e=f", "g#h", "ü", "000000000001-abc.punit"):
            files.publish(name, name.encode())
        for name in ("a.gz", "b%20b", "c c", "d?e=f", "g#h", "ü", "000000000001-abc.punit"):
            assert bytes(files.read(name)) == name.encode()
        assert len(files.list()) == 7

    def test_a_file_that_is_not_there_is_not_found(self, files: Files) -> None:
        """Read files that do not exist."""
        for below in (files, files.child("none")):
            with pytest.raises(FileNotFoundError) as error:
                below.read("f")
            assert below.path_of("f") in str(error.value)
        files.publish("f", b"x")
        with pytest.raises(FileNotFoundError):
            files.read("g")

    def test_deleting_removes_one_file_and_twice_is_no_error(self, files: Files) -> None:
        """Delete a missing file, an existing file, and the same file again."""
        files.delete("f")
        files.publish("f", b"x")
        files.publish("g", b"y")
        files.delete("f")
        files.delete("f")
        assert files.list() == [FileFacts("g", 1)]
        files.publish("f", b"z")
        assert bytes(files.read("f")) == b"z"

    def test_a_list_holds_the_direct_children_by_name(self, files: Files) -> None:
        """List files and directories."""
        assert files.list() == []
        files.child("sub").child("deep").publish("below", b"not listed")
        files.publish("b", b"22")
        files.publish("a", b"1")
        assert files.list() == [FileFacts("a", 1), FileFacts("b", 2), FileFacts("sub", 0, is_directory=True)]
        assert files.child("sub").list() == [FileFacts("deep", 0, is_directory=True)]
        assert files.child("absent").list() == []

    def test_a_child_is_a_directory_of_its_own_and_names_its_place(self, files: Files) -> None:
        """Publish two files under the same name in two directories."""
        child = files.child("query").child("operator")
        child.publish("f", b"below")
        files.publish("f", b"above")
        assert bytes(child.read("f")) == b"below"
        assert bytes(files.read("f")) == b"above"
        assert child.path_of("f").endswith("/query/operator/f")
        assert child.location.partition("?")[0] == f"{files.location.partition('?')[0]}/query/operator"

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../f", "/f", "a\\b", "a\0b"], ids=repr)
    def test_a_name_does_not_lead_elsewhere(self, files: Files, name: str) -> None:
        """Refuse names that leave the directory."""
        calls: list[Callable[[], object]] = [
            lambda: files.publish(name, b"x"),
            lambda: files.read(name),
            lambda: files.delete(name),
            lambda: files.child(name),
        ]
        for call in calls:
            with pytest.raises(InvalidUsageError, match="leaves its directory"):
                call()
        assert files.list() == []

    def test_an_empty_file_is_refused(self, files: Files) -> None:
        """Refuse to publish a file without bytes."""
        for content in ([], [b""], [b"", b""]):
            with pytest.raises(InvalidUsageError, match="at least one byte"):
                files.publish("f", *content)
        assert files.list() == []

    def test_a_pickled_directory_is_the_same_one(self, files: Files) -> None:
        """Use a copy that went through pickle."""
        child = files.child("c")
        child.publish("f", b"x")
        copy = pickle.loads(pickle.dumps(child))
        assert copy == child
        assert bytes(copy.read("f")) == b"x"

    def test_many_threads_publish_read_and_delete_at_once(self, files: Files) -> None:
        """Use one directory in eight threads."""

        def work(number: int) -> bytes:
            directory = files.child(f"bucket-{number % 3}")
            for name in (f"{number}-a", f"{number}-b"):
                directory.publish(name, f"{name}".encode() * 1000)
            content = bytes(directory.read(f"{number}-b"))
            directory.delete(f"{number}-a")
            return content

        with ThreadPoolExecutor(8) as pool:
            contents = list(pool.map(work, range(24)))
        assert contents == [f"{number}-b".encode() * 1000 for number in range(24)]
        remaining = {fact.name for place in range(3) for fact in files.child(f"bucket-{place}").list()}
        assert remaining == {f"{number}-b" for number in range(24)}

    def test_a_name_is_given_once(self, files: Files) -> None:
        """Refuse a name that exists, even for the same content."""
        files.publish("f", b"first")
        for content in (b"second", b"first"):
            with pytest.raises(ConflictError) as error:
                files.publish("f", content)
            assert str(error.value.context["file"]) == files.path_of("f")
        assert bytes(files.read("f")) == b"first"
        assert files.list() == [FileFacts("f", 5)]

    def test_of_several_that_publish_one_name_exactly_one_succeeds(self, files: Files) -> None:
        """Publish one name from four threads at the same moment."""
        if not self.exclusive:
            pytest.skip("this file system may let two writers publish one name at the same moment")
        for round_ in range(20):
            barrier = threading.Barrier(4)

            def publish(number: int, name: str = f"f{round_}", barrier: threading.Barrier = barrier) -> bytes:
                barrier.wait()
                try:
                    files.publish(name, content := b"%d" % number)
                except ConflictError:
                    return b""
                return content

            with ThreadPoolExecutor(4) as pool:
                outcomes = list(pool.map(publish, range(4)))
            assert sorted(outcomes)[:3] == [b"", b"", b""]
            assert bytes(files.read(f"f{round_}")) == max(outcomes)
        assert not [fact for fact in files.list() if fact.is_unfinished]
