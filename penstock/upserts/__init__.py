"""Tables that applications read, kept up to date by update streams."""

from __future__ import annotations

from penstock.upserts.abc import Columns, UpsertTarget
from penstock.upserts.changes import DELETED, newest_changes
from penstock.upserts.stores import SCHEMES, check_address, open_target

__all__ = ["DELETED", "SCHEMES", "Columns", "UpsertTarget", "check_address", "newest_changes", "open_target"]
