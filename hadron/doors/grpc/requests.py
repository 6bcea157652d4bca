"""What a program says in a call, message by message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from hadron.doors.grpc.limits import MAX_PUBLISHED
from hadron.doors.grpc.rpc import Talk
from hadron.model.errors import RequestError
from hadron.model.limits import MAX_RANGES
from hadron.wire.messages import check_count as check_items

_M = TypeVar("_M", bound=Message)


def parse(kind: type[_M], data: bytes) -> _M:
    """Raises `RequestError`."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        name = kind.DESCRIPTOR.full_name
        raise RequestError(f"{len(data)} bytes are no {name}: {error}", "see proto/") from None


async def receive_one(talk: Talk, kind: Any, *, is_kept: bool = False) -> Any:
    """The one message of a call. Raises `RequestError`.

    Args:
        is_kept: it is of use until the call is over, and counts as held until then.
    """
    data = await (talk.take() if is_kept else talk.receive())
    if data is None:
        raise RequestError("the call came without a message")
    return parse(kind, data)


async def receive_opening(talk: Talk, kind: Any, name: str = "open") -> Any:
    """What a two-way call begins with. Raises `RequestError`."""
    data = await talk.receive()
    request = kind() if data is None else parse(kind, data)
    if request.WhichOneof("said") != name:
        raise RequestError(f"{talk.method} begins without `{name}`", "say it first")
    return getattr(request, name)


def check_count(what: str, count: int) -> None:
    """Raises `RequestError` for none, and for too many, with `what` there are so many of."""
    if not 1 <= count <= MAX_PUBLISHED:
        raise RequestError(what.format(count), f"publish 1 to {MAX_PUBLISHED} at a time")


def deliveries(ids: Sequence[int]) -> list[int]:
    """Those that are named, once each. Raises `RequestError` for more than frames may name in a
    message: each is looked for, and may be one that is sent."""
    check_items("deliveries", len(ids), MAX_RANGES)
    return list(dict.fromkeys(ids))


def senseless(talk: Talk, kind: str | None, expected: str) -> RequestError:
    """For what stands in the way later on."""
    return RequestError(f"a request of {talk.method} says {kind or 'nothing'}", expected)
