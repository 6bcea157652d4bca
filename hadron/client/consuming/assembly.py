"""From a member's settings to a subscription: looks the stream up, and chooses its partitions."""

from __future__ import annotations

from collections.abc import Sequence

from hadron.client.consuming.consumer import Consumer
from hadron.client.consuming.settings import MemberSettings
from hadron.client.consuming.subscription import Subscription
from hadron.client.transactions.calls import TransactionCalls
from hadron.model.errors import RequestError


async def open_subscription(
    transactions: TransactionCalls,
    stream: str,
    partitions: Sequence[str] | None,
    settings: MemberSettings,
) -> Subscription:
    """Of these partitions; None is all, also those that are added later. Raises `NotFoundError` for
    an unknown stream or partition."""
    session, catalog = transactions.session, transactions.catalog
    names = await catalog.partitions(stream)
    for name in partitions or ():
        await catalog.partitions(stream, name)
    chosen = names if partitions is None else list(dict.fromkeys(partitions))
    if not chosen:
        raise RequestError(f"no partition of {stream!r} is chosen", "leave it out for all")
    consumer = Consumer(
        session,
        catalog,
        await catalog.stream(stream),
        chosen,
        settings,
        follows=partitions is None,
        open_timeout_s=session.request_timeout_s,
    )
    return Subscription(consumer, transactions)
