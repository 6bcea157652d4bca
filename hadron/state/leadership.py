"""The first entry of every ballot. It says who leads and with which configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from hadron.model.errors import FencedError, VersionError
from hadron.model.ports import Database
from hadron.state import machine
from hadron.state.machine import Command, Context, applies, tables

tables("""
CREATE TABLE IF NOT EXISTS leadership(
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,
    lsn INTEGER NOT NULL, leader TEXT NOT NULL, started_ms INTEGER NOT NULL,
    uuid BLOB NOT NULL,
    PRIMARY KEY (epoch, incarnation)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS apply_rules(
    only INTEGER PRIMARY KEY CHECK (only = 1),
    apply_version INTEGER NOT NULL      -- what `apply` functions must do now
) STRICT;
CREATE TABLE IF NOT EXISTS configuration(
    epoch INTEGER PRIMARY KEY,
    lsn INTEGER NOT NULL,               -- of the first ballot that began with it
    digest BLOB NOT NULL,
    members TEXT NOT NULL               -- JSON: [[name, role] …]
) STRICT;
""")


class LeaderStarted(Command, frozen=True, array_like=True, tag=1):
    """A ballot begins. Once a majority holds it, everything before it is committed (PROTOCOL B2).

    Attributes:
        leader: the leading node's name.
        uuid: the replica set's identity, 16 bytes, minted at its first ballot.
        members: (node, role) of the configuration.
        config_digest: of that configuration (PROTOCOL B1, B5).
        apply_version: what `apply` functions must do from here on (PROTOCOL A5).
        predecessor_digest: of the configuration that the log held before; empty for the first one
            and for a ballot of the same epoch.
    """

    uses_reserve: ClassVar[bool] = True

    leader: str
    uuid: bytes
    members: tuple[tuple[str, str], ...]
    config_digest: bytes
    apply_version: int
    predecessor_digest: bytes = b""


def is_leader_started(command: bytes) -> bool:
    """Whether an encoded command may be one: the number stands behind the array's header."""
    return command[1:2] == b"\x01"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Members and roles of one epoch, as the log holds them."""

    epoch: int
    lsn: int
    """Of the first ballot that began with it."""
    digest: bytes
    members: tuple[tuple[str, str], ...]
    """(name, role)."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.members)

    @property
    def majority(self) -> int:
        return len(self.members) // 2 + 1

    @property
    def amnesia_quorum(self) -> int:
        """So many members meet every majority (PROTOCOL B3)."""
        return len(self.members) - len(self.members) // 2

    def __str__(self) -> str:
        return f"the members of epoch {self.epoch} ({', '.join(name for name, _ in self.members)})"


@applies(LeaderStarted)
def apply_leader_started(context: Context, command: LeaderStarted) -> None:
    """Raises `VersionError` when the log goes on by rules that this version does not have,
    `FencedError` when the configuration does not follow the one before it."""
    if command.apply_version > machine.APPLY_VERSION:
        raise VersionError(
            f"from entry {context.lsn} on, the log of {context.replica_set} follows version "
            f"{command.apply_version} of its rules; this Hadron knows them up to version "
            f"{machine.APPLY_VERSION}",
            f"install the version of Hadron that {command.leader} runs, and start this node again",
        )
    context.db.execute(
        "INSERT INTO apply_rules VALUES(1, ?) ON CONFLICT(only) DO UPDATE SET"
        " apply_version = excluded.apply_version", (command.apply_version,),
    )
    epoch = context.ballot.epoch
    latest = max(configurations(context.db), key=lambda known: known.epoch, default=None)
    if latest is not None and not _follows(latest, epoch, command):
        raise FencedError(
            f"epoch {epoch} does not follow epoch {latest.epoch}, which this log holds",
            "use the newest configuration file of the replica set, and raise its `epoch`",
        )
    context.db.execute(
        "INSERT INTO leadership VALUES(?, ?, ?, ?, ?, ?)",
        (*context.ballot, context.lsn, command.leader, context.now_ms, command.uuid),
    )
    context.db.execute(
        "INSERT INTO configuration VALUES(?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            epoch, context.lsn, command.config_digest,
            msgspec.json.encode(command.members).decode(),
        ),
    )


def _follows(latest: Configuration, epoch: int, command: LeaderStarted) -> bool:
    if epoch == latest.epoch:
        return command.config_digest == latest.digest
    # Logs of older versions name no predecessor.
    return epoch > latest.epoch and command.predecessor_digest in (b"", latest.digest)


# --- reading ------------------------------------------------------------------------------------


def configurations(db: Database) -> list[Configuration]:
    """Every configuration that was applied, by epoch."""
    rows = db.execute("SELECT epoch, lsn, digest, members FROM configuration ORDER BY epoch")
    return [
        Configuration(
            epoch, lsn, digest, msgspec.json.decode(members, type=tuple[tuple[str, str], ...])
        )
        for epoch, lsn, digest, members in rows
    ]


def apply_version(db: Database) -> int:
    """The version of the rules that the log follows here."""
    row = db.execute("SELECT apply_version FROM apply_rules").fetchone()
    return 1 if row is None else row[0]
