"""The interface of codecs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from penstock.errors import CorruptDataError

if TYPE_CHECKING:
    from penstock.compression.kernels.bits import Ints
    from penstock.compression.node import Node

__all__ = ["Cascade", "Codec", "UnfitError", "check", "check_version"]

Cascade = tuple[str, ...]
"""Names of codecs: the first encodes the stream, the next its main child, and so on."""


class UnfitError(Exception):
    """The chosen codec cannot encode a stream; the caller uses the default codec."""


def check(holds: bool, fact: str) -> None:
    """Refuse a node that contradicts itself.

    Raises
    ------
    CorruptDataError
        If the condition does not hold.
    """
    if not holds:
        raise CorruptDataError(fact)


def check_version(version: int, newest: int, name: str, file: object) -> None:
    """Refuse a format version newer than this code.

    Raises
    ------
    CorruptDataError
        If the version is newer; the text names both versions.
    """
    if version > newest:
        raise CorruptDataError(
            f"the {name} has a newer format than this version of Penstock reads",
            file=file,
            format_version=version,
            newest_known=newest,
            hint="upgrade Penstock",
        )


class Codec(ABC):
    """Turns a stream into a node and back.

    Codecs have no state. `decode` does not trust a node: every field is checked before `decode` allocates
    memory or runs a kernel.
    """

    number: int
    """The codec's number in the bytes of a node."""
    name: str
    """The codec's name in a cascade."""

    @abstractmethod
    def encode(self, values: Ints) -> Node:
        """Return the coded stream.

        Raises
        ------
        UnfitError
            If the codec cannot hold these values.
        """

    def name_of(self, node: Node) -> str:
        """Return the name of this codec's variant that encoded a node."""
        return self.name

    @abstractmethod
    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return values `start` to `stop` - 1 of the stream; decode as little as possible.

        Raises
        ------
        CorruptDataError
            If the node contradicts itself.
        """
