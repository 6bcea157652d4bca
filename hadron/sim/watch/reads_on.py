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
        self._read: dict[int, tuple[Any, Ballot]] = {}
        """By request: itself, so that its number stays its own, and the ballot of the last batch.
        """

    def asks(
        self, request: Any, on_message: Callable[[Any, memoryview], None]
    ) -> Callable[[Any, memoryview], None]:
        """Heard where it leaves; what is returned hears the answer."""
        read = self._read.get(id(request), (request, NO_BALLOT))[1]
        named = ballot_from(request.after) if request.HasField("after") else NO_BALLOT
        if read not in (NO_BALLOT, named):
            self._complaints.add(
                "D4 a reader names what it has read",
                f"offset {request.offset} of {request.stream} is asked for under {named}, and what "
                f"precedes it was read under {read}",
            )

        def heard(answer: Any, attachment: memoryview) -> None:
            if answer.batches:
                self._read[id(request)] = request, ballot_from(answer.batches[-1].ballot)
            on_message(answer, attachment)

        return heard
