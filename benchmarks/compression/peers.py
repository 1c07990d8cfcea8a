"""The contenders of the compression benchmark: Penstock, and other formats and libraries.

Everything runs in memory and on one core: `one_core` is called before any library is imported.
"""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.compression import Block, Chooser, Goal, Plan, encode

__all__ = ["Contender", "Ours", "contenders", "is_number", "missing", "numbers_of", "one_core", "peers"]


def one_core() -> None:
    """Pin this process, with the threads of its libraries, to one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for name in ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "BLOSC_NTHREADS"):
        os.environ[name] = "1"
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def is_number(kind: pa.DataType) -> bool:
    """Say whether values are of a fixed width."""
    return bool(pa.types.is_primitive(kind))


def numbers_of(array: pa.Array[Any], *, signed: bool = False) -> Any:
    """Return the values of an array without nulls, as NumPy sees them; instants as integers."""
    kind = array.type
    width = kind.bit_width // 8
    letter = "f" if pa.types.is_floating(kind) and not signed else "i"
    return np.frombuffer(array.buffers()[1], f"{letter}{width}")[array.offset :][: len(array)]


def _from_numbers(kind: pa.DataType, values: Any) -> pa.Array[Any]:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


class Contender(ABC):
    """Codes one column at a time."""

    name: str

    def takes(self, kind: pa.DataType) -> bool:
        """Say whether it can code a column of a type."""
        return True

    @abstractmethod
    def encode(self, column: str, array: pa.Array[Any]) -> Any:
        """Return the coded array."""

    @abstractmethod
    def decode(self, coded: Any) -> pa.Array[Any]:
        """Return the array."""

    def size(self, coded: Any) -> int:
        """Return the bytes of the coded array."""
        return len(coded)


class _TimedChooser(Chooser):
    """A chooser that measures the time of its decisions."""

    spent_s = 0.0

    def plan(self, column: str, array: pa.Array[Any], kind: pa.DataType) -> Plan:
        begin = process_time()
        plan = super().plan(column, array, kind)
        self.spent_s += process_time() - begin
        return plan


class Ours(Contender):
    """Penstock, with one chooser for all columns of a stream.

    The chooser's clock does not move, so it decides about a column only once, unless values do not fit.
    `spent_s` has the time of decisions.
    """

    def __init__(self, name: str, goal: str | Goal) -> None:
        self.name = name
        self.chooser = _TimedChooser(goal, now_s=lambda: 0.0)

    @property
    def spent_s(self) -> float:
        """Seconds spent on decisions until now."""
        return self.chooser.spent_s

    def encode(self, column: str, array: pa.Array[Any]) -> bytes:
        """Return the block."""
        return encode(array, chooser=self.chooser, column=column)

    def decode(self, coded: bytes) -> pa.Array[Any]:
        """Return the array."""
        return Block(coded).read()

    def cascade(self, column: str) -> str:
        """Return what was chosen for a column."""
        plan = self.chooser.columns[column].plan
        streams = [">".join(cascade) or "light" for cascade in plan.cascades]
        return (
            "text_dictionary: " if plan.dictionary else "text_tokens: " if plan.tokens else ""
        ) + ", ".join(streams)


class Parquet(Contender):
    """A Parquet file of one column."""

    def __init__(self, name: str, compression: str, encoding: Callable[[pa.DataType], str | None]) -> None:
        self.name = name
        self._compression = compression
        self._encoding = encoding

    def encode(self, column: str, array: pa.Array[Any]) -> pa.Buffer:
        """Return the file."""
        encoding = self._encoding(array.type)
        sink = pa.BufferOutputStream()
        options = {} if encoding is None else {"use_dictionary": False, "column_encoding": encoding}
        pq.write_table(pa.table({"c": array}), sink, compression=self._compression, **options)
        return sink.getvalue()

    def decode(self, coded: pa.Buffer) -> pa.Array[Any]:
        """Return the array."""
        with pq.ParquetFile(pa.BufferReader(coded), pre_buffer=False) as file:
            return file.read(use_threads=False).column(0)


def _delta(kind: pa.DataType) -> str | None:
    if pa.types.is_floating(kind):
        return "BYTE_STREAM_SPLIT"
    return "DELTA_BINARY_PACKED" if is_number(kind) else "DELTA_LENGTH_BYTE_ARRAY"


def _split(kind: pa.DataType) -> str | None:
    return "BYTE_STREAM_SPLIT" if is_number(kind) else None


class ArrowIpc(Contender):
    """An Arrow IPC stream."""

    def __init__(self, compression: str) -> None:
        self.name = f"arrow-{compression}"
        self._options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)

    def encode(self, column: str, array: pa.Array[Any]) -> pa.Buffer:
        """Return the stream."""
        batch = pa.record_batch([array], ["c"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=self._options) as writer:
            writer.write_batch(batch)
        return sink.getvalue()

    def decode(self, coded: pa.Buffer) -> pa.Array[Any]:
        """Return the array."""
        options = pa.ipc.IpcReadOptions(use_threads=False)
        with pa.ipc.open_stream(coded, options=options) as reader:
            return reader.read_next_batch().column(0)


class Pcodec(Contender):
    """The library pcodec with its defaults. Numbers only."""

    name = "pcodec"

    def __init__(self) -> None:
        from pcodec import ChunkConfig, standalone

        self._library, self._config = standalone, ChunkConfig()

    def takes(self, kind: pa.DataType) -> bool:
        """Say whether it can code a column of a type."""
        return is_number(kind)

    def encode(self, column: str, array: pa.Array[Any]) -> tuple[pa.DataType, bytes]:
        """Return the type and the file."""
        return array.type, self._library.simple_compress(numbers_of(array), self._config)

    def decode(self, coded: tuple[pa.DataType, bytes]) -> pa.Array[Any]:
        """Return the array."""
        return _from_numbers(coded[0], self._library.simple_decompress(coded[1]))

    def size(self, coded: tuple[pa.DataType, bytes]) -> int:
        """Return the file's bytes."""
        return len(coded[1])


