"""The blocking face of `hadron.client.exchanges.exchange`, made of it by `make faces`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hadron.client.blocking.bases import PartBase
from hadron.client.blocking.faces.messages import SyncMessages
from hadron.client.exchanges.exchange import DEFAULT_BUFFER_BYTES, Exchange
from hadron.client.terms.results import Dispatched
from hadron.model.record import Headers, NewRecord
from hadron.wire.messages import exchanges_pb2


class SyncExchange(PartBase[Exchange]):
    """Ephemeral publish/subscribe: what is published reaches who is subscribed at that moment, at
    most once. Topics are dot segments (`eu.ibm`); in patterns `*` is any one of them, and `>` at
    the end the rest.

    Raises `NotFoundError` for an exchange that is not declared, `RequestError` for a topic or a
    pattern that is none, `RecordTooLargeError` for a message that is too large, `PeerError` when
    its leader does not answer in time, and `OutcomeUnknownError` when messages may have been
    published, or not: they are not published again.
    """

    def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        logged: bool = False,
    ) -> Dispatched:
        """Publish one message; returns once the leader has sent it on, and to how many.

        Args:
            value: bytes, str or anything JSON.
            logged: wait until it is in the exchange's `to_stream`, on a majority: the receipt says
                where.
        """
        return self._call(
            lambda exchange: exchange.publish(topic, value, key=key, headers=headers, logged=logged)
        )

    def publish_many(
        self, messages: Iterable[tuple[str, Any] | NewRecord], *, logged: bool = False
    ) -> Dispatched:
        """Publish messages in this order: (topic, value) each, or a `NewRecord` whose type is the
        topic. The bulk way: many go in one call, and those in a row with one topic together.

        Whatever is no message is refused before anything behind the last full call is published.
        Raises as `publish` does; but where some are published, `OutcomeUnknownError` for all that
        could be tried again: it says how many are.
        """
        return self._call(lambda exchange: exchange.publish_many(messages, logged=logged))

    def subscribe(
        self,
        patterns: str | Sequence[str] = ">",
        *,
        group: str | None = None,
        max_buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    ) -> SyncMessages:
        """Messages whose topic one of these patterns takes, for use as
        `with exchange.subscribe("eu.*") as messages`. Once the block is entered, whatever is
        published comes.

        Args:
            patterns: several, or the one: a message that several take comes once.
            group: of all subscriptions of one group, over all programs, one gets each message.
            max_buffer_bytes: of messages that the program has not taken; beyond it they are
                dropped, and counted.
        """
        return SyncMessages(
            self._hold,
            self._opening(
                lambda exchange: exchange.subscribe(
                    patterns, group=group, max_buffer_bytes=max_buffer_bytes
                )
            ),
        )

    def describe(self, *, within_s: float | None = None) -> exchanges_pb2.DescribeExchangeResponse:
        """How it is doing at its leader: rates, drops, and subscriptions. The leader is asked for
        `within_s` (None: the client's `request_timeout_s`).
        """
        return self._call(lambda exchange: exchange.describe(within_s=within_s))
