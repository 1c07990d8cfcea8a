"""A p-unit is read back whole or refused; units of all past versions are still read."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc

import pyarrow as pa
import pytest
import xxhash

from penstock.checkpointing import FORMAT_VERSION, PUnit, decode, encode
from penstock.checkpointing.files import LocalFiles
from penstock.checkpointing.p_unit import CODEC, PACKED, tables
from penstock.errors import CorruptDataError
from penstock.state_store.bucket_store import BucketStore, FileId, Pointer, Version
from tests.golden import make_fixtures, windows
from tests.samples.streams import assert_same_state, order_of

FILE = "/state/000000000001-f00.punit"


def _same(a: PUnit, b: PUnit) -> bool:
    return (
        a.kind == b.kind
        and a.meta == b.meta
        and list(a.blocks) == list(b.blocks)
        and all(a.blocks[name].equals(b.blocks[name]) for name in a.blocks)
    )


def _small() -> PUnit:
    first = pa.RecordBatch.from_pydict({"a": [1, 2, None], "s": ["x", None, "yz"]})
    return PUnit("delta", {"version": 7}, {"first": first, "second": first.slice(1, 1)})


def test_numbers_of_a_packed_unit_are_packed_and_read_the_same() -> None:
    block = pa.RecordBatch.from_pydict(
        {
            "n": [7, None, -(1 << 60)],
            "x": [0.25, None, 3.5],
            "y": [math.pi, -math.inf, -0.0],
            "h": pa.array([0.5, None, 1.5], pa.float16()),
            "s": ["a", "", "b"],
        }
    )
    units = [PUnit("delta", {}, {"b": block}, packed=packed) for packed in (False, True)]
    found = []
    for unit in units:
        content = encode(unit)
        assert _same(decode(content, FILE), unit)
        coded = tables(content, FILE)["b"]
        found.append(
            {name: [cascade for _, cascade, *_ in coded.column(name).describe()] for name in "nxyhs"}
        )
    plain, packed = found
    assert all(CODEC in cascades for cascades in plain.values())
    assert all(PACKED in packed[name] for name in "nyh")
    assert any(one.startswith(f"decimal_2>{PACKED}") for one in packed["x"])
    assert packed["s"] == plain["s"]


def _with_header(header: bytes, *, version: int = FORMAT_VERSION, flags: int = 0, tail: bytes = b"") -> bytes:
    """Return a file with this header and right checksums."""
    prefix = struct.pack("<8sHHI", b"PENSTOCK", version, flags, len(header))
    checksum = struct.pack("<Q", xxhash.xxh3_64_intdigest(prefix + header))
    padding = bytes(-(24 + len(header)) % 8)
    return prefix + checksum + header + padding + tail


UNITS = {
    "small": _small(),
    "golden": make_fixtures.p_unit(),
    "no blocks": PUnit("snapshot", {}),
    "a block without columns": PUnit("x", {}, {"b": pa.RecordBatch.from_arrays([], [])}),
    "text beyond ASCII": PUnit(
        "\u00e9", {"\u4e2d": "\U0001f600"}, {"\u00fc": pa.RecordBatch.from_pydict({"\u00e9": [1]})}
    ),
}


@pytest.mark.parametrize("name", UNITS)
def test_a_p_unit_comes_back(name: str) -> None:
    content = encode(UNITS[name])
    assert len(content) % 8 == 0
    assert _same(decode(content, FILE), UNITS[name])
    assert _same(decode(bytes(content), FILE), UNITS[name])


@pytest.mark.parametrize("name", ["small", "no blocks"])
def test_every_flip_of_a_byte_is_found(name: str) -> None:
    content = bytes(encode(UNITS[name]))
    tracemalloc.start()
    for position in range(len(content)):
        for mask in (0x01, 0x80, 0xFF):
            flipped = bytearray(content)
            flipped[position] ^= mask
            with pytest.raises(CorruptDataError, match="f00"):
                decode(bytes(flipped), FILE)
    assert tracemalloc.get_traced_memory()[1] < 100 * len(content) + 1_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["small", "no blocks"])
def test_every_cut_is_found(name: str) -> None:
    content = bytes(encode(UNITS[name]))
    for size in range(len(content)):
        with pytest.raises(CorruptDataError, match="f00"):
            decode(content[:size], FILE)


@pytest.mark.parametrize("name", ["small", "no blocks"])
@pytest.mark.parametrize("tail", [b"\0", b"\0" * 8, b"x", b"PENSTOCK"])
def test_bytes_behind_the_end_are_found(name: str, tail: bytes) -> None:
    with pytest.raises(CorruptDataError, match="f00"):
        decode(bytes(encode(UNITS[name])) + tail, FILE)


def test_a_newer_format_is_refused_with_both_versions() -> None:
    newer = FORMAT_VERSION + 1
    with pytest.raises(CorruptDataError, match="newer format") as caught:
        decode(_with_header(b"whatever it may be", version=newer), FILE)
    assert caught.value.context == {"file": FILE, "format_version": newer, "newest_known": FORMAT_VERSION}


@pytest.mark.parametrize("version", [0])
def test_a_format_that_never_was_is_refused(version: int) -> None:
    header = json.dumps({"kind": "x", "meta": {}, "blocks": []}).encode()
    with pytest.raises(CorruptDataError):
        decode(_with_header(header, version=version), FILE)


def test_flags_that_this_code_does_not_know_are_refused() -> None:
    header = json.dumps({"kind": "x", "meta": {}, "blocks": []}).encode()
    decode(_with_header(header), FILE)
    with pytest.raises(CorruptDataError, match="flags"):
        decode(_with_header(header, flags=1), FILE)


def test_a_size_beyond_the_file_takes_no_memory() -> None:
    entry = {"name": "b", "size": 1 << 60, "checksum": "0"}
    header = json.dumps({"kind": "x", "meta": {}, "blocks": [entry]}).encode()
    with pytest.raises(CorruptDataError, match="cut within a block"):
        decode(_with_header(header), FILE)
    with pytest.raises(CorruptDataError, match="cut within its header"):
        decode(struct.pack("<8sHHIQ", b"PENSTOCK", FORMAT_VERSION, 0, 0xFFFFFFFF, 0), FILE)


def _entry(**changed: object) -> dict[str, object]:
    return {"name": "b", "size": 0, "checksum": xxhash.xxh3_64_hexdigest(b"")} | changed


@pytest.mark.parametrize(
    "header",
    [
        b"", b"{", b"[]", b"7", b"\xff", b"null", b'{"meta":{},"blocks":[]}', b'{"kind":"x","blocks":[]}',
        b'{"kind":"x","meta":{}}', b'{"kind":1,"meta":{},"blocks":[]}', b'{"kind":"x","meta":[],"blocks":[]}',
        b'{"kind":"x","meta":{},"blocks":7}', b'{"kind":"x","meta":{},"blocks":[7]}',
        b'{"kind":"x","meta":{},"blocks":[{}]}',
        b'{"kind":"x","meta":{"a":' + b"9" * 5000 + b'},"blocks":[]}',
        b'{"kind":"x","meta":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b'},"blocks":[]}',
    ]
    + [
        json.dumps({"kind": "x", "meta": {}, "blocks": blocks}).encode()
        for blocks in (
            [_entry(size=-8)], [_entry(size="0")], [_entry(size=0.0)], [_entry(size=True)],
            [_entry(size=float("nan"))], [_entry(size=None)], [_entry(name=1)], [_entry(name=[])],
            [_entry(checksum=None)], [_entry(), _entry()],
        )
    ],
)  # fmt: skip
def test_a_header_that_nothing_writes_is_refused_though_its_checksum_is_right(header: bytes) -> None:
    for version in range(1, FORMAT_VERSION + 1):
        with pytest.raises(CorruptDataError, match="f00"):
            decode(_with_header(header, version=version), FILE)


@pytest.mark.parametrize("block", [b"", bytes(8), b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"PTAB" + bytes(36)])
def test_a_block_that_nothing_writes_is_refused_though_its_checksum_is_right(block: bytes) -> None:
    entry = _entry(size=len(block), checksum=xxhash.xxh3_64_hexdigest(block))
    header = json.dumps({"kind": "x", "meta": {}, "blocks": [entry]}).encode()
    for version in range(1, FORMAT_VERSION + 1):
        with pytest.raises(CorruptDataError, match="f00"):
            decode(_with_header(header, version=version, tail=block), FILE)


@pytest.mark.parametrize("content", [b"", b"PENSTOCK", b"x" * 100, bytes(100), b"PAR1" + bytes(200)])
def test_what_is_no_p_unit_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptDataError, match="f00"):
        decode(content, FILE)


def test_a_swapped_pair_of_blocks_is_found() -> None:
    unit = PUnit("x", {}, {n: pa.RecordBatch.from_pydict({"a": [v]}) for n, v in (("p", 1), ("q", 2))})
    content = bytes(encode(unit))
    header_size = struct.unpack_from("<I", content, 12)[0]
    begin = 24 + header_size + -(24 + header_size) % 8
    half = (len(content) - begin) // 2
    swapped = content[:begin] + content[begin + half :] + content[begin : begin + half]
    with pytest.raises(CorruptDataError, match="checksum"):
        decode(swapped, FILE)


def test_the_golden_p_unit_of_every_past_format_is_read() -> None:
    for version in range(1, FORMAT_VERSION + 1):
        path = make_fixtures.HERE / f"p_unit_v{version}.punit"
        content = path.read_bytes()
        assert struct.unpack_from("<H", content, 8)[0] == version
        assert _same(decode(content, path), make_fixtures.p_unit())


def test_the_golden_state_of_every_past_format_is_read_and_goes_on() -> None:
    for version in range(1, FORMAT_VERSION + 1):
        directory = make_fixtures.HERE / f"state_v{version}"
        names = sorted(path.name for path in directory.iterdir())
        assert len(names) == 2
        expected = make_fixtures.golden_queue()
        for name, step in zip(
            names, (make_fixtures.first_version, make_fixtures.second_version), strict=True
        ):
            number, _, file_id = name.removesuffix(".punit").partition("-")
            loaded = make_fixtures.golden_queue()
            BucketStore(LocalFiles(directory)).load(Pointer(Version(int(number)), FileId(file_id)), loaded)
            step(expected)
            assert_same_state(loaded, expected)
            assert loaded.cost_us == 5.0
        assert order_of(expected) == [7, 2, 3]


@pytest.mark.parametrize("kind", windows.KINDS)
def test_the_golden_windows_of_every_past_format_are_read_and_go_on(kind: str) -> None:
    for version in range(2, FORMAT_VERSION + 1):
        directory = make_fixtures.HERE / f"windows_v{version}" / kind
        names = sorted(path.name for path in directory.iterdir())
        assert len(names) == windows.VERSIONS
        for number, name in enumerate(names):
            version_number, _, file_id = name.removesuffix(".punit").partition("-")
            pointer = Pointer(Version(int(version_number)), FileId(file_id))
            loaded, fresh = windows.new_state(kind), windows.new_state(kind)
            BucketStore(LocalFiles(directory)).load(pointer, loaded)
            # What comes next, of which the last step closes windows of all that is stored.
            for before in range(number + 1):
                windows.step(fresh, kind, before)
            for after in range(number + 1, windows.VERSIONS + 1):
                found = windows.step(loaded, kind, after)
                assert found == windows.step(fresh, kind, after)
                assert found


def test_what_a_p_unit_says_of_itself_is_plain_json() -> None:
    meta = {"a": [1, -(1 << 63), 1e300, None, True], "b": {"c": "d"}}
    assert decode(encode(PUnit("x", meta)), FILE).meta == meta
    with pytest.raises(TypeError):
        encode(PUnit("x", {"not": object()}))
