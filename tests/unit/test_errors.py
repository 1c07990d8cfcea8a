"""Errors say what is wrong and where, and arrive whole from another process."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from penstock import errors
from penstock.errors import CorruptDataError, InvalidUsageError, PenstockError

KINDS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_survive_pickling_with_their_context(kind: type[PenstockError], protocol: int) -> None:
    error = kind("it broke", hint="mend it", file=Path("/a/b"), rows=3, columns=["x", "y"])
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is kind
    assert str(back) == str(error) == "it broke: file=/a/b rows=3 columns=['x', 'y']. Hint: mend it."
    assert (back.fact, back.hint) == ("it broke", "mend it")
    assert back.context == {"file": Path("/a/b"), "rows": 3, "columns": ["x", "y"]}


def test_a_hint_that_asks_ends_with_its_question_mark() -> None:
    assert str(InvalidUsageError("it broke", hint="did you mean 'x'?")) == "it broke. Hint: did you mean 'x'?"


@pytest.mark.parametrize("kind", KINDS)
def test_errors_without_context_survive_too(kind: type[PenstockError]) -> None:
    back = copy.copy(pickle.loads(pickle.dumps(kind("it broke"))))
    assert (str(back), back.hint, back.context) == ("it broke.", None, {})


def test_context_names_do_not_clash_with_the_constructor() -> None:
    error = CorruptDataError("it broke", file="f", size=1, type="int")
    assert pickle.loads(pickle.dumps(error)).context == {"file": "f", "size": 1, "type": "int"}


def test_there_is_one_root_and_six_children() -> None:
    children = [kind for kind in KINDS if kind is not PenstockError]
    assert len(children) == 6
    assert all(kind.__base__ is PenstockError or kind is InvalidUsageError for kind in children)
    assert issubclass(InvalidUsageError, ValueError)
    assert not issubclass(PenstockError, ValueError)


def test_the_cause_stays_with_the_error_in_its_process() -> None:
    cause = OSError("disk")
    with pytest.raises(CorruptDataError) as caught:
        raise CorruptDataError("it broke") from cause
    assert caught.value.__cause__ is cause
