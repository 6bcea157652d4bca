"""Starts of peers: old copies of disks, and messages of earlier starts."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from hadron.node.world import SystemDisk
from hadron.replication.starts import _what_came_between, is_old_copy
from hadron.storage.identity import IdentityFile, PeerStart


def identity(directory: Path) -> IdentityFile:
    return IdentityFile(directory, "test", "local/p0", "n1", SystemDisk())


def test_only_a_higher_number_is_a_new_start_of_a_disk() -> None:
    for known, seen in product(range(1, 4), repeat=2):
        other = PeerStart(b"d", seen, b"b")
        assert is_old_copy([PeerStart(b"d", known, b"a")], other) == (seen <= known)
    same = PeerStart(b"d", 2, b"a")
    assert not is_old_copy([same], same)
    assert not is_old_copy([], same)


def test_a_new_disk_counts_its_starts_from_one() -> None:
    """It was wiped, and taught by others: whoever was away must believe it."""
    known = [PeerStart(b"lost", 9, b"a")]
    assert not is_old_copy(known, PeerStart(b"new", 1, b"b"))


def test_a_disk_that_another_one_followed_is_an_old_copy_whatever_its_number() -> None:
    known = [PeerStart(b"lost", 9, b"a"), PeerStart(b"new", 1, b"b")]
    for boot in (1, 9, 10, 100):
        assert is_old_copy(known, PeerStart(b"lost", boot, b"c"))
    assert is_old_copy(known, known[0])
    assert not is_old_copy(known, known[1])
    assert not is_old_copy(known, PeerStart(b"new", 2, b"c"))


def test_what_was_seen_survives_a_restart(tmp_path: Path) -> None:
    file = identity(tmp_path)
    file.remember_start("n2", PeerStart(b"p", 3, b"x"))
    file.remember_start("n2", PeerStart(b"q", 1, b"y"))
    file.remember_start("n3", PeerStart(b"r", 1, b"z"))
    # The first one again, as one that was taught: it is the latest disk then.
    file.remember_start("n2", PeerStart(b"p", 4, b"w"))
    expected = {
        "n2": (PeerStart(b"q", 1, b"y"), PeerStart(b"p", 4, b"w")),
        "n3": (PeerStart(b"r", 1, b"z"),),
    }
    assert file.peer_starts == expected
    file.close()
    again = identity(tmp_path)
    assert again.peer_starts == expected
    again.close()


def test_no_more_disks_are_remembered_than_somebody_may_lose(tmp_path: Path) -> None:
    file = identity(tmp_path)
    for number in range(40):
        file.remember_start("n2", PeerStart(b"%d" % number, 1, b""))
    assert [each.disk for each in file.peer_starts["n2"]] == [b"%d" % n for n in range(24, 40)]
    file.close()


@pytest.mark.parametrize("is_member", [False, True])
def test_an_operators_word_makes_another_disk_of_it(tmp_path: Path, is_member: bool) -> None:
    file = identity(tmp_path)
    file.name_disk(b"a" * 16)
    file.name_disk(b"b" * 16)
    assert file.current.disk == b"a" * 16
    file.adopt(b"u" * 16, is_member=is_member, promised=file.current.promised, config_digest=b"")
    file.close()
    again = identity(tmp_path)
    again.name_disk(b"b" * 16)
    assert (again.current.disk, again.current.boot) == (b"b" * 16, 2)
    again.forget_membership("")
    assert (again.current.disk, again.current.is_member) == (b"b" * 16, False)
    again.forget_membership("", disk=b"c" * 16)
    assert (again.current.disk, again.current.is_member) == (b"c" * 16, False)
    again.close()


def test_an_old_copy_is_explained() -> None:
    first, second = PeerStart(b"a" * 16, 3, b"1"), PeerStart(b"b" * 16, 1, b"2")
    again = first._replace(start=b"3")
    assert "another start 3 of disk 61616161" in _what_came_between([first], again)
    earlier = again._replace(boot=2)
    assert _what_came_between([first], earlier).endswith("and start 3 was seen before")
    assert _what_came_between([first, second], first).endswith("it has been on disk 62626262")
