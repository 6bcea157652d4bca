from hadron.wire._pb import options_pb2 as _options_pb2
from hadron.wire._pb import replication_pb2 as _replication_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadCopyRequest(_message.Message):
    __slots__ = ("lsn",)
    LSN_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    def __init__(self, lsn: _Optional[int] = ...) -> None: ...

class ReadCopyResponse(_message.Message):
    __slots__ = ("previous", "entry", "last_lsn")
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    LAST_LSN_FIELD_NUMBER: _ClassVar[int]
    previous: _replication_pb2.LogPosition
    entry: _replication_pb2.Entry
    last_lsn: int
    def __init__(self, previous: _Optional[_Union[_replication_pb2.LogPosition, _Mapping]] = ..., entry: _Optional[_Union[_replication_pb2.Entry, _Mapping]] = ..., last_lsn: _Optional[int] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("until_lsn",)
    UNTIL_LSN_FIELD_NUMBER: _ClassVar[int]
    until_lsn: int
    def __init__(self, until_lsn: _Optional[int] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("reached_lsn", "report")
    REACHED_LSN_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    reached_lsn: int
    report: VerifyReport
    def __init__(self, reached_lsn: _Optional[int] = ..., report: _Optional[_Union[VerifyReport, _Mapping]] = ...) -> None: ...

class VerifyReport(_message.Message):
    __slots__ = ("first_lsn", "last_lsn", "chain", "committed_lsn", "applied_lsn", "entries", "bodies", "batches", "bytes", "dropped_bodies", "checked", "skipped", "problems", "problem_count", "remedy")
    class Problem(_message.Message):
        __slots__ = ("text", "table", "lsn", "stream_id", "offset")
        TEXT_FIELD_NUMBER: _ClassVar[int]
        TABLE_FIELD_NUMBER: _ClassVar[int]
        LSN_FIELD_NUMBER: _ClassVar[int]
        STREAM_ID_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        text: str
        table: str
        lsn: int
        stream_id: int
        offset: int
        def __init__(self, text: _Optional[str] = ..., table: _Optional[str] = ..., lsn: _Optional[int] = ..., stream_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    FIRST_LSN_FIELD_NUMBER: _ClassVar[int]
    LAST_LSN_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LSN_FIELD_NUMBER: _ClassVar[int]
    APPLIED_LSN_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BODIES_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_COUNT_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    first_lsn: int
    last_lsn: int
    chain: bytes
    committed_lsn: int
    applied_lsn: int
    entries: int
    bodies: int
    batches: int
    bytes: int
    dropped_bodies: int
    checked: _containers.RepeatedScalarFieldContainer[str]
    skipped: _containers.RepeatedScalarFieldContainer[str]
    problems: _containers.RepeatedCompositeFieldContainer[VerifyReport.Problem]
    problem_count: int
    remedy: str
    def __init__(self, first_lsn: _Optional[int] = ..., last_lsn: _Optional[int] = ..., chain: _Optional[bytes] = ..., committed_lsn: _Optional[int] = ..., applied_lsn: _Optional[int] = ..., entries: _Optional[int] = ..., bodies: _Optional[int] = ..., batches: _Optional[int] = ..., bytes: _Optional[int] = ..., dropped_bodies: _Optional[int] = ..., checked: _Optional[_Iterable[str]] = ..., skipped: _Optional[_Iterable[str]] = ..., problems: _Optional[_Iterable[_Union[VerifyReport.Problem, _Mapping]]] = ..., problem_count: _Optional[int] = ..., remedy: _Optional[str] = ...) -> None: ...

class CompareTablesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CompareTablesResponse(_message.Message):
    __slots__ = ("rows", "lsn", "is_complete", "members")
    class Member(_message.Message):
        __slots__ = ("name", "is_compared", "trouble")
        NAME_FIELD_NUMBER: _ClassVar[int]
        IS_COMPARED_FIELD_NUMBER: _ClassVar[int]
        TROUBLE_FIELD_NUMBER: _ClassVar[int]
        name: str
        is_compared: bool
        trouble: str
        def __init__(self, name: _Optional[str] = ..., is_compared: _Optional[bool] = ..., trouble: _Optional[str] = ...) -> None: ...
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    lsn: int
    is_complete: bool
    members: _containers.RepeatedCompositeFieldContainer[CompareTablesResponse.Member]
    def __init__(self, rows: _Optional[int] = ..., lsn: _Optional[int] = ..., is_complete: _Optional[bool] = ..., members: _Optional[_Iterable[_Union[CompareTablesResponse.Member, _Mapping]]] = ...) -> None: ...
