"""The protobuf messages of `proto/hadron/v1`, and the one table of methods by number.

Rooms import messages from here, so that generated code has a single door.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor

from hadron.model.errors import (
    FrameError,
    HadronError,
    OffsetMismatchError,
    RequestError,
    error_from_code,
)
from hadron.model.ids import MAX_EPOCH
from hadron.model.ids import Ballot as BallotId
from hadron.model.ids import LogPosition as LogPositionValue
from hadron.model.limits import MAX_ITEMS
from hadron.model.transactions import TransactionId as TransactionIdValue

# One line for each file of proto/: `as` says that rooms import it from here.
from hadron.wire._pb import cluster_pb2 as cluster_pb2
from hadron.wire._pb import common_pb2 as common_pb2
from hadron.wire._pb import endpoints_pb2 as endpoints_pb2
from hadron.wire._pb import exchanges_pb2 as exchanges_pb2
from hadron.wire._pb import forward_pb2 as forward_pb2
from hadron.wire._pb import groups_pb2 as groups_pb2
from hadron.wire._pb import integrity_pb2 as integrity_pb2
from hadron.wire._pb import options_pb2 as options_pb2
from hadron.wire._pb import pipelines_pb2 as pipelines_pb2
from hadron.wire._pb import replication_pb2 as replication_pb2
from hadron.wire._pb import schema_pb2 as schema_pb2
from hadron.wire._pb import sinks_pb2 as sinks_pb2
from hadron.wire._pb import snapshots_pb2 as snapshots_pb2
from hadron.wire._pb import streams_pb2 as streams_pb2
from hadron.wire._pb import transactions_pb2 as transactions_pb2

_FILES: Final = tuple(module for name, module in list(globals().items()) if name.endswith("_pb2"))
"""All of them; some have services. What only a door serves is imported there: its methods have
names, and no numbers."""


class Audience(enum.IntEnum):
    """Who may call a method (`proto/hadron/v1/options.proto`)."""

    CLIENTS = options_pb2.CLIENTS
    """Anybody, also through another node."""
    NEIGHBOURS = options_pb2.NEIGHBOURS
    """Anybody who is connected to this node."""
    MEMBERS = options_pb2.MEMBERS
    """Nodes of the replica set, once they have shaken hands."""


class Scope(enum.IntEnum):
    """What a caller must have been granted (`proto/hadron/v1/options.proto`)."""

    READ = options_pb2.READ
    WRITE = options_pb2.WRITE
    CONSUME = options_pb2.CONSUME
    DECLARE = options_pb2.DECLARE
    OPERATE = options_pb2.OPERATE
    MEMBER = options_pb2.MEMBER


@dataclass(frozen=True, slots=True)
class Method:
    """One remote method: its number on the wire and the messages of both directions."""

    number: int
    audience: Audience
    scope: Scope
    service: str
    name: str
    request: Any
    response: Any
    client_streams: bool
    server_streams: bool

    def __str__(self) -> str:
        return f"{self.service}.{self.name}"


def read_method(descriptor: MethodDescriptor) -> Method:
    """What a method's options say. Raises `ValueError` naming one that is missing."""
    options: Any = descriptor.GetOptions().Extensions
    number = options[options_pb2.method_number]
    audience, scope = options[options_pb2.audience], options[options_pb2.scope]
    for option, value in (("method_number", number), ("audience", audience), ("scope", scope)):
        if not value:
            raise ValueError(
                f"{descriptor.full_name} has no option ({option}): say it in proto/, as "
                "hadron/v1/options.proto explains, and run `make proto`"
            )
    return Method(
        number,
        Audience(audience),
        Scope(scope),
        descriptor.containing_service.name,
        descriptor.name,
        message_factory.GetMessageClass(descriptor.input_type),
        message_factory.GetMessageClass(descriptor.output_type),
        descriptor.client_streaming,
        descriptor.server_streaming,
    )


def _collect() -> dict[int, Method]:
    methods: dict[int, Method] = {}
    for file in _FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            for descriptor in service.methods:
                method = read_method(descriptor)
                other = methods.setdefault(method.number, method)
                assert other is method, f"{method} and {other} both have number {method.number}"
    return methods


METHODS: Final[dict[int, Method]] = _collect()


def files() -> list[FileDescriptor]:
    """What they were made of."""
    return [module.DESCRIPTOR for module in _FILES]


_BY_NAME: Final = {method.name: method for method in METHODS.values()}


def method(name: str) -> Method:
    """The method called `name`; names are unique over all services."""
    return _BY_NAME[name]


def ballot_to(ballot: BallotId) -> common_pb2.Ballot:
    return common_pb2.Ballot(epoch=ballot.epoch, incarnation=ballot.incarnation)


