"""Parse and write Spark's column DDL, such as ``ts timestamp, value double``, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from penstock.errors import InvalidUsageError

__all__ = ["parse_schema", "quote", "schema_text", "type_text"]

_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMALS = ("decimal", "dec", "numeric")
_NESTED = ("array", "map", "struct")
_KNOWN = ", ".join([*_TYPES, "decimal(p, s)", "array<...>", "map<..., ...>", "struct<...>"])

_TOKEN = re.compile(r"""\s*(?:(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:])|\Z)""")
_PLAIN = re.compile(r"\w+")
_WORD = re.compile(r"\w+|`.*`", re.DOTALL)


def parse_schema(text: str) -> pa.Schema:
    """Return the columns that `text` lists.

    Parameters
    ----------
    text : str
        Spark's names and types, in any case, with ``NOT NULL`` for columns without nulls: ``"ts timestamp,
        tag string NOT NULL, values array<double>"``. Names with characters other than letters, digits and
        ``_`` are quoted by `````; ``COMMENT 'text'`` is ignored.

    Returns
    -------
    pyarrow.Schema
        ``timestamp`` is in microseconds in UTC, ``timestamp_ntz`` in microseconds without a zone.

    Raises
    ------
    InvalidUsageError
        If the text is not such a list, a type is unknown, or a name occurs twice.

    Examples
    --------
    >>> parse_schema("ts timestamp, `the value` decimal(9, 2) NOT NULL")
    ts: timestamp[us, tz=UTC]
    the value: decimal128(9, 2) not null
    """
    parser = _Parser(text)
    fields = parser.fields("")
    names = [field.name for field in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidUsageError("two columns have the same name", columns=", ".join(twice))
    return pa.schema(fields)


def schema_text(schema: pa.Schema) -> str:
    """Return columns as text for `parse_schema`; a type that Spark lacks is written by its Arrow name.

    Examples
    --------
    >>> schema_text(parse_schema("ts timestamp, `the value` array<decimal(9, 2)> NOT NULL"))
    'ts timestamp, `the value` array<decimal(9, 2)> NOT NULL'
    """
    return _fields_text(schema)


def _fields_text(fields: Iterable[pa.Field], colon: str = "") -> str:
    return ", ".join(
        f"{_name_text(field.name)}{colon} {type_text(field.type)}{'' if field.nullable else ' NOT NULL'}"
        for field in fields
    )


def _name_text(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote(name)


def quote(name: str) -> str:
    """Return a column's name, quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def type_text(kind: pa.DataType) -> str:
    """Return a type as text for `parse_schema`, or its Arrow name if Spark lacks it."""
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{_fields_text(list(kind), ':')}>"
    return next((name for name, arrow_type in _TYPES.items() if arrow_type.equals(kind)), str(kind))


class _Parser:
    """Parses a schema from left to right, with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next = self._rest = ""
        self._step()

    def _step(self) -> str:
        """Return the next token, and go to the token after it."""
        token = self._next
        self._rest = self._text[self._at :].lstrip()
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._wrong("is no part of a schema")
        self._at, self._next = match.end(), match[1] or ""
        return token

    def _wrong(self, fact: str) -> InvalidUsageError:
        where = repr(self._rest[:20]) if self._rest else "the end"
        return InvalidUsageError(
            f"the schema is wrong: {where} {fact}",
            hint='write names and types, as in "ts timestamp, value double NOT NULL"; the types are '
            + _KNOWN,
        )

    def _takes(self, token: str) -> bool:
        if self._next.lower() != token:
            return False
        self._step()
        return True

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise self._wrong(f"is where {token!r} should be")

    def _word(self, what: str) -> str:
        if not _WORD.fullmatch(self._next):
            raise self._wrong(f"is where {what} should be")
        return self._step()

    def fields(self, closing: str) -> list[pa.Field]:
        """Return the fields up to `closing`."""
        fields = [self._field()]
        while self._takes(","):
            fields.append(self._field())
        if self._next != closing:
            raise self._wrong(f"is where ',' or {repr(closing) if closing else 'the end'} should be")
        return fields

    def _field(self) -> pa.Field:
        word = self._word("a name")
        name = word[1:-1].replace("``", "`") if word.startswith("`") else word
        self._takes(":")
        kind = self._type()
        nullable = True
        if self._takes("not"):
            self._expect("null")
            nullable = False
        if self._takes("comment"):
            self._step()
        return pa.field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        word = self._next.lower()
        if word in _NESTED:
            self._step()
            self._expect("<")
            kind = self._nested(word)
            self._expect(">")
            return kind
        if word in _DECIMALS:
            self._step()
            return self._decimal()
        if word not in _TYPES:
            raise self._wrong("is where a type should be")
        self._step()
        return _TYPES[word]

    def _nested(self, word: str) -> pa.DataType:
        if word == "struct":
            return pa.struct(self.fields(">"))
        first = self._type()
        if word == "array":
            return pa.list_(first)
        self._expect(",")
        return pa.map_(first, self._type())

    def _decimal(self) -> pa.DataType:
        if not self._takes("("):
            return pa.decimal128(10, 0)
        precision = self._number()
        scale = self._number() if self._takes(",") else 0
        self._expect(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise InvalidUsageError(
                "a decimal has 1 to 38 digits, and no more of them after its point",
                precision=precision,
                scale=scale,
            )
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        if not self._next.isdecimal():
            raise self._wrong("is where a number should be")
        return int(self._step())
