"""The blocking face of `hadron.client.exchanges.messages`, made of it by `make faces`."""

from __future__ import annotations

from hadron.client.blocking.messages import MessagesBase


class SyncMessages(MessagesBase):
    """Messages of an exchange. Made by `SyncExchange.subscribe`; used in a `with` block, or without
    one and closed with `close`, with its client, or when the program ends. The loop ends when it or
    the client is closed, by whatever thread.

    Iterate it: `for message in messages`. What the program does not take waits here, within
    the subscription's bound; beyond it messages are dropped, and the next one says how many
    (`missed`). When the leader was away, the next one is `interrupted`. The loop ends when the
    client is closed; it raises what ends the subscription for good, as the exchange's deletion.
    """
