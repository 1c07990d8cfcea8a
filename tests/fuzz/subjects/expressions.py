"""Random expressions over columns of all types: as Penstock reads and evaluates them, and as Spark does."""

from __future__ import annotations

import datetime
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from penstock.errors import InvalidUsageError
from penstock.operators.scan.scanner import Scanner
from penstock.operators.scan.spec import Scan
from penstock.spark_ext.border.types import as_arrow_of_spark, convert, spark_schema
from penstock.sql.evaluate import evaluate, type_of
from penstock.sql.expression import Expression, conjunction
from penstock.sql.tree import Tree
from tests.fuzz.case import Case

SCHEMA = pa.schema(
    {
        **{"t": pa.int8(), "h": pa.int16(), "i": pa.int32(), "j": pa.int64()},
        **{"f": pa.float32(), "x": pa.float64(), "y": pa.float64()},
        **{"d": pa.decimal128(9, 2), "n": pa.decimal128(38, 10), "s": pa.string(), "u": pa.string()},
        **{"b": pa.bool_(), "c": pa.bool_(), "day": pa.date32(), "at": pa.timestamp("us", "UTC")},
        **{"local": pa.timestamp("us"), "raw": pa.binary(), "xs": pa.list_(pa.int32())},
        **{
            "r": pa.struct({"i": pa.int32(), "s": pa.string()}),
            "byte": pa.uint8(),
            "large": pa.large_string(),
        },
        **{"ns": pa.timestamp("ns", "UTC"), "sec": pa.timestamp("s"), "day64": pa.date64()},
    }
)
NUMBERS = ("t", "h", "i", "j", "f", "x", "y")
_EDGES = [0, 1, -1, 2, 3, 7, 10, 100, 127, -128, 128, 32767, -32768, 2**31 - 1, -(2**31), 2**31, 2**53]
_EDGES += [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**62, 9007199254740991]
_FLOATS = [0.0, -0.0, 0.1, 0.5, 1.0, -1.5, 2.5, 1e10, -1e300, 5e-324, math.nan, math.inf, -math.inf, 2.0**53]
_TEXTS = [
    "",
    "a",
    "ab",
    "abc",
    "b",
    "%",
    "_",
    "a_c",
    "a%c",
    "Ab",
    "ä",
    "日本",
    "1",
    "1.5",
    "true",
    "a\nb",
    " a",
]
_TEXTS += ["O'Brien", "\\", "2024-01-01"]
_MOMENTS = [0, -1, 1, 1_700_000_000_123_456, -62_135_596_800_000_000, 253_402_300_799_999_999]
_NUMBERS = """
    0 1 -1 2 3 7 -7 100 128 2147483647 -2147483648 2147483648 9007199254740993 9223372036854775807
    -9223372036854775808 9223372036854775808 0.1 -0.5 1.5 3.0 0.3 2.50 1e3 1e-3 1.5D 0.1D 0.5F 2L 1S 1Y 3BD
    0.99999999999999999999 3.3333331 123456789012345678.5 9007199254740992.0 1234567890.12345 .5 5. -0.0 300Y
    NULL 1e400
""".split()  # noqa: SIM905
_STRINGS = [
    "'a'",
    "'ab'",
    "''",
    "'%'",
    "'1'",
    "'a%'",
    "'%b'",
    "'_b%'",
    "'a_c'",
    "'%a%b%'",
    "'O''Brien'",
    "'a' 'b'",
]
_STRINGS += ["r'a\\b'", "'a\\nb'", '"a"', "'x'", "'1.5'", "'2024-01-01'", "'日%'", "NULL", "'a\\%c'"]


def check(case: Case) -> None:
    """Compare a hundred random expressions over the same rows."""
    rows = random_rows(case.random, case.random.choice([1, 7, 40]))
    texts = [random_text(case.random) for _ in range(case.random.choice([60, 100]))]
    frame = frame_of(case.spark, rows.append_column("row", pa.array(range(rows.num_rows), pa.int64())))
    for text in texts:
        _check_text(case.spark, text)
    taken = [one for one in map(_parsed, texts) if one is not None and type_of(one, SCHEMA) is not None]
    assert len(taken) > len(texts) // 20, "hardly an expression is taken"
    for one in taken:
        try:
            frame.select(sf.expr(one.text)).schema  # noqa: B018
        except PySparkException as error:
            raise AssertionError(f"Spark refuses {one.text}: {error}") from None
    _check_values(frame, rows, taken)
    _check_filters(frame, rows, [one for one in taken if type_of(one, SCHEMA) == pa.bool_()])


