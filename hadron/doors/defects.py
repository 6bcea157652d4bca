"""What whoever called over a door is told of a defect of ours."""

from __future__ import annotations

import logging

from hadron.model.errors import HadronError

_log = logging.getLogger(__name__)


def defect(error: Exception) -> HadronError:
    """It is logged, and stays here."""
    _log.exception("a request failed", exc_info=error)
    return HadronError("the request failed inside the node", "see the node's log")
