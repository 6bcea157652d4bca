"""How durations, sizes and times of a document were written, so that they are shown the same way.

Specifications have numbers, and a number has several spellings: 128kB is 125KiB, 24h is 1d. Where
a document has another one than `rendering` would choose, the specification keeps it beside the
number; it is shown only as long as it means that number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hadron.model.errors import RequestError
from hadron.model.marked_yaml import Entry, Items, Marked, Scalar, Table
from hadron.model.problems import ValuePath, show_path
from hadron.model.units import QUANTITIES

Written = tuple[tuple[str, str], ...]
"""(path, text) of values that are written otherwise than they would be shown: the path as in
`stages[0].retry.backoff`."""


def spellings(document: dict[str, Any], source: Marked) -> Written:
    """What `source` writes otherwise than `document`, which is how it would be shown."""
    return tuple(
        (show_path(path), text)
        for path, container, key in _texts(document)
        if (text := _text_at(source, path)) and _means(text, container[key])
    )


def respell(document: dict[str, Any], written: Written) -> None:
    """Put `written` into the document where it means what stands there."""
    places = {show_path(path): (container, key) for path, container, key in _texts(document)}
    for path, text in written:
        container, key = places.get(path, (None, None))
        if container is not None and _means(text, container[key]):
            # Quotes around digits would make a text of them.
            container[key] = int(text) if text.isdecimal() else text


def _texts(value: Any, path: ValuePath = ()) -> Iterator[tuple[ValuePath, Any, Any]]:
    """(path, container, key) of each text."""
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    for step, each in steps:
        if isinstance(each, str):
            yield (*path, step), value, step
        elif isinstance(each, dict | list):
            yield from _texts(each, (*path, step))


def _text_at(source: Marked, path: ValuePath) -> str:
    for step in path:
        found: Entry | Marked | None = None
        if isinstance(source, Table) and isinstance(step, str):
            found = source.entries.get(step)
        elif isinstance(source, Items) and isinstance(step, int) and step < len(source.items):
            found = source.items[step]
        if found is None:
            return ""
        source = found.value if isinstance(found, Entry) else found
    return source.text.strip() if isinstance(source, Scalar) else ""


def _means(text: str, shown: str) -> bool:
    """Whether `text` is another spelling of the quantity `shown`."""
    if text == shown.strip():
        # Any text that says the same; a description may look like a quantity.
        return False
    for quantity in QUANTITIES:
        try:
            if quantity.parse(text) == quantity.parse(shown):
                return True
        except RequestError:
            continue
    return False
