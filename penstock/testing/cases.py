"""Run test cases of a pipeline, which a YAML file holds: input rows, the passing of time, expected output."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.conf.document import PlainLoader
from penstock.errors import InvalidUsageError, PenstockError
from penstock.records.python_rows import Localize
from penstock.testing.pipelines import PipelineTest, pipeline

__all__ = ["Case", "CaseResult", "cases_beside", "read_cases", "run_case"]

_STEPS: Final = ("given", "advance", "trigger", "expect", "restart", "crash")
_EXPECTED: Final = (
    "rows", "waiting_keys", "staleness_ms", "late", "dropped", "emitted", "conflated",
    "committed", "rejected", "late_rows",
)  # fmt: skip
_STALENESS: Final = ("avg", "p50", "p95", "max")
_CASE: Final = ("name", "steps", "start", "schemas", "set")


@dataclass(frozen=True, slots=True)
class Case:
    """A test case.

    Parameters
    ----------
    name, place : str
        The case's name, and the file that holds the case.
    steps : tuple of pairs
        The kind and the content of each step, in order.
    options : mapping
        The case's ``start``, ``schemas`` and ``set``, which are arguments of `penstock.testing.pipeline`.
    """

    name: str
    place: str
    steps: tuple[tuple[str, Any], ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case: a text line for each difference. If the case passes, there are no lines."""

    case: Case
    lines: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether all expectations were met."""
        return not self.lines


def cases_beside(reference: str) -> Path:
    """Return the default file of a pipeline's cases: ``NAME.cases.yaml`` for ``NAME.yaml``."""
    path = Path(reference)
    return path.with_name(f"{path.name.removesuffix('.yaml').removesuffix('.yml')}.cases.yaml")


