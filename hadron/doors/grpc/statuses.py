"""Errors as gRPC tells them: a code for each class, and details as google.rpc has them.

One table: the code of an error is that of its class, or of the next one above it that has any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from hadron.model.errors import (
    CallFailedError,
    ClosedError,
    CommitUnknownError,
    ConfigurationError,
    ConflictError,
    ConnectionLostError,
    CorruptionError,
    DamagedRecordError,
    DeadlineExceededError,
    DiskFullError,
    FencedError,
    HadronError,
    KeyReusedError,
    LogTruncatedError,
    MetadataBehindError,
    NotFoundError,
    OffsetMismatchError,
    OffsetOutOfRangeError,
    OldMemberError,
    OutcomeUnknownError,
    OverloadedError,
    PeerError,
    RecordTooLargeError,
    RequestError,
    SequenceError,
    ShuttingDownError,
    StaleCompletionError,
    StorageError,
    TrimmedError,
    UnknownMethodError,
)
from hadron.model.problems import shorten

Code = grpc.StatusCode

CODES: Final[dict[type[HadronError], Any]] = {
    HadronError: Code.INTERNAL,
    # The caller's.
    RequestError: Code.INVALID_ARGUMENT,
    ClosedError: Code.UNAVAILABLE,
    DamagedRecordError: Code.DATA_LOSS,
    RecordTooLargeError: Code.INVALID_ARGUMENT,
    NotFoundError: Code.NOT_FOUND,
    OffsetOutOfRangeError: Code.OUT_OF_RANGE,
    LogTruncatedError: Code.DATA_LOSS,
    SequenceError: Code.FAILED_PRECONDITION,
    KeyReusedError: Code.ALREADY_EXISTS,
    OffsetMismatchError: Code.FAILED_PRECONDITION,
    ConfigurationError: Code.FAILED_PRECONDITION,
    UnknownMethodError: Code.UNIMPLEMENTED,
    StaleCompletionError: Code.ABORTED,
    ConflictError: Code.ABORTED,
    # Nobody knows: the call may have done what it was to do. Not UNAVAILABLE, which libraries
    # repeat by themselves.
    OutcomeUnknownError: Code.UNKNOWN,
    # What serves an endpoint has failed, and may have done a part.
    CallFailedError: Code.UNKNOWN,
    # A peer's, or the way there.
    PeerError: Code.UNAVAILABLE,
    ConnectionLostError: Code.UNAVAILABLE,
    DeadlineExceededError: Code.DEADLINE_EXCEEDED,
    MetadataBehindError: Code.UNAVAILABLE,
    OverloadedError: Code.RESOURCE_EXHAUSTED,
    DiskFullError: Code.RESOURCE_EXHAUSTED,
    OldMemberError: Code.FAILED_PRECONDITION,
    FencedError: Code.UNAVAILABLE,
    ShuttingDownError: Code.UNAVAILABLE,
    # A disk's.
    StorageError: Code.INTERNAL,
    CorruptionError: Code.DATA_LOSS,
    TrimmedError: Code.OUT_OF_RANGE,
}

DOMAIN: Final = "hadron"
DETAILS: Final = "grpc-status-details-bin"
"""The trailer in which libraries look for a google.rpc.Status."""

_RETRY_S: Final = 1
"""A leader's restart takes a second or two."""

_MAX_TEXT_BYTES: Final = 500
"""Of a message, and of a hint, which are in several of the trailers: most libraries take 8 kB of
them by default, and a byte of a text may become three."""


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ends that has failed."""

    code: Any
    message: str
    trailers: tuple[tuple[str, bytes], ...]


def stopping() -> ShuttingDownError:
    return ShuttingDownError("the node is stopping", "call another one, or this one a little later")


def unknown_method(path: str) -> UnknownMethodError:
    return UnknownMethodError(
        f"{shorten(path)} is not served here",
        "what is served is in proto/hadron/v1, and told by reflection: see docs/GRPC.md",
    )


def code_of(error: HadronError) -> Any:
    return next(CODES[each] for each in type(error).__mro__ if each in CODES)


def status_of(error: HadronError) -> Status:
    code = code_of(error)
    message = _shortened(error.message)
    text = f"{message} ({_shortened(error.hint)})" if error.hint else message
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in _details(error, code):
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return Status(code, text, ((DETAILS, status.SerializeToString()),))


def _details(error: HadronError, code: Any) -> list[Any]:
    known = {"retryable": str(error.retryable).lower()}
    if error.hint:
        known["hint"] = _shortened(error.hint)
    if isinstance(error, OffsetMismatchError):
        known |= {"expected": str(error.expected), "actual": str(error.actual)}
    if isinstance(error, CommitUnknownError):
        known["transaction"] = error.transaction
    if isinstance(error, CallFailedError):
        known["type"] = _shortened(error.type)
    if error.fates is not None:
        known |= {name: str(count) for name, count in error.fates._asdict().items()}
    details: list[Any] = [
        error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=known)
    ]
    if error.retryable:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.seconds = _RETRY_S
        details.append(retry)
    if code is Code.INVALID_ARGUMENT:
        violation = error_details_pb2.BadRequest.FieldViolation(
            description=_shortened(error.message), reason=error.code
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    return details


def _shortened(text: str) -> str:
    data = text.encode(errors="replace")
    if len(data) <= _MAX_TEXT_BYTES:
        return text
    return data[:_MAX_TEXT_BYTES].decode(errors="ignore") + " … (shortened)"
