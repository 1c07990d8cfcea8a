"""Tables of Delta Lake."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.upserts.abc import Columns, UpsertTarget
from penstock.upserts.arrow_columns import check_columns
from penstock.upserts.changes import DELETED

__all__ = ["DeltaTarget"]


class DeltaTarget(UpsertTarget):
    """A table of Delta Lake. Each batch is one merge, and makes one version of the table.

    If rows can be deleted, a deleted key keeps its row, with the column ``penstock_deleted`` set to true. So
    an older update does not bring the key back. Readers must filter these rows.

    Parameters
    ----------
    path : str
        The table's directory or URI.
    columns : Columns
        The table's columns and their roles.
    """

    def __init__(self, path: str, columns: Columns) -> None:
        from deltalake.exceptions import CommitFailedError

        self.name = path
        self.transient = (CommitFailedError, OSError)
        self._columns = columns
        flags = [pa.field(DELETED, pa.bool_())] if columns.deletes else []
        self._schema = pa.schema([*columns.schema, *flags])

    def prepare(self, *, create: bool) -> None:
        """Check the table, or make it; see `UpsertTarget.prepare`."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.name):
            if not create:
                raise InvalidUsageError(
                    "there is no such table", table=self.name, hint="create the table, or set create to true"
                )
            DeltaTable.create(self.name, self._schema)
        existing = pa.schema(DeltaTable(self.name).schema().to_arrow())
        check_columns(self.name, existing, self._schema)

    def write(self, changes: pa.Table) -> None:
        """Merge a batch; see `UpsertTarget.write`."""
        from deltalake import DeltaTable

        columns = self._columns
        same = " AND ".join(f"kept.`{name}` = new.`{name}`" for name in columns.key)
        merge: Any = DeltaTable(self.name).merge(
            changes.select(self._schema.names), same, source_alias="new", target_alias="kept"
        )
        newer = f"kept.`{columns.time}` <= new.`{columns.time}`"
        merge = merge.when_matched_update_all(newer).when_not_matched_insert_all()
        oldest = columns.oldest_deletion(changes)
        if oldest is not None:
            limit = f"'{oldest.isoformat()}'" if isinstance(oldest, date) else repr(oldest)
            old = f"kept.`{DELETED}` AND kept.`{columns.time}` < {limit}"
            merge = merge.when_not_matched_by_source_delete(old)
        merge.execute()

    def close(self) -> None:
        """Do nothing: each batch opens the table."""