def read_cases(path: Path) -> list[Case]:
    """Read the cases in a file.

    Raises
    ------
    InvalidUsageError
        If there is no such file, or it does not hold cases.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), PlainLoader)
    except FileNotFoundError:
        raise InvalidUsageError(
            "there is no file of cases", file=path, hint="write one, or name it with --cases"
        ) from None
    except yaml.YAMLError as error:
        raise InvalidUsageError(f"not YAML: {error}", file=path) from None
    cases = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(cases, list) or not cases:
        raise InvalidUsageError("the file has no cases", file=path, hint="begin it with cases:")
    return [_case(one, number, path) for number, one in enumerate(cases, 1)]


def _case(entry: Any, number: int, path: Path) -> Case:
    name = entry.get("name", f"case {number}") if isinstance(entry, dict) else f"case {number}"
    context: dict[str, Any] = {"file": path, "case": name}
    if not isinstance(entry, dict) or not isinstance(entry.get("steps"), list):
        raise InvalidUsageError("a case has no list of steps", **context)
    _check_known(entry, _CASE, "a case", context)
    steps = []
    for step in entry["steps"]:
        one = {step: None} if isinstance(step, str) else step
        if not isinstance(one, dict) or not one:
            raise InvalidUsageError("a step is neither a name nor a mapping", **context)
        kind = next(iter(one))
        _check_known({kind: None}, _STEPS, "a step", context)
        _check_known(one, (kind, "to") if kind == "given" else (kind,), "a step", context)
        content = (one[kind], one.get("to", "source")) if kind == "given" else one[kind]
        if kind == "given":
            _check_rows(one[kind], "given", context)
        elif kind == "expect":
            _check_expected(content, context)
        steps.append((kind, content))
    for option in ("set", "schemas"):
        if not isinstance(entry.get(option, {}), dict):
            raise InvalidUsageError(f"{option} is not a mapping", hint="write {name: value}", **context)
    return Case(str(name), str(path), tuple(steps), {key: entry[key] for key in _CASE[2:] if key in entry})


def _check_expected(content: Any, context: dict[str, Any]) -> None:
    if not isinstance(content, dict):
        _check_rows(content, "expect", context)
        return
    _check_known(content, _EXPECTED, "expect", context)
    for name, value in content.items():
        if name in ("rows", "late_rows"):
            _check_rows(value, name, context)
        elif name != "staleness_ms":
            _check_number(value, name, context)
        elif isinstance(value, dict):
            _check_known(value, _STALENESS, name, context)
            for part, limit in value.items():
                _check_number(limit, f"{name}.{part}", context)
        else:
            raise InvalidUsageError(f"{name} is not a mapping", hint="write {p95: 1000}", **context)


def _check_rows(rows: Any, what: str, context: dict[str, Any]) -> None:
    if rows is None or (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        return
    raise InvalidUsageError(f"{what} is not a list of rows", hint="write [{column: value}]", **context)


def _check_number(value: Any, what: str, context: dict[str, Any]) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidUsageError(f"{what} is not a number", got=value, **context)


def _check_known(given: Mapping[str, Any], known: Sequence[str], what: str, context: dict[str, Any]) -> None:
    from penstock.conf.values import did_you_mean

    for name in given:
        if name not in known:
            hint = did_you_mean(str(name), list(known), f"it has {', '.join(known)}")
            raise InvalidUsageError(f"{what} has no {name!r}", hint=hint, **context)


def run_case(reference: str, case: Case, overrides: Sequence[str] = ()) -> CaseResult:
    """Run a case up to the first step that fails or whose expectation is not met.

    Parameters
    ----------
    reference : str
        The pipeline's file.
    case : Case
        The case.
    overrides : sequence of str
        The changes of the pipeline, each as ``section.field=value``.

    Raises
    ------
    InvalidUsageError
        If the pipeline is wrong.
    """
    changes = [
        *overrides,
        *(f"{name}={json.dumps(value)}" for name, value in case.options.get("set", {}).items()),
    ]
    options = {name: case.options[name] for name in ("start", "schemas") if name in case.options}
    place = ", ".join(case.options)
    try:
        with pipeline(reference, changes, **options) as test:
            for number, (kind, content) in enumerate(case.steps, 1):
                place = f"step {number}, {kind}"
                lines = tuple(_run_step(test, kind, content))
                if lines:
                    return CaseResult(case, (f"{place}:", *lines))
    except PenstockError as error:
        if not place:
            raise
        return CaseResult(case, (f"{place}:", *str(error).replace("--set ", "").splitlines()))
    return CaseResult(case)


def _run_step(test: PipelineTest, kind: str, content: Any) -> Iterator[str]:
    """Run a step; yield the differences from the expected output."""
    if kind == "given":
        rows, to = content
        test.send(rows or [], to)
    elif kind == "advance":
        test.advance(content)
    elif kind == "trigger":
        test.trigger()
    elif kind == "restart":
        test.restart()
    elif kind == "crash":
        test.crash(content or "write")
    else:
        expected = content if isinstance(content, dict) else {"rows": content}
        got = test.rows()
        if "rows" in expected:
            yield from _differ(expected["rows"] or [], got, test.localize)
        metrics = test.metrics[-1] if test.metrics else {}
        for name, value in expected.items():
            if name == "staleness_ms":
                yield from _differ_in_staleness(value, test.staleness_ms)
            elif name == "late_rows":
                yield from _differ(value or [], test.late_rows(), test.localize)
            elif name != "rows" and metrics.get(name, 0) != value:
                yield f"- {name}: {value}"
                yield f"+ {name}: {metrics.get(name, 0)}"


def _differ(
    expected: Sequence[Mapping[str, Any]], got: Sequence[Mapping[str, Any]], localize: Localize
) -> Iterator[str]:
    """Yield the differences between two sets of rows. Columns that no expected row names are ignored."""
    names = list(dict.fromkeys(name for row in expected for name in row))
    if missing := [name for name in names if got and name not in got[0]]:
        yield f"the results have no column {', '.join(missing)}: they have {', '.join(got[0])}"
        return
    decimals = {name for row in got for name, value in row.items() if isinstance(value, Decimal)}
    exact = [
        {name: _as_decimal(value) if name in decimals else value for name, value in row.items()}
        for row in expected
    ]
    wanted, found = ([_line(row, names or list(row), localize) for row in rows] for rows in (exact, got))
    if sorted(wanted) != sorted(found):
        lines = difflib.unified_diff(sorted(wanted), sorted(found), "expected", "got", lineterm="", n=1)
        yield from list(lines)


def _as_decimal(value: Any) -> Any:
    """Return the decimal that a number or a text in YAML means; other values unchanged."""
    try:
        return Decimal(str(value)) if isinstance(value, int | float | str) else value
    except InvalidOperation:
        return value


def _line(row: Mapping[str, Any], names: Sequence[str], localize: Localize) -> str:
    return ", ".join(f"{name}: {_text(row.get(name), localize)}" for name in names)


def _text(value: Any, localize: Localize) -> str:
    """Return a text for a value, so that a value in YAML and an equal value in results have the same text."""
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return json.dumps(value, ensure_ascii=False)
    if isinstance(value, datetime):
        moment = localize(value) if value.tzinfo is None else value
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_text(one, localize)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(one, localize) for one in value) + "]"
    if isinstance(value, Decimal):
        text = f"{value:f}" if value else "0"
        return text.rstrip("0").removesuffix(".") if "." in text else text
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "null" if value is None else str(value)


def _differ_in_staleness(most: Mapping[str, float], got: Mapping[str, float]) -> Iterator[str]:
    """Yield a line for each staleness figure that exceeds the expected maximum."""
    for name, limit in most.items():
        if got.get(name, 0.0) > float(limit):
            yield f"- staleness_ms {name}: at most {limit}"
            yield f"+ staleness_ms {name}: {got.get(name, 0.0)}"