def random_rows(random: Random, count: int) -> pa.Table:
    """Return rows with many edges and nulls."""

    def whole(bits: int) -> int:
        return random.choice([one for one in _EDGES if -(2 ** (bits - 1)) <= one < 2 ** (bits - 1)])

    def number() -> float:
        return random.choice(_FLOATS) if random.random() < 0.8 else random.uniform(-100, 100)

    def single() -> float:
        value: float = struct.unpack("f", struct.pack("f", random.choice([*_FLOATS[:7], *_FLOATS[10:]])))[0]
        return value

    makers: dict[str, Callable[[], Any]] = {
        **{"t": lambda: whole(8), "h": lambda: whole(16), "i": lambda: whole(32), "j": lambda: whole(64)},
        **{"f": single, "x": number, "y": number},
        "d": lambda: Decimal(random.choice([0, 1, 150, -250, 33, 9999999])).scaleb(-2),
        "n": lambda: Decimal(random.choice([0, 1, 10**10, 5 * 10**9, 10**27 + 1])).scaleb(-10),
        **dict.fromkeys(("s", "u"), lambda: random.choice(_TEXTS)),
        **dict.fromkeys(("b", "c"), lambda: random.random() < 0.5),
        "day": lambda: datetime.date(1970, 1, 1) + datetime.timedelta(random.choice([0, -1, 19723, -141427])),
        **dict.fromkeys(("at", "local"), lambda: random.choice(_MOMENTS)),
        "raw": lambda: random.choice(_TEXTS).encode(),
        "r": lambda: {"i": whole(32), "s": random.choice([*_TEXTS, None])},
        "xs": lambda: [1, None],
        "byte": lambda: random.choice([0, 1, 255]),
        "large": lambda: random.choice(_TEXTS),
        "ns": lambda: random.choice([0, -1000, 1_700_000_000_123_456_000]),
        "sec": lambda: random.choice([0, -1, 1_700_000_000, -62_135_596_800]),
        "day64": lambda: datetime.date(1970, 1, 1) + datetime.timedelta(random.choice([0, -1, 19723])),
    }
    nulls = random.choice([0.0, 0.2])
    columns = [
        pa.array(
            [None if random.random() < nulls else makers[field.name]() for _ in range(count)], field.type
        )
        for field in SCHEMA
    ]
    return pa.table(columns, schema=SCHEMA)


def random_text(random: Random) -> str:
    """Return an expression, most of which are well typed."""
    return _Writer(random).text()


