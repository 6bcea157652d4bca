"""Which rare paths of the product a run has reached, seen from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count, for the length of the block."""
    yield Counter()
