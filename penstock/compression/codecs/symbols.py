"""Symbols: texts as codes of their most frequent substrings, of up to 8 bytes each.

The algorithm is from Boncz, Neumann, Leis, "FSST: Fast Random Access String Compression", VLDB 2020, with two
changes. The bytes of all texts are cut into frames of 65,536 bytes, and each frame is encoded as a whole. So
no loop has to check for the end of a text. And four parts of a frame are encoded in parallel.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from penstock.compression.abc import UnfitError, check
from penstock.compression.codecs.registry import CODECS, Transform, decode_stream, register
from penstock.compression.kernels.bits import Bytes, Ints, seal
from penstock.compression.kernels.symbols import (
    LONGEST,
    MAX_SYMBOLS,
    SLOTS,
    code_symbols,
    learn_symbols,
    write_symbols,
)
from penstock.compression.node import Node, width_code
from penstock.compression.parts import ends_of

__all__ = ["Symbols"]

_FRAME = 1 << 16
"""The size of a frame in bytes. Each frame is encoded independently."""
_MAX_SAMPLE = 1 << 14
_PIECE = 1 << 9
"""Symbols are learned from pieces of `_PIECE` bytes, from `_MAX_SAMPLE` bytes together."""
_PADDING = 64


class Symbols(Transform):
    """Parameters: the symbols' number, sizes and bytes. Children: the codes; the code count of each frame."""

    number = 18
    name = "fsst"

    def split(self, values: Ints) -> tuple[Ints, Callable[[Node], Node]]:
        """Return the codes.

        Raises
        ------
        UnfitError
            If the values are not bytes.
        """
        if values.dtype.itemsize > 1:
            raise UnfitError
        symbols, sizes = np.zeros(MAX_SYMBOLS, np.uint64), np.zeros(MAX_SYMBOLS, np.uint8)
        tables = np.empty(1 << 16, np.uint16), np.empty(SLOTS, np.uint64), np.empty(SLOTS, np.uint32)
        source = values.view(np.uint8)
        sample = _sample_of(source)
        count = learn_symbols(sample, sample.size - _PADDING, symbols, sizes, *tables)
        lanes, out = np.empty(2 * _FRAME + 256, np.uint8), np.empty(2 * source.size + _PADDING, np.uint8)
        begins = range(0, source.size, _FRAME)
        ends = [0]
        for begin in begins:
            end = min(begin + _FRAME, source.size)
            if end + _PADDING > source.size:
                # Copy the last bytes into a buffer with padding, which the kernels may read.
                rest = np.append(source[begin:end], np.zeros(_PADDING, np.uint8))
                ends.append(code_symbols(seal(rest), 0, end - begin, *tables, lanes, out, ends[-1]))
            else:
                ends.append(code_symbols(seal(source), begin, end, *tables, lanes, out, ends[-1]))
        parameters = sizes[:count].tobytes() + b"".join(
            int(symbol).to_bytes(LONGEST, "little")[:size]
            for symbol, size in zip(symbols[:count], sizes[:count], strict=True)
        )
        parameters = bytes([count]) + parameters
        counts = CODECS["plain"].encode(np.diff(ends).astype(np.int32))
        shape = width_code(values), values.size
        return out[: ends[-1]].view(np.int8), lambda codes: Node(
            self.number, *shape, parameters, children=[codes, counts]
        )

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return the values of the frames in the range."""
        check(len(node.children) == 2, "symbols have a wrong number of children")
        check(node.width == 0 and node.children[0].width == 0, "symbols encode something else than bytes")
        symbols, sizes = _table_of(node.parameters)
        counts = decode_stream(node.children[1], -(-node.count // _FRAME)).astype(np.int64)
        ends = ends_of(counts, node.children[0].count)
        first, last = start // _FRAME, -(-stop // _FRAME)
        begin, total = first * _FRAME, min(last * _FRAME, node.count) - first * _FRAME
        if first == last:
            return np.empty(0, np.int8)
        codes = decode_stream(node.children[0], None, int(ends[first]), int(ends[last]))
        out = np.empty(total + _PADDING, np.uint8)
        bounds = ends[first : last + 1] - ends[first]
        right = write_symbols(codes.view(np.uint8), bounds, symbols, sizes, _FRAME, out, total)
        check(right, "codes have no symbols, or decode to a wrong size")
        return out[start - begin : stop - begin].view(np.int8)


def _sample_of(source: Bytes) -> Bytes:
    """Return a sample from which to learn symbols, followed by padding."""
    if source.size > _MAX_SAMPLE:
        begins = np.linspace(0, source.size - _PIECE, _MAX_SAMPLE // _PIECE).astype(np.int64).tolist()
        return np.concatenate([*(source[at : at + _PIECE] for at in begins), np.zeros(_PADDING, np.uint8)])
    return np.append(source, np.zeros(_PADDING, np.uint8))


def _table_of(parameters: bytes) -> tuple[npt.NDArray[np.uint64], Bytes]:
    """Return the symbol and the size for each code; the size is 0 for an unused code.

    Raises
    ------
    CorruptDataError
        If the sizes do not match the bytes.
    """
    check(len(parameters) > 0, "there is no table of symbols")
    count = parameters[0]
    check(count <= MAX_SYMBOLS and len(parameters) > count, "a table of symbols is cut")
    sizes = np.zeros(256, np.uint8)
    sizes[:count] = np.frombuffer(parameters, np.uint8, count, 1)
    check(bool((sizes[:count] >= 1).all() and (sizes <= LONGEST).all()), "a symbol has an impossible size")
    check(int(sizes.sum()) == len(parameters) - 1 - count, "the sizes of symbols do not match their bytes")
    at = 1 + count
    symbols = np.zeros(256, np.uint64)
    for code, size in enumerate(sizes[:count].tolist()):
        symbols[code] = int.from_bytes(parameters[at : at + size], "little")
        at += size
    return symbols, sizes


register(Symbols())
