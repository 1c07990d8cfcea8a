"""Every public function and method names an unknown keyword, and the keyword that was meant."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.conf.arguments import check_keywords
from penstock.dataflow import Graph
from penstock.dataflow.builder.graph import GraphName
from penstock.errors import InvalidUsageError
from penstock.procedures import Database

# Penstock and Spark call their methods.
CALLED_BY_OTHERS = ("MetricsListener", "Operator")


def _methods(name: str, kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods of a class, also inherited ones, as functions."""
    for member in ["__init__"] if name in CALLED_BY_OTHERS else dir(kind):
        value = inspect.getattr_static(kind, member)
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function) and (member == "__init__" or not member.startswith("_")):
            yield f"{name}.{member}", function


def _public() -> Iterator[tuple[str, Callable[..., Any]]]:
    offered: dict[str, Any] = {name: getattr(penstock, name) for name in penstock.__all__}
    offered |= {"Graph": Graph, "GraphName": GraphName, "Database": Database}
    for name, value in offered.items():
        if isinstance(value, type):
            yield from _methods(name, value)
        elif callable(value):
            yield name, value


PUBLIC = dict(_public())


def _takes_all(function: Callable[..., Any]) -> bool:
    """Return whether a function has a ``**`` parameter that takes any name."""
    return any(
        parameter.kind is parameter.VAR_KEYWORD and not str(parameter.annotation).startswith("Unpack[")
        for parameter in inspect.signature(function).parameters.values()
    )


def test_the_public_names_are_all_there() -> None:
    assert {"update_queue", "session", "PStreamWriter.__init__", "Graph.window", "Graph.where"} <= {*PUBLIC}
    assert {"GraphName.source", "Database.open", "Aggregate.of", "SchemaRegistry.__init__"} <= {*PUBLIC}
    free = {name for name, function in PUBLIC.items() if _takes_all(function)}
    assert free == {
        "DatabaseClient.call",
        "DatabaseClient.call_once",
        "Graph.agg",
        "Graph.group_by",
        "Graph.select",
        "Graph.sink",
        "event",
    }


@pytest.mark.parametrize("name", [name for name, function in PUBLIC.items() if not _takes_all(function)])
def test_an_unknown_keyword_is_named(name: str) -> None:
    with pytest.raises(InvalidUsageError, match="there is no such option: option=unheard_of") as caught:
        PUBLIC[name](unheard_of=1)
    owner, _, method = name.rpartition(".")
    assert caught.value.context == {
        "option": "unheard_of",
        "function": owner if method == "__init__" else method,
    }


@pytest.mark.parametrize(
    ("name", "keywords", "meant"),
    [
        ("update_queue", {"budgt": 1}, "budget"),
        ("update_union", {"tim": "t"}, "time"),
        ("update_union", {"time": "t", "budgt": 1}, "budget"),
        ("Graph.update_queue", {"tme": "t"}, "time"),
        ("Graph.window", {"sze": "1 s"}, "size"),
        ("GraphName.source", {"schma": "a int"}, "schema"),
        ("PStreamWriter.__init__", {"intervall": 3}, "interval"),
        ("SchemaRegistry.__init__", {"ulr": "http://host"}, "url"),
    ],
)
def test_the_closest_known_name_is_suggested(name: str, keywords: dict[str, Any], meant: str) -> None:
    with pytest.raises(InvalidUsageError, match=f"did you mean '{meant}'"):
        PUBLIC[name](**keywords)


def test_a_function_keeps_its_signature_its_docstring_and_its_pickles() -> None:
    for name in ("update_queue", "design", "session"):
        function = getattr(penstock, name)
        assert "args" not in inspect.signature(function).parameters
        assert inspect.getdoc(function)
        assert pickle.loads(pickle.dumps(function)) is function
    made = penstock.graph("g").source("s", "k string, t timestamp").update_queue("k", "t", budget=3)
    assert pickle.loads(pickle.dumps(made)).explain() == made.explain()


def test_errors_inside_a_function_stay_as_they_are() -> None:
    @check_keywords
    def fails(number: int, /, *, text: str = "") -> int:
        return number + text  # type: ignore[operator]  # is tested

    with pytest.raises(TypeError, match="unsupported operand"):
        fails(1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
        fails()  # type: ignore[call-arg]
    with pytest.raises(InvalidUsageError, match="option=number function=fails"):
        fails(number=1)  # type: ignore[call-arg]


def test_an_unknown_name_of_the_package_is_told_with_the_closest_name() -> None:
    hint = "did you mean 'update_queue'"
    with pytest.raises(AttributeError, match=rf"no attribute 'update_que'\. Hint: {hint}"):
        penstock.update_que  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute '_update_queue'$"):
        penstock._update_queue  # noqa: B018


def test_what_is_no_spark_session_is_refused() -> None:
    for call in (
        lambda: penstock.read_state(None, "state"),  # type: ignore[arg-type]
        lambda: penstock.register("spark"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidUsageError, match=r"this is no Spark session: got=(NoneType|str)"):
            call()
