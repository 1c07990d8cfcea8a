"""Operation chains, versions and levels of a batch of transactions.

An operation is the access of a transaction to one row: a read or a write. The operations of transaction t
have the numbers from ``offsets[t]`` up to, but not including, ``offsets[t + 1]``. The chain of a row links
the row's operations in the order of their transactions (TStream §IV-C1).

If a later transaction writes a row that an earlier transaction reads, the reader gets a version, so that the
writer need not wait for the reader. A version is a copy of the row in a slot after the used slots. When the
batch has ended, versions are garbage (TStream §IV-C2).
"""

from __future__ import annotations

from typing import Any

from penstock._kernels import kernel

__all__ = ["find_levels", "find_owners", "link_operations", "list_operations", "version_of"]


@kernel
def version_of(
    slot: int,
    table: int,
    t: int,
    offsets: Any,
    rows: Any,
    tables: Any,
    versions: Any,
    versioned: Any,
    bases: Any,
) -> int:
    """Return the slot that transaction `t` reads for a row: the transaction's version, if it has one."""
    if slot < 0 or versioned.shape[0] == 0 or not versioned[t]:
        return slot
    row = bases[table] + slot
    for x in range(offsets[t], offsets[t + 1]):
        if rows[x] == row:
            return versions[x] if versions[x] >= 0 else slot
    return slot


@kernel
def list_operations(
    facts: Any,
    slots: Any,
    starts: Any,
    access_tables: Any,
    bits: Any,
    write_bits: Any,
    bases: Any,
    last: Any,
    stamps: Any,
    stamp: int,
    offsets: Any,
    transactions: Any,
    rows: Any,
    tables: Any,
    writes: Any,
) -> int:
    """List the operations of each transaction, one for each row; return their number.

    `stamps[row]` is the last batch that accessed a row, and `last[row]` is the row's last operation in this
    batch.
    """
    x = 0
    for t in range(facts.shape[0]):
        offsets[t] = x
        for access in range(bits.shape[0]):
            if facts[t] & bits[access] == 0:
                continue
            is_write = facts[t] & write_bits[access] != 0
            for place in range(starts[access, t], starts[access, t + 1]):
                if slots[place] < 0:
                    continue
                row = bases[access_tables[access]] + slots[place]
                if stamps[row] == stamp and last[row] >= offsets[t]:
                    writes[last[row]] |= is_write
                    continue
                stamps[row] = stamp
                last[row] = x
                transactions[x], rows[x], tables[x], writes[x] = t, row, access_tables[access], is_write
                x += 1
    offsets[facts.shape[0]] = x
    return x


@kernel
def link_operations(
    count: int,
    offsets: Any,
    transactions: Any,
    rows: Any,
    tables: Any,
    writes: Any,
    next_slots: Any,
    first: Any,
    stamps: Any,
    stamp: int,
    following: Any,
    versions: Any,
    versioned: Any,
    pending: Any,
    heads: Any,
) -> int:
    """Link the chains and number the versions; return the number of heads.

    A head is the number of the first operation of a chain, or -1 - t for a transaction t without operations.
    `next_slots` has the slot of the next version for each table.
    """
    n = pending.shape[0]
    for x in range(count - 1, -1, -1):
        row = rows[x]
        after = first[row] if stamps[row] == stamp else -1
        following[x] = after
        stamps[row] = stamp
        first[row] = x
        versions[x] = -1
        if not writes[x] and after >= 0 and (writes[after] or versions[after] >= 0):
            versions[x] = next_slots[tables[x]]
            next_slots[tables[x]] += 1
            versioned[transactions[x]] = True
    found = 0
    for t in range(n):
        pending[t] = offsets[t + 1] - offsets[t]
        if pending[t] == 0:
            heads[found] = -1 - t
            found += 1
        for x in range(offsets[t], offsets[t + 1]):
            if first[rows[x]] == x:
                heads[found] = x
                found += 1
    return found


@kernel
def find_levels(
    offsets: Any,
    rows: Any,
    writes: Any,
    readers: Any,
    writers: Any,
    stamps: Any,
    stamp: int,
    levels: Any,
    order: Any,
    begins: Any,
) -> int:
    """Sort transactions by level; return the number of levels.

    A transaction has a higher level than all earlier transactions with which it conflicts. ``begins[place]``
    is the first place in the order that has the same level as ``place``.
    """
    n = levels.shape[0]
    most = 0
    for t in range(n):
        level = 0
        for x in range(offsets[t], offsets[t + 1]):
            row = rows[x]
            if stamps[row] != stamp:
                stamps[row] = stamp
                readers[row] = writers[row] = 0
            level = max(level, writers[row])
            if writes[x]:
                level = max(level, readers[row])
        levels[t] = level
        most = max(most, level + 1)
        for x in range(offsets[t], offsets[t + 1]):
            if writes[x]:
                writers[rows[x]] = level + 1
            else:
                readers[rows[x]] = max(readers[rows[x]], level + 1)
    # Sort by counting. At first `begins` has the number of transactions of each level; there are at most as
    # many levels as transactions.
    begins[:] = 0
    for t in range(n):
        begins[levels[t]] += 1
    total = 0
    for level in range(most):
        total += begins[level]
        begins[level] = total - begins[level]
    for t in range(n):
        order[begins[levels[t]]] = t
        begins[levels[t]] += 1
    for place in range(n - 1, -1, -1):
        begins[place] = -1
    begin = 0
    for place in range(n):
        if place > 0 and levels[order[place]] != levels[order[place - 1]]:
            begin = place
        begins[place] = begin
    return most


@kernel
def find_owners(
    facts: Any, slots: Any, starts: Any, access_tables: Any, bits: Any, bases: Any, threads: int, owners: Any
) -> None:
    """Set, for each transaction, the bits of the threads that own its rows.

    A transaction without rows belongs to thread 0.
    """
    for t in range(facts.shape[0]):
        own = 0
        for access in range(bits.shape[0]):
            if facts[t] & bits[access] == 0:
                continue
            for place in range(starts[access, t], starts[access, t + 1]):
                if slots[place] >= 0:
                    own |= 1 << (bases[access_tables[access]] + slots[place]) % threads
        owners[t] = own if own != 0 else 1
