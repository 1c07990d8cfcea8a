"""Arguments that are no DataFrame and no query are errors that say so."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.errors import InvalidUsageError


@pytest.mark.parametrize("wrong", [5, None, "trades"])
def test_an_operator_refuses_what_is_no_dataframe(wrong: Any) -> None:
    with pytest.raises(InvalidUsageError, match=r"not a streaming DataFrame\. Hint: use spark\.readStream"):
        penstock.update_queue(wrong, key="k", time="t", state_location="state")


@pytest.mark.parametrize("wrong", [None, 5])
def test_metrics_refuse_what_is_no_query(wrong: Any) -> None:
    with pytest.raises(InvalidUsageError, match=f"this is no query: got={type(wrong).__name__}"):
        penstock.metrics(wrong)
