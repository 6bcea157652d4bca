from hadron.wire._pb import common_pb2 as _common_pb2
from hadron.wire._pb import groups_pb2 as _groups_pb2
from hadron.wire._pb import options_pb2 as _options_pb2
from hadron.wire._pb import pipelines_pb2 as _pipelines_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransactionId(_message.Message):
    __slots__ = ("replica_set", "ballot", "number")
    REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    replica_set: str
    ballot: _common_pb2.Ballot
    number: int
    def __init__(self, replica_set: _Optional[str] = ..., ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class StatementResult(_message.Message):
    __slots__ = ("base_offset", "count", "append_ms", "deleted")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    count: int
    append_ms: int
    deleted: bool
    def __init__(self, base_offset: _Optional[int] = ..., count: _Optional[int] = ..., append_ms: _Optional[int] = ..., deleted: _Optional[bool] = ...) -> None: ...

class ReplicaSetResults(_message.Message):
    __slots__ = ("replica_set", "results")
    REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    replica_set: str
    results: _containers.RepeatedCompositeFieldContainer[StatementResult]
    def __init__(self, replica_set: _Optional[str] = ..., results: _Optional[_Iterable[_Union[StatementResult, _Mapping]]] = ...) -> None: ...

class Statement(_message.Message):
    __slots__ = ("replica_set", "length", "publish", "acknowledge", "complete", "fail", "publish_staged", "advance_sink")
    class Publish(_message.Message):
        __slots__ = ("stream_id", "metadata_index", "expect_key_offset")
        STREAM_ID_FIELD_NUMBER: _ClassVar[int]
        METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
        EXPECT_KEY_OFFSET_FIELD_NUMBER: _ClassVar[int]
        stream_id: int
        metadata_index: int
        expect_key_offset: int
        def __init__(self, stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., expect_key_offset: _Optional[int] = ...) -> None: ...
    class Acknowledge(_message.Message):
        __slots__ = ("stream_id", "metadata_index", "group", "ranges", "ballot")
        STREAM_ID_FIELD_NUMBER: _ClassVar[int]
        METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
        GROUP_FIELD_NUMBER: _ClassVar[int]
        RANGES_FIELD_NUMBER: _ClassVar[int]
        BALLOT_FIELD_NUMBER: _ClassVar[int]
        stream_id: int
        metadata_index: int
        group: str
        ranges: _containers.RepeatedCompositeFieldContainer[_groups_pb2.Range]
        ballot: _common_pb2.Ballot
        def __init__(self, stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., group: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[_groups_pb2.Range, _Mapping]]] = ..., ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ...) -> None: ...
    class PublishStaged(_message.Message):
        __slots__ = ("stream_id", "metadata_index", "write_id", "attempts")
        class Attempt(_message.Message):
            __slots__ = ("attempt", "batches")
            ATTEMPT_FIELD_NUMBER: _ClassVar[int]
            BATCHES_FIELD_NUMBER: _ClassVar[int]
            attempt: bytes
            batches: int
            def __init__(self, attempt: _Optional[bytes] = ..., batches: _Optional[int] = ...) -> None: ...
        STREAM_ID_FIELD_NUMBER: _ClassVar[int]
        METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
        WRITE_ID_FIELD_NUMBER: _ClassVar[int]
        ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
        stream_id: int
        metadata_index: int
        write_id: bytes
        attempts: _containers.RepeatedCompositeFieldContainer[Statement.PublishStaged.Attempt]
        def __init__(self, stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., write_id: _Optional[bytes] = ..., attempts: _Optional[_Iterable[_Union[Statement.PublishStaged.Attempt, _Mapping]]] = ...) -> None: ...
    class AdvanceSink(_message.Message):
        __slots__ = ("namespace", "name", "query", "batch", "follows")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        QUERY_FIELD_NUMBER: _ClassVar[int]
        BATCH_FIELD_NUMBER: _ClassVar[int]
        FOLLOWS_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        name: str
        query: str
        batch: int
        follows: str
        def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., query: _Optional[str] = ..., batch: _Optional[int] = ..., follows: _Optional[str] = ...) -> None: ...
    REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    FAIL_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_STAGED_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_SINK_FIELD_NUMBER: _ClassVar[int]
    replica_set: str
    length: int
    publish: Statement.Publish
    acknowledge: Statement.Acknowledge
    complete: _pipelines_pb2.CompleteStagesRequest
    fail: _pipelines_pb2.FailStagesRequest
    publish_staged: Statement.PublishStaged
    advance_sink: Statement.AdvanceSink
    def __init__(self, replica_set: _Optional[str] = ..., length: _Optional[int] = ..., publish: _Optional[_Union[Statement.Publish, _Mapping]] = ..., acknowledge: _Optional[_Union[Statement.Acknowledge, _Mapping]] = ..., complete: _Optional[_Union[_pipelines_pb2.CompleteStagesRequest, _Mapping]] = ..., fail: _Optional[_Union[_pipelines_pb2.FailStagesRequest, _Mapping]] = ..., publish_staged: _Optional[_Union[Statement.PublishStaged, _Mapping]] = ..., advance_sink: _Optional[_Union[Statement.AdvanceSink, _Mapping]] = ...) -> None: ...

