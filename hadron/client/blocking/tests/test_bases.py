"""What a client gives for a name, blocking: made in the loop, for the client that is open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

import hadron
from hadron.client import Client, SyncClient
from hadron.client.blocking.bases import PartBase
from hadron.client.terms.arguments import text_of
from hadron.client.tests.fake_node import FakeNode


class Counter:
    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = text_of("name", name)
        self.total = 0

    async def add(self, by: int) -> tuple[str, int]:
        await self.client.stream("s")
        self.total += by
        return threading.current_thread().name, self.total


class SyncCounter(PartBase[Counter]):
    def add(self, by: int) -> tuple[str, int]:
        return self._call(lambda counter: counter.add(by))


@pytest.fixture
def client() -> Iterator[SyncClient]:
    fake = FakeNode()
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(fake.listen()),
        hadron.connect_sync(f"hadron://{fake.address}") as client,
    ):
        yield client


def counter_of(client: SyncClient, name: str) -> SyncCounter:
    return SyncCounter(client._hold, lambda client: Counter(client, name))


def test_it_is_one_for_as_long_as_its_client_is_open(client: SyncClient) -> None:
    counter = counter_of(client, "hits")
    assert repr(counter) == f"<SyncCounter of {client._hold}>"
    assert counter.add(3) == ("hadron-client", 3)
    assert counter.add(5) == ("hadron-client", 8)
    client.close()
    with pytest.raises(hadron.ClosedError):
        counter.add(1)
    client.open()
    assert counter.add(1) == ("hadron-client", 1)


def test_what_cannot_be_is_refused_before_there_is_a_connection() -> None:
    client = hadron.connect_sync("hadron://127.0.0.1:1")
    with pytest.raises(hadron.RequestError, match="name 5 is of type int"):
        counter_of(client, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("forgotten", [None, "confirm", 5])
def test_a_handler_that_cannot_be_called_is_refused_before_there_is_a_connection(
    forgotten: Any,
) -> None:
    """A forgotten `return` of what makes one: each invocation would fail, with all its attempts."""
    client = hadron.connect_sync("hadron://127.0.0.1:1")
    for use in (
        lambda: client.stage("fan", "a").run(forgotten),
        lambda: client.serve("quote", forgotten),
    ):
        with pytest.raises(hadron.RequestError, match=f"handler {forgotten!r} cannot") as caught:
            use()
        assert "where another one makes it, with its `return`" in caught.value.hint


def test_what_a_stage_makes_its_values_with_is_to_be_a_function() -> None:
    client = hadron.connect_sync("hadron://127.0.0.1:1")
    wrong: Any = "json"
    with pytest.raises(hadron.RequestError, match="value_serializer 'json' cannot be called"):
        client.stage("fan", "a", value_serializer=wrong)
