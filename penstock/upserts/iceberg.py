"""Tables of Iceberg."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError
from penstock.upserts.abc import Columns, UpsertTarget
from penstock.upserts.arrow_columns import check_columns
from penstock.upserts.changes import DELETED

__all__ = ["IcebergTable"]

_NEW: Final = "penstock_new_row"
_OLD: Final = "penstock_old_row"


class IcebergTable(UpsertTarget):
    """A table of Iceberg. Each batch is one commit, and makes one snapshot of the table.

    A commit replaces the data files that hold rows with keys of the batch. The new files hold the old rows
    that stay, and the new rows (copy on write). Files whose statistics exclude the keys are not read. If
    another writer commits first, the commit fails, and the caller writes the batch again on the new snapshot.

    If rows can be deleted, a deleted key keeps its row, with the column ``penstock_deleted`` set to true. So
    an older update does not bring the key back. Readers must filter these rows.

    Parameters
    ----------
    catalog : str
        The name of the catalog in pyiceberg's configuration.
    properties : dict of str to str
        Properties of the catalog. They take precedence over configured properties.
    table : str
        The table's name, as ``namespace.table``.
    columns : Columns
        The table's columns and their roles.
    """

    def __init__(self, catalog: str, properties: dict[str, str], table: str, columns: Columns) -> None:
        from pyiceberg import exceptions

        self.name = f"iceberg://{catalog}/{table}"
        self.transient = (
            exceptions.CommitFailedException,
            exceptions.CommitStateUnknownException,
            exceptions.ServerError,
            exceptions.ServiceUnavailableError,
            exceptions.TooManyRequestsError,
            exceptions.ValidationException,
            exceptions.WaitingForLockException,
            OSError,
        )
        with suppress(ImportError):
            from sqlalchemy.exc import OperationalError

            self.transient = (*self.transient, OperationalError)
        self._catalog_name, self._properties = catalog, properties
        self._table, self._columns = table, columns
        self._catalog: Any = None
        flags = [pa.field(DELETED, pa.bool_())] if columns.deletes else []
        required = [field.with_nullable(field.name not in columns.key) for field in columns.schema]
        self._schema = pa.schema([*required, *flags])

    def prepare(self, *, create: bool) -> None:
        """Check the table, or make it; see `UpsertTarget.prepare`."""
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

        self._connect()
        try:
            table = self._catalog.load_table(self._table)
        except NoSuchTableError:
            if not create:
                raise InvalidUsageError(
                    "there is no such table", table=self.name, hint="create the table, or set create to true"
                ) from None
            with suppress(TableAlreadyExistsError):
                self._create()
            table = self._catalog.load_table(self._table)
        existing = table.schema().as_arrow()
        check_columns(self.name, existing, self._schema)
        marked = {table.schema().find_column_name(number) for number in table.schema().identifier_field_ids}
        if marked and marked != {*self._columns.key}:
            raise InvalidUsageError(
                "the table cannot take upserts by this key",
                table=self.name,
                key=", ".join(self._columns.key),
                hint=f"its identifier fields are {', '.join(sorted(map(str, marked)))}",
            )

    def _connect(self) -> None:
        if self._catalog is None:
            from pyiceberg.catalog import load_catalog

            self._catalog = load_catalog(self._catalog_name, **self._properties)

    def _create(self) -> None:
        namespace = self._table.rpartition(".")[0]
        if namespace:
            self._catalog.create_namespace_if_not_exists(namespace)
        table = self._catalog.create_table(self._table, self._schema)
        kinds = (self._schema.field(name).type for name in self._columns.key)
        if not any(pa.types.is_floating(kind) for kind in kinds):  # a float cannot be an identifier field
            with table.update_schema() as update:
                update.set_identifier_fields(*self._columns.key)

    def write(self, changes: pa.Table) -> None:
        """Write a batch in one commit; see `UpsertTarget.write`."""
        from pyiceberg.expressions import AlwaysTrue, Or
        from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files

        self._connect()
        table = self._catalog.load_table(self._table)
        schema = table.schema().as_arrow()
        new = _as_table(changes.select(self._schema.names), schema)
        wanted = np.ones(new.num_rows, np.bool_)
        replaced, parts = [], []
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        oldest = self._columns.oldest_deletion(changes)
        condition = _range_of(new, self._columns.key[0])
        if oldest is not None:
            condition = Or(condition, self._is_forgotten(oldest))
        for task in table.scan(row_filter=condition).plan_files():
            old = scan.to_table([task]).select(schema.names)
            old_rows, new_rows = self._match(old, new)
            keep = np.ones(old.num_rows, np.bool_)
            if oldest is not None:
                limit = pa.scalar(oldest, schema.field(self._columns.time).type)
                is_old = pc.and_(old[DELETED], pc.less(old[self._columns.time], limit))
                keep &= ~np.asarray(is_old)
            is_newer = (
                _numbers(old, self._columns.time)[old_rows] > _numbers(new, self._columns.time)[new_rows]
            )
            wanted[new_rows[is_newer]] = False
            superseded = old_rows[~is_newer]
            keep[superseded] = False
            if keep.all():
                continue
            new = self._keep_others(old, new, superseded, new_rows[~is_newer])
            replaced.append(task.file)
            parts.append(old.filter(pa.array(keep)))
        if not wanted.any() and not replaced:
            return
        rows = pa.concat_tables([*parts, new.filter(pa.array(wanted))]).combine_chunks()
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as commit:
            for file in replaced:
                commit.delete_data_file(file)
            for file in _dataframe_to_data_files(table.metadata, rows, table.io, commit.commit_uuid):
                commit.append_data_file(file)

    def _is_forgotten(self, oldest: Any) -> Any:
        """Return a scan filter for the files that may hold deletions older than `oldest`."""
        from pyiceberg.expressions import And, EqualTo, LessThan, Reference
        from pyiceberg.expressions.literals import literal

        return And(
            EqualTo(term=Reference(DELETED), value=literal(True)),
            LessThan(term=Reference(self._columns.time), value=literal(oldest)),
        )

    def _match(self, old: pa.Table, new: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the row numbers in `old` and in `new` of each pair of rows with the same key."""
        keys = list(self._columns.key)
        sides = [
            table.select(keys).append_column(name, pa.array(np.arange(table.num_rows)))
            for table, name in ((old, _OLD), (new, _NEW))
        ]
        pairs = sides[0].join(sides[1], keys, join_type="inner")
        return pairs[_OLD].to_numpy(), pairs[_NEW].to_numpy()

    def _keep_others(
        self,
        old: pa.Table,
        new: pa.Table,
        old_rows: npt.NDArray[np.int64],
        new_rows: npt.NDArray[np.int64],
    ) -> pa.Table:
        """Return the new rows, with the columns that changes lack copied from the old rows they replace."""
        for place, field in enumerate(new.schema):
            if field.name not in self._schema.names:
                both = pa.chunked_array([*new[field.name].chunks, *old[field.name].chunks], field.type)
                at = np.arange(new.num_rows)
                at[new_rows] = new.num_rows + old_rows
                new = new.set_column(place, field, both.take(pa.array(at)))
        return new

    def close(self) -> None:
        """Close the catalog; a later call opens it again."""
        if self._catalog is not None:
            catalog, self._catalog = self._catalog, None
            catalog.close()


def _as_table(changes: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return changes with all columns of the table, in the table's types; missing columns are null."""
    columns = [
        changes[field.name].cast(field.type)
        if field.name in changes.column_names
        else pa.nulls(changes.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema)


def _numbers(table: pa.Table, name: str) -> npt.NDArray[Any]:
    """Return times as NumPy values, which can be compared."""
    return np.asarray(table[name].to_numpy())


def _range_of(new: pa.Table, key: str) -> Any:
    """Return a scan filter for files that may hold a key; always true if statistics do not help."""
    from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual, Reference
    from pyiceberg.expressions.literals import literal

    kind = new.schema.field(key).type
    if not (pa.types.is_integer(kind) or pa.types.is_large_string(kind) or pa.types.is_string(kind)):
        return AlwaysTrue()
    least, greatest = pc.min_max(new[key]).as_py().values()
    column = Reference(key)
    return And(
        GreaterThanOrEqual(term=column, value=literal(least)),
        LessThanOrEqual(term=column, value=literal(greatest)),
    )
