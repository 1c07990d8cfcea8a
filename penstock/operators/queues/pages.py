"""Paged memory: locations for waiting tuples, on demand (UpStream §7.1).

A page is `page_rows` locations. The *page pool* holds unused pages. The *empty locations pool* (ELP) holds
used pages that have available locations, with a list of these locations per page. A new location comes from
the *next available page* (NAP) if it has one, else from a page of the ELP, else from an unused page of the
pool. A page whose last location is freed returns to the pool at once. All lists are chains in the arrays
`_next_location` and `_next_page`.

Unlike in the paper, the pool hands out its lowest page first, so that `page_capacity` can shrink.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel
from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_index import grow

__all__ = ["PAGE_ROWS", "PagedMemory"]

PAGE_ROWS = 256
"""The default number of locations in a page."""
_NONE = -1
# Indices into the array of registers that the kernels share.
_NAP, _ELP_HEAD, _LOWEST_FREE, _PAGES_USED = 0, 1, 2, 3


@kernel
def _elp_remove(page: int, registers: Integers, next_page: Integers, previous_page: Integers) -> None:
    before, after = previous_page[page], next_page[page]
    if before >= 0:
        next_page[before] = after
    else:
        registers[_ELP_HEAD] = after
    if after >= 0:
        previous_page[after] = before
    next_page[page] = _NONE
    previous_page[page] = _NONE


@kernel
def _elp_add(page: int, registers: Integers, next_page: Integers, previous_page: Integers) -> None:
    head = registers[_ELP_HEAD]
    next_page[page] = head
    previous_page[page] = _NONE
    if head >= 0:
        previous_page[head] = page
    registers[_ELP_HEAD] = page


@kernel
def _allocate(
    out: Integers,
    page_rows: int,
    registers: Integers,
    available: Integers,
    first_location: Integers,
    next_location: Integers,
    next_page: Integers,
    previous_page: Integers,
    in_use: Any,
) -> None:
    """Run the paper's MemAdd once for each element of `out`; the pool must be large enough."""
    for i in range(out.shape[0]):
        page = registers[_NAP]
        if page < 0 or available[page] == 0:
            page = registers[_ELP_HEAD]
            if page < 0:
                page = registers[_LOWEST_FREE]
                while in_use[page]:
                    page += 1
                registers[_LOWEST_FREE] = page + 1
                registers[_PAGES_USED] += 1
                in_use[page] = 1
                begin = page * page_rows
                for location in range(begin, begin + page_rows - 1):
                    next_location[location] = location + 1
                next_location[begin + page_rows - 1] = _NONE
                first_location[page] = begin
                available[page] = page_rows
                _elp_add(page, registers, next_page, previous_page)
            registers[_NAP] = page
        location = first_location[page]
        first_location[page] = next_location[location]
        available[page] -= 1
        if available[page] == 0:
            _elp_remove(page, registers, next_page, previous_page)
        out[i] = location


@kernel
def _free(
    locations: Integers,
    page_rows: int,
    registers: Integers,
    available: Integers,
    first_location: Integers,
    next_location: Integers,
    next_page: Integers,
    previous_page: Integers,
    in_use: Any,
) -> None:
    """Run the paper's MemRem once for each location."""
    for i in range(locations.shape[0]):
        location = locations[i]
        page = location // page_rows
        if available[page] == 0:
            _elp_add(page, registers, next_page, previous_page)
            first_location[page] = _NONE
        next_location[location] = first_location[page]
        first_location[page] = location
        available[page] += 1
        if available[page] == page_rows:
            _elp_remove(page, registers, next_page, previous_page)
            in_use[page] = 0
            available[page] = 0
            registers[_PAGES_USED] -= 1
            registers[_LOWEST_FREE] = min(registers[_LOWEST_FREE], page)
            if registers[_NAP] == page:
                registers[_NAP] = _NONE


class PagedMemory:
    """Allocator of locations, which are numbers below ``capacity``.

    Parameters
    ----------
    page_rows : int
        The number of locations in a page; at least 1.
    """

    def __init__(self, page_rows: int) -> None:
        if page_rows < 1:
            raise InvalidUsageError("a page has at least one location", page_rows=page_rows)
        self.page_rows = page_rows
        self.locations_used = 0
        self._registers = np.array([_NONE, _NONE, 0, 0], np.int64)
        self._available = np.zeros(0, np.int64)
        self._first_location = np.zeros(0, np.int64)
        self._next_page = np.zeros(0, np.int64)
        self._previous_page = np.zeros(0, np.int64)
        self._in_use = np.zeros(0, np.uint8)
        self._next_location = np.zeros(0, np.int64)

    @property
    def pages_used(self) -> int:
        """Pages with at least one location in use."""
        return int(self._registers[_PAGES_USED])

    @property
    def page_capacity(self) -> int:
        """Pages in use and in the pool."""
        return len(self._in_use)

    @property
    def capacity(self) -> int:
        """Number of locations of all pages, in use or not."""
        return self.page_capacity * self.page_rows

    @property
    def size_bytes(self) -> int:
        """Memory of the pools' lists in bytes."""
        return sum(array.nbytes for array in self._arrays()[1:])

    def allocate(self, count: int) -> Integers:
        """Allocate `count` locations."""
        out = np.empty(count, np.int64)
        self._reserve(self.pages_used + -(-count // self.page_rows))
        _allocate(out, *self._arrays())
        self.locations_used += count
        return out

    def free(self, locations: Integers) -> None:
        """Free `locations`; each must be allocated and occur once."""
        _free(locations, *self._arrays())
        self.locations_used -= len(locations)

    def shrink(self) -> bool:
        """Release pages at the end of the pool if three quarters of all pages are unused.

        Return whether any were released.
        """
        used = np.flatnonzero(self._in_use)
        needed = int(used[-1]) + 1 if len(used) else 0
        if self.page_capacity <= 4 or needed > self.page_capacity // 4:
            return False
        self._resize(max(2 * needed, 1))
        return True

    def _arrays(self) -> tuple[Any, ...]:
        return (
            self.page_rows, self._registers, self._available, self._first_location,
            self._next_location, self._next_page, self._previous_page, self._in_use,
        )  # fmt: skip

    def _reserve(self, pages: int) -> None:
        if pages > self.page_capacity:
            self._resize(max(pages, 2 * self.page_capacity))

    def _resize(self, pages: int) -> None:
        for name in ("_available", "_first_location", "_next_page", "_previous_page", "_in_use"):
            setattr(self, name, _resize_array(getattr(self, name), pages))
        self._next_location = _resize_array(self._next_location, pages * self.page_rows)
        self._registers[_LOWEST_FREE] = min(int(self._registers[_LOWEST_FREE]), pages)


def _resize_array(array: Any, length: int) -> Any:
    return array[:length].copy() if length <= len(array) else grow(array, length)[:length]
