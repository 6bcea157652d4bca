"""The way in: what every call passes before what serves it looks at anything that it asks for.

Who may call is an option of the method (`proto/hadron/v1/options.proto`), and whether a leader has
to answer is how it was registered (`served`, `led`); no handler asks for either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from hadron.serving.leading import Door, Leading
from hadron.wire.calls import AnyCall, Call, Handler
from hadron.wire.messages import METHODS, Audience, Method
from hadron.wire.services import Served, method_of

_MEMBERS: Final = Audience.MEMBERS
"""To look into an enum takes as long as all else that is done for a call here."""

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


@dataclass(frozen=True, slots=True)
class Led:
    """A method that only a leader serves, with its leadership."""

    method: Method
    handle: Callable[[Leading, AnyCall, Any, memoryview], None]


def led(
    name: str,
    request: type[_Request],
    response: type[_Response],
    handle: Callable[[Leading, Call[_Request, _Response], _Request, memoryview], None],
) -> Led:
    """The method called `name`, served by `handle` at a leader; `request` and `response` are its
    messages."""
    return Led(method_of(name, request, response), handle)


class Entrance:
    """One node's. Every method goes through it, so it is the place where grants are looked at once
    callers have some: `method.scope` is what a call needs, `call.principal` who makes it.

    Args:
        check_member: raises unless a call comes from a member that shook hands.
    """

    def __init__(self, door: Door, check_member: Callable[[AnyCall], object]) -> None:
        self._door = door
        self._check_member = check_member

    def handlers(self, methods: Iterable[Served | Led]) -> dict[int, Handler]:
        """What a connection hands calls to, by the number of their method. All that `proto/` has
        must be there, once."""
        handlers: dict[int, Handler] = {}
        for each in methods:
            assert each.method.number not in handlers, f"{each.method} is served twice"
            handlers[each.method.number] = self._through(each)
        missing = [str(method) for number, method in METHODS.items() if number not in handlers]
        assert not missing, f"nothing serves {', '.join(missing)}"
        return handlers

    def enter(self, each: Served | Led, call: AnyCall) -> Leading | None:
        """Let a call in; returns the leadership where only a leader serves it. Raises
        `NotReadyError`, `NotLeaderError`, or `FencedError` for a member's earlier start."""
        if each.method.audience is _MEMBERS:
            self._check_member(call)
        if type(each) is Served:
            return None
        return self._door.current or self._door.leading()

    def _through(self, each: Served | Led) -> Handler:
        enter = self.enter
        if isinstance(each, Led):
            lead = each.handle

            def serve_led(call: AnyCall, request: Any, attachment: memoryview) -> None:
                leading = enter(each, call)
                assert leading is not None
                lead(leading, call, request, attachment)

            return serve_led
        handle = each.handle

        def serve(call: AnyCall, request: Any, attachment: memoryview) -> None:
            enter(each, call)
            handle(call, request, attachment)

        return serve
