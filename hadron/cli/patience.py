"""Words for people who wait: a command that is silent for long looks as if it hung."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from hadron.client import Client, SyncClient

CONNECTING_TOLD_AFTER_S: Final = 1.5
MAJORITY_TOLD_AFTER_S: Final = 3.0
"""A leader's restart takes a second or two."""
_REPEATED_AFTER_S: Final = 60.0


class Seldom(logging.Filter):
    """Lets the same words through once a minute: whoever tries again waits for the same thing."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._shown_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether these words are to be shown."""
        text, now_s = record.getMessage(), self._now_s()
        if now_s - self._shown_s.get(text, -_REPEATED_AFTER_S) < _REPEATED_AFTER_S:
            return False
        self._shown_s[text] = now_s
        return True


_seldom = Seldom()


@contextmanager
def telling(text: str, after_s: float) -> Iterator[Callable[[], None]]:
    """Print `text` to stderr once the block has taken `after_s`; gives a function that calls it
    off."""
    # A thread, because the block may be busy in another event loop, or in none.
    timer = threading.Timer(after_s, click.echo, [text], {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


@contextmanager
def connected_sync(url: str, timeout_s: float | None = None) -> Iterator[SyncClient]:
    """A blocking client; says what is tried when no node answers soon.

    Args:
        timeout_s: how long that is tried, and an answer waited for; as usual when None.
    """
    import hadron

    client = (
        hadron.connect_sync(url)
        if timeout_s is None
        else hadron.connect_sync(url, connect_timeout_s=timeout_s, request_timeout_s=timeout_s)
    )
    with ExitStack() as stack:
        with _connecting(url):
            stack.enter_context(client)
        yield client


@asynccontextmanager
async def connected(
    url: str, timeout_s: float | None = None, request_timeout_s: float | None = None
) -> AsyncIterator[Client]:
    """A client; says what is tried when no node answers soon.

    Args:
        timeout_s: how long that is tried; the client's own patience when None.
        request_timeout_s: how long an answer is waited for, likewise.
    """
    import hadron
    from hadron.client.client import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S

    client = hadron.connect(
        url,
        connect_timeout_s=CONNECT_TIMEOUT_S if timeout_s is None else timeout_s,
        request_timeout_s=REQUEST_TIMEOUT_S if request_timeout_s is None else request_timeout_s,
    )
    async with AsyncExitStack() as stack:
        with _connecting(url):
            entered = await stack.enter_async_context(client)
        yield entered


@contextmanager
def _connecting(url: str) -> Iterator[None]:
    from hadron.client.connecting.url import parse_url

    if logging.lastResort is not None:
        # It prints the client's warnings for people, where nothing else was set up.
        logging.lastResort.addFilter(_seldom)
    addresses = ", ".join(parse_url(url).addresses)
    with telling(f"trying {addresses} …", CONNECTING_TOLD_AFTER_S):
        yield
