"""The first entry of every ballot. It says who leads and with which configuration."""

from __future__ import annotations

from hadron.model.errors import VersionError
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
""")


class LeaderStarted(Command, frozen=True, array_like=True, tag=1):
    """A ballot begins. Once a majority holds it, everything before it is committed (PROTOCOL B2).

    Attributes:
        leader: the leading node's name.
        uuid: the replica set's identity, 16 bytes, minted at its first ballot.
        members: (node, role) of the configuration.
        config_digest: of that configuration (PROTOCOL B1, B5).
        apply_version: what `apply` functions must do from here on (PROTOCOL A5).
    """

    leader: str
    uuid: bytes
    members: tuple[tuple[str, str], ...]
    config_digest: bytes
    apply_version: int


@applies(LeaderStarted)
def apply_leader_started(context: Context, command: LeaderStarted) -> None:
    """Raises `VersionError` when the log goes on by rules that this version does not have."""
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
    context.db.execute(
        "INSERT INTO leadership VALUES(?, ?, ?, ?, ?, ?)",
        (*context.ballot, context.lsn, command.leader, context.now_ms, command.uuid),
    )


def apply_version(db: Database) -> int:
    """The version of the rules that the log follows here."""
    row = db.execute("SELECT apply_version FROM apply_rules").fetchone()
    return 1 if row is None else row[0]
