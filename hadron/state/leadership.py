"""The first entry of every ballot. It says who leads and with which configuration."""

from __future__ import annotations

from hadron.state.machine import Command, Context, applies, tables

tables("""
CREATE TABLE IF NOT EXISTS leadership(
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,
    lsn INTEGER NOT NULL, leader TEXT NOT NULL, started_ms INTEGER NOT NULL,
    uuid BLOB NOT NULL,
    PRIMARY KEY (epoch, incarnation)
) STRICT, WITHOUT ROWID;
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
    context.db.execute(
        "INSERT INTO leadership VALUES(?, ?, ?, ?, ?, ?)",
        (*context.ballot, context.lsn, command.leader, context.now_ms, command.uuid),
    )
