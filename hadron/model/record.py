"""Records: what a user sends (`NewRecord`) and what a user reads (`Record`).

Values are bytes, str or anything JSON, and are read back as they were sent. A read record is a
lazy view of its batch: nothing is decoded until it is touched, because consumers that filter or
count must not pay for values that they never look at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from hadron.model.errors import DamagedRecordError, InvalidRecordError
from hadron.model.json_values import encode_json

if TYPE_CHECKING:
    from hadron.model.record_batch import RecordBatch

BYTES, TEXT, JSON = 0, 1, 2
"""How a value was given; stored per record so that it is read back as it was sent."""

CONTENT_TYPES = ("application/octet-stream", "text/plain", "application/json")

Headers: TypeAlias = Mapping[str, str] | Sequence[tuple[str, str]]
"""Small texts by name: each name once."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_decode_json = msgspec.json.Decoder().decode


class _NewValue(msgspec.Struct, frozen=True):
    value: Any


class NewRecord(_NewValue, frozen=True, kw_only=True):
    """A record on its way in: `NewRecord("x", key="k")`.

    Args:
        value: bytes, str, or anything JSON (dict, list, number, bool, None, dataclass). Readers get
            what JSON has: for a tuple or set a list; text for a key that is a number, for a date
            or datetime (a naive one without a zone), timedelta, UUID, Decimal and, as base64,
            bytes inside of it.
        key: orders records (equal keys keep their order) and chooses the partition; "" and None
            are different: None means no key.
        type: the event type, dot segments (`flight.departed`); pipelines match on it.
        timestamp_ms: event time; None lets the producer stamp the time of sending.
        headers: small texts by name; CloudEvents attributes and extensions travel here.
        id: the record's own id; "" leaves it to be derived from stream, partition and offset.
        partition: where it goes and stays, whatever its key and the producer's failover; None
            leaves that to the producer.
        expect_offset: it is logged at this offset of its partition, or not at all.
        expect_key_offset: it is logged when the latest record with its key has this offset, -1 for
            a key without a record, or not at all; of a stream declared with `keys: indexed`.
        sequence: of a producer with a name: a number of the program's own, which rises within a
            partition. What has one that is there already is not logged again.
    """

    key: bytes | str | None = None
    type: str = ""
    timestamp_ms: int | None = None
    headers: Mapping[str, str] | None = None
    id: str = ""
    partition: str | None = None
    expect_offset: int | None = None
    expect_key_offset: int | None = None
    sequence: int | None = None


def encode_value(value: Any) -> tuple[int, bytes]:
    """Return (encoding, bytes). Raises `InvalidRecordError` when a value is not JSON."""
    kind = type(value)
    if kind is bytes:
        return BYTES, value
    if kind is str:
        return TEXT, value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return BYTES, bytes(value)
    try:
        if isinstance(value, str):
            return TEXT, str.encode(value)
        return JSON, encode_json(value)
    except Exception as error:  # also what a model of the program's own raises
        if isinstance(value, Record):
            raise InvalidRecordError(
                "a record that was read is no value",
                "send its .value, or hadron.NewRecord(value=record.value, key=record.key)",
            ) from None
        raise InvalidRecordError(
            f"a value of type {kind.__name__} cannot be sent: {error}",
            "send bytes, str, or anything JSON (None for a number that is missing), or give the "
            "producer a value_serializer",
        ) from error


def decode_value(encoding: int, data: bytes) -> Any:
    """The inverse of `encode_value`."""
    if encoding == BYTES:
        return data
    if encoding == TEXT:
        return data.decode()
    return _decode_json(data)


Deserializer: TypeAlias = Callable[[Any], Any]
"""From a value as it was sent (bytes, str or anything JSON) to a program's own."""


