"""Decode values in Protobuf as messages of one type, in any version of their schema."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._extras import need_extra
from penstock.errors import InvalidUsageError
from penstock.records.decoder import (
    NOT_FRAMED,
    UNKNOWN_SCHEMA,
    Decoder,
    file_of,
    missing_rows,
    read_schema_file,
    scatter,
    subject_schema,
)
from penstock.records.framing import Frames, decode_in_parts, read_frames
from penstock.records.registry import RegisteredSchema, SchemaRegistry, UnknownSchemaError

__all__ = ["ProtobufDecoder", "protobuf_decoder"]

_FILE: Final = "penstock_values.proto"
_OTHER_MESSAGE: Final = "the value is another message than the message of the columns"
_NO_VALUE: Final = "the value does not match its message"


class ProtobufDecoder(Decoder):
    """Decodes Protobuf to the columns of one message.

    Parameters
    ----------
    descriptors : bytes
        A ``FileDescriptorSet`` with the message and its dependencies.
    message : str
        The full name of the message.
    registry : SchemaRegistry or None
        The registry that gives each value's schema by its number; None if values have no number.
    """

    def __init__(self, descriptors: bytes, message: str, registry: SchemaRegistry | None) -> None:
        self._descriptors, self._message, self._registry = descriptors, message, registry
        self.schema = pa.schema([field.with_nullable(True) for field in self._handler.schema()])

    @property
    def _handler(self) -> Any:
        return _message_handler(self._descriptors, self._message)

    def decode(self, values: pa.Array) -> tuple[pa.RecordBatch, list[str | None]]:
        """Decode a batch; see `Decoder.decode`."""
        reasons: list[str | None] = [None] * len(values)
        rows = np.flatnonzero(np.asarray(values.is_valid()))
        if self._registry is None:
            frames = Frames.of(values)
        else:
            frames = read_frames(values, indexes=True)
            rows = self._of_message(frames, rows, reasons, self._registry)
        handler = self._handler
        parts, places = decode_in_parts(rows, lambda some: handler.array_to_record_batch(frames.take(some)))
        for row in missing_rows(rows, places, len(values)):
            reasons[row] = _NO_VALUE
        nullable = [part.select(self.schema.names).cast(self.schema) for part in parts]
        return scatter(nullable, places, len(values), self.schema), reasons

    def _of_message(
        self,
        frames: Frames,
        rows: npt.NDArray[np.int64],
        reasons: list[str | None],
        registry: SchemaRegistry,
    ) -> npt.NDArray[np.int64]:
        """Return the rows that hold the message; set the reason of each other row in `reasons`."""
        keys = np.column_stack([frames.schemas[rows], frames.paths[rows]])
        if len(keys) and (keys == keys[0]).all():  # the usual case, which needs no sorting
            kinds, which = keys[:1], np.zeros(len(keys), np.int64)
        else:
            kinds, which = np.unique(keys, axis=0, return_inverse=True)
        found = [self._refusal(registry, number, path) for number, *path in kinds.tolist()]
        is_good = np.array([reason is None for reason in found], np.bool_)[which.reshape(-1)]
        for row, kind in zip(rows[~is_good].tolist(), which.reshape(-1)[~is_good].tolist(), strict=True):
            reasons[row] = found[kind]
        return rows[is_good]

    def _refusal(self, registry: SchemaRegistry, number: int, path: list[int]) -> str | None:
        """Return why values of a message in a schema cannot be read; None if they can be read."""
        if number < 0:
            return NOT_FRAMED
        try:
            schema = registry.by_id(number)
        except UnknownSchemaError:
            return UNKNOWN_SCHEMA
        found = _message_at(schema, tuple(one for one in path if one >= 0))
        return None if found == self._message else _OTHER_MESSAGE


@lru_cache(maxsize=100)
def _message_handler(descriptors: bytes, message: str) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from ptars import HandlerPool, PtarsConfig

    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    descriptor = pool.FindMessageTypeByName(message)
    config = PtarsConfig(
        timestamp_unit="us", duration_unit="us", enum_repr="string", list_value_nullable=True,
        list_nullable=True, map_nullable=True, map_value_nullable=True,
    )  # fmt: skip
    return HandlerPool([descriptor.file], config).get_for_message(descriptor)


@lru_cache(maxsize=1_000)
def _message_at(schema: RegisteredSchema, path: tuple[int, ...]) -> str | None:
    """Return the full name of the message at the indexes `path`; None if there is none."""
    try:
        descriptors = _compile(schema)
    except InvalidUsageError:
        return None
    return next((name for name, at in _messages(descriptors, _FILE) if at == path), None)


def _messages(descriptors: bytes, file: str | None) -> list[tuple[str, tuple[int, ...]]]:
    """Return the full name and the indexes of each message in a file, or in all files."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    found: list[tuple[str, tuple[int, ...]]] = []

    def add(messages: Any, scope: str, path: tuple[int, ...]) -> None:
        for place, one in enumerate(messages):
            if not one.options.map_entry:
                found.append((f"{scope}{one.name}", (*path, place)))
                add(one.nested_type, f"{scope}{one.name}.", (*path, place))

    for one in FileDescriptorSet.FromString(descriptors).file:
        if file in (None, one.name):
            add(one.message_type, f"{one.package}." if one.package else "", ())
    return found


