"""Every operation of the door has these parts; `table` has them all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from hadron.doors.http.call import Call
from hadron.doors.http.door import Door
from hadron.doors.http.live import EVENTS

Handle = Callable[[Door, Call, Any], Awaitable[Response | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path.

    Attributes:
        name: the `operationId`.
        query: a struct of its parameters.
        body: by media type, what a body of it is: a struct, or a JSON schema; none where it takes
            none.
        answer: by media type, what it answers with: a struct, several, or a JSON schema.
        errors: statuses of problems that are its own, besides those of all.
    """

    name: str
    method: str
    path: str
    summary: str
    handle: Handle
    query: type[Any]
    body: Mapping[str, Any] = field(default_factory=dict)
    answer: Mapping[str, Any]
    errors: tuple[int, ...] = ()
    headers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What it looks at besides: a header's name, what for, and a pattern."""
    needs_body: bool = True

    @property
    def is_safe(self) -> bool:
        """Whether nothing is done by it, so that it may be asked for again."""
        return self.method == "GET"

    @property
    def has_head(self) -> bool:
        """Whether HEAD is for it as well: an answer that goes on is what it is by what comes, and
        has no other head than that."""
        return self.is_safe and EVENTS not in self.answer
