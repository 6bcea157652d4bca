"""What goes over the streams of callers and servers."""

from __future__ import annotations

import pytest

from hadron.client.endpoints.items import error_of, set_error
from hadron.model.errors import CallFailedError
from hadron.wire.call_items import Item

_LONG = "x" * 5_000_000


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no file \udcff"), "no file \\udcff"),
        (CallFailedError("half a \ud800", type="\ud800"), "half a \\ud800"),
        (CallFailedError(_LONG, _LONG, type=_LONG), "xxx"),
    ],
)
def test_whatever_a_handler_raises_can_be_said(error: Exception, told: str) -> None:
    """The call's last word is begun by then: it would be another one, and end the server."""
    item = Item()
    set_error(item, error)
    assert item.ByteSize() < 256_000
    assert error_of(item, "quote").message.startswith(told)
