"""Every error that Hadron raises, split by who is to blame.

An error carries what happened (`message`), what to do next (`hint`) and whether the same call may
succeed later without anybody changing anything (`retryable`). The wire carries an error by its
class name, so a client raises the class that the server raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple


class RecordFates(NamedTuple):
    """What became of the records that one call sent, when not all went well."""

    published: int
    unknown: int
    """These may or may not be in the log."""
    lost: int
    """These are not in the log."""


class HadronError(Exception):
    """Base of all errors raised by Hadron.

    Attributes:
        message: what happened, naming the offending value.
        hint: the way out, or "" when there is nothing the reader could do.
        retryable: whether the same call may succeed later.
        fates: of the records, where it ended a `send_many`.
    """

    default_retryable: ClassVar[bool] = False
    by_code: ClassVar[dict[str, type[HadronError]]] = {}

    def __init__(self, message: str, hint: str = "", *, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fates: RecordFates | None = None
        self.retryable = self.default_retryable if retryable is None else retryable

    def __init_subclass__(cls, *, travels: bool = True) -> None:
        """Args:
        travels: it may cross the wire, and is made anew there, as this class's own are.
        """
        super().__init_subclass__()
        if cls.__module__ == __name__:
            # Tracebacks and pickles name it as users do.
            cls.__module__ = HadronError.__module__
        if travels:
            HadronError.by_code[cls.__name__] = cls

    @property
    def code(self) -> str:
        """The name that the wire uses for this error."""
        return type(self).__name__

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


HadronError.__module__ = __name__.partition(".")[0]
HadronError.by_code["HadronError"] = HadronError


def error_from_code(code: str, message: str, hint: str, retryable: bool) -> HadronError:
    """Rebuild an error that travelled over the wire; an unknown code becomes a `PeerError`."""
    cls = HadronError.by_code.get(code)
    if cls is None:
        return PeerError(f"{code}: {message}", hint, retryable=retryable)
    return cls(message, hint, retryable=retryable)


# --- the caller's -----------------------------------------------------------------------------


class RequestError(HadronError):
    """The request itself cannot be served, however often it is sent."""


class ClosedError(RequestError):
    """The client, producer or subscription was closed, or was not opened yet."""


class ForkedError(ClosedError):
    """The process was forked after the client, producer or subscription had been opened: it is the
    parent's, and the child needs its own."""


class InvalidRecordError(RequestError):
    """A record's value, key or header cannot be encoded."""


class DamagedRecordError(RequestError):
    """A record is as its producer sent it, and cannot be read: it was damaged at its source.

    Attributes:
        reason: what is wrong with it, without where it stands.
    """

    def __init__(
        self, message: str, hint: str = "", *, retryable: bool | None = None, reason: str = ""
    ) -> None:
        super().__init__(message, hint, retryable=retryable)
        self.reason = reason or message


class RecordTooLargeError(RequestError):
    """A record or batch is over its size limit."""


class NotFoundError(RequestError):
    """No object has this name."""


class OffsetOutOfRangeError(RequestError):
    """An offset lies before the first kept record or after the next one to be written."""


class LogTruncatedError(RequestError):
    """A cursor that is kept outside, by a reader or in a checkpoint, is of records that the log has
    lost by an operator's act, or of a stream that was deleted (PROTOCOL D4)."""


class SequenceError(RequestError):
    """A producer's sequence number does not follow the last one that was logged (PROTOCOL D1)."""


class KeyReusedError(SequenceError):
    """Other records were sent to a partition under this key before, within a day: it has logged
    none of these; the message names the partitions that have logged theirs (PROTOCOL D7)."""


class ProducerFencedError(SequenceError):
    """Another producer was opened with the same name: this one may not go on (PROTOCOL D6)."""


class OffsetMismatchError(RequestError):
    """A record was to get a certain offset, or its key to have its latest record at one, and that
    is not so: it was not logged (PROTOCOL D5).

    Attributes:
        expected: the offset that was asked for; -1 for a key without a record.
        actual: what is so: the next offset of the partition, or that of the key's latest record.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        retryable: bool | None = None,
        expected: int = -1,
        actual: int = -1,
    ) -> None:
        super().__init__(message, hint, retryable=retryable)
        self.expected = expected
        self.actual = actual


class SchemaError(RequestError):
    """A schema document was refused; the message lists every problem found."""


class ConfigurationError(RequestError):
    """A configuration file or setting was refused."""


class UnknownMethodError(RequestError):
    """The other side does not serve this method: one of them is older, or another was meant."""


class StaleCompletionError(RequestError):
    """Some stages were completed, failed or cancelled by somebody else in the meantime."""


class UndeclaredOutputError(RequestError):
    """An output is given of a stage that declares none, and so has no place for it.

    It is a mistake in the program, and the same for each instance: no attempt is used up, the
    invocation is given back, and the program ends.
    """


class ConflictError(RequestError):
    """A transaction that is under way holds what this would end; the message has its id. It is over
    within minutes, unless its driver is away: try again, or leave it to the other (PROTOCOL E2)."""

    default_retryable = True


class OutcomeUnknownError(HadronError):
    """The delivery timeout passed while a batch was in doubt: it may or may not be logged."""


class CommitUnknownError(OutcomeUnknownError):
    """A transaction was to be committed, and its driver did not say in time what became of it: all
    of it is done, or nothing. The driver's replica set knows for 24 hours (PROTOCOL E1).

    Attributes:
        transaction: its id, for `client.outcome`.
    """

    def __init__(
        self, message: str, hint: str = "", *, retryable: bool | None = None, transaction: str = ""
    ) -> None:
        super().__init__(message, hint, retryable=retryable)
        self.transaction = transaction


class CallUnknownError(OutcomeUnknownError):
    """A server, the way to it, or the endpoint was lost with a call under way: it has run, or in
    part, or not at all. Where its endpoint is declared `idempotent` it was tried again, in
    vain, and is `retryable`.

    Attributes:
        leader_lost: nobody has said so, as the leader itself was lost: its client calls an
            idempotent endpoint again by itself. What a leader says was given to others before.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        retryable: bool | None = None,
        leader_lost: bool = False,
    ) -> None:
        super().__init__(message, hint, retryable=retryable)
        self.leader_lost = leader_lost


