"""Credentials that come in where nobody checks them: whoever sends some is told once."""

from __future__ import annotations

import logging

from hadron.client.connecting.url import CHECKED_BY_NOBODY

_log = logging.getLogger(__name__)


class Unchecked:
    """Of one door.

    Args:
        what: in words, where they are.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_told = False

    def came(self) -> None:
        """A request has brought some."""
        if not self._is_told:
            self._is_told = True
            _log.warning("%s %s", self._what, CHECKED_BY_NOBODY)
