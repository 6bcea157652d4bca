"""The records of a batch, for readers: columns, and views of them. Only here a body is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise, repeat
from typing import Final

from hadron.model import columns
from hadron.model.batch import BatchHead, open_batch
from hadron.model.batch_building import BatchBuilder
from hadron.model.bodies import BadBodyError, BatchBody, open_body
from hadron.model.errors import DamagedRecordError
from hadron.model.record import TEXT, NewRecord, Record

_NO_HEADERS: Final[Mapping[str, str]] = {}


def decode_batch(
    data: bytes | memoryview, *, base_offset: int = 0, stream: str = "", partition: str = ""
) -> RecordBatch:
    """Verify and decode a batch. A body that cannot be opened although the checksum is right was
    damaged at its source, and then so are its records (`RecordBatch.damage`): sending or repairing
    it again would not help.

    Raises `CorruptionError` for anything else that is wrong.
    """
    head, codec, packed = open_batch(data)
    try:
        body = open_body(codec, packed, count=head.n, keyed=len(head.kh) > 0, raw=head.raw)
    except BadBodyError as error:
        return RecordBatch(
            head,
            _no_body(head.n),
            base_offset,
            stream,
            partition,
            damage=f"the body of its batch is none: {error}",
            raw=bytes(packed),
        )
    return RecordBatch(head, body, base_offset, stream, partition)


def _no_body(count: int) -> BatchBody:
    """Stands where a body cannot be opened: so many values without a byte."""
    return BatchBody(vo=memoryview(bytes(4 * (count + 1))), ve=memoryview(b"\0"))


class RecordBatch:
    """A decoded batch: columns, and records as views of them.

    Attributes:
        damage: why its records cannot be read, although the batch is as its producer sent it; ""
            when they can. Of such ones only the head is known: offsets, types, times.
        raw: the body of such a batch, as it is stored.
    """

    __slots__ = (
        "_headers",
        "_ids",
        "_key_hashes",
        "_key_offsets",
        "_timestamps",
        "_type_codes",
        "base_offset",
        "body",
        "count",
        "damage",
        "head",
        "partition",
        "raw",
        "record_type",
        "stream",
        "value_encodings",
        "value_offsets",
        "values",
    )

    def __init__(
        self,
        head: BatchHead,
        body: BatchBody,
        base_offset: int,
        stream: str,
        partition: str,
        *,
        damage: str = "",
        raw: bytes = b"",
    ) -> None:
        """`body` was checked before (`open_body`), or stands for one that is damaged."""
        self.damage = damage
        self.raw = raw
        self.head = head
        self.body = body
        self.base_offset = base_offset
        self.stream = stream
        self.partition = partition
        self.count = head.n
        self.record_type = Record
        self.values = body.v
        self.value_encodings = body.ve
        self.value_offsets = columns.view("i", body.vo)
        self._key_hashes = columns.view("Q", head.kh)
        self._key_offsets = columns.view("i", body.ko)
        self._timestamps = columns.view("q", head.ts)
        self._type_codes = columns.view("H", head.tc)
        self._headers: dict[int, dict[str, str]] | None = None
        self._ids: dict[int, str] | None = None
        if damage:
            self.value_offsets = self._key_hashes = _Unreadable(self)

    def __len__(self) -> int:
        return self.count

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count

    def records(self, start: int = 0, stop: int | None = None) -> list[Record]:
        """Records by their index in the batch, `start` inclusive to `stop` exclusive."""
        indexes = range(start, self.count if stop is None else stop)
        return list(map(self.record_type, repeat(self), indexes))

    def from_offset(self, offset: int) -> list[Record]:
        """Records at or after `offset`."""
        return self.records(max(0, offset - self.base_offset))

    def reduce(self, index: int) -> tuple[Callable[..., Record], tuple[bytes, int, str, str]]:
        """For pickling one of its records. Raises `DamagedRecordError`."""
        start, stop = self.value_offsets[index], self.value_offsets[index + 1]
        builder = BatchBuilder()
        builder.add(
            NewRecord(
                value=None,
                key=self.key(index),
                type=self.type(index),
                id=self.id(index),
                timestamp_ms=self.timestamp_ms(index),
                headers=self.headers(index),
            ),
            0,
            encoded=(self.value_encoding(index), self.values[start:stop]),
        )
        place = self.base_offset + index, self.stream, self.partition
        return _alone, (builder.build(), *place)

    def value_encoding(self, index: int) -> int:
        encodings = self.value_encodings
        return encodings[0] if len(encodings) == 1 else encodings[index]

    def value_bytes(self) -> list[bytes]:
        """All values as they are stored."""
        values = self.values
        return [values[a:b] for a, b in pairwise(self.value_offsets.tolist())]

    def key(self, index: int) -> bytes | str | None:
        if not len(self._key_hashes) or self._key_hashes[index] == 0:
            return None
        data = self.body.k[self._key_offsets[index] : self._key_offsets[index + 1]]
        encodings = self.body.ke
        text = (encodings[0] if len(encodings) == 1 else encodings[index]) == TEXT
        try:
            return data.decode() if text else data
        except UnicodeDecodeError as error:
            raise self.damaged(index, f"its key is said to be text, and is not: {error}") from None

    def key_bytes(self, index: int) -> bytes | None:
        """The key as it is stored, None where there is none or none can be had."""
        if self.damage or not len(self._key_hashes) or self._key_hashes[index] == 0:
            return None
        return self.body.k[self._key_offsets[index] : self._key_offsets[index + 1]]

    def type(self, index: int) -> str:
        types = self.head.t
        if not types:
            return ""
        return types[self._type_codes[index]] if len(self._type_codes) else types[0]

    def damaged(self, index: int, why: str) -> DamagedRecordError:
        """The error for a record that cannot be read."""
        offset = self.base_offset + index
        return DamagedRecordError(
            f"record {self.stream}/{self.partition}/{offset} is damaged at its source: {why}",
            "whatever has produced it is at fault; its bytes are kept (`.raw`), and it can "
            "be acknowledged like any other",
            reason=why,
        )

    def timestamp_ms(self, index: int) -> int:
        stamps = self._timestamps
        stamp: int = stamps[0] if len(stamps) == 1 else stamps[index]
        return stamp

    def headers(self, index: int) -> Mapping[str, str]:
        if not self.body.h:
            return _NO_HEADERS
        if self._headers is None:
            self._headers = dict(self.body.h)
        return self._headers.get(index, _NO_HEADERS)

    def id(self, index: int) -> str:
        if not self.body.ids:
            return ""
        if self._ids is None:
            self._ids = dict(self.body.ids)
        return self._ids.get(index, "")


def _alone(data: bytes, offset: int, stream: str, partition: str) -> Record:
    return decode_batch(data, base_offset=offset, stream=stream, partition=partition).records()[0]


class _Unreadable:
    """A column of a damaged batch: raises for every record."""

    __slots__ = ("_batch",)

    def __init__(self, batch: RecordBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return self._batch.count

    def __getitem__(self, index: int) -> int:
        raise self._batch.damaged(index, self._batch.damage)

    def tolist(self) -> list[int]:
        raise self._batch.damaged(0, self._batch.damage)
