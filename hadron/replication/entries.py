"""Log entries on the wire: headers in the message, bodies in the attachment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hadron.model.errors import FrameError
from hadron.model.ids import Ballot
from hadron.state.leadership import Configuration
from hadron.storage.log import Entry
from hadron.wire.messages import ballot_from, ballot_to, check_number, replication_pb2


def configuration_to(known: Configuration) -> replication_pb2.Configuration:
    return replication_pb2.Configuration(
        epoch=known.epoch,
        lsn=known.lsn,
        digest=known.digest,
        members=[replication_pb2.Member(name=name, role=role) for name, role in known.members],
    )


def configuration_from(message: replication_pb2.Configuration) -> Configuration:
    """Raises `FrameError` for a number that no log can hold."""
    return Configuration(
        check_number("epoch", message.epoch),
        check_number("lsn", message.lsn),
        message.digest,
        tuple((member.name, member.role) for member in message.members),
    )


def pack(entries: Iterable[Entry]) -> tuple[list[replication_pb2.Entry], list[bytes | memoryview]]:
    """Headers and bodies of `entries`."""
    headers: list[replication_pb2.Entry] = []
    bodies: list[bytes | memoryview] = []
    for entry in entries:
        headers.append(
            replication_pb2.Entry(
                lsn=entry.lsn,
                ballot=ballot_to(entry.ballot),
                now_ms=entry.now_ms,
                command=entry.command,
                body_length=len(entry.body),
                chain=entry.chain,
            )
        )
        if len(entry.body):
            bodies.append(entry.body)
    return headers, bodies


def unpack(headers: Sequence[replication_pb2.Entry], attachment: memoryview) -> list[Entry]:
    """The inverse of `pack`. Raises `FrameError` when lengths do not add up, or a number is none
    that a log can hold."""
    entries: list[Entry] = []
    start = 0
    for header in headers:
        stop = start + header.body_length
        if stop > len(attachment):
            raise FrameError(
                f"entry {header.lsn} announces a body of {header.body_length} bytes, "
                f"{len(attachment) - start} are left"
            )
        ballot: Ballot = ballot_from(header.ballot)
        entries.append(
            Entry(
                check_number("lsn", header.lsn),
                ballot,
                check_number("stamp", header.now_ms),
                header.command,
                attachment[start:stop],
                header.chain,
            )
        )
        start = stop
    if start != len(attachment):
        raise FrameError(f"{len(attachment) - start} bytes are left over after the last entry")
    return entries