class Blosc(Contender):
    """The library blosc2, with bytes shuffled; of text the offsets and the bytes."""

    def __init__(self, codec: str) -> None:
        import blosc2

        self.name = f"blosc2-{codec}"
        self._compress = partial(blosc2.compress2, codec=blosc2.Codec[codec.upper()], clevel=5, nthreads=1)
        self._decompress = partial(blosc2.decompress2, nthreads=1)

    def encode(self, column: str, array: pa.Array[Any]) -> tuple[pa.DataType, int, list[bytes]]:
        """Return type, rows and the buffers."""
        if is_number(array.type):
            buffers = [numbers_of(array)]
        else:
            offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
            text = np.frombuffer(array.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
            buffers = [offsets - offsets[0], text]
        coded = [self._compress(buffer, typesize=buffer.dtype.itemsize) for buffer in buffers]
        return array.type, len(array), coded

    def decode(self, coded: tuple[pa.DataType, int, list[bytes]]) -> pa.Array[Any]:
        """Return the array."""
        kind, rows, buffers = coded
        decoded = [pa.py_buffer(self._decompress(buffer)) for buffer in buffers]
        return pa.Array.from_buffers(kind, rows, [None, *decoded])

    def size(self, coded: tuple[pa.DataType, int, list[bytes]]) -> int:
        """Return the bytes of the buffers."""
        return sum(map(len, coded[2]))


class VortexFile(Contender):
    """A Vortex file, in a store in memory. Text comes back as views."""

    def __init__(self, name: str, options: str) -> None:
        import vortex
        from vortex.store import MemoryStore

        # What drives the files' futures; the thread that asks works too.
        vortex.set_worker_threads(1)
        self.name = name
        self._library = vortex
        self._options = getattr(vortex.io.VortexWriteOptions, options)()
        self._store = MemoryStore()
        self._files = 0

    def encode(self, column: str, array: pa.Array[Any]) -> tuple[str, pa.Table]:
        """Return the file's name, and what it holds."""
        self._files = (self._files + 1) % 64  # a measurement keeps no more at once
        table, name = pa.table({"c": array}), f"{self._files}.vortex"
        self._options.write(table, name, store=self._store)
        return name, table

    def decode(self, coded: tuple[str, pa.Table]) -> pa.Array[Any]:
        """Return the array."""
        file = self._library.open(coded[0], store=self._store)
        return file.scan().read_all().to_arrow_table().column(0)

    def size(self, coded: tuple[str, pa.Table]) -> int:
        """Return the file's bytes; the store does not tell, so it is written once more."""
        with tempfile.TemporaryDirectory(prefix="penstock-vortex-") as folder:
            path = Path(folder) / "c.vortex"
            self._options.write(coded[1], str(path))
            return path.stat().st_size


class VortexArray(Contender):
    """A compressed Vortex array as it is in memory: without the bytes and the time to write it anywhere."""

    name = "vortex-array"

    def __init__(self) -> None:
        import vortex

        self._library = vortex

    def encode(self, column: str, array: pa.Array[Any]) -> Any:
        """Return the array, compressed."""
        return self._library.compress(self._library.array(array))

    def decode(self, coded: Any) -> pa.Array[Any]:
        """Return the array."""
        return coded.to_arrow_array()

    def size(self, coded: Any) -> int:
        """Return the bytes that it would have where it is written."""
        return sum(map(len, coded.serialize(self._library.ArrayContext())))


_PEERS: dict[str, Callable[[], Contender]] = {
    "parquet-snappy": lambda: Parquet("parquet-snappy", "snappy", lambda _: None),
    "parquet-zstd": lambda: Parquet("parquet-zstd", "zstd", lambda _: None),
    "parquet-delta": lambda: Parquet("parquet-delta", "zstd", _delta),
    "parquet-split": lambda: Parquet("parquet-split", "zstd", _split),
    "arrow-lz4": lambda: ArrowIpc("lz4"),
    "arrow-zstd": lambda: ArrowIpc("zstd"),
    "pcodec": Pcodec,
    "vortex": lambda: VortexFile("vortex", "default"),
    "vortex-compact": lambda: VortexFile("vortex-compact", "compact"),
    "vortex-array": VortexArray,
    "blosc2-lz4": lambda: Blosc("lz4"),
    "blosc2-zstd": lambda: Blosc("zstd"),
}


def _installed(name: str) -> bool:
    library = name.partition("-")[0]
    return library in ("parquet", "arrow") or find_spec(library) is not None


def peers(only: list[str] | None = None) -> list[Contender]:
    """Return the peers whose libraries are installed."""
    return [make() for name, make in _PEERS.items() if _installed(name) and (only is None or name in only)]


def missing() -> list[str]:
    """Return the peers whose libraries are not installed."""
    return [name for name in _PEERS if not _installed(name)]


def contenders(only: list[str] | None = None) -> list[Contender]:
    """Return ours with each goal that has a name, and the peers."""
    ours = [Ours(goal, goal) for goal in ("fast", "balanced", "small") if only is None or goal in only]
    return [*ours, *peers(only)]
