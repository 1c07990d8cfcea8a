"""A query is stopped between two batches, or during a batch that takes too long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark_ext.api import stopping


class Query:
    """A query whose running batch ends after the status was read some times."""

    name, id, runId, isActive = "prices", "1", "2", True  # noqa: N815 - the name is Spark's

    def __init__(self, looks: int | None) -> None:
        self.looks = looks
        self.stopped = 0

    @property
    def status(self) -> dict[str, bool]:
        if self.looks is not None:
            self.looks -= 1
        return {"isTriggerActive": True}

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - the name is Spark's
        return SimpleNamespace(batchId=1 if self.looks is None or self.looks > 0 else 2)

    def stop(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize(("looks", "cancels"), [(3, False), (None, True)])
def test_a_batch_that_is_cancelled_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, looks: int | None, cancels: bool
) -> None:
    monkeypatch.setattr(stopping, "has_running_tasks", lambda spark, run: False)
    query: Any = Query(looks)
    session: Any = None
    stopping.stop_between_batches(query, session, batch_end_s=60 if looks else 0.05)
    assert query.stopped == 1
    told = [
        "did not end within 0 s and is cancelled; the next start runs it again" in one
        for one in caplog.messages
    ]
    assert told == [True] * cancels
