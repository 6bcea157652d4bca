"""Starts of peers: old copies of disks, and messages of earlier starts."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from hadron.node.world import SystemDisk
from hadron.replication.starts import is_old_copy
from hadron.storage.identity import IdentityFile, PeerStart


def test_only_a_higher_number_is_a_new_start() -> None:
    for known, seen in product(range(1, 4), repeat=2):
        other = PeerStart(seen, b"b")
        assert is_old_copy(PeerStart(known, b"a"), other) == (seen <= known)
    same = PeerStart(2, b"a")
    assert not is_old_copy(same, same)
    assert not is_old_copy(None, same)


def test_what_was_seen_survives_a_restart(tmp_path: Path) -> None:
    file = IdentityFile(tmp_path, "test", "local/p0", "n1", SystemDisk())
    file.remember_start("n2", PeerStart(3, b"x"))
    file.remember_start("n2", PeerStart(4, b"y"))
    file.remember_start("n3", PeerStart(1, b"z"))
    file.close()
    again = IdentityFile(tmp_path, "test", "local/p0", "n1", SystemDisk())
    assert again.peer_starts == {"n2": PeerStart(4, b"y"), "n3": PeerStart(1, b"z")}
    again.close()


@pytest.mark.parametrize("is_member", [False, True])
def test_an_operator_is_believed_whatever_peers_remember(tmp_path: Path, is_member: bool) -> None:
    file = IdentityFile(tmp_path, "test", "local/p0", "n1", SystemDisk())
    file.adopt(b"u" * 16, is_member=is_member, promised=file.current.promised, config_digest=b"")
    assert (file.current.boot > 1 << 31) == is_member
    file.forget_membership("")
    assert not file.current.is_member
    file.close()