@lru_cache(maxsize=1_000)
def _compile(schema: RegisteredSchema) -> bytes:
    if schema.kind != "PROTOBUF":
        raise InvalidUsageError("the schema is not a Protobuf schema", kind=schema.kind.capitalize())
    with TemporaryDirectory() as directory:
        _write(schema, _FILE, Path(directory))
        return _run_protoc(Path(directory, _FILE))


def _write(schema: RegisteredSchema, name: str, directory: Path) -> None:
    file = (directory / name).resolve()
    if not file.is_relative_to(directory.resolve()):
        raise InvalidUsageError("a schema refers to a file outside its own directory", file=name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(schema.text)
    for other, reference in schema.references:
        _write(reference, other, directory)


def _run_protoc(file: Path) -> bytes:
    """Return the ``FileDescriptorSet`` of a file in protoc's language.

    Raises
    ------
    InvalidUsageError
        If protoc refuses the file.
    """
    with TemporaryDirectory() as directory:
        out = Path(directory, "descriptors")
        # Runs in a separate process, because protoc does not write its messages to Python's `sys.stderr`.
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "--include_imports",
            f"--descriptor_set_out={out}",
        ]
        command += [f"--proto_path={file.parent}", f"--proto_path={_included()}", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if file.name in line]
            reason = lines[0].removeprefix(f"{file.parent}/") if lines else f"exit code {done.returncode}"
            raise InvalidUsageError("the schema is not a Protobuf schema", reason=reason)
        return out.read_bytes()


def _included() -> Path:
    import grpc_tools

    return Path(next(iter(grpc_tools.__path__)), "_proto")


def protobuf_decoder(
    schema: str | None, message: str | None, registry: SchemaRegistry | None
) -> ProtobufDecoder:
    """Return the decoder for a message of a schema, or of the registry's newest schema.

    Parameters
    ----------
    schema : str or None
        The text of a ``.proto`` file, or the name of a ``.proto`` or ``FileDescriptorSet`` file.
    message : str or None
        The full name of the message; None if the schema has only one message at its top level.
    registry : SchemaRegistry or None
        The registry that gives each value's schema by its number; None if values have no number.

    Raises
    ------
    InvalidUsageError
        If the schema or the message is unknown, or a package is not installed; see also
        `SchemaRegistry.by_id`.
    UnavailableError
        If the registry does not answer.
    """
    need_extra("protobuf", "values in Protobuf")
    file = None if schema is None else file_of(schema)
    if schema is None:
        descriptors, own = _compile(subject_schema(registry)), _FILE
    elif file is None:
        descriptors, own = _compile(RegisteredSchema("PROTOBUF", schema)), _FILE
    elif file.suffix == ".proto":
        read_schema_file(file)
        descriptors, own = _run_protoc(file.absolute()), file.name
    else:
        descriptors, own = _checked(read_schema_file(file), file), None
    messages = _messages(descriptors, own)
    names = [name for name, _ in messages]
    top = [name for name, path in messages if len(path) == 1]
    if message is None and len(top) == 1:
        return ProtobufDecoder(descriptors, top[0], registry)
    if message not in names:
        raise InvalidUsageError(
            "the schema has several messages" if message is None else "the schema has no such message",
            message=message or "none",
            known=", ".join(names),
            hint="name one message with its package",
        )
    return ProtobufDecoder(descriptors, message, registry)


def _checked(content: bytes, file: Path) -> bytes:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        FileDescriptorSet.FromString(content)
    except DecodeError:
        raise InvalidUsageError(
            "the file holds no descriptors of Protobuf",
            file=file,
            hint="create the file by protoc --include_imports --descriptor_set_out, or name a .proto file",
        ) from None
    return content
