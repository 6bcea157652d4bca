"""Messages as a program gets them: views of the batch that they came in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from hadron.model.record import Record
from hadron.model.record_batch import decode_batch
from hadron.model.topics import expand
from hadron.wire.messages import exchanges_pb2


class Message(msgspec.Struct, eq=False):
    """What was published on a topic. Nothing is decoded before it is touched.

    Attributes:
        missed: messages that this subscription has not got right before this one, because it, or
            the connection, was too slow for them.
        interrupted: it was not subscribed for a while before this one, as when a leader was away:
            nobody knows how much it may have missed then.
    """

    _record: Record
    _topic: str = ""
    missed: int = 0
    interrupted: bool = False

    @property
    def topic(self) -> str:
        return self._topic or self._record.type

    @property
    def value(self) -> Any:
        """As it was published: bytes, str or anything JSON. Raises `DamagedRecordError`."""
        return self._record.value

    @property
    def value_bytes(self) -> bytes:
        """The value's bytes as they were published."""
        return self._record.value_bytes

    @property
    def content_type(self) -> str:
        """The media type of `value_bytes`."""
        return self._record.content_type

    @property
    def headers(self) -> Mapping[str, str]:
        return self._record.headers

    @property
    def key(self) -> bytes | str | None:
        return self._record.key

    @property
    def type(self) -> str:
        """The event type: the topic, but of records that a stream's bridge gives another one."""
        return self._record.type

    @property
    def timestamp_ms(self) -> int:
        """Event time, milliseconds since the Unix epoch."""
        return self._record.timestamp_ms

    @property
    def timestamp(self) -> datetime:
        """Event time, in UTC."""
        return self._record.timestamp

    @property
    def damage(self) -> str:
        """Why the message cannot be read, though it is as its publisher sent it; "" when it can.
        Its value and key raise `DamagedRecordError` then."""
        return self._record.damage

    @property
    def raw(self) -> bytes:
        """Bytes as they came: the value's, or the body of its whole batch when that cannot be
        taken apart."""
        return self._record.raw

    def __repr__(self) -> str:
        if self.damage:
            return f"Message({self.topic!r}, damage={self.damage!r})"
        return f"Message({self.topic!r}, key={self.key!r})"


class ArrivedBatch:
    """A batch that came in; all subscriptions of the program that get of it share its messages.

    Attributes:
        message_bytes: what each of its messages counts in a subscription's buffer.
    """

    __slots__ = ("_data", "_messages", "_said", "message_bytes")

    def __init__(self, said: exchanges_pb2.AttendEvent.Messages.Batch, data: memoryview) -> None:
        self._said = said
        self._data = data
        self._messages: list[Message] | None = None
        self.message_bytes = len(data)

    def messages(self) -> list[Message]:
        """All of its messages. Raises `CorruptionError`."""
        messages = self._messages
        if messages is None:
            said = self._said
            batch = decode_batch(self._data, stream=said.stream, partition=said.partition)
            self._data = memoryview(b"")
            records = batch.records()
            if said.template:
                topics = {
                    each: expand(said.template, each, said.stream, said.partition)
                    for each in batch.head.t or [""]
                }
                messages = [Message(each, topics[each.type]) for each in records]
            else:
                messages = [Message(each) for each in records]
            self._messages = messages
        return messages
