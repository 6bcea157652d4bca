"""A peer that does not fit is refused, and both sides' values are named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hadron.model.errors import HandshakeError
from hadron.replication.membership import check_peer, epoch_note, identity_message
from hadron.replication.tests.support import UUID, membership
from hadron.wire.messages import replication_pb2

Change = Callable[[replication_pb2.HandshakeRequest], None]


def peer(**changes: object) -> replication_pb2.HandshakeRequest:
    """n2 as it would introduce itself, but for `changes`."""
    message = identity_message(membership(3, "n2"), uuid=UUID, boot=1)
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def test_an_equal_configuration_fits() -> None:
    own = membership(3)
    check_peer(own, UUID, peer(), "n2")
    check_peer(own, UUID, peer(), None)
    check_peer(own, b"", peer(), "n2")
    check_peer(own, UUID, peer(replica_set_uuid=b""), "n2")


@pytest.mark.parametrize(
    ("changes", "what", "theirs", "ours"),
    [
        ({"protocol_version": 2}, "protocol version", "2", "1"),
        ({"cluster": "staging"}, "cluster", "staging", "test"),
        ({"replica_set": "local/p1"}, "replica set", "local/p1", "local/p0"),
        ({"epoch": 0}, "epoch", "0", "1"),
        ({"node": "n3"}, "node name", "n3", "n2"),
        ({"replica_set_uuid": b"x" * 16}, "uuid", (b"x" * 16).hex(), UUID.hex()),
    ],
)
def test_a_difference_is_named_with_both_values(
    changes: dict[str, object], what: str, theirs: str, ours: str
) -> None:
    with pytest.raises(HandshakeError) as raised:
        check_peer(membership(3), UUID, peer(**changes), "n2")
    message = raised.value.message
    assert what in message
    assert f"is {theirs}, ours is {ours}" in message
    assert raised.value.hint
    assert raised.value.retryable


@pytest.mark.parametrize("expected", ["n2", None])
def test_another_epoch_is_no_contradiction(expected: str | None) -> None:
    """Members may differ then, and those that we do not know may ask us for a promise."""
    newer = identity_message(membership(5, "n2", epoch=2), uuid=UUID, boot=1)
    check_peer(membership(3), UUID, newer, expected)
    check_peer(membership(5, epoch=2), UUID, peer(), expected)
    joiner = identity_message(membership(5, "n4", epoch=2), uuid=b"", boot=1)
    check_peer(membership(3), UUID, joiner, None)
    with pytest.raises(HandshakeError, match="its node name is n6, ours is one of n1"):
        check_peer(
            membership(3),
            UUID,
            identity_message(membership(5, "n6", epoch=2), uuid=UUID, boot=1),
            None,
        )


def test_whose_file_is_old_is_said() -> None:
    own = membership(3, epoch=4)
    assert epoch_note(own, "n2", 4) == ""
    assert "this node's configuration file is old: it has epoch 4, n2 has 5" in epoch_note(
        own, "n2", 5
    )
    assert "n2's configuration file is old: it has epoch 3, this node has 4" in epoch_note(
        own, "n2", 3
    )


def test_other_members_or_roles_are_named() -> None:
    own = membership(3)
    fewer = identity_message(membership(2, "n2"), uuid=UUID, boot=1)
    said = r"its list of members is n1 \(leader\), n2 \(replica\), ours"
    with pytest.raises(HandshakeError, match=said):
        check_peer(own, UUID, fewer, "n2")
    swapped = peer()
    swapped.members[0].role, swapped.members[1].role = "replica", "leader"
    with pytest.raises(HandshakeError, match=r"n1 \(replica\), n2 \(leader\).*raise `epoch`"):
        check_peer(own, UUID, swapped, "n2")


def test_a_stranger_that_dials_us_is_refused() -> None:
    with pytest.raises(HandshakeError, match="its node name is n9, ours is one of n1"):
        check_peer(membership(3), UUID, peer(node="n9"), None)


def test_a_second_process_of_our_own_name_is_refused() -> None:
    with pytest.raises(HandshakeError, match="a second process runs with this node's name"):
        check_peer(membership(3), UUID, peer(node="n1"), None)


def test_an_empty_introduction_is_refused_without_a_traceback() -> None:
    with pytest.raises(HandshakeError, match=r"node \? does not fit"):
        check_peer(membership(3), UUID, replication_pb2.HandshakeRequest(), None)


@pytest.mark.parametrize(
    ("size", "majority", "amnesia"), [(1, 1, 1), (2, 2, 1), (3, 2, 2), (4, 3, 2), (5, 3, 3)]
)
def test_quorum_sizes(size: int, majority: int, amnesia: int) -> None:
    own = membership(size)
    assert (own.majority, own.amnesia_quorum) == (majority, amnesia)
    assert own.is_leader
    assert own.peers == tuple(f"n{number}" for number in range(2, size + 1))
