"""Every table passes the tests of `penstock.testing`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.state_store.tables.table import Table
from penstock.state_store.tables.working_copy import WorkingCopy, table_maker
from penstock.testing import TableTests
from penstock.testing.tables import SCHEMA, NewTable

MAKERS = [copy for copy in WorkingCopy if table_maker(copy) is not None]


class TestTables(TableTests):
    @pytest.fixture(params=MAKERS)
    def new(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewTable]:
        maker, made = table_maker(request.param, tmp_path), list[Table]()
        assert maker is not None

        def make(schema: pa.Schema = SCHEMA, key: tuple[str, ...] = ("k",)) -> Table:
            made.append(maker(schema, key))
            return made[-1]

        yield make
        for table in made:
            table.close()
