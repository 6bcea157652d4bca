"""The first entry of every ballot. It says who leads, with which configuration, and by which
version of the rules of `apply` the log goes on (PROTOCOL A5).

While members are upgraded one by one, that stays the version that all of them know; nothing is
logged meanwhile that needs a newer one, because a member that met it would stop. Once all of them
run the newer version, `FollowRules` raises it, for ever.

Here are entries and tables; who leads by them is `node.leadership`, and what is served meanwhile
`serving.leading`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import msgspec

from hadron.model.errors import FencedError, OldMemberError, VersionError
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.state import schema
from hadron.state.events import SchemaChanged
from hadron.state.machine import Command, Context, Feature, NoChange, StateMachine, number_of

LEADERSHIP: Final = PREFIX + "leadership"
APPLY_RULES: Final = PREFIX + "apply_rules"
CONFIGURATION: Final = PREFIX + "configuration"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {LEADERSHIP}(
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,
    lsn INTEGER NOT NULL, leader TEXT NOT NULL, started_ms INTEGER NOT NULL,
    uuid BLOB NOT NULL,
    PRIMARY KEY (epoch, incarnation)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {APPLY_RULES}(
    only INTEGER PRIMARY KEY CHECK (only = 1),
    apply_version INTEGER NOT NULL      -- what `apply` functions must do now
) STRICT;
CREATE TABLE IF NOT EXISTS {CONFIGURATION}(
    epoch INTEGER PRIMARY KEY,
    lsn INTEGER NOT NULL,               -- of the first ballot that began with it
    digest BLOB NOT NULL,
    members TEXT NOT NULL               -- JSON: [[name, role] …]
) STRICT;
"""


class BeginBallot(Command[None], frozen=True, array_like=True, tag=1):
    """A ballot begins. Once a majority holds it, everything before it is committed (PROTOCOL B2).

    Attributes:
        leader: the leading node's name.
        uuid: the replica set's identity, 16 bytes, minted at its first ballot.
        members: (node, role) of the configuration.
        config_digest: of that configuration (PROTOCOL B1, B5).
        apply_version: what `apply` functions must do from here on (PROTOCOL A5).
        predecessor_digest: of the configuration that the log held before; empty for the first one
            and for a ballot of the same epoch.
        above_index: of the metadata set, whose log has lost its end by a restore or `recover`: the
            schema's index goes on above it, so that no id names two objects. Nobody was ever given
            one as high. With another uuid than the ballot before it is another history.
    """

    uses_reserve: ClassVar[bool] = True

    leader: str
    uuid: bytes
    members: tuple[tuple[str, str], ...]
    config_digest: bytes
    apply_version: int
    predecessor_digest: bytes = b""
    above_index: int = 0


class FollowRules(Command[None], frozen=True, array_like=True, tag=22):
    """From here on the log follows a newer version of the rules: every member knows it by now."""

    uses_reserve: ClassVar[bool] = True
    apply_version: int


_decode_started = msgspec.msgpack.Decoder(BeginBallot).decode


def decode_started(command: bytes) -> BeginBallot | None:
    """An encoded command, if it begins a ballot: every other one costs a look at its number."""
    number = BeginBallot.__struct_config__.tag
    return _decode_started(command) if number_of(command) == number else None


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


def apply_begin_ballot(context: Context, command: BeginBallot) -> None:
    """Raises `VersionError` when the log goes on by rules that this version does not have,
    `FencedError` when the configuration does not follow the one before it."""
    _set_rules(context, command.apply_version, command.leader)
    epoch = context.ballot.epoch
    latest = max(configurations(context.db), key=lambda known: known.epoch, default=None)
    if latest is not None and not _follows(latest, epoch, command):
        raise FencedError(
            f"epoch {epoch} does not follow epoch {latest.epoch}, which this log holds",
            "use the newest configuration file of the replica set, and raise its `epoch`",
        )
    same_history = context.db.execute(
        f"SELECT 1 FROM (SELECT uuid FROM {LEADERSHIP} ORDER BY lsn DESC LIMIT 1) WHERE uuid = ?",
        (command.uuid,),
    ).fetchone()
    context.db.execute(
        f"INSERT INTO {LEADERSHIP} VALUES(?, ?, ?, ?, ?, ?)",
        (*context.ballot, context.lsn, command.leader, context.now_ms, command.uuid),
    )
    context.db.execute(
        f"INSERT INTO {CONFIGURATION} VALUES(?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (epoch, context.lsn, command.config_digest, msgspec.json.encode(command.members).decode()),
    )
    if command.above_index and same_history is not None:
        schema.go_on_above(context.db, command.above_index)
    elif command.above_index:
        schema.begin_history(context.db, command.above_index)
    if command.above_index:
        # Replicas must show where the schema stands now; nothing else may change it for months.
        context.emit(SchemaChanged(schema.current_index(context.db)))


