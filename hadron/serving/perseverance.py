"""Going on after trouble, for the parts of a leadership that work by themselves.

Nobody waits for their answers, so nobody would be told: what is in their way is logged, once, and
they try again. A part's trouble is its own: it ends neither another part nor the leader. Nor does
one of the many things that a part goes through keep the others: `Apart`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from hadron.model.errors import FencedError, HadronError, PeerError, ShuttingDownError

T = TypeVar("T")

_log = logging.getLogger(__name__)

PAUSE_S: Final = 1.0
"""Between trouble and the next try."""


async def persevere(
    what: str, work: Callable[[], Awaitable[None]], level: int = logging.INFO
) -> None:
    """Do `work` until it returns, anew after each trouble; once leading has ended, wait to be
    cancelled with it. `what` is that for the log, and `level` how loud: a full disk, for one, is
    what others say louder."""
    told = ""
    while True:
        try:
            await work()
        except (FencedError, ShuttingDownError):
            await trio.sleep_forever()
        except HadronError as error:
            if error.message != told:
                _log.log(level, "%s pauses: %s", what, error)
            told = error.message
            await trio.sleep(PAUSE_S)
        else:
            return


class Apart:
    """Of things that a part goes through, one after the other: what is in the way of one is that
    one's alone. *(A stream could not be trimmed, and the round ended there, again and again: no
    stream behind it was.)*"""

    def __init__(self, what: str) -> None:
        """`what` is done to each of them, for the log."""
        self._what = what
        self._told: dict[str, str] = {}

    async def do(self, name: str, work: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """`work` on the one that is called so; `otherwise` after trouble, which is logged once.
        A `PeerError` is raised all the same: too much waits, or leading has ended, for all."""
        try:
            done = await work()
        except PeerError:
            raise
        except HadronError as error:
            if self._told.get(name) != error.message:
                _log.warning("%s of %s pauses: %s", self._what, name, error)
            self._told[name] = error.message
            return otherwise
        self._told.pop(name, None)
        return done

    def forget(self, name: str) -> None:
        """It is gone."""
        self._told.pop(name, None)