class Record(msgspec.Struct, eq=False):
    """One record as read: a view of its batch, decoded where it is touched."""

    # A struct is made in two fifths of the time that a class with `__init__` takes: for who counts
    # records, making them is half of what reading costs.
    _batch: RecordBatch
    _index: int

    @property
    def value(self) -> Any:
        """The value as it was sent, decoded each time that it is asked for. Raises
        `DamagedRecordError`, see `damage`."""
        batch, index = self._batch, self._index
        offsets = batch.value_offsets
        data = batch.values[offsets[index] : offsets[index + 1]]
        encodings = batch.value_encodings
        encoding = encodings[0] if len(encodings) == 1 else encodings[index]
        if encoding == BYTES:
            return data
        try:
            return decode_value(encoding, data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            said = "text" if encoding == TEXT else "JSON"
            raise batch.damaged(index, f"its value is said to be {said}: {error}") from None

    _as_sent = value
    """Whatever a deserializer makes of it."""

    @property
    def damage(self) -> str:
        """Why the record cannot be read, though it is as its producer sent it; "" when it can.

        Its value and key raise `DamagedRecordError` then; where it stands, its type and its time
        are known. A deserializer is not asked: what it raises, `value` raises.
        """
        if self._batch.damage:
            return self._batch.damage
        try:
            _ = self._as_sent, self.key
        except DamagedRecordError as error:
            return error.reason
        return ""

    @property
    def raw(self) -> bytes:
        """Bytes as they are stored: the value's, or the body of its whole batch when that cannot be
        taken apart."""
        return self._batch.raw if self._batch.damage else self.value_bytes

    @property
    def value_bytes(self) -> bytes:
        """The value's bytes as they are stored."""
        offsets = self._batch.value_offsets
        return self._batch.values[offsets[self._index] : offsets[self._index + 1]]

    @property
    def encoding(self) -> int:
        """How the value was given: `BYTES`, `TEXT` or `JSON`."""
        return self._batch.value_encoding(self._index)

    @property
    def content_type(self) -> str:
        """The media type of `value_bytes`."""
        explicit = self.headers.get("datacontenttype")
        return explicit or CONTENT_TYPES[self._batch.value_encoding(self._index)]

    @property
    def key(self) -> bytes | str | None:
        """The key as it was sent, or None."""
        return self._batch.key(self._index)

    @property
    def type(self) -> str:
        """The event type, "" when none was given."""
        return self._batch.type(self._index)

    @property
    def timestamp_ms(self) -> int:
        """Event time, milliseconds since the Unix epoch."""
        return self._batch.timestamp_ms(self._index)

    @property
    def timestamp(self) -> datetime:
        """Event time, in UTC. Raises `OverflowError` beyond the years 1 to 9999."""
        return _EPOCH + timedelta(milliseconds=self.timestamp_ms)

    @property
    def headers(self) -> Mapping[str, str]:
        """The record's headers, empty when it has none."""
        return self._batch.headers(self._index)

    @property
    def id(self) -> str:
        """The id given by the producer, or `stream/partition/offset`."""
        batch = self._batch
        return batch.id(self._index) or f"{batch.stream}/{batch.partition}/{self.offset}"

    @property
    def offset(self) -> int:
        """Position in its partition."""
        return self._batch.base_offset + self._index

    @property
    def partition(self) -> str:
        """The replica set that holds it."""
        return self._batch.partition

    @property
    def stream(self) -> str:
        """The stream that holds it."""
        return self._batch.stream

    def __reduce__(self) -> Any:
        """To other processes by itself, without its batch; and without a deserializer, which need
        not be there: `value` is as it was sent."""
        return self._batch.reduce(self._index)

    def __repr__(self) -> str:
        where = f"{self.stream}/{self.partition}/{self.offset}"
        if self.damage:
            return f"Record({where}, type={self.type!r}, damage={self.damage!r})"
        return f"Record({where}, type={self.type!r}, key={self.key!r})"


def record_type(deserializer: Deserializer | None) -> type[Record]:
    """The kind of record whose values a deserializer goes over when they are touched."""
    if deserializer is None:
        return Record
    convert = deserializer

    class DeserializedRecord(Record):
        @property
        def value(self) -> Any:
            """What the deserializer makes of the value. Raises `InvalidRecordError` when it
            raises."""
            value = super().value
            try:
                return convert(value)
            except Exception as error:
                raise InvalidRecordError(
                    f"the value_deserializer failed on {self.stream}/{self.partition}/"
                    f"{self.offset}: {type(error).__name__}: {error}",
                    "`value_bytes` has what is stored",
                ) from error

    return DeserializedRecord