class CallFailedError(HadronError):
    """What serves an endpoint has raised an error: this is what it tells its caller.

    A handler may raise one itself, to choose all of it. Of any other error the caller gets the
    type's name and its text; where it was raised, only the server's log tells.

    Attributes:
        type: of the error that was raised, such as "ValueError".
        endpoint: which was called, where its caller has this; "" before. `message` is the handler's
            text alone, `str()` has all three.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        retryable: bool | None = None,
        type: str = "CallFailedError",
    ) -> None:
        super().__init__(message, hint, retryable=retryable)
        self.type = type
        self.endpoint = ""

    def __str__(self) -> str:
        told = super().__str__()
        # A `KeyError` says nothing but a name.
        return f"endpoint {self.endpoint!r} failed: {self.type}: {told}" if self.endpoint else told


# --- a peer's or the network's ------------------------------------------------------------------


class PeerError(HadronError):
    """The other side, or the way to it, failed."""

    default_retryable = True


class ConnectionLostError(PeerError):
    """The connection ended while a call was under way."""


class FrameError(PeerError):
    """Bytes that are not a valid frame: wrong magic, absurd length, damaged body."""

    default_retryable = False


class StrangerError(FrameError):
    """The other side speaks another protocol: the port is not the one that was meant."""


class OtherClusterError(PeerError):
    """The node that answers is of another cluster than the one that is meant: its address has
    another process now, or always had."""


class UnreachableError(PeerError):
    """The node that was to forward a call could not reach the leader: nothing was sent there."""


class DeadlineExceededError(PeerError):
    """No answer within the time allowed."""


class TransactionExpiredError(DeadlineExceededError):
    """A transaction had no statement, or was not committed, for longer than its driver waits: it
    was rolled back (CLIENTS K12 has these limits)."""


class IncompleteError(PeerError):
    """Several leaders were asked, and not all have answered; what the others did is done.

    Attributes:
        found: what the others have answered.
        failed: by partition, why there is no answer from the rest.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        retryable: bool | None = None,
        found: Sequence[Any] = (),
        failed: Mapping[str, HadronError] | None = None,
    ) -> None:
        super().__init__(message, hint, retryable=retryable)
        self.found = found
        self.failed = dict(failed or {})


class NotLeaderError(PeerError):
    """This node does not lead the replica set; the hint names the one that does."""


class MetadataBehindError(PeerError):
    """This node's copy of the schema is older than what the caller has seen (PROTOCOL D3)."""


class NotReadyError(PeerError):
    """What was asked cannot be done right now: a majority is missing, say, or an entry that is not
    committed stands in the way. Ask again."""


class OverloadedError(PeerError):
    """A bounded buffer is full; slow down and try again."""


class NoServerError(PeerError):
    """Nobody serves the endpoint right now: the call was not run."""


class DiskFullError(OverloadedError):
    """A node has no room for more records: nothing was written (PROTOCOL B7)."""


class OldMemberError(PeerError):
    """Some member of the replica set may run a version of Hadron that does not know yet what this
    needs (PROTOCOL A5)."""


class FencedError(PeerError):
    """A higher ballot was promised: this leader may not go on (PROTOCOL B1)."""

    default_retryable = False


class HandshakeError(PeerError):
    """A peer's configuration contradicts this node's."""


class ShuttingDownError(PeerError):
    """The node is stopping."""


# --- a disk's -----------------------------------------------------------------------------------


class StorageError(HadronError):
    """The local disk or a file on it failed; the node stops rather than guess."""


class CorruptionError(StorageError):
    """Stored or received bytes do not match their checksum or hash chain.

    Attributes:
        lsn: the entry of this node's own log that is damaged; 0 when it is about something else.
            Such an entry can be repaired: other members have it.
    """

    lsn = 0


class TrimmedError(HadronError):
    """Entries were trimmed from a log, or retention dropped their bodies: nothing is damaged, and
    whoever lacks them needs a snapshot (PROTOCOL A7)."""


class VersionError(StorageError):
    """The log was written by rules that this version of Hadron does not know (PROTOCOL A5)."""


class DataDirectoryError(StorageError):
    """A data directory belongs to another node, is in use, or cannot be written."""
