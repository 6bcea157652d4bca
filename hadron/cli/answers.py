"""What leaders answer that are asked together, and which of them did not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hadron.model.errors import IncompleteError

ANSWER_WITHIN_S: Final = 6.0
"""Whoever looks while a region is away wants to see the others; but a leader that has no majority
says so after 5 s, which is worth more than its silence."""


def heard(ask: Callable[[], Sequence[Any]]) -> tuple[Sequence[Any], IncompleteError | None]:
    """What those leaders said that did answer, and what there is to say of the others."""
    from hadron.model.errors import IncompleteError

    try:
        return ask(), None
    except IncompleteError as error:
        return error.found, error


def unheard(trouble: IncompleteError | None) -> list[dict[str, Any]]:
    """For JSON: the partitions without an answer."""
    failed = trouble.failed if trouble is not None else {}
    return [{"partition": name, "error": str(error)} for name, error in failed.items()]
