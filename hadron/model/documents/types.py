"""Patterns of event types, as pipelines and stages name them."""

from __future__ import annotations

from typing import Final

TRIGGER_FORM: Final = (
    "dot segments such as flight.departed; a whole segment may be *, and the last one >"
)


def is_valid_trigger(pattern: str) -> bool:
    """Whether `hadron.model.pipelines.matches_type` can make sense of the pattern."""
    *most, last = pattern.split(".")
    if not all(map(_is_valid_segment, most)) or ">" in most:
        return False
    return last == ">" or _is_valid_segment(last)


def _is_valid_segment(segment: str) -> bool:
    if segment == "*":
        return True
    return bool(segment) and segment.isprintable() and not any(c in segment for c in "*> ")
