"""Columns of numbers, as record batches have them: little-endian, whatever the machine. Pure."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any


def uniform(column: Sequence[int]) -> Sequence[int]:
    """One value when all are equal, the column itself otherwise."""
    first = column[:1]
    return first if first and len(set(column)) == 1 else column


def pack(typecode: str, values: Iterable[int]) -> memoryview:
    """Little-endian bytes of a column."""
    column = values if isinstance(values, array) else array(typecode, values)
    if sys.byteorder == "big":
        column.byteswap()
    return memoryview(column).cast("B")


def offsets(values: Sequence[bytes]) -> memoryview:
    return pack("i", accumulate(map(len, values), initial=0))


def view(typecode: str, column: memoryview) -> Any:
    """A column's numbers, without a copy where the machine's byte order allows it."""
    if sys.byteorder == "little":
        return column.cast(typecode)  # type: ignore[call-overload]
    numbers = array(typecode, column.tobytes())
    numbers.byteswap()
    return memoryview(numbers)
