"""What a program says in a call, message by message."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from hadron.doors.grpc.fields import MalformedError, TooManyError, check_fields, split
from hadron.doors.grpc.limits import MAX_PUBLISHED
from hadron.doors.grpc.rpc import Talk
from hadron.model.errors import RequestError
from hadron.model.limits import MAX_RANGES
from hadron.wire.messages import check_count as check_items

_M = TypeVar("_M", bound=Message)


def parse(kind: type[_M], data: bytes) -> _M:
    """Raises `RequestError`."""
    with _told(kind, len(data)):
        check_fields(kind.DESCRIPTOR, data)
        return kind.FromString(data)


@contextmanager
def _told(kind: type[Message], size: int) -> Iterator[None]:
    name = kind.DESCRIPTOR.full_name
    try:
        yield
    except TooManyError as error:
        raise RequestError(
            f"{size} bytes of {name} have {error}", "say less in a message"
        ) from None
    except (DecodeError, MalformedError) as error:
        raise RequestError(f"{size} bytes are no {name}: {error}", "see proto/") from None


async def receive_one(talk: Talk, kind: Any) -> Any:
    """The one message of a call. Raises `RequestError`."""
    return parse(kind, await whole(talk.receive()))


async def whole(coming: Awaitable[bytes | None]) -> bytes:
    """The one message of a call. Raises `RequestError`."""
    data = await coming
    if data is None:
        raise RequestError("the call came without a message")
    return data


async def receive_opening(talk: Talk, kind: Any, name: str = "open") -> Any:
    """What a two-way call begins with. Raises `RequestError`."""
    data = await talk.receive()
    request = kind() if data is None else parse(kind, data)
    if request.WhichOneof("said") != name:
        raise RequestError(f"{talk.method} begins without `{name}`", "say it first")
    return getattr(request, name)


def parse_split(kind: type[_M], field: str, data: bytes, most: int) -> tuple[_M, list[bytes]]:
    """A message, and apart from it what that field of it has, to be parsed one by one: one more
    than `most` where there are more. Raises `RequestError`."""
    number = kind.DESCRIPTOR.fields_by_name[field].number
    with _told(kind, len(data)):
        rest, parts = split(data, number, most)
        return parse(kind, rest), parts


def published(kind: type[_M], field: str, data: bytes, what: str) -> tuple[_M, list[bytes]]:
    """The same for what a program publishes. Raises `RequestError` for none, and for too many, with
    `what` there are so many of."""
    message, parts = parse_split(kind, field, data, MAX_PUBLISHED)
    if not 1 <= len(parts) <= MAX_PUBLISHED:
        count = f"more than {MAX_PUBLISHED}" if parts else 0
        raise RequestError(what.format(count), f"publish 1 to {MAX_PUBLISHED} at a time")
    return message, parts


def deliveries(ids: Sequence[int]) -> list[int]:
    """Those that are named, once each. Raises `RequestError` for more than frames may name in a
    message: each is looked for, and may be one that is sent."""
    check_items("deliveries", len(ids), MAX_RANGES)
    return list(dict.fromkeys(ids))


def senseless(talk: Talk, kind: str | None, expected: str) -> RequestError:
    """For what stands in the way later on."""
    return RequestError(f"a request of {talk.method} says {kind or 'nothing'}", expected)
