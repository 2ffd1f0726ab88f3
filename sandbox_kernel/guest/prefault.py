"""Give the worker back, between two cells, the pages that the next cell will write to.

After a fork every first write to a page makes the kernel copy it: some thousand times in any
cell, and so milliseconds while the user waits.  Cells mostly write where the last ones did.

Invariant: only speed depends on this; where the kernel lacks what it needs, it does nothing.
"""

from __future__ import annotations

import ctypes
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Of Linux 5.14.
_MADV_POPULATE_WRITE = 23
_PAGE = resource.getpagesize()
#: A larger area is data, which the next cell will hardly write to as the last one did.
_AREA_BYTES = 64 * 1024 * 1024
#: More pages than that are no habit, and would cost memory.
_MOST_PAGES = 4096
#: Pages between two places that are taken as one.
_GAP_PAGES = 2
#: Cells after which it is looked again where they write.
_CELLS = 10

_WRITABLE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p ", re.MULTILINE)
#: The last byte of an entry of `pagemap`: present, not of a file, mapped by this process alone.
_OWN_PAGES = re.compile(rb"[\x81]+")

_libc = ctypes.CDLL(None)


class Prefault:
    """The places in memory that the cells of this process write to."""

    def __init__(self) -> None:
        self._places: list[tuple[int, int]] = []
        self._cells = 0

    def look(self) -> None:
        """See, before a fork, what was written since the last one."""
        self._cells += 1
        if not self._looks(self._cells):
            return
        try:
            places = list(_own_places())
        except (OSError, MemoryError):
            places = []
        few = sum(size for _, size in places) <= _MOST_PAGES * _PAGE
        self._places = list(_merged(places)) if few else []

    def touch(self) -> None:
        """Have these pages copied now, after the fork."""
        if self._looks(self._cells + 1):
            # What is given back now would count as written then.
            return
        for start, size in self._places:
            if _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_POPULATE_WRITE):
                # An older kernel, or memory that is gone: the cell will see to the rest.
                return

    def _looks(self, cell: int) -> bool:
        return cell % _CELLS == 2 or not self._places


def _merged(places: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Take places that are close as one: a call costs more than a page too many."""
    start = end = 0
    for place, size in places:
        if place - end > _GAP_PAGES * _PAGE:
            if end > start:
                yield start, end - start
            start = place
        end = place + size
    if end > start:
        yield start, end - start


def _own_places() -> Iterator[tuple[int, int]]:
    maps = Path("/proc/self/maps").read_text()
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for first, last in _WRITABLE.findall(maps):
            start, size = int(first, 16), int(last, 16) - int(first, 16)
            if size > _AREA_BYTES:
                continue
            pagemap.seek(start // _PAGE * 8)
            flags = pagemap.read(size // _PAGE * 8)[7::8]
            for found in _OWN_PAGES.finditer(flags):
                yield start + found.start() * _PAGE, (found.end() - found.start()) * _PAGE
