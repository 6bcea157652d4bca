"""A client's subscriptions at one exchange, without a network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from hadron.client.exchanges.attendance import Attendance
from hadron.client.exchanges.calls import ExchangeCalls
from hadron.model.errors import OverloadedError
from hadron.model.schema import SchemaObject
from hadron.model.services import ExchangeSpec
from hadron.wire.messages import error_to_message
from hadron.wire.messages import exchanges_pb2 as pb

ITEM = SchemaObject(kind="Exchange", name="prices", spec=ExchangeSpec(replica_set="r/p0"))


class Wire:
    """An open call."""

    def __init__(self) -> None:
        self.said: list[pb.AttendRequest] = []

    def send(self, message: pb.AttendRequest) -> None:
        self.said.append(message)

    def consumed(self, size: int) -> None:
        pass

    @property
    def subscribed(self) -> list[int]:
        return [each.id for said in self.said for each in said.subscribe.subscriptions]


class Session:
    """A client's session, whose tasks never run."""

    request_timeout_s = 10.0

    def __init__(self) -> None:
        self.background = SimpleNamespace(start=lambda _task: anyio.CancelScope())

    def check_open(self) -> None:
        pass

    async def wait(self, event: anyio.Event) -> None:
        await event.wait()


def hear(attendance: Attendance, event: pb.AttendEvent) -> None:
    attendance.received(event, memoryview(b""))


def subscribed(*ids: int) -> pb.AttendEvent:
    return pb.AttendEvent(subscribed=pb.AttendEvent.Subscribed(ids=ids))


async def test_what_is_refused_when_all_subscribe_again_has_ended() -> None:
    """Its block is open, and nobody takes from it: subscribed again it would have a group's
    messages."""
    session: Any = Session()
    attendance = Attendance(session, ITEM, lambda _attendance: None)
    kept, refused = (attendance.add([">"], group, 1_000) for group in ("", "g"))
    first: Any = Wire()
    attendance.opened(first)
    hear(attendance, subscribed(1, 2))
    attendance.lost(None)
    second: Any = Wire()
    attendance.opened(second)
    assert second.subscribed == [1, 2]
    hear(attendance, subscribed(1))
    error = error_to_message(OverloadedError("the leader has too many patterns"))
    hear(attendance, pb.AttendEvent(refused=pb.AttendEvent.Refused(id=2, error=error)))
    assert isinstance(refused.failure, OverloadedError)
    attendance.lost(None)
    third: Any = Wire()
    attendance.opened(third)
    assert third.subscribed == [1]
    attendance.remove(refused)
    assert not attendance.is_over
    attendance.remove(kept)
    assert attendance.is_over


async def test_who_was_confirmed_and_interrupted_at_once_is_subscribed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are heard before the task that waits has a turn: the leader has answered."""
    session, catalog = Session(), SimpleNamespace(one=lambda *_: None)
    calls = ExchangeCalls(session, catalog)  # type: ignore[arg-type]
    calls._items["prices"] = ITEM
    add = Attendance.add

    def confirmed(attendance: Attendance, *args: Any) -> Any:
        inbox = add(attendance, *args)
        inbox.confirm()
        attendance.lost(None)
        return inbox

    monkeypatch.setattr(Attendance, "add", confirmed)
    _, inbox = await calls.subscribe("prices", [">"], "", 1_000)
    assert (inbox.is_confirmed, inbox.interruptions) == (False, 1)
