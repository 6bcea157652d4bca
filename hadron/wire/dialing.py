"""Connections to who listens: made in one way, by nodes and by clients.

Whoever dials says how long it waits, since a network may drop packets and then nobody ever answers;
`dial` leaves a connection that somebody has to run. `talk` runs one for as long as it is used, and
leaves none behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio

from hadron.model.ports import Network
from hadron.wire.connection import KEEPALIVE_S, SILENCE_LIMIT_S, Connection, Cork

DIAL_TIMEOUT_S: Final = 5.0
"""A host that drops packets answers no dial; a local one takes well under a millisecond."""

T = TypeVar("T")


async def dial(
    network: Network,
    address: str,
    *,
    timeout_s: float = DIAL_TIMEOUT_S,
    cork: Cork | None = None,
    keepalive_s: float = KEEPALIVE_S,
    silence_limit_s: float = SILENCE_LIMIT_S,
) -> Connection:
    """A connection to `address`, which is not running yet. Raises `OSError` when nobody answers, as
    a `TimeoutError` when that takes too long."""
    with anyio.move_on_after(timeout_s):
        transport = await network.dial(address)
        return Connection(
            transport,
            dialed=True,
            cork=cork,
            keepalive_s=keepalive_s,
            silence_limit_s=silence_limit_s,
        )
    raise TimeoutError(f"no connection within {timeout_s:g} s")


async def talk(connection: Connection, conversation: Callable[[Connection], Awaitable[T]]) -> T:
    """Run a connection while a conversation takes place on it, then hang up.

    Raises what the conversation raises, by itself and not in a group. When the peer hangs up first,
    that is what calls raise; a conversation that waits for anything else looks for it.
    """
    said: list[T] = []
    failed: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.run)
        try:
            said.append(await conversation(connection))
        except Exception as error:
            # Raised outside of the group, which would wrap it.
            failed = error
        finally:
            connection.close()
            tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return said[0]