class _Writer:
    def __init__(self, random: Random) -> None:
        self._random = random

    def text(self) -> str:
        kind = self._random.choice([self._condition, self._condition, self._number, self._string, self._any])
        return kind(self._random.choice([1, 2, 2, 3]))

    def _pick(self, *texts: str) -> str:
        return self._random.choice(texts)

    def _paren(self, text: str) -> str:
        return f"({text})" if self._random.random() < 0.5 else text

    def _any(self, depth: int) -> str:
        if depth <= 0 or self._random.random() < 0.3:
            literals = ("NULL", "DATE'2024-01-01'", "TIMESTAMP'2024-01-01 00:00:00'", "X'61'")
            return self._pick(*SCHEMA.names, *literals)
        return self._random.choice([self._number, self._string, self._condition, self._if])(depth - 1)

    def _if(self, depth: int) -> str:
        less = depth - 1
        of = self._random.choice([self._number, self._number, self._string, self._condition, self._any])
        when, one, other = self._condition(less), of(less), of(less)
        return self._pick(
            f"CASE WHEN {when} THEN {one} ELSE {other} END",
            f"CASE WHEN {when} THEN {one} END",
            f"CASE WHEN {when} THEN {one} WHEN {self._condition(less)} THEN {other} ELSE {of(less)} END",
            f"CASE {of(less)} WHEN {one} THEN {of(0)} ELSE {other} END",
            f"if({when}, {one}, {other})",
            f"coalesce({one}, {other})",
            f"nvl({one}, {other})",
            f"coalesce({one}, {of(0)}, {other})",
        )

    def _number(self, depth: int) -> str:
        less = depth - 1
        if depth <= 0 or self._random.random() < 0.15:
            return self._pick(*NUMBERS, *NUMBERS, "d", "n", "r.i", *_NUMBERS)
        if self._random.random() < 0.15:
            return self._paren(self._if(depth))
        one, other = self._paren(self._number(less)), self._paren(self._number(less))
        operator = self._pick("+", "-", "*", "+", "-", "*", "/", "%", "div", "&", "|", "^", "<<")
        if operator in ("/", "%", "div") and self._random.random() < 0.8:
            other = self._pick("2", "3.0", "-1", "1.5D", "4", "7L", "0")
        kind = self._pick("TINYINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(20, 3)")
        return self._pick(
            *[f"{one} {operator} {other}"] * 5,
            *(f"- {one}", f"+{one}", f"~{one}", f"abs({one})", f"sqrt({one})", f"round({one})"),
            *(f"CAST({one} AS {kind})", f"TRY_CAST({one} AS {kind})", f"{one}::{kind}"),
            *(f"greatest({one}, {other})", f"pmod({one}, {other})"),
            *(f"length({self._string(less)})", f"cast({self._any(less)} as int)"),
        )

    def _string(self, depth: int) -> str:
        if depth <= 0 or self._random.random() < 0.6:
            return self._pick("s", "u", "s", "u", "r.s", *_STRINGS)
        return self._pick(
            f"upper({self._string(0)})",
            f"{self._string(0)} || {self._any(0)}",
            self._if(depth),
            "s COLLATE utf8_lcase",
            f"CAST({self._any(depth - 1)} AS STRING)",
        )

    def _condition(self, depth: int) -> str:
        if depth <= 0:
            return self._pick("b", "c", "true", "i > 1", "x < 0.5", "s = 'a'", "NULL", "f > 0.1")
        less = depth - 1
        if self._random.random() < 0.35:
            one, other = self._paren(self._condition(less)), self._paren(self._condition(less))
            return self._pick(
                *(f"{one} AND {other}", f"{one} OR {other}", f"{one} and {other} or b", f"{one} = {other}"),
                *(
                    f"NOT {one}",
                    f"! {one}",
                    f"{one} IS NULL",
                    f"{one} IS NOT TRUE",
                    f"{one} AND {other} AND c",
                ),
            )
        of = self._random.choice([self._number, self._number, self._number, self._string, self._any])
        one, other, third = (self._paren(of(less)) for _ in range(3))
        compared = self._pick("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>")
        no = self._pick("", "NOT ")
        return self._pick(
            *[f"{one} {compared} {other}"] * 5,
            f"{one} {no}BETWEEN {other} AND {third}",
            *(f"{one} {no}IN ({other}, {third})", f"{one} {no}IN ({other}, {third}, {of(0)})"),
            *(f"{one} IS {no}NULL", f"{one} = {other} IS {no}NULL", f"{one} <> {other} IS NOT NULL"),
            f"{self._string(less)} {no}LIKE {self._string(0)}",
            *(f"NOT {one} = {other}", f"! {one} > {other}", f"isnan({one})"),
            *(f"{one} {no}RLIKE 'a'", f"{one} IS DISTINCT FROM {other}"),
        )


def _parsed(text: str) -> Expression | None:
    try:
        return Expression.parse(text)
    except InvalidUsageError:
        return None


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return rows as Spark sees them in a p-stream."""
    seen = spark_schema(rows.schema)
    wanted = as_arrow_of_spark(seen)
    batches = rows.to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
    return spark.createDataFrame(
        pa.Table.from_batches([convert(batch, wanted) for batch in batches], wanted), seen
    )


def _check_text(spark: SparkSession, text: str) -> None:
    """Compare how a text is divided with what Spark's parser makes of it."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    try:
        parsed = parser.parseExpression(text)
    except Exception:  # of the JVM
        return
    if parsed.getClass().getSimpleName() == "Alias":
        return  # of a column that is called NOT
    try:
        made = Expression.parse(text)
    except InvalidUsageError as error:
        raise AssertionError(f"{text}: {error}") from None
    whole = _parenthesized(text, made.tree)
    assert parser.parseExpression(whole).toString() == parsed.toString(), f"{text}: read as {whole}"
    parts = made.conjuncts()
    again = conjunction(parts)
    assert again.conjuncts() == parts, f"{text}: put together as {again.text}"
    columns = {name: Expression.parse(f"{name} + 0") for name in made.columns}
    wanted = text
    if made.deterministic:
        for name, other in columns.items():
            wanted = _replaced(wanted, name, f"({other.text})")
        if "'" not in text and '"' not in text:
            got = parser.parseExpression(made.substitute(columns).text).toString()
            assert got == parser.parseExpression(wanted).toString(), f"{text}: columns replaced as {got}"


