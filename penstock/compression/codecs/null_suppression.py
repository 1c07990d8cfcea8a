"""Null suppression: drop leading zeros, by bits or by words (Scabbard Table 2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.compression.abc import Codec, check
from penstock.compression.codecs.registry import CODECS, codec_of, decode_stream, encode_light, register
from penstock.compression.kernels import bits
from penstock.compression.kernels.bits import SUB_BLOCK, Ints, Packed, Step, seal
from penstock.compression.node import TYPES, Node, width_code
from penstock.errors import CorruptDataError

__all__ = ["NullSuppression", "WordNullSuppression", "slice_packed"]


class NullSuppression(Codec):
    """Packs offsets into as few bits as each sub-block needs; see `penstock.compression.kernels.bits`.

    The parameters are one byte. Bits 0 to 2 hold the step. Bit 3 is set if the stream is patched. Bit 4 is
    set if the packed bytes are the last child instead of the payload. In this case a codec of bytes (LZ4 in
    ``base_delta>ns_lz4``) compresses the packed bytes again. It finds patterns that repeat after a whole
    number of sub-blocks. The first three children have values for each sub-block. The children are:

    1. the widths;
    2. the bases, unless the step is NONE; for XOR, the number of low zero bits that were cut off;
    3. if the step is DELTA or later in `Step`, the first value; for DELTA_OF_DELTA, the first two values;
    4. if patched, three children: the number of exceptions of each sub-block, the position of each exception,
       and the high bits of each exception.
    """

    number = 2

    def __init__(self, step: Step, *, patched: bool = False, then: str | None = None) -> None:
        self.step = step
        self.patched = patched
        self._then = then
        coder = f"{'patched_' * patched}ns{f'_{then}' if then else ''}"
        self.name = coder if step is Step.NONE else f"{step.name.lower()}>{coder}"

    def encode(self, values: Ints) -> Node:
        """Return the packed stream."""
        packed = bits.pack(values, self.step, patched=self.patched)
        order = _order(self.step)
        coded = CODECS[self._then].encode(packed.payload.view(np.int8)) if self._then else None
        payload_bytes = coded.size_bytes if coded else packed.payload.size
        side = [packed.widths]
        if self.step is not Step.NONE:
            side.append(packed.bases)
        if order:
            side.append(np.ascontiguousarray(packed.firsts[:, :order]).reshape(-1))
        if self.patched:
            side += (packed.exceptions, packed.positions, packed.highs)
        children = [encode_light(stream, payload_bytes) for stream in side]
        parameters = bytes([self.step | self.patched << 3 | bool(self._then) << 4])
        width, count = width_code(values), values.size
        if coded is None:
            return Node(self.number, width, count, parameters, packed.payload, children)
        return Node(self.number, width, count, parameters, children=[*children, coded])

    def name_of(self, node: Node) -> str:
        """Return the cascade of steps."""
        step, patched = node.parameters[0] & 7, bool(node.parameters[0] & 8)
        then = codec_of(node.children[-1]).name if node.parameters[0] & 16 else None
        return NullSuppression(Step(step), patched=patched, then=then).name

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return the values, unpacking only the sub-blocks that hold them."""
        first, last = start // SUB_BLOCK, -(-stop // SUB_BLOCK)
        out = np.empty(min(last * SUB_BLOCK, node.count) - first * SUB_BLOCK, node.dtype)
        bits.unpack(slice_packed(node, first, last), out)
        return out[start - first * SUB_BLOCK : stop - first * SUB_BLOCK]


def _order(step: Step) -> int:
    """Return the number of values that a sub-block stores in addition to the offsets."""
    return {Step.NONE: 0, Step.BASE_DELTA: 0, Step.DELTA_OF_DELTA: 2}.get(step, 1)


