"""Texts that are cut into tokens come back by the format's definition, and damage is found."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.compression.texts import columns
from penstock.compression import Block, Chooser, decode, encode
from penstock.compression.arrow import offsets_and_bytes
from penstock.compression.layouts import Layout
from penstock.compression.texts.forms import learn_forms
from penstock.compression.texts.token_decoder import decode_tokens
from penstock.compression.texts.token_encoder import encode_tokens
from penstock.compression.texts.token_streams import fits
from penstock.errors import CorruptDataError, InvalidUsageError
from tests.golden.make_fixtures import TOKENS, texts_of_golden_tokens
from tests.samples.columns import sliced

LITERAL, WORD, NUMBER = 0, 1, 2
WORDS = st.sampled_from(["a", "view", "x1y2", "", "Zürich", "longer than sixteen bytes", "0", "007"])
NUMBERS = st.integers(0, 10**18).map(str) | st.integers(0, 99).map(lambda n: f"{n:02}")
FIELDS = WORDS | NUMBERS | st.text(max_size=6)
SEPARATORS = st.sampled_from(["/", "-", " [", '":"', "", "é", "?" * 20])


@st.composite
def texts(draw: st.DrawFn) -> list[str]:
    """Draw texts of some forms, and some of none."""
    forms = draw(st.lists(st.lists(SEPARATORS, min_size=1, max_size=4), min_size=1, max_size=3))
    fields = draw(st.lists(FIELDS, min_size=1, max_size=30))
    generator = random.Random(draw(st.integers(0, 1 << 32)))
    found = []
    for _ in range(draw(st.sampled_from([0, 1, 5, 40, 1030, 2100]))):
        form = generator.choice(forms)
        kept = form[generator.randrange(8) == 0 :]
        found.append("".join(part for cut in kept for part in (cut, generator.choice(fields))))
    return found


def naive_texts(streams: tuple[Any, ...]) -> list[bytes]:
    """Return the texts of streams as docs/reference/format.md says."""
    forms, codes, numbers, marks, pieces, sizes, words, lengths, others = (part.tolist() for part in streams)
    words, others = bytes(np.array(words, np.int8)), bytes(np.array(others, np.int8))
    total, *rest = pieces
    nodes = [tuple(rest[at : at + 3]) for at in range(0, len(rest), 3)]
    known = iter([words[sum(sizes[:at]) :][: sizes[at]] for at in range(len(sizes))])
    literals: list[bytes] = []
    tables: list[list[bytes]] = []
    paths: list[list[int]] = []
    ends: list[list[int]] = []
    for number, (kind, count, parent) in enumerate(nodes):
        literals.append(next(known))
        tables.append(list(islice(known, count if kind & 3 == WORD else 0)))
        paths.append([*(paths[parent] if parent >= 0 else []), number])
        ends += [paths[-1]] if kind & 4 else []
    rows = [sum(number in ends[form] for form in forms) for number in range(len(nodes))]
    cursors = [0] * len(nodes)
    for kind in (WORD, NUMBER):
        at = 0
        chosen = [number for number, node in enumerate(nodes) if node[0] & 3 == kind]
        for number in sorted(chosen, key=lambda number: -nodes[number][1] if kind == WORD else 0):
            cursors[number] = at
            at += rows[number]
        assert at == len(codes if kind == WORD else numbers)
    found, other, taken = [], 0, 0
    for row, form in enumerate(forms):
        if row % 1024 == 0:
            assert marks[row // 1024] == other
        out = b""
        for number in ends[form]:
            kind, least, _ = nodes[number]
            out += literals[number]
            if kind & 3 == NUMBER:
                out += str(numbers[cursors[number]]).rjust(least, "0").encode()
            elif kind & 3 == WORD:
                code = codes[cursors[number]]
                if code >= 0:
                    out += tables[number][code]
                else:
                    out += others[taken : taken + lengths[other]]
                    taken += lengths[other]
                    other += 1
            cursors[number] += 1
        found.append(out)
    assert sum(map(len, found)) == total
    return found


@given(texts(), st.data())
def test_texts_come_back_from_their_tokens_whole_and_in_part(some: list[str], data: Any) -> None:
    array = sliced(pa.array([None if text == "a" else text for text in some], pa.string()), len(some) % 3)
    block = Block(encode(array, "tokens"))
    assert block.layout is Layout.TEXT_TOKENS
    out = block.read()
    out.validate(full=True)
    assert out.equals(array)
    start = data.draw(st.integers(0, len(array)))
    stop = data.draw(st.integers(start, len(array)))
    part = block.read(start, stop)
    part.validate(full=True)
    assert part.equals(array.slice(start, stop - start))


@given(texts())
def test_the_streams_of_tokens_are_those_that_the_format_says(some: list[str]) -> None:
    given_bytes = [text.encode() for text in some]
    offsets = np.cumsum([0, *map(len, given_bytes)])
    streams = encode_tokens(offsets, np.frombuffer(b"".join(given_bytes), np.uint8))
    assert naive_texts(streams) == given_bytes
    written = decode_tokens(streams, np.int32, 1 << 31)
    assert written is not None
    assert written[0].tolist() == offsets.tolist()
    assert written[1].tobytes() == b"".join(given_bytes)
    assert decode_tokens(streams, np.int32, int(offsets[-1]) - 1) is None


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\0", b"\xff" * 40, b"0" * 17]), max_size=40))
def test_any_bytes_come_back(some: list[bytes]) -> None:
    for kind in (pa.binary(), pa.large_binary()):
        assert decode(encode(pa.array(some, kind), "tokens")).equals(pa.array(some, kind))


def test_numbers_keep_the_digits_in_which_they_are_written() -> None:
    numbers = [
        *("0", "7", "42", "12345678", "123456789", "1234567890123456", "12345678901234567", "9" * 18),
        *(f"{n:08}" for n in range(40)),
        *(f"{n:012}" for n in range(40)),
        *("007", "-1", "+5", "1e9", "٣", ""),
    ]
    for form in ("%s", "a%s", "%sb", "k=%s;", "%s.%s"):
        array = pa.array([form.replace("%s", number) for number in numbers * 20])
        assert decode(encode(array, "tokens")).equals(array)


@pytest.mark.parametrize("name", list(columns(1)))
def test_what_services_write_takes_an_eighth_or_less(name: str) -> None:
    array = columns(20_000)[name]
    offsets, content = offsets_and_bytes(array)
    block = Block(encode(array, "tokens>base_delta>ns"))
    assert 8 * block.size_bytes <= int(offsets[-1])
    for goal in ("balanced", "small"):
        coded = Block(encode(array, chooser=Chooser(goal)))
        assert coded.size_bytes * 6 <= int(offsets[-1])
    assert fits(encode_tokens(offsets, content))


def test_other_words_than_were_learned_are_kept_as_they_are() -> None:
    learned = learn_forms(*offsets_and_bytes(pa.array([f"/item/{n}/view" for n in range(2000)])))
    odd = [f"/item/{n}/view" for n in range(30)] + [
        "/item/x/view",
        "",
        "else",
        "/item/-1/view",
        "/item/7/vie",
    ]
    offsets, content = offsets_and_bytes(pa.array(odd))
    streams = encode_tokens(offsets, content, learned)
    assert [text.decode() for text in naive_texts(streams)] == odd
    assert not fits(encode_tokens(*offsets_and_bytes(pa.array(["something else"] * 9)), learned))


def test_texts_that_no_longer_look_alike_are_decided_anew() -> None:
    chooser = Chooser("balanced", now_s=lambda: 0.0)
    some = columns(10_000)
    for name in ("path", "log", "log"):
        assert decode(encode(some[name], chooser=chooser)).equals(some[name])
    decision = chooser.columns[""]
    assert (decision.deoptimised, decision.decisions) == (1, 2)
    assert decision.plan.tokens


def test_texts_without_an_end_of_tokens_are_cut_for_a_while() -> None:
    array = pa.array([" ".join(f"{n * k % 977}" for k in range(400)) for n in range(60)])
    assert decode(encode(array, "tokens")).equals(array)


def test_numbers_have_no_tokens() -> None:
    with pytest.raises(InvalidUsageError, match="only text has tokens"):
        encode(pa.array([1, 2]), "tokens")


@pytest.mark.parametrize("name", ["log", "paths"])
def test_streams_that_contradict_each_other_are_refused_or_give_some_texts(name: str) -> None:
    """Whatever is in a stream, no byte outside of the texts is read or written."""
    draw = random.Random(5)
    streams = encode_tokens(*offsets_and_bytes(columns(300)[name]))
    refused = 0
    for _ in range(3000):
        changed = [stream.copy() for stream in streams]
        for _ in range(draw.randrange(1, 3)):
            which = draw.randrange(9)
            stream = changed[which]
            if not stream.size:
                continue
            at, info = draw.randrange(stream.size), np.iinfo(stream.dtype)
            if draw.randrange(3):
                least, most = max(-9, info.min), min(info.max, 1 << 20)
                stream[at] = draw.choice([info.min, -1, 0, 1, info.max, draw.randint(least, most)])
            else:
                changed[which] = np.delete(stream, at)
        try:
            found = decode_tokens(tuple(changed), np.int32, 1 << 20)
        except CorruptDataError:
            refused += 1
        else:
            refused += found is None
            if found is not None:
                assert found[0].size == changed[0].size + 1
                assert int(found[0][-1]) == found[1].size
                assert (np.diff(found[0]) >= 0).all()
    assert refused > 1000


def test_the_golden_block_of_tokens_is_read() -> None:
    content = Path(TOKENS).read_bytes()
    assert content[2] == 2, "the format version"
    assert decode(content).equals(texts_of_golden_tokens())
