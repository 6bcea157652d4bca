"""The ports of callers and servers: how the leader that connects them tells each of the other.

What carries it is not known here. To tell is only to write down: nothing waits, nothing is heard
meanwhile, and where nobody listens any more nothing happens. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from hadron.model.call_shapes import header_bytes
from hadron.model.errors import HadronError

Headers = Mapping[str, str]


class Value(NamedTuple):
    """One value of a call, as it came: the bytes are passed on and never looked at.

    Attributes:
        is_last: nothing more comes from this side.
    """

    encoding: int
    data: bytes | memoryview
    is_last: bool


class Opening(msgspec.Struct, frozen=True):
    """How a call begins.

    Attributes:
        region: of servers that are preferred; "" for any.
        caller: who calls, in words.
        is_single: it is one value, and is to have one as the answer.
    """

    timeout_s: float
    region: str
    headers: Headers
    caller: str
    is_single: bool = False

    @property
    def size(self) -> int:
        """Bytes that it carries beside a value."""
        return header_bytes(self.headers)


class Terms(NamedTuple):
    """How a server serves.

    Attributes:
        peer: who it is, in words, with the address.
        silence_s: after so long without a word it is lost; 0 for never.
        shape: the input and output that its handler was made for; "" for any.
    """

    max_in_flight: int
    region: str
    name: str
    peer: str
    silence_s: float
    shape: tuple[str, str] = ("", "")


class CallerSink(Protocol):
    """Where a caller is told, of its calls by the numbers that it gave them."""

    def has_room(self, size: int) -> bool:
        """Whether it reads what it is told: so many bytes may wait for it besides."""
        ...

    def value(self, number: int, value: Value, headers: Headers) -> None: ...

    def end(self, number: int, headers: Headers) -> None:
        """The answer has ended, without a further value."""
        ...

    def error(self, number: int, error: HadronError, headers: Headers) -> None:
        """The call has failed; nothing more is said of it."""
        ...

    def credit(self, number: int, size: int) -> None:
        """So many bytes of what it sent were taken."""
        ...


class ServerSink(Protocol):
    """Where a server is told, of its calls by numbers that ascend."""

    @property
    def writable(self) -> bool:
        """Whether the way there allows another call."""
        ...

    @property
    def deaf_s(self) -> float:
        """Seconds, in all, for which nobody has listened to it here."""
        ...

    def open(
        self, number: int, opening: Opening, attempt: int, left_s: float, value: Value | None
    ) -> None:
        """A call, with its first value if that is here, and so much time left."""
        ...

    def value(self, number: int, value: Value) -> None: ...

    def end(self, number: int) -> None:
        """The caller sends nothing more."""
        ...

    def cancel(self, number: int) -> None:
        """Nobody waits for it any more; the server is to say so once it is done with it."""
        ...

    def credit(self, number: int, size: int) -> None: ...

    def fail(self, error: HadronError) -> None:
        """It is told nothing more, for this reason."""
        ...
