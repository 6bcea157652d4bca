"""What a caller is told when what serves its call has raised something."""

from __future__ import annotations

import logging

from hadron.model.errors import HadronError, UnknownMethodError
from hadron.model.version import VERSION
from hadron.wire.messages import Method

_log = logging.getLogger(__name__)


def failure_of(method: Method, error: Exception) -> HadronError:
    """The error itself if it is meant for callers. A defect of ours is logged, and stays here."""
    if isinstance(error, HadronError):
        return error
    _log.exception("a handler of %s failed", method, exc_info=error)
    return HadronError(f"{method} failed inside the node", "see the node's log")


def not_served(method: Method | int) -> UnknownMethodError:
    """For a call that nobody here knows. Which side is the older one cannot be told from here: who
    hears it adds its own version (`heard`)."""
    return UnknownMethodError(
        f"method {method} is not served here, by Hadron {VERSION}",
        "compare that with the version of who calls: the older one is to be updated; if they are "
        "the same, another node was meant",
    )


def heard(error: HadronError) -> HadronError:
    """What a peer answered, as who has called is told of it."""
    if isinstance(error, UnknownMethodError):
        error.hint = (
            f"it was called by Hadron {VERSION}: the older one is to be updated; if both are "
            "the same version, another node was meant"
        )
    return error
