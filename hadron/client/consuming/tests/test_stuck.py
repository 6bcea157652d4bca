"""A program that forgets to acknowledge is told what it waits for."""

from __future__ import annotations

import pytest
import trio

from hadron.client.consuming import consumer
from hadron.client.tests.support import served, until


@pytest.mark.parametrize("forgets", [True, False])
async def test_who_waits_for_more_and_has_acknowledged_nothing_is_told(
    forgets: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consumer, "_STUCK_S", 0.05)
    monkeypatch.setattr(consumer, "_NO_DEADLINE_S", 0.1)
    told = "max_in_flight=3), and acknowledged nothing"
    async with served() as (_, client):
        async with client.producer("s") as producer:
            await producer.send_many([b"%d" % number for number in range(5)])
        async with client.subscribe("s", group="g", max_in_flight=3) as subscription:
            for _ in range(3):
                delivery = await anext(subscription)
            if not forgets:
                await delivery.ack()
            with trio.move_on_after(60 if forgets else 0.3):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(anext, subscription)
                    await until(lambda: told in caplog.text)
                    nursery.cancel_scope.cancel()
    assert caplog.text.count(told) == int(forgets)