def _replaced(text: str, name: str, other: str) -> str:
    return re.sub(rf"(?<![\w.'(]){name}(?![\w('])|(?<=\(){name}(?![\w('])", other, text)


def _parenthesized(text: str, node: Tree) -> str:
    """Return a text with parentheses around all operands."""
    operands = ("binary", "unary", "compare", "and", "or", "not", "between", "in", "match", "is")
    parts: list[str] = []
    at = node.start
    for part in sorted(node.children, key=lambda one: one.start):
        inner = _parenthesized(text, part)
        wrapped = node.kind in operands and part.kind != "call"  # NOT (a) may be one
        parts += [text[at : part.start], f"({inner})" if wrapped else inner]
        at = part.stop
    whole = "".join([*parts, text[at : node.stop]])
    # In parentheses of its own, a function NOT at the start would be the operator.
    return f"`NOT`{whole[3:]}" if node.kind == "call" and node.value == "not" else whole


def _check_values(frame: DataFrame, rows: pa.Table, taken: list[Expression]) -> None:
    """Compare values and types in each row."""
    for one, seen in _collected(frame, taken):
        try:
            found = evaluate(one, rows)
        except InvalidUsageError as error:
            assert seen is None, f"{one.text} fails: {error}"
            continue
        assert seen is not None, f"{one.text} fails in Spark only"
        if one.is_column or one.tree.kind == "field":
            found = found.cast(seen.type)
        got, wanted = shown(found), shown(seen)
        kinds = (found.type, seen.type)
        assert got == wanted, f"{one.text}: {_first(rows, one, got, wanted)}"
        assert kinds[0] == kinds[1] or str(kinds[0]).startswith("timestamp"), f"{one.text}: {kinds}"


def _collected(
    frame: DataFrame, expressions: list[Expression]
) -> list[tuple[Expression, pa.ChunkedArray[Any] | None]]:
    """Return the values of expressions in Spark; None where it fails."""
    if not expressions:
        return []
    try:
        made = frame.select(
            *(sf.expr(one.text).alias(f"e{n}") for n, one in enumerate(expressions))
        ).toArrow()
    except Exception:
        if len(expressions) == 1:
            return [(expressions[0], None)]
        half = len(expressions) // 2
        return [*_collected(frame, expressions[:half]), *_collected(frame, expressions[half:])]
    return list(zip(expressions, made.columns, strict=True))


def shown(values: pa.ChunkedArray[Any]) -> list[Any]:
    """Return values of which NaN equals itself, and -0.0 is another than 0.0."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    return [repr(one) if isinstance(one, float) else one for one in values.to_pylist()]


def _first(rows: pa.Table, one: Expression, got: list[Any], wanted: list[Any]) -> str:
    at = next(n for n, pair in enumerate(zip(got, wanted, strict=True)) if pair[0] != pair[1])
    values = rows.slice(at, 1).select(list(one.columns)).to_pylist()[0] if one.columns else {}
    return f"got {got[at]!r}, Spark {wanted[at]!r}, of {values}"


def _check_filters(frame: DataFrame, rows: pa.Table, taken: list[Expression]) -> None:
    """Compare which rows a reader lets pass: those for which Spark's condition is true."""
    numbered = rows.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    for one, seen in _collected(frame, taken):
        if seen is None:
            continue
        wanted = [n for n, true in enumerate(seen.to_pylist()) if true]
        columns = tuple(dict.fromkeys([*one.columns, "row"]))
        scanner = Scanner(Scan(columns, where=one.text, select={"row": "row"}), numbered.schema)
        got = scanner.apply(numbered)["row"].to_pylist()
        assert got == wanted, f"where {one.text}: got rows {got}, Spark {wanted}"
