"""What tests of these rooms share."""

from __future__ import annotations


class ComparedName(str):
    """One that counts how often one was compared with another."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        ComparedName.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__