class TransactRequest(_message.Message):
    __slots__ = ("parts", "take_block", "attachment")
    class End(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OPEN: _ClassVar[TransactRequest.End]
        COMMIT: _ClassVar[TransactRequest.End]
        ROLLBACK: _ClassVar[TransactRequest.End]
    OPEN: TransactRequest.End
    COMMIT: TransactRequest.End
    ROLLBACK: TransactRequest.End
    class Part(_message.Message):
        __slots__ = ("number", "first", "statements", "end", "records")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        FIRST_FIELD_NUMBER: _ClassVar[int]
        STATEMENTS_FIELD_NUMBER: _ClassVar[int]
        END_FIELD_NUMBER: _ClassVar[int]
        RECORDS_FIELD_NUMBER: _ClassVar[int]
        number: int
        first: int
        statements: _containers.RepeatedCompositeFieldContainer[Statement]
        end: TransactRequest.End
        records: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, number: _Optional[int] = ..., first: _Optional[int] = ..., statements: _Optional[_Iterable[_Union[Statement, _Mapping]]] = ..., end: _Optional[_Union[TransactRequest.End, str]] = ..., records: _Optional[_Iterable[int]] = ...) -> None: ...
    PARTS_FIELD_NUMBER: _ClassVar[int]
    TAKE_BLOCK_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[TransactRequest.Part]
    take_block: bool
    attachment: bytes
    def __init__(self, parts: _Optional[_Iterable[_Union[TransactRequest.Part, _Mapping]]] = ..., take_block: _Optional[bool] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class TransactEvent(_message.Message):
    __slots__ = ("answers",)
    class Block(_message.Message):
        __slots__ = ("replica_set", "ballot", "first_number", "size")
        REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
        BALLOT_FIELD_NUMBER: _ClassVar[int]
        FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
        SIZE_FIELD_NUMBER: _ClassVar[int]
        replica_set: str
        ballot: _common_pb2.Ballot
        first_number: int
        size: int
        def __init__(self, replica_set: _Optional[str] = ..., ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., first_number: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...
    class Committed(_message.Message):
        __slots__ = ("number", "results", "transactions")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        RESULTS_FIELD_NUMBER: _ClassVar[int]
        TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
        number: int
        results: _containers.RepeatedCompositeFieldContainer[ReplicaSetResults]
        transactions: int
        def __init__(self, number: _Optional[int] = ..., results: _Optional[_Iterable[_Union[ReplicaSetResults, _Mapping]]] = ..., transactions: _Optional[int] = ...) -> None: ...
    class RolledBack(_message.Message):
        __slots__ = ("number", "error")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        number: int
        error: _common_pb2.Error
        def __init__(self, number: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
    class CommitUnknown(_message.Message):
        __slots__ = ("number", "error")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        number: int
        error: _common_pb2.Error
        def __init__(self, number: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
    class Unfit(_message.Message):
        __slots__ = ("number", "error")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        number: int
        error: _common_pb2.Error
        def __init__(self, number: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
    class Answer(_message.Message):
        __slots__ = ("block", "committed", "rolled_back", "commit_unknown", "unfit")
        BLOCK_FIELD_NUMBER: _ClassVar[int]
        COMMITTED_FIELD_NUMBER: _ClassVar[int]
        ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
        COMMIT_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
        UNFIT_FIELD_NUMBER: _ClassVar[int]
        block: TransactEvent.Block
        committed: TransactEvent.Committed
        rolled_back: TransactEvent.RolledBack
        commit_unknown: TransactEvent.CommitUnknown
        unfit: TransactEvent.Unfit
        def __init__(self, block: _Optional[_Union[TransactEvent.Block, _Mapping]] = ..., committed: _Optional[_Union[TransactEvent.Committed, _Mapping]] = ..., rolled_back: _Optional[_Union[TransactEvent.RolledBack, _Mapping]] = ..., commit_unknown: _Optional[_Union[TransactEvent.CommitUnknown, _Mapping]] = ..., unfit: _Optional[_Union[TransactEvent.Unfit, _Mapping]] = ...) -> None: ...
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[TransactEvent.Answer]
    def __init__(self, answers: _Optional[_Iterable[_Union[TransactEvent.Answer, _Mapping]]] = ...) -> None: ...

class OutcomeRequest(_message.Message):
    __slots__ = ("transaction", "final")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionId
    final: bool
    def __init__(self, transaction: _Optional[_Union[TransactionId, _Mapping]] = ..., final: _Optional[bool] = ...) -> None: ...

class OutcomeResponse(_message.Message):
    __slots__ = ("state", "results", "unfinished")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[OutcomeResponse.State]
        OPEN: _ClassVar[OutcomeResponse.State]
        COMMITTED: _ClassVar[OutcomeResponse.State]
        ABORTED: _ClassVar[OutcomeResponse.State]
        FORGOTTEN: _ClassVar[OutcomeResponse.State]
    UNKNOWN: OutcomeResponse.State
    OPEN: OutcomeResponse.State
    COMMITTED: OutcomeResponse.State
    ABORTED: OutcomeResponse.State
    FORGOTTEN: OutcomeResponse.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    state: OutcomeResponse.State
    results: _containers.RepeatedCompositeFieldContainer[ReplicaSetResults]
    unfinished: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, state: _Optional[_Union[OutcomeResponse.State, str]] = ..., results: _Optional[_Iterable[_Union[ReplicaSetResults, _Mapping]]] = ..., unfinished: _Optional[_Iterable[str]] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("limit", "after")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after: bytes
    def __init__(self, limit: _Optional[int] = ..., after: _Optional[bytes] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("transactions", "next")
    class Waiting(_message.Message):
        __slots__ = ("replica_set", "reason")
        REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        replica_set: str
        reason: str
        def __init__(self, replica_set: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
    class Transaction(_message.Message):
        __slots__ = ("transaction", "phase", "age_ms", "statements", "bytes", "waits_for", "is_driver")
        TRANSACTION_FIELD_NUMBER: _ClassVar[int]
        PHASE_FIELD_NUMBER: _ClassVar[int]
        AGE_MS_FIELD_NUMBER: _ClassVar[int]
        STATEMENTS_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
        IS_DRIVER_FIELD_NUMBER: _ClassVar[int]
        transaction: TransactionId
        phase: str
        age_ms: int
        statements: int
        bytes: int
        waits_for: _containers.RepeatedCompositeFieldContainer[ListTransactionsResponse.Waiting]
        is_driver: bool
        def __init__(self, transaction: _Optional[_Union[TransactionId, _Mapping]] = ..., phase: _Optional[str] = ..., age_ms: _Optional[int] = ..., statements: _Optional[int] = ..., bytes: _Optional[int] = ..., waits_for: _Optional[_Iterable[_Union[ListTransactionsResponse.Waiting, _Mapping]]] = ..., is_driver: _Optional[bool] = ...) -> None: ...
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[ListTransactionsResponse.Transaction]
    next: bytes
    def __init__(self, transactions: _Optional[_Iterable[_Union[ListTransactionsResponse.Transaction, _Mapping]]] = ..., next: _Optional[bytes] = ...) -> None: ...

class ResolveTransactionRequest(_message.Message):
    __slots__ = ("transaction", "act", "participant")
    class Act(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[ResolveTransactionRequest.Act]
        ROLL_BACK: _ClassVar[ResolveTransactionRequest.Act]
        GIVE_UP: _ClassVar[ResolveTransactionRequest.Act]
        FORCE_COMMIT: _ClassVar[ResolveTransactionRequest.Act]
        FORCE_ABORT: _ClassVar[ResolveTransactionRequest.Act]
    UNSPECIFIED: ResolveTransactionRequest.Act
    ROLL_BACK: ResolveTransactionRequest.Act
    GIVE_UP: ResolveTransactionRequest.Act
    FORCE_COMMIT: ResolveTransactionRequest.Act
    FORCE_ABORT: ResolveTransactionRequest.Act
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANT_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionId
    act: ResolveTransactionRequest.Act
    participant: str
    def __init__(self, transaction: _Optional[_Union[TransactionId, _Mapping]] = ..., act: _Optional[_Union[ResolveTransactionRequest.Act, str]] = ..., participant: _Optional[str] = ...) -> None: ...

class TransactionMessage(_message.Message):
    __slots__ = ("transaction", "prepare", "finish", "abort", "forget", "told", "prepared", "prepare_refused", "finished", "finish_failed", "asked")
    class Prepare(_message.Message):
        __slots__ = ("first", "statements")
        FIRST_FIELD_NUMBER: _ClassVar[int]
        STATEMENTS_FIELD_NUMBER: _ClassVar[int]
        first: int
        statements: _containers.RepeatedCompositeFieldContainer[Statement]
        def __init__(self, first: _Optional[int] = ..., statements: _Optional[_Iterable[_Union[Statement, _Mapping]]] = ...) -> None: ...
    class Finish(_message.Message):
        __slots__ = ("prepared_lsn", "count")
        PREPARED_LSN_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        prepared_lsn: int
        count: int
        def __init__(self, prepared_lsn: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...
    class Told(_message.Message):
        __slots__ = ("fate", "prepared_lsn", "count")
        class Fate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
            __slots__ = ()
            WAIT: _ClassVar[TransactionMessage.Told.Fate]
            COMMITTED: _ClassVar[TransactionMessage.Told.Fate]
            ABORTED: _ClassVar[TransactionMessage.Told.Fate]
            OVER: _ClassVar[TransactionMessage.Told.Fate]
        WAIT: TransactionMessage.Told.Fate
        COMMITTED: TransactionMessage.Told.Fate
        ABORTED: TransactionMessage.Told.Fate
        OVER: TransactionMessage.Told.Fate
        FATE_FIELD_NUMBER: _ClassVar[int]
        PREPARED_LSN_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        fate: TransactionMessage.Told.Fate
        prepared_lsn: int
        count: int
        def __init__(self, fate: _Optional[_Union[TransactionMessage.Told.Fate, str]] = ..., prepared_lsn: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...
    class Forget(_message.Message):
        __slots__ = ("others",)
        OTHERS_FIELD_NUMBER: _ClassVar[int]
        others: _containers.RepeatedCompositeFieldContainer[TransactionId]
        def __init__(self, others: _Optional[_Iterable[_Union[TransactionId, _Mapping]]] = ...) -> None: ...
    class Prepared(_message.Message):
        __slots__ = ("first", "prepared_lsn")
        FIRST_FIELD_NUMBER: _ClassVar[int]
        PREPARED_LSN_FIELD_NUMBER: _ClassVar[int]
        first: int
        prepared_lsn: int
        def __init__(self, first: _Optional[int] = ..., prepared_lsn: _Optional[int] = ...) -> None: ...
    class PrepareRefused(_message.Message):
        __slots__ = ("first", "error")
        FIRST_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        first: int
        error: _common_pb2.Error
        def __init__(self, first: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
    class Finished(_message.Message):
        __slots__ = ("results",)
        RESULTS_FIELD_NUMBER: _ClassVar[int]
        results: _containers.RepeatedCompositeFieldContainer[StatementResult]
        def __init__(self, results: _Optional[_Iterable[_Union[StatementResult, _Mapping]]] = ...) -> None: ...
    class FinishFailed(_message.Message):
        __slots__ = ("error",)
        ERROR_FIELD_NUMBER: _ClassVar[int]
        error: _common_pb2.Error
        def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    PREPARE_REFUSED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FINISH_FAILED_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionId
    prepare: TransactionMessage.Prepare
    finish: TransactionMessage.Finish
    abort: _common_pb2.Empty
    forget: TransactionMessage.Forget
    told: TransactionMessage.Told
    prepared: TransactionMessage.Prepared
    prepare_refused: TransactionMessage.PrepareRefused
    finished: TransactionMessage.Finished
    finish_failed: TransactionMessage.FinishFailed
    asked: _common_pb2.Empty
    def __init__(self, transaction: _Optional[_Union[TransactionId, _Mapping]] = ..., prepare: _Optional[_Union[TransactionMessage.Prepare, _Mapping]] = ..., finish: _Optional[_Union[TransactionMessage.Finish, _Mapping]] = ..., abort: _Optional[_Union[_common_pb2.Empty, _Mapping]] = ..., forget: _Optional[_Union[TransactionMessage.Forget, _Mapping]] = ..., told: _Optional[_Union[TransactionMessage.Told, _Mapping]] = ..., prepared: _Optional[_Union[TransactionMessage.Prepared, _Mapping]] = ..., prepare_refused: _Optional[_Union[TransactionMessage.PrepareRefused, _Mapping]] = ..., finished: _Optional[_Union[TransactionMessage.Finished, _Mapping]] = ..., finish_failed: _Optional[_Union[TransactionMessage.FinishFailed, _Mapping]] = ..., asked: _Optional[_Union[_common_pb2.Empty, _Mapping]] = ...) -> None: ...

class CoordinateRequest(_message.Message):
    __slots__ = ("cluster", "speaker", "replica_set", "messages")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SPEAKER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    speaker: str
    replica_set: str
    messages: _containers.RepeatedCompositeFieldContainer[TransactionMessage]
    def __init__(self, cluster: _Optional[str] = ..., speaker: _Optional[str] = ..., replica_set: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[TransactionMessage, _Mapping]]] = ...) -> None: ...

class CoordinateEvent(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[TransactionMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[TransactionMessage, _Mapping]]] = ...) -> None: ...
