"""The application: routes, and what holds for all of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import trio
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from hadron.doors.credentials import Unchecked
from hadron.doors.defects import defect
from hadron.doors.http.asgi import App, Receive, Scope, Send
from hadron.doors.http.call import Call, DisconnectedError
from hadron.doors.http.door import Door
from hadron.doors.http.guard import Guard
from hadron.doors.http.operations import Operation
from hadron.doors.http.problems import HttpError, response_of
from hadron.doors.http.reading import SECURITY_HEADERS
from hadron.model.errors import HadronError, RequestError

_log = logging.getLogger(__name__)

_KEY: Final = "idempotency-key"

_ELSEWHERE: Final = {
    (method, f"/v1/{kind}s/{{{kind}}}"): how
    for kind in ("stream", "endpoint", "exchange")
    for method, how in (
        ("DELETE", f"DELETE /v1/schema/{kind}/NAME deletes it"),
        ("PUT", "POST /v1/schema declares it"),
        ("PATCH", "POST /v1/schema changes it"),
    )
}
"""By method and path, where what somebody has looked for there is."""


class Endpoint:
    """One operation at one door, as an application of its own."""

    def __init__(self, operation: Operation, door: Door) -> None:
        self._operation = operation
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, send, self._door.room)
        try:
            with self._door.clients.using(peer=call.address):
                await self._answer(call)
        finally:
            call.let_go()

    async def _answer(self, call: Call) -> None:
        operation = self._operation
        if _KEY in call.headers and not any(each.lower() == _KEY for each in operation.headers):
            raise RequestError(
                f"{operation.method} {operation.path} knows no Idempotency-Key: sent twice, it is "
                "done twice",
                "it is for records, POST /v1/streams/{stream}; leave it out here",
            )
        query = call.query(operation.query)
        response = await operation.handle(self._door, call, query)
        if response is not None:
            await call.respond(response, is_done=not operation.is_safe)


class HttpApp:
    """ASGI."""

    def __init__(self, door: Door, guard: Guard, operations: Sequence[Operation]) -> None:
        self._guard = guard
        self._unchecked = Unchecked("the Authorization header of an HTTP request")
        self._active = 0
        self._news = trio.Event()
        by_path: dict[str, dict[str, App]] = {}
        for operation in operations:
            methods = by_path.setdefault(operation.path, {})
            methods[operation.method] = endpoint = Endpoint(operation, door)
            if operation.has_head:
                methods["HEAD"] = endpoint
        routes = [Route(path, _Methods(path, methods)) for path, methods in by_path.items()]
        self._router = Router(routes, redirect_slashes=False, default=_not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._active += 1
        try:
            await self._serve(scope, receive, send)
        finally:
            self._active -= 1
            self._news.set()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False

        async def sending(message: Scope) -> None:
            nonlocal started
            if message["type"] == "http.response.start" and not started:
                started = True
                have = {name for name, _ in message["headers"]}
                added = [each for each in SECURITY_HEADERS if each[0] not in have]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        try:
            self._guard.check(scope["headers"])
            if any(name == b"authorization" for name, _ in scope["headers"]):
                self._unchecked.came()
            await self._router(scope, receive, sending)
            return
        except DisconnectedError:
            return
        except HadronError as error:
            problem, why = response_of(error), str(error)
        except HTTPException as error:
            problem, why = response_of(HttpError(error.status_code, error.detail)), error.detail
        except OSError:
            raise
        except Exception as error:
            trouble = defect(error)
            problem, why = response_of(trouble), str(trouble)
        # The error itself is gone by now, and what it was met with: that may have been large, and
        # whoever reads may be slow.
        if started:
            # Half of an answer is out: its end says that it is none.
            _log.warning("an answer was cut short: %s", why)
            return
        await problem(scope, receive, sending)

    async def wait_idle(self) -> None:
        """Until no request is under way."""
        while self._active:
            self._news = trio.Event()
            await self._news.wait()


class _Methods:
    """The operations of one path."""

    def __init__(self, path: str, methods: dict[str, App]) -> None:
        self._path = path
        self._methods = methods
        self._allowed = ", ".join(sorted(methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        app = self._methods.get(method)
        if app is None:
            elsewhere = _ELSEWHERE.get((method, self._path))
            hint = f"use {self._allowed}" + (f"; {elsewhere}" if elsewhere else "")
            raise HttpError(405, f"{method} is not for this path", hint, allow=self._allowed)
        await app(scope, receive, send)


async def _not_found(scope: Scope, _receive: Receive, _send: Send) -> None:
    raise HttpError(404, f"there is no {scope['path'][:200]}", "GET /openapi.json has all paths")
