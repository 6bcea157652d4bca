"""PROTOCOL D4: who reads on says what it has read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hadron.model.ids import NO_BALLOT, Ballot
from hadron.sim.watch.views import Complaints
from hadron.wire.messages import ballot_from


class ReadsOn:
    """Every reader that asks again with the request that brought it records."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._read: dict[int, tuple[Any, int, Ballot]] = {}
        """By request: itself, so that its number stays its own, where what it has read ends, and
        the ballot there. What came through another node was not heard, and leads further."""

    def asks(
        self, request: Any, on_message: Callable[[Any, memoryview], None]
    ) -> Callable[[Any, memoryview], None]:
        """Heard where it leaves; what is returned hears the answer."""
        _, end, read = self._read.get(id(request), (request, 0, NO_BALLOT))
        named = ballot_from(request.after) if request.HasField("after") else NO_BALLOT
        if request.offset == end and read not in (NO_BALLOT, named):
            self._complaints.add(
                "D4 a reader names what it has read",
                f"offset {request.offset} of {request.stream} is asked for under {named}, and what "
                f"precedes it was read under {read}",
            )

        def heard(answer: Any, attachment: memoryview) -> None:
            if answer.batches:
                last = answer.batches[-1]
                end = last.base_offset + last.count
                self._read[id(request)] = request, end, ballot_from(last.ballot)
            on_message(answer, attachment)

        return heard
