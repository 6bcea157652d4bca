"""Words for people who wait: a command that is silent for long looks as if it hung."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from hadron.client import Client
    from hadron.client.sync import SyncClient

CONNECTING_TOLD_AFTER_S: Final = 1.0
MAJORITY_TOLD_AFTER_S: Final = 3.0
"""A leader's restart takes a second or two."""


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
def connected_sync(url: str) -> Iterator[SyncClient]:
    """A blocking client; says what is tried when no node answers soon."""
    import hadron

    with ExitStack() as stack:
        with _connecting(url):
            client = stack.enter_context(hadron.connect_sync(url))
        yield client


@asynccontextmanager
async def connected(url: str, timeout_s: float | None = None) -> AsyncIterator[Client]:
    """A client; says what is tried when no node answers soon.

    Args:
        timeout_s: how long that is tried; the client's own patience when None.
    """
    import hadron

    client = (
        hadron.connect(url) if timeout_s is None
        else hadron.connect(url, connect_timeout_s=timeout_s)
    )
    async with AsyncExitStack() as stack:
        with _connecting(url):
            entered = await stack.enter_async_context(client)
        yield entered


@contextmanager
def _connecting(url: str) -> Iterator[None]:
    from hadron.client.url import parse_url

    addresses = ", ".join(parse_url(url).addresses)
    with telling(f"trying {addresses} …", CONNECTING_TOLD_AFTER_S):
        yield
