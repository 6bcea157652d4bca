"""Listening at functions of the product from outside, for the length of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def wrapped(owner: Any, **wrappers: Callable[[Any], Any]) -> Iterator[None]:
    """Put `wrappers[name](original)` in the place of each function of a class or module."""
    originals = {name: getattr(owner, name) for name in wrappers}
    for name, wrapper in wrappers.items():
        setattr(owner, name, wrapper(originals[name]))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)
