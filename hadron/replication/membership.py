"""Who this node is, who its peers should be, and whether a peer sees it the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hadron.model.errors import HandshakeError
from hadron.model.ids import is_valid_name
from hadron.model.limits import MAX_MEMBERS, TOKEN_BYTES
from hadron.model.problems import shorten
from hadron.wire.messages import replication_pb2

PROTOCOL_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Membership:
    """A node's own configuration, as far as its peers must agree with it."""

    cluster: str
    replica_set: str
    epoch: int
    members: tuple[tuple[str, str], ...]
    """(node name, role), in the configuration's order."""
    node: str
    digest: bytes
    addresses: Mapping[str, str]
    """Node name to host:port; not compared, a changed port needs no epoch."""
    apply_version: int
    """Of the rules that this node knows: members may be of different versions for a while."""

    @property
    def leader(self) -> str:
        return next(name for name, role in self.members if role == "leader")

    @property
    def is_leader(self) -> bool:
        return self.leader == self.node

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.members if name != self.node)

    @property
    def majority(self) -> int:
        """How many members make a majority, this one counted."""
        return len(self.members) // 2 + 1

    @property
    def amnesia_quorum(self) -> int:
        """How many *other* voters a node without memory must hear: they meet every majority."""
        return len(self.members) - len(self.members) // 2


def identity_message(
    membership: Membership,
    *,
    uuid: bytes,
    boot: int,
    start: bytes = b"",
    is_member: bool = False,
    disk: bytes = b"",
) -> replication_pb2.HandshakeRequest:
    return replication_pb2.HandshakeRequest(
        cluster=membership.cluster,
        replica_set=membership.replica_set,
        epoch=membership.epoch,
        members=[replication_pb2.Member(name=n, role=r) for n, r in membership.members],
        node=membership.node,
        protocol_version=PROTOCOL_VERSION,
        replica_set_uuid=uuid,
        boot=boot,
        apply_version=membership.apply_version,
        start=start,
        is_member=is_member,
        disk=disk,
    )


def common_apply_version(
    membership: Membership,
    in_force: int,
    answers: Mapping[str, replication_pb2.HandshakeResponse | None],
) -> int:
    """The rules that a new ballot can follow: the lowest that any member supports (PROTOCOL A5).

    Args:
        in_force: what the log follows now; of a member that is away no more is known than that.
        answers: each peer's answer to the handshake, None while it is away.
    """
    supported = [membership.apply_version]
    for name in membership.peers:
        answer = answers.get(name)
        if answer is None:
            supported.append(in_force)
        else:
            supported.append(answer.identity.apply_version)
    # Once every member has followed a version, none is older than that.
    return max(in_force, min(supported))


def check_peer(
    own: Membership, uuid: bytes, peer: replication_pb2.HandshakeRequest, expected: str | None
) -> None:
    """Compare a peer's identity with our configuration.

    Another epoch is no contradiction (PROTOCOL B1): one of the two files is newer, and `epoch_note`
    says so. Only configurations of the same epoch must be the same.

    Args:
        expected: the node name that should be at the address we dialed; None when it dialed us.

    Raises `HandshakeError` naming both sides' values and the likely misconfiguration.
    """
    for good, what, ours, other, hint in (
        *_identity_checks(own, peer),
        *_place_checks(own, peer, expected),
        *_history_checks(uuid, peer.replica_set_uuid),
    ):
        if not good:
            raise HandshakeError(
                f"node {peer.node or '?'} does not fit: its {what} is {other}, ours is {ours}",
                hint,
                retryable=True,
            )


_Check = tuple[bool, str, object, object, str]
"""(whether it is as it must be, what, ours, theirs, what is likely to be wrong)."""


def _identity_checks(own: Membership, peer: replication_pb2.HandshakeRequest) -> tuple[_Check, ...]:
    """Whether it is of this replica set, and speaks as members do."""
    longest = max(len(peer.disk), len(peer.start))
    return (
        (
            peer.protocol_version == PROTOCOL_VERSION,
            "protocol version",
            PROTOCOL_VERSION,
            peer.protocol_version,
            "run the same version of Hadron on both",
        ),
        (
            peer.cluster == own.cluster,
            "cluster",
            own.cluster,
            peer.cluster,
            "is an address of another cluster in the configuration?",
        ),
        (
            peer.replica_set == own.replica_set,
            "replica set",
            own.replica_set,
            peer.replica_set,
            "is an address of another replica set in the configuration?",
        ),
        (
            longest <= TOKEN_BYTES,
            "disk's or start's name",
            f"of {TOKEN_BYTES} bytes at most",
            f"of {longest} bytes",
            "run the same version of Hadron on both",
        ),
        (
            len(peer.members) <= MAX_MEMBERS,
            "number of members",
            len(own.members),
            len(peer.members),
            f"at most {MAX_MEMBERS}",
        ),
        (
            is_valid_name(peer.node),
            "node name",
            own.node,
            shorten(peer.node),
            "is it a node of Hadron?",
        ),
        (peer.epoch >= 1, "epoch", own.epoch, peer.epoch, "an epoch is 1 or more"),
    )


def _place_checks(
    own: Membership, peer: replication_pb2.HandshakeRequest, expected: str | None
) -> tuple[_Check, ...]:
    """Whether both files agree on who the members are, and which of them it is."""
    theirs = tuple((member.name, member.role) for member in peer.members)
    same = peer.epoch == own.epoch
    return (
        (
            not same or theirs == own.members,
            "list of members",
            _members(own.members),
            _members(theirs),
            "names and roles must be the same in both files; raise `epoch` when they change",
        ),
        (
            expected is None or peer.node == expected,
            "node name",
            expected,
            peer.node,
            "are two addresses exchanged in the configuration?",
        ),
        # Members of another epoch may be nodes that this configuration has never heard of.
        (
            peer.node in dict(own.members if same else theirs),
            "node name",
            "one of " + _members(own.members),
            peer.node,
            "this node is not in our configuration",
        ),
        (
            peer.node != own.node,
            "node name",
            own.node,
            peer.node,
            "a second process runs with this node's name",
        ),
    )


def _history_checks(own: bytes, theirs: bytes) -> tuple[_Check, ...]:
    """Whether both hold data of one history, as far as they hold any."""
    return (
        (
            not own or not theirs or own == theirs,
            "replica set uuid",
            own.hex(),
            theirs.hex(),
            "their data comes from another replica set of the same name, or from before it was "
            "restored; move the data directory away that is the wrong one",
        ),
    )


def epoch_note(own: Membership, peer: str, epoch: int) -> str:
    """What to tell people of a peer whose file has another epoch; "" when it has the same."""
    if epoch == own.epoch:
        return ""
    if epoch > own.epoch:
        return (
            f"this node's configuration file is old: it has epoch {own.epoch}, {peer} has {epoch}; "
            "start this node with the newest file"
        )
    return (
        f"{peer}'s configuration file is old: it has epoch {epoch}, this node has {own.epoch}; "
        f"start {peer} with the newest file"
    )


def _members(members: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} ({role})" for name, role in members) or "none"
