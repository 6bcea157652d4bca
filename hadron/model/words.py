"""Numbers in sentences that people read."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """`1 record`, `2,000 records`.

    Args:
        one: what is counted, and what follows that depends on how many there are.
        many: the same of several, or of none; "" for `one` with an s.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
