"""Checks and conversions of single fields of a pipeline."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from penstock.errors import InvalidUsageError
from penstock.units import COST_BY_KEY, parse_address, parse_duration_us, parse_rows


def wrong(fact: str, hint: str | None = None) -> PydanticCustomError:
    """Return the error for a wrong field."""
    return PydanticCustomError("penstock", "{fact}", {"fact": fact, "hint": hint})


def show(value: Any) -> str:
    """Return a value as it looks in the file, truncated if it is long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def option_text(value: Any) -> str:
    """Turn the value of a Spark option into the text that Spark expects."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise wrong(f"{show(value)} is not the value of an option", "write text, a number, true or false")


def empty_section(value: Any) -> Any:
    """Replace an empty section by a section with the defaults."""
    return {} if value is None else value


def names_of(value: Any) -> Any:
    """Turn a name or a list of names into a tuple."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise wrong(f"{show(value)} is neither a column's name nor a list of them")
    if not names or not all(names):
        raise wrong("names no column", "write the name of a column, or a list of names")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise wrong(f"names the column {twice[0]!r} twice")
    return tuple(names)


def p_stream_of(value: Any) -> Any:
    """Turn a path, or a sink of the type pstream, into a path."""
    if isinstance(value, dict):
        if value.get("type") != "pstream" or set(value) != {"type", "path"}:
            raise wrong(
                "is neither a path nor {type: pstream, path: PATH}",
                "write the rows into a p-stream; another pipeline can read it and write any other sink",
            )
        value = value["path"]
    if value is not None and (not isinstance(value, str) or not value):
        raise wrong(f"{show(value)} is not the path of a p-stream")
    return value


def texts(value: Any) -> Any:
    """Turn a list of SQL expressions into a tuple."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise wrong(
            f"{show(value)} is not a list of SQL expressions",
            "write one expression for each column, such as [symbol, 'price * volume AS turnover']",
        )
    if not value or not all(text.strip() for text in value):
        raise wrong("an expression is missing", "write one SQL expression for each column")
    return tuple(value)


def aggregates_of(value: Any) -> Any:
    """Check names and SQL aggregates."""
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(text, str) and text for text in value.values()):
        raise wrong(
            f"{show(value)} is not a section of SQL aggregates",
            "write a name and an expression for each, such as load: avg(value)",
        )
    if not value:
        raise wrong("names no aggregate", "write one for each column, such as load: avg(value)")
    return value


def window_length(value: Any) -> str | None:
    """Check a duration of at least a millisecond, or a number of rows, if there is one."""
    if value is None or parse_rows(value) is not None:
        return value
    return duration_of(value, least_us=1_000)


def window_duration(value: Any) -> str | None:
    """Check that a duration, if given, is at least a millisecond."""
    if parse_rows(value) is not None:
        raise wrong(f"windows of {value} do not end together", "write a duration, such as '60 s'")
    return None if value is None else duration_of(value, least_us=1_000)


def persist_of(value: Any) -> Any:
    """Turn a persistence into auto, always, never, or a mapping of sources and operators to these words."""
    modes = ("auto", "always", "never")
    for mode in value.values() if isinstance(value, dict) else (value,):
        if mode not in modes:
            fact, hint = choice(mode, modes)
            raise wrong(fact, hint)
    return value


def sql(value: Any) -> Any:
    """Check that a SQL condition is not blank."""
    if isinstance(value, str) and not value.strip():
        raise wrong("is empty", "write a SQL condition, or leave the field out")
    return value


def duration_of(value: Any, *, least_us: int) -> str:
    """Check a duration."""
    if not isinstance(value, str):
        raise wrong(f"{show(value)} is not a duration", "write a number and a unit, such as '800ms'")
    try:
        duration_us = parse_duration_us(value)
    except InvalidUsageError as error:
        raise wrong(error.fact, error.hint) from None
    if duration_us < least_us:
        raise wrong(
            f"the duration {value!r} is too short",
            f"it must be at least {'a millisecond' if least_us == 1_000 else 'a microsecond'}",
        )
    return value


def address_of(value: Any) -> str | int | None:
    """Check a port or ``HOST:PORT``."""
    if value is None:
        return None
    if not isinstance(value, str | int):
        raise wrong(f"{show(value)} is not an address", "write a port, such as 9464, or HOST:PORT")
    try:
        parse_address(value)
    except InvalidUsageError as error:
        raise wrong(error.fact, error.hint) from None
    return value


def trigger_of(value: Any) -> str | None:
    """Check a duration, or available_now."""
    if value is None or value == "available_now":
        return value
    if isinstance(value, str) and not re.search("[0-9]", value):
        near = difflib.get_close_matches(value, ["available_now"])
        hint = "did you mean 'available_now'?" if near else None
        raise wrong(
            f"{value!r} is neither a duration nor available_now",
            hint or "write a duration such as '1 second', available_now, or null for no pause",
        )
    return duration_of(value, least_us=1_000)


def budget_of(value: Any) -> int | str | None:
    """Check a budget: a number of rows, a duration, or null."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise wrong(f"{value} is too small", "it must be at least 1; null drains the queue")
        return value
    if isinstance(value, str) and re.match(r"\s*[\d.]", value):
        return duration_of(value, least_us=1)
    raise wrong(
        f"{show(value)} is not a budget",
        "write a number of rows, a duration such as '800ms', or null to drain",
    )


