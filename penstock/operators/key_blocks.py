"""The names of the block and the column that attach stored rows to their key."""

from __future__ import annotations

from typing import Final

from penstock.operators.update_stream.stream import RESERVED_PREFIX

__all__ = ["KEY_BLOCK", "OWNER"]

KEY_BLOCK: Final = "cells"
"""The block of a p-unit with one row for each key or group."""

OWNER: Final = f"{RESERVED_PREFIX}cell"
"""The column, in blocks of rows, with the position of a row's key in `KEY_BLOCK`."""
