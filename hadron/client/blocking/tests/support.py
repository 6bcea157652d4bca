"""What tests of several modules here use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from hadron.client.blocking.portal import Portal


@contextmanager
def ctrl_c_behind_the_call(portal: Portal) -> Iterator[None]:
    """Ctrl-C comes when the loop has given its answer, and the thread does not have it yet."""

    def interrupted(*args: Any) -> None:
        Portal.call(portal, *args)
        raise KeyboardInterrupt

    with patch.object(portal, "call", interrupted), pytest.raises(KeyboardInterrupt):
        yield
