"""The interface between server and application: ASGI, as far as HTTP goes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
"""Besides what ASGI has, `wait_gone`: until whoever asked is gone, while nobody receives."""

Message: TypeAlias = MutableMapping[str, Any]
"""A `http.disconnect` may have a `refusal`: a `HadronError`, which whoever asked is still told."""

Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
