from hadron.wire._pb import common_pb2 as _common_pb2
from hadron.wire._pb import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogPosition(_message.Message):
    __slots__ = ("lsn", "ballot", "chain")
    LSN_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    ballot: _common_pb2.Ballot
    chain: bytes
    def __init__(self, lsn: _Optional[int] = ..., ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., chain: _Optional[bytes] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "role")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ...) -> None: ...

class HandshakeRequest(_message.Message):
    __slots__ = ("cluster", "replica_set", "epoch", "members", "node", "protocol_version", "replica_set_uuid", "boot", "apply_version", "start", "is_member", "disk")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SET_UUID_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    APPLY_VERSION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    IS_MEMBER_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    replica_set: str
    epoch: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    node: str
    protocol_version: int
    replica_set_uuid: bytes
    boot: int
    apply_version: int
    start: bytes
    is_member: bool
    disk: bytes
    def __init__(self, cluster: _Optional[str] = ..., replica_set: _Optional[str] = ..., epoch: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., node: _Optional[str] = ..., protocol_version: _Optional[int] = ..., replica_set_uuid: _Optional[bytes] = ..., boot: _Optional[int] = ..., apply_version: _Optional[int] = ..., start: _Optional[bytes] = ..., is_member: _Optional[bool] = ..., disk: _Optional[bytes] = ...) -> None: ...

class HandshakeResponse(_message.Message):
    __slots__ = ("identity", "promised", "last", "is_member", "committed_lsn", "now_ms", "configurations", "is_old_copy")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    IS_MEMBER_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LSN_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATIONS_FIELD_NUMBER: _ClassVar[int]
    IS_OLD_COPY_FIELD_NUMBER: _ClassVar[int]
    identity: HandshakeRequest
    promised: _common_pb2.Ballot
    last: LogPosition
    is_member: bool
    committed_lsn: int
    now_ms: int
    configurations: _containers.RepeatedCompositeFieldContainer[Configuration]
    is_old_copy: bool
    def __init__(self, identity: _Optional[_Union[HandshakeRequest, _Mapping]] = ..., promised: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., last: _Optional[_Union[LogPosition, _Mapping]] = ..., is_member: _Optional[bool] = ..., committed_lsn: _Optional[int] = ..., now_ms: _Optional[int] = ..., configurations: _Optional[_Iterable[_Union[Configuration, _Mapping]]] = ..., is_old_copy: _Optional[bool] = ...) -> None: ...

class Configuration(_message.Message):
    __slots__ = ("epoch", "lsn", "digest", "members")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    lsn: int
    digest: bytes
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, epoch: _Optional[int] = ..., lsn: _Optional[int] = ..., digest: _Optional[bytes] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class PromiseRequest(_message.Message):
    __slots__ = ("ballot", "config_digest", "leader", "replica_set_uuid", "found")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SET_UUID_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    ballot: _common_pb2.Ballot
    config_digest: bytes
    leader: str
    replica_set_uuid: bytes
    found: bool
    def __init__(self, ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., config_digest: _Optional[bytes] = ..., leader: _Optional[str] = ..., replica_set_uuid: _Optional[bytes] = ..., found: _Optional[bool] = ...) -> None: ...

class PromiseResponse(_message.Message):
    __slots__ = ("promised", "highest", "last", "first_lsn", "reason", "is_member")
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FIRST_LSN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_MEMBER_FIELD_NUMBER: _ClassVar[int]
    promised: bool
    highest: _common_pb2.Ballot
    last: LogPosition
    first_lsn: int
    reason: str
    is_member: bool
    def __init__(self, promised: _Optional[bool] = ..., highest: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., last: _Optional[_Union[LogPosition, _Mapping]] = ..., first_lsn: _Optional[int] = ..., reason: _Optional[str] = ..., is_member: _Optional[bool] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("ballot", "lsn")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    ballot: _common_pb2.Ballot
    lsn: int
    def __init__(self, ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., lsn: _Optional[int] = ...) -> None: ...

class ProbeResponse(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: LogPosition
    def __init__(self, position: _Optional[_Union[LogPosition, _Mapping]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("lsn", "ballot", "now_ms", "command", "body_length", "chain")
    LSN_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    BODY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    ballot: _common_pb2.Ballot
    now_ms: int
    command: bytes
    body_length: int
    chain: bytes
    def __init__(self, lsn: _Optional[int] = ..., ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., now_ms: _Optional[int] = ..., command: _Optional[bytes] = ..., body_length: _Optional[int] = ..., chain: _Optional[bytes] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("ballot", "previous", "entries", "committed_lsn", "grant_membership", "replica_set_uuid", "trim_lsn")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LSN_FIELD_NUMBER: _ClassVar[int]
    GRANT_MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SET_UUID_FIELD_NUMBER: _ClassVar[int]
    TRIM_LSN_FIELD_NUMBER: _ClassVar[int]
    ballot: _common_pb2.Ballot
    previous: LogPosition
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    committed_lsn: int
    grant_membership: bool
    replica_set_uuid: bytes
    trim_lsn: int
    def __init__(self, ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., previous: _Optional[_Union[LogPosition, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., committed_lsn: _Optional[int] = ..., grant_membership: _Optional[bool] = ..., replica_set_uuid: _Optional[bytes] = ..., trim_lsn: _Optional[int] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("outcome", "match_lsn", "promised", "applied_lsn", "low_on_space", "stores_nothing")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PERSISTED: _ClassVar[AppendResponse.Outcome]
        MISMATCH: _ClassVar[AppendResponse.Outcome]
        FENCED: _ClassVar[AppendResponse.Outcome]
    PERSISTED: AppendResponse.Outcome
    MISMATCH: AppendResponse.Outcome
    FENCED: AppendResponse.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MATCH_LSN_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_LSN_FIELD_NUMBER: _ClassVar[int]
    LOW_ON_SPACE_FIELD_NUMBER: _ClassVar[int]
    STORES_NOTHING_FIELD_NUMBER: _ClassVar[int]
    outcome: AppendResponse.Outcome
    match_lsn: int
    promised: _common_pb2.Ballot
    applied_lsn: int
    low_on_space: bool
    stores_nothing: bool
    def __init__(self, outcome: _Optional[_Union[AppendResponse.Outcome, str]] = ..., match_lsn: _Optional[int] = ..., promised: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., applied_lsn: _Optional[int] = ..., low_on_space: _Optional[bool] = ..., stores_nothing: _Optional[bool] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("ballot", "from_lsn", "max_bytes")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    FROM_LSN_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    ballot: _common_pb2.Ballot
    from_lsn: int
    max_bytes: int
    def __init__(self, ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., from_lsn: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ReadLogResponse(_message.Message):
    __slots__ = ("previous", "entries")
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    previous: LogPosition
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    def __init__(self, previous: _Optional[_Union[LogPosition, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ...) -> None: ...

class ResyncRequest(_message.Message):
    __slots__ = ("ballot", "reason", "min_lsn")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MIN_LSN_FIELD_NUMBER: _ClassVar[int]
    ballot: _common_pb2.Ballot
    reason: str
    min_lsn: int
    def __init__(self, ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., reason: _Optional[str] = ..., min_lsn: _Optional[int] = ...) -> None: ...

class ResyncResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
