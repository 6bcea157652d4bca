"""What is true of TCP only; `testing/tests/test_network_contract.py` has what networks share."""

from __future__ import annotations

import pytest

from hadron.wire.sockets import SocketNetwork


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_dial_that_nobody_answers_says_so(host: str) -> None:
    """A name may have several addresses, and the library then only says that all of them failed."""
    listener = await SocketNetwork().listen("127.0.0.1:0")
    listener.close()
    port = listener.address.rpartition(":")[2]
    with pytest.raises(ConnectionRefusedError) as caught:
        await SocketNetwork().dial(f"{host}:{port}")
    assert caught.value.strerror == "Connection refused"
