from hadron.wire._pb import common_pb2 as _common_pb2
from hadron.wire._pb import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TopologyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "role", "address", "stated_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATED_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    address: str
    stated_ms: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., address: _Optional[str] = ..., stated_ms: _Optional[int] = ...) -> None: ...

class ReplicaSet(_message.Message):
    __slots__ = ("name", "epoch", "nodes", "uuid", "agreed", "registered")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    uuid: bytes
    agreed: bool
    registered: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., uuid: _Optional[bytes] = ..., agreed: _Optional[bool] = ..., registered: _Optional[int] = ...) -> None: ...

class Speaker(_message.Message):
    __slots__ = ("cluster", "replica_set", "node", "metadata")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    replica_set: str
    node: str
    metadata: str
    def __init__(self, cluster: _Optional[str] = ..., replica_set: _Optional[str] = ..., node: _Optional[str] = ..., metadata: _Optional[str] = ...) -> None: ...

class DiscoverRequest(_message.Message):
    __slots__ = ("speaker", "digest", "replica_sets")
    SPEAKER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SETS_FIELD_NUMBER: _ClassVar[int]
    speaker: Speaker
    digest: bytes
    replica_sets: _containers.RepeatedCompositeFieldContainer[ReplicaSet]
    def __init__(self, speaker: _Optional[_Union[Speaker, _Mapping]] = ..., digest: _Optional[bytes] = ..., replica_sets: _Optional[_Iterable[_Union[ReplicaSet, _Mapping]]] = ...) -> None: ...

class DiscoverResponse(_message.Message):
    __slots__ = ("speaker", "digest", "replica_sets")
    SPEAKER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SETS_FIELD_NUMBER: _ClassVar[int]
    speaker: Speaker
    digest: bytes
    replica_sets: _containers.RepeatedCompositeFieldContainer[ReplicaSet]
    def __init__(self, speaker: _Optional[_Union[Speaker, _Mapping]] = ..., digest: _Optional[bytes] = ..., replica_sets: _Optional[_Iterable[_Union[ReplicaSet, _Mapping]]] = ...) -> None: ...

class TopologyResponse(_message.Message):
    __slots__ = ("cluster", "node", "version", "replica_sets", "metadata", "replica_set")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SETS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    node: str
    version: str
    replica_sets: _containers.RepeatedCompositeFieldContainer[ReplicaSet]
    metadata: str
    replica_set: str
    def __init__(self, cluster: _Optional[str] = ..., node: _Optional[str] = ..., version: _Optional[str] = ..., replica_sets: _Optional[_Iterable[_Union[ReplicaSet, _Mapping]]] = ..., metadata: _Optional[str] = ..., replica_set: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("replica_set", "node")
    REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    replica_set: str
    node: str
    def __init__(self, replica_set: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("cluster", "replica_set", "node", "role", "state", "trouble", "ballot", "last_lsn", "committed_lsn", "applied_lsn", "chain", "durability", "metadata_index", "version", "started_ms", "connections", "peers", "pid", "first_lsn", "cluster_trouble", "memories_missing", "lacks_memory")
    class Peer(_message.Message):
        __slots__ = ("name", "role", "address", "state", "trouble", "match_lsn")
        NAME_FIELD_NUMBER: _ClassVar[int]
        ROLE_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        TROUBLE_FIELD_NUMBER: _ClassVar[int]
        MATCH_LSN_FIELD_NUMBER: _ClassVar[int]
        name: str
        role: str
        address: str
        state: str
        trouble: str
        match_lsn: int
        def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., trouble: _Optional[str] = ..., match_lsn: _Optional[int] = ...) -> None: ...
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    LAST_LSN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LSN_FIELD_NUMBER: _ClassVar[int]
    APPLIED_LSN_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    FIRST_LSN_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    MEMORIES_MISSING_FIELD_NUMBER: _ClassVar[int]
    LACKS_MEMORY_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    replica_set: str
    node: str
    role: str
    state: str
    trouble: str
    ballot: _common_pb2.Ballot
    last_lsn: int
    committed_lsn: int
    applied_lsn: int
    chain: str
    durability: str
    metadata_index: int
    version: str
    started_ms: int
    connections: int
    peers: _containers.RepeatedCompositeFieldContainer[StatusResponse.Peer]
    pid: int
    first_lsn: int
    cluster_trouble: _containers.RepeatedScalarFieldContainer[str]
    memories_missing: int
    lacks_memory: bool
    def __init__(self, cluster: _Optional[str] = ..., replica_set: _Optional[str] = ..., node: _Optional[str] = ..., role: _Optional[str] = ..., state: _Optional[str] = ..., trouble: _Optional[str] = ..., ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., last_lsn: _Optional[int] = ..., committed_lsn: _Optional[int] = ..., applied_lsn: _Optional[int] = ..., chain: _Optional[str] = ..., durability: _Optional[str] = ..., metadata_index: _Optional[int] = ..., version: _Optional[str] = ..., started_ms: _Optional[int] = ..., connections: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[StatusResponse.Peer, _Mapping]]] = ..., pid: _Optional[int] = ..., first_lsn: _Optional[int] = ..., cluster_trouble: _Optional[_Iterable[str]] = ..., memories_missing: _Optional[int] = ..., lacks_memory: _Optional[bool] = ...) -> None: ...
