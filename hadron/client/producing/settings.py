"""How a producer shall be: the arguments of `Client.producer`, checked. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from hadron.client.producing.failover import FAILOVERS
from hadron.client.producing.new_records import Serializer
from hadron.client.producing.partitioner import PARTITIONERS, partitions_in
from hadron.client.terms.arguments import milliseconds_of, seconds_of, text_of, whole_of
from hadron.model.batch import CODECS
from hadron.model.errors import RequestError
from hadron.model.limits import MAX_BATCH_BYTES, MAX_NAME_LENGTH, MAX_RECORD_BYTES
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.wire.messages import streams_pb2

ACKS: Final = {
    "majority": streams_pb2.ACKS_MAJORITY,
    "leader": streams_pb2.ACKS_LEADER,
    "all": streams_pb2.ACKS_ALL,
}

_MAX_BATCH_BYTES: Final = MAX_BATCH_BYTES - MAX_RECORD_BYTES
"""A batch that is not full yet must have room for one more record of the largest size."""

_SHORTEST_TIMEOUT_S: Final = 0.001

DEFAULT_BATCH_BYTES: Final = 192 << 10
"""Measured against three nodes: 64 kB is 35 % slower, 128 to 512 kB are equal within the noise."""

DEFAULT_LINGER_MS: Final = 5.0
"""Measured against three nodes: 1 ms is 8 % slower for `send_soon`, 20 ms no faster. A lone `send`
never lingers."""

DEFAULT_MAX_BUFFER_BYTES: Final = 32 << 20
DEFAULT_DELIVERY_TIMEOUT_S: Final = 120.0


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """See `Client.producer`."""

    acks: str = "majority"
    partition: str | None = None
    region: str | None = None
    partitioner: str = "key"
    failover: str = "unkeyed"
    codec: str = "none"
    batch_bytes: int = DEFAULT_BATCH_BYTES
    linger_ms: float = DEFAULT_LINGER_MS
    max_buffer_bytes: int = DEFAULT_MAX_BUFFER_BYTES
    delivery_timeout_s: float = DEFAULT_DELIVERY_TIMEOUT_S
    value_serializer: Serializer | None = None
    name: str | None = None

    def checked(self) -> ProducerSettings:
        """With plain numbers. Raises `RequestError` naming the setting that makes no sense."""
        for name, known in (("partitioner", PARTITIONERS), ("failover", FAILOVERS)):
            if getattr(self, name) not in known:
                raise RequestError(
                    f"{name} {getattr(self, name)!r} is unknown", f"use one of {', '.join(known)}"
                )
        if self.partition is not None and self.region is not None:
            raise RequestError(
                f"both the partition {self.partition!r} and the region {self.region!r} are given",
                "a partition lies in one region: leave one of them out",
            )
        if self.acks not in ACKS:
            raise RequestError(f"acks {self.acks!r} is unknown", f"use one of {', '.join(ACKS)}")
        if self.codec not in CODECS:
            raise RequestError(f"codec {self.codec!r} is unknown", f"use {' or '.join(CODECS)}")
        if self.value_serializer is not None and not callable(self.value_serializer):
            raise RequestError(
                f"value_serializer {self.value_serializer!r} cannot be called",
                "give a function from a value to bytes, str or anything JSON, such as json.dumps",
            )
        failover = self.failover
        if self.name is not None:
            name = text_of("name", self.name)
            if len(name) > MAX_NAME_LENGTH:
                raise RequestError(
                    f"a producer's name of {len(name)} characters is too long",
                    f"at most {MAX_NAME_LENGTH}",
                )
            if failover in ("any", "duplicate"):
                raise RequestError(
                    f"failover {failover!r} of the producer {name!r}",
                    "what a name has logged is known by partition: its records stay in theirs",
                )
            failover = "none"
        return msgspec.structs.replace(
            self,
            failover=failover,
            batch_bytes=whole_of("batch_bytes", self.batch_bytes, 1, _MAX_BATCH_BYTES),
            linger_ms=milliseconds_of("linger_ms", self.linger_ms, 0),
            max_buffer_bytes=whole_of("max_buffer_bytes", self.max_buffer_bytes, 1),
            delivery_timeout_s=seconds_of(
                "delivery_timeout_s", self.delivery_timeout_s, _SHORTEST_TIMEOUT_S
            ),
        )

    def check_keys(self, stream: SchemaObject, names: list[str]) -> None:
        """Raises `RequestError` where the records of one key would lie in several partitions, and
        the index of the stream's keys could not say which is the latest."""
        assert isinstance(stream.spec, StreamSpec)
        if not stream.spec.has_key_index or self.partition is not None:
            return
        if len(stream.spec.partitions) == 1:
            return
        strays = {
            f"failover={self.failover!r}": self.failover in ("any", "duplicate"),
            f"partitioner={self.partitioner!r}": self.partitioner != "key",
            f"region={self.region!r}": len(names) < len(stream.spec.partitions),
        }
        for setting in (each for each, is_so in strays.items() if is_so):
            raise stray_keys(stream.name, setting)

    def choose(self, stream: SchemaObject) -> list[str]:
        """The stream's partitions that records may go to. Raises `NotFoundError` when none is in
        the region."""
        assert isinstance(stream.spec, StreamSpec)
        names = list(stream.spec.partitions)
        if self.partition is not None:
            return [self.partition]
        if self.region is None:
            return names
        return partitions_in(names, self.region, lambda: f"stream {stream.name!r}")


def stray_keys(stream: str, setting: str) -> RequestError:
    """The error for a setting that an index of keys forbids."""
    return RequestError(
        f"stream {stream!r} has an index of keys, and with {setting} records of one key lie in "
        "several partitions",
        "leave that out, or name one partition for all records",
    )