def apply_follow_rules(context: Context, command: FollowRules) -> None:
    """Raises `VersionError` as above; what is followed already is followed further."""
    if command.apply_version <= apply_version(context.db):
        raise NoChange(result=None)
    _set_rules(context, command.apply_version, "the leader")


def _set_rules(context: Context, version: int, leader: str) -> None:
    if version > context.machine.version:
        raise VersionError(
            f"from entry {context.lsn} on, the log of {context.replica_set} follows version "
            f"{version} of its rules; this Hadron knows them up to version "
            f"{context.machine.version}",
            f"install the version of Hadron that {leader} runs, and start this node again",
        )
    context.db.execute(
        f"INSERT INTO {APPLY_RULES} VALUES(1, ?) ON CONFLICT(only) DO UPDATE SET"
        " apply_version = excluded.apply_version",
        (version,),
    )


def check_known(db: Database, machine: StateMachine, replica_set: str) -> None:
    """Before a log is gone on with. Raises `VersionError` when it follows rules that this version
    does not have."""
    version = apply_version(db)
    if version > machine.version:
        raise VersionError(
            f"the log of {replica_set} here follows version {version} of its rules; this Hadron "
            f"knows them up to version {machine.version}",
            "a newer version of Hadron has run here: install that one again",
        )


def check_rules(context: Context, command: Command) -> None:
    """Before a leader logs what it has applied: raises `OldMemberError` when a member may not know
    it. (A `FollowRules` has raised the version by then, and may stay.) Where no ballot ever began
    there are no members, and the newest rules hold."""
    needed = command.since
    newest = context.machine.version
    if needed > 1 and needed > (followed := apply_version(context.db, fresh=newest)):
        raise OldMemberError(
            f"{context.replica_set} still follows version {followed} of its rules, "
            f"{type(command).__name__} needs version {needed}",
            "run the same version of Hadron on all its members; a few seconds after the last one "
            "has started the leader goes over to the newer rules by itself",
        )


def _follows(latest: Configuration, epoch: int, command: BeginBallot) -> bool:
    if epoch == latest.epoch:
        return command.config_digest == latest.digest
    return epoch > latest.epoch and command.predecessor_digest == latest.digest


FEATURE: Final = Feature(
    name="leadership",
    tables=_TABLES,
    commands={BeginBallot: apply_begin_ballot, FollowRules: apply_follow_rules},
)


# --- reading ------------------------------------------------------------------------------------


def configurations(db: Database) -> list[Configuration]:
    """Every configuration that was applied, by epoch."""
    rows = db.execute(f"SELECT epoch, lsn, digest, members FROM {CONFIGURATION} ORDER BY epoch")
    return [
        Configuration(
            epoch, lsn, digest, msgspec.json.decode(members, type=tuple[tuple[str, str], ...])
        )
        for epoch, lsn, digest, members in rows
    ]


def is_alone(db: Database, node: str) -> bool:
    """Whether `node` is the only member by the latest configuration that was applied: then its disk
    is the majority, and all that its tables have is committed."""
    known = configurations(db)
    return bool(known) and [name for name, _ in known[-1].members] == [node]


def latest_uuid(db: Database) -> bytes:
    """Of the replica set that the log was led as; empty before the first leader."""
    row = db.execute(f"SELECT uuid FROM {LEADERSHIP} ORDER BY lsn DESC LIMIT 1").fetchone()
    return bytes(row[0]) if row is not None else b""


def latest_ballot(db: Database) -> Ballot:
    """The latest one that began here; `NO_BALLOT` before the first one."""
    row = db.execute(
        f"SELECT epoch, incarnation FROM {LEADERSHIP} ORDER BY lsn DESC LIMIT 1"
    ).fetchone()
    return NO_BALLOT if row is None else Ballot(*row)


def apply_version(db: Database, *, fresh: int = 1) -> int:
    """The version of the rules that the log follows here; `fresh` before any ballot began."""
    row = db.execute(f"SELECT apply_version FROM {APPLY_RULES}").fetchone()
    return fresh if row is None else row[0]
