"""Going on after trouble, for the parts of a leadership that work by themselves.

Nobody waits for their answers, so nobody would be told: what is in their way is logged, once, and
they try again. A part's trouble is its own: it ends neither another part nor the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from hadron.model.errors import FencedError, HadronError, ShuttingDownError

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
