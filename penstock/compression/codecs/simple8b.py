"""Simple-8b: words of 64 bits, each a selector of 4 bits and as many values as fit (Scabbard Table 2).

The chooser does not offer this codec. It stays because the block format promises it, and cascades may
name it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.compression.abc import Codec, UnfitError, check
from penstock.compression.codecs.differences import narrow
from penstock.compression.codecs.registry import encode_light, register
from penstock.compression.kernels.bits import SUB_BLOCK, Bytes, Ints
from penstock.compression.node import Node, width_code
from penstock.compression.parts import parts_of

__all__ = ["Simple8b"]

# By selector: the number of values in a word, and the bits of each value. 240 and 120 are runs of zeros.
_COUNTS = np.array([240, 120, 60, 30, 20, 15, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1], np.int64)
_BITS = np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 60], np.int64)


@kernel
def _write(values: Any, counts: Any, bits: Any, out: Any, sizes: Ints) -> int:
    """Write unsigned values, and the size in bytes of each sub-block of 1,024 values.

    Return the number of words, or -1 if a value has more than 60 bits.
    """
    words = 0
    for block in range(sizes.shape[0]):
        begin = words
        at, end = block * 1024, min(block * 1024 + 1024, values.shape[0])
        while at < end:
            choice = -1
            for selector in range(16):
                count = min(counts[selector], end - at)
                # Only a zero word at the end may hold fewer values than its selector states.
                fits = True
                for i in range(at, at + count):
                    if np.uint64(values[i]) >> np.uint64(bits[selector]):
                        fits = False
                        break
                if fits:
                    choice = selector
                    break
            if choice < 0:
                return -1
            word = np.uint64(choice) << np.uint64(60)
            count = min(counts[choice], end - at)
            for i in range(count):
                word |= np.uint64(values[at + i]) << np.uint64(i * bits[choice])
            out[words] = word
            words += 1
            at += count
        sizes[block] = (words - begin) * 8
    return words


@kernel
def _read(words: Any, counts: Any, bits: Any, out: Any) -> bool:
    """Read sub-blocks; return whether the words end where `out` ends."""
    at, word_at = 0, 0
    while at < out.shape[0]:
        end = min(at - at % 1024 + 1024, out.shape[0])
        if word_at == words.shape[0]:
            return False
        word = words[word_at]
        word_at += 1
        selector = np.int64(word >> np.uint64(60))
        width = bits[selector]
        mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
        count = min(counts[selector], end - at)
        for i in range(count):
            out[at + i] = out.dtype.type((word >> np.uint64(i * width)) & mask)
        at += count
    return word_at == words.shape[0]


class Simple8b(Codec):
    """Values as unsigned numbers below 2**60. Child: the size of each sub-block in bytes."""

    number = 10
    name = "simple8b"

    def encode(self, values: Ints) -> Node:
        """Return the words.

        Raises
        ------
        UnfitError
            If a value has more than 60 bits.
        """
        unsigned = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
        out = np.empty(values.size, np.uint64)
        sizes = np.empty(-(-values.size // SUB_BLOCK), np.int32)
        words = _write(unsigned, _COUNTS, _BITS, out, sizes)
        if words < 0:
            raise UnfitError
        payload: Bytes = out[:words].view(np.uint8)
        children = [encode_light(narrow(sizes))]
        return Node(self.number, width_code(values), values.size, payload=payload, children=children)

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return the values of the sub-blocks in the range."""
        first, last, ends = parts_of(node, start, stop, SUB_BLOCK)
        payload = node.payload[ends[first] : ends[last]]
        check(payload.size % 8 == 0, "words of 64 bits are cut")
        out = np.empty(min(last * SUB_BLOCK, node.count) - first * SUB_BLOCK, node.dtype)
        words = np.frombuffer(payload.tobytes(), np.uint64)
        is_complete = _read(words, _COUNTS, _BITS, out.view(f"u{out.dtype.itemsize}"))
        check(is_complete, "words of 64 bits do not match the number of values")
        return out[start - first * SUB_BLOCK : stop - first * SUB_BLOCK]


register(Simple8b())
