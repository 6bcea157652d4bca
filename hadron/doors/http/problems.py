"""Errors as HTTP tells them: `application/problem+json` (RFC 9457), and a status for each class.

One table: the status of an error is that of its class, or of the next one above it that has any.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from hadron.model.errors import (
    CallFailedError,
    ClosedError,
    ConfigurationError,
    ConflictError,
    ConnectionLostError,
    CorruptionError,
    DamagedRecordError,
    DeadlineExceededError,
    DiskFullError,
    FencedError,
    HadronError,
    IncompleteError,
    KeyReusedError,
    LogTruncatedError,
    MetadataBehindError,
    NoServerError,
    NotFoundError,
    NotLeaderError,
    NotReadyError,
    OffsetMismatchError,
    OffsetOutOfRangeError,
    OldMemberError,
    OutcomeUnknownError,
    OverloadedError,
    PeerError,
    RecordTooLargeError,
    RequestError,
    SchemaError,
    SequenceError,
    ShuttingDownError,
    StaleCompletionError,
    StorageError,
    TrimmedError,
    UnknownMethodError,
    UnreachableError,
)

WRONG_VALUE: Final = "ValidationError"
"""The type of what a handler says, also by itself, of a value that it cannot take."""

STATUSES: Final[dict[type[HadronError], int]] = {
    HadronError: 500,
    CallFailedError: 500,
    # The caller's.
    RequestError: 400,
    ClosedError: 503,
    DamagedRecordError: 422,
    RecordTooLargeError: 413,
    NotFoundError: 404,
    OffsetOutOfRangeError: 416,
    LogTruncatedError: 410,
    SequenceError: 409,
    KeyReusedError: 422,
    OffsetMismatchError: 412,
    SchemaError: 422,
    ConfigurationError: 500,
    UnknownMethodError: 501,
    StaleCompletionError: 409,
    ConflictError: 409,
    # Nobody knows: the call may have done what it was to do.
    OutcomeUnknownError: 504,
    # A peer's, or the way there.
    PeerError: 502,
    ConnectionLostError: 502,
    UnreachableError: 503,
    DeadlineExceededError: 504,
    IncompleteError: 502,
    NotLeaderError: 503,
    MetadataBehindError: 503,
    NotReadyError: 503,
    OverloadedError: 503,
    NoServerError: 503,
    DiskFullError: 507,
    OldMemberError: 503,
    FencedError: 503,
    ShuttingDownError: 503,
    # A disk's.
    StorageError: 500,
    CorruptionError: 500,
    TrimmedError: 410,
}

CONTENT_TYPE: Final = "application/problem+json"

_RETRY_AFTER_S: Final = 1
"""Told with 503: a leader's restart takes a second or two."""


class HttpError(RequestError, travels=False):
    """What only HTTP can get wrong: it has a status of its own."""

    def __init__(
        self,
        status: int,
        message: str,
        hint: str = "",
        *,
        retryable: bool = False,
        allow: str = "",
        unknown_deliveries: list[str] | None = None,
    ) -> None:
        super().__init__(message, hint, retryable=retryable)
        self.status = status
        self.allow = allow
        self.unknown_deliveries = unknown_deliveries

    @property
    def code(self) -> str:
        """It is the request that is wrong, as other doors would say."""
        return RequestError.__name__


class Problem(msgspec.Struct, omit_defaults=True):
    """A problem's members: what every error of Hadron has, and what some have besides."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    retryable: bool
    hint: str = ""
    expected: int | None = None
    actual: int | None = None
    published: int | None = None
    unknown: int | None = None
    lost: int | None = None
    error_type: str | None = None
    unknown_deliveries: list[str] | None = None


def status_of(error: HadronError) -> int:
    if isinstance(error, HttpError):
        return error.status
    if isinstance(error, CallFailedError) and error.type == WRONG_VALUE:
        return 422
    return next(STATUSES[each] for each in type(error).__mro__ if each in STATUSES)


def problem_body(
    status: int, code: str, message: str, hint: str = "", *, retryable: bool = False, **others: Any
) -> bytes:
    """The document of a problem that is no exception."""
    return msgspec.json.encode(
        Problem(
            type=f"urn:hadron:error:{code}",
            title=code,
            status=status,
            code=code,
            detail=message,
            retryable=retryable,
            hint=hint,
            **others,
        )
    )


def _may_be_retried(error: HadronError) -> bool:
    """Whoever sends again what is logged in part doubles that."""
    fates = error.fates
    return error.retryable and not (fates and (fates.published or fates.unknown))


def body_of(error: HadronError) -> bytes:
    others: dict[str, Any] = {}
    if isinstance(error, OffsetMismatchError):
        others = {"expected": error.expected, "actual": error.actual}
    if isinstance(error, CallFailedError):
        others = {"error_type": error.type}
    if isinstance(error, HttpError):
        others = {"unknown_deliveries": error.unknown_deliveries}
    if error.fates is not None:
        others |= error.fates._asdict()
    return problem_body(
        status_of(error),
        error.code,
        error.message,
        error.hint,
        retryable=_may_be_retried(error),
        **others,
    )


def response_of(error: HadronError) -> Response:
    """The answer that says what went wrong."""
    status = status_of(error)
    headers = {}
    if status == 503 and (error.fates is None or _may_be_retried(error)):
        headers["retry-after"] = str(_RETRY_AFTER_S)
    if isinstance(error, HttpError) and error.allow:
        headers["allow"] = error.allow
    return Response(body_of(error), status, headers, CONTENT_TYPE)