def slice_packed(node: Node, first: int, last: int) -> Packed:
    """Return sub-blocks `first` to `last` of a `NullSuppression` node, checked and still packed.

    Raises
    ------
    CorruptDataError
        If the node contradicts itself.
    """
    check(len(node.parameters) == 1 and node.parameters[0] & 7 <= Step.XOR, "packed bits have no known step")
    flags = node.parameters[0]
    check(flags < 32, "packed bits have unknown flags")
    step, patched, has_coded = Step(flags & 7), bool(flags & 8), bool(flags & 16)
    order = _order(step)
    children = list(node.children)
    expected = 1 + (step is not Step.NONE) + bool(order) + 3 * patched + has_coded
    check(len(children) == expected, "packed bits have a wrong number of children")
    blocks = -(-node.count // SUB_BLOCK)
    bits_per_value = 8 * node.dtype.itemsize

    widths = decode_stream(children.pop(0), blocks)
    check(widths.dtype == np.int8, "the widths of packed bits have a wrong type")
    ends = _ends_of(
        widths, node.count, bits_per_value, children[-1].count if has_coded else node.payload.size
    )

    def same_type(count: int | None, start: int, stop: int | None) -> Ints:
        child = children.pop(0)
        check(child.width == node.width, "a child of packed bits has a wrong type")
        return decode_stream(child, count, start, stop)

    bases = same_type(blocks, first, last) if step is not Step.NONE else np.zeros(last - first, node.dtype)
    if step is Step.XOR:
        check(bool(((bases >= 0) & (bases < bits_per_value)).all()), "packed bits have an impossible shift")
    firsts = np.zeros((last - first, 2), node.dtype)
    if order:
        firsts[:, :order] = same_type(blocks * order, first * order, last * order).reshape(-1, order)
    exceptions = positions = np.empty(0, np.int16)
    highs = np.empty(0, node.dtype)
    if patched:
        exceptions = decode_stream(children.pop(0), blocks)
        check(
            exceptions.dtype == np.int16 and bool((exceptions >= 0).all()),
            "the number of exceptions is invalid",
        )
        before = np.zeros(blocks + 1, np.int64)
        np.cumsum(exceptions, out=before[1:])
        begin, end = int(before[first]), int(before[last])
        position_node = children.pop(0)
        check(position_node.count == before[-1], "the numbers of exceptions and positions differ")
        positions = decode_stream(position_node, None, begin, end)
        exceptions = exceptions[first:last]
        room = np.full(last - first, SUB_BLOCK)
        room[-1:] = min(last * SUB_BLOCK, node.count) - (last - 1) * SUB_BLOCK
        in_range = (positions >= 0) & (positions < np.repeat(room, exceptions))
        check(positions.dtype == np.int16 and bool(in_range.all()), "an exception lies outside its sub-block")
        highs = same_type(int(before[-1]), begin, end)
    begin, end = int(ends[first]), int(ends[last])
    if has_coded:
        payload = decode_stream(children.pop(0), None, begin, end).view(np.uint8)
    else:
        payload = node.payload[begin:end]
    return Packed(
        step,
        seal(widths[first:last]),
        seal(bases),
        seal(firsts),
        seal(exceptions),
        seal(positions),
        seal(highs),
        seal(payload),
    )


def _ends_of(widths: Ints, count: int, widest: int, size_bytes: int) -> npt.NDArray[np.int64]:
    """Return the offsets of sub-blocks in the payload, and the payload's size."""
    ends = bits.ends_of(widths, count, widest)
    if ends is None:
        raise CorruptDataError("packed bits have an impossible width")
    check(ends[-1] == size_bytes, "a payload has another size than its parts")
    return ends


class WordNullSuppression(Codec):
    """Keeps each sub-block in the narrowest words of 0, 8, 16, 32 or 64 bits that hold its values.

    Child: the size of a word in each sub-block, in bytes. `NullSuppression` makes smaller streams, so the
    chooser does not offer this codec. It stays because the block format promises it, and cascades may name
    it.
    """

    number = 3
    name = "ns_words"

    def encode(self, values: Ints) -> Node:
        """Return the words of the unchanged values: signed, two's complement."""
        blocks = [values[at : at + SUB_BLOCK] for at in range(0, values.size, SUB_BLOCK)]
        widths = np.array([_word_of(block) for block in blocks], np.int8)
        words = [block.astype(f"i{w}") for block, w in zip(blocks, widths.tolist(), strict=True) if w]
        payload = np.concatenate([word.view(np.uint8) for word in words]) if words else np.empty(0, np.uint8)
        return Node(
            self.number,
            width_code(values),
            values.size,
            payload=payload,
            children=[encode_light(widths)],
        )

    def decode(self, node: Node, start: int, stop: int) -> Ints:
        """Return the values, widened."""
        check(len(node.children) == 1, "words have a wrong number of children")
        blocks = -(-node.count // SUB_BLOCK)
        widths = decode_stream(node.children[0], blocks)
        check(
            bool(np.isin(widths, [0, *(kind.itemsize for kind in TYPES[: node.width + 1])]).all()),
            "a word has an impossible width",
        )
        ends = _ends_of(widths * np.int8(8), node.count, 64, node.payload.size)
        first, last = start // SUB_BLOCK, -(-stop // SUB_BLOCK)
        out = np.zeros(min(last * SUB_BLOCK, node.count) - first * SUB_BLOCK, node.dtype)
        for block in range(first, last):
            if width := int(widths[block]):
                at = (block - first) * SUB_BLOCK
                words = node.payload[ends[block] : ends[block + 1]].view(f"i{width}")
                out[at : at + words.size] = words
        return out[start - first * SUB_BLOCK : stop - first * SUB_BLOCK]


def _word_of(block: Ints) -> int:
    """Return the bytes of the narrowest word that holds all values."""
    least, most = int(block.min()), int(block.max())
    if least == most == 0:
        return 0
    return next(size for size in (1, 2, 4, 8) if -(1 << 8 * size - 1) <= least and most < 1 << 8 * size - 1)


for step in Step:
    register(NullSuppression(step))
    register(NullSuppression(step, patched=True))
    for library in ("lz4", "zstd"):
        register(NullSuppression(step, then=library))
register(WordNullSuppression())
