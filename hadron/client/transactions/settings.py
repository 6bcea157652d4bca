"""What a program asks of a transaction: the arguments of `Client.transaction`, checked. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from hadron.client.producing.new_records import Serializer, new_record, serialized
from hadron.client.producing.partitioner import PARTITIONERS
from hadron.client.terms.arguments import check_serializer, text_of
from hadron.model.batch import CODECS
from hadron.model.errors import RequestError
from hadron.model.record import NewRecord


class TransactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """See `Client.transaction`."""

    driver: str | None = None
    partitioner: str = "key"
    region: str | None = None
    codec: str = "none"
    value_serializer: Serializer | None = None

    def checked(self) -> TransactionSettings:
        """Raises `RequestError` naming the setting that makes no sense."""
        if self.partitioner not in PARTITIONERS:
            raise RequestError(
                f"partitioner {self.partitioner!r} is unknown",
                f"use one of {', '.join(PARTITIONERS)}",
            )
        if self.codec not in CODECS:
            raise RequestError(f"codec {self.codec!r} is unknown", f"use {' or '.join(CODECS)}")
        check_serializer(self.value_serializer)
        for name in ("driver", "region"):
            value = getattr(self, name)
            if value is not None:
                text_of(name, value)
        return self

    @property
    def by_key(self) -> bool:
        return self.partitioner == "key"

    @property
    def new_record(self) -> Callable[..., NewRecord]:
        if self.value_serializer is None:
            return new_record
        return partial(serialized, self.value_serializer)


DEFAULT: Final = TransactionSettings()