def ttl_of(value: Any) -> int | str | None:
    """Check how long keys live: a duration, a number in the unit of an integer time, or null."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise wrong(f"{value} is too small", "it must be at least 1; without it keys live for ever")
        return value
    return duration_of(value, least_us=1)


def cost_of(value: Any) -> str | None:
    """Check the cost of a tuple, if there is one."""
    return None if value is None else duration_of(value, least_us=1)


def queue_cost_of(value: Any) -> str | None:
    """Check the cost of a tuple of a queue, which may be measured by key."""
    return str(value) if value == COST_BY_KEY else cost_of(value)


def weight_of(value: Any) -> Any:
    """Check the name of a column, or weights by the value of the key."""
    hint = "write the name of a numeric column, or a positive number for each key, such as {GOOG: 10}"
    if value is None or (isinstance(value, str) and value):
        return value
    if not isinstance(value, dict) or not value:
        raise wrong(f"{show(value)} is neither a column nor weights by key", hint)
    for weight in value.values():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise wrong(f"{show(weight)} is not a weight", hint)
    return {key: float(weight) for key, weight in value.items()}


def delay_of(value: Any) -> str | None:
    """Check a duration, which may be zero, if there is one."""
    return None if value is None else duration_of(value, least_us=0)


def start_time_of(value: Any) -> int | None:
    """Turn a time of day with its zone into microseconds since the epoch."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    hint = "write it as 2024-01-31T09:30:00Z, or as microseconds since 1970-01-01T00:00:00Z"
    if not isinstance(value, str):
        raise wrong(f"{show(value)} is not a time", hint)
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise wrong(f"{value!r} is not a time", hint) from None
    if time.tzinfo is None:
        raise wrong(f"the time {value!r} has no zone", "end it with Z, or with an offset such as +01:00")
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def function_of(value: Any) -> Any:
    """Check the name of a function."""
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", value):
        raise wrong(
            f"{value!r} is not the name of a function",
            "write module:function, such as my_package.pricing:reprice",
        )
    return value


Text: TypeAlias = Annotated[str, Field(min_length=1)]
Options: TypeAlias = dict[
    Text, Annotated[str, BeforeValidator(option_text, json_schema_input_type=str | int | float | bool)]
]
Names: TypeAlias = Annotated[
    tuple[str, ...], BeforeValidator(names_of, json_schema_input_type=str | list[str])
]
Weight: TypeAlias = Annotated[str | dict[Any, float] | None, BeforeValidator(weight_of)]
Freshness: TypeAlias = dict[Text, Text | dict[Text, Text]] | None
StartTime: TypeAlias = Annotated[
    int | None, BeforeValidator(start_time_of, json_schema_input_type=int | str | None)
]
Function: TypeAlias = Annotated[str, BeforeValidator(function_of)]


def did_you_mean(got: Any, allowed: Sequence[str], otherwise: str | None) -> str | None:
    """Return the hint that names the closest known name; if no name is close, return `otherwise`."""
    near = difflib.get_close_matches(str(got).lower(), allowed, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else otherwise


def choice(got: Any, allowed: Sequence[str]) -> tuple[str, str | None]:
    """Return the fact and the hint for a value that is not allowed."""
    return f"{show(got)} is not one of {', '.join(allowed)}", did_you_mean(got, allowed, None)


OnError: TypeAlias = Literal["keep", "skip", "fail"]
PStreamPath: TypeAlias = Annotated[str | None, BeforeValidator(p_stream_of)]


class Section(BaseModel):
    """Base of all sections: unknown fields are errors, and sections are immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)