def check_number(what: str, value: int) -> int:
    """A number that goes into a table. SQLite's integers are signed, protobuf's `uint64` is not:
    raises `FrameError` for what would not fit."""
    if value >> 63:
        raise FrameError(f"{what} {value} is out of range")
    return value


def check_epoch(value: int) -> int:
    """Raises `FrameError` for one that no configuration file can have."""
    if value > MAX_EPOCH:
        raise FrameError(f"epoch {value} is out of range, the highest is {MAX_EPOCH}")
    return value


def items_of(part: transactions_pb2.TransactRequest.Part) -> int:
    """What it counts among those of a message: the transactions and statements in it, and those
    that name much for more than one."""
    return len(part.records or (1,)) + sum(map(weight_of, part.statements))


def weight_of(statement: transactions_pb2.Statement) -> int:
    """One; more where it names many deliveries, instances or attempts."""
    named = len(statement.complete.instance_ids) + len(statement.fail.instance_ids)
    named += len(statement.publish_staged.attempts)
    return 1 + len(statement.acknowledge.ranges) // 10 + named // 100


def check_count(what: str, count: int, most: int = MAX_ITEMS) -> None:
    """Raises `RequestError` where one message asks for more than is done in one go (BOUNDS W1)."""
    if count > most:
        raise RequestError(
            f"{count} {what} in one message, the limit is {most}", "send them in several messages"
        )


def ballot_from(message: common_pb2.Ballot) -> BallotId:
    """Raises `FrameError` for numbers that no node makes."""
    return BallotId(
        check_number("epoch", message.epoch), check_number("incarnation", message.incarnation)
    )


def transaction_to(transaction: TransactionIdValue) -> transactions_pb2.TransactionId:
    message = transactions_pb2.TransactionId()
    set_transaction(message, transaction)
    return message


def set_transaction(
    message: transactions_pb2.TransactionId, transaction: TransactionIdValue
) -> None:
    """In place, as leaders say it of each transaction many times: making a part and copying it into
    its whole takes three times as long."""
    message.replica_set, epoch, incarnation, message.number = transaction
    ballot = message.ballot
    ballot.epoch, ballot.incarnation = epoch, incarnation


def transaction_from(message: transactions_pb2.TransactionId) -> TransactionIdValue:
    """Raises `FrameError` for numbers that no node makes."""
    number = check_number("a transaction's number", message.number)
    return TransactionIdValue.of(message.replica_set, ballot_from(message.ballot), number)


def position_to(position: LogPositionValue) -> replication_pb2.LogPosition:
    return replication_pb2.LogPosition(
        lsn=position.lsn, ballot=ballot_to(position.ballot), chain=position.chain
    )


def position_from(message: replication_pb2.LogPosition) -> LogPositionValue:
    lsn = check_number("lsn", message.lsn)
    return LogPositionValue(lsn, ballot_from(message.ballot), message.chain)


_MAX_TEXT: Final = 65_536
"""Characters of an error's message, and of its hint: some 500 mistakes in a schema. What repeats a
caller's huge name would else fit into no frame, and end the connection instead of the call."""

_KEPT_END: Final = 1_000


def offsets_of(
    partition: str, answer: streams_pb2.OffsetsResponse
) -> streams_pb2.OffsetsResponse.Partition:
    """What the leader of a partition tells of it. Raises `FrameError` when that is not of one."""
    if len(answer.partitions) != 1:
        raise FrameError(
            f"the leader of {partition} told of {len(answer.partitions)} partitions of a stream, "
            "not of one"
        )
    return answer.partitions[0]


def error_to_message(error: HadronError) -> common_pb2.Error:
    message = common_pb2.Error(
        code=error.code,
        message=text_to(error.message),
        hint=text_to(error.hint),
        retryable=error.retryable,
    )
    if isinstance(error, OffsetMismatchError):
        message.expected, message.actual = error.expected, error.actual
    return message


def text_to(text: str) -> str:
    """What somebody says of an error, as every message takes it: of a length that fits, and without
    lone surrogates, which a file's name may have brought."""
    if len(text) > _MAX_TEXT:
        left_out = f" … {len(text) - _MAX_TEXT} characters left out … "
        text = text[: _MAX_TEXT - _KEPT_END] + left_out + text[-_KEPT_END:]
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def error_from_message(message: common_pb2.Error) -> HadronError:
    error = error_from_code(message.code, message.message, message.hint, message.retryable)
    if isinstance(error, OffsetMismatchError) and message.HasField("actual"):
        error.expected, error.actual = message.expected, message.actual
    return error
