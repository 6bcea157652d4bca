"""What nodes believe of replica sets, and that all of them come to believe the same."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadron.model.replica_sets import KnownNode, KnownSet
from hadron.node import directory as directory_module
from hadron.node.directory import REFUSED_FOR_S, Directory

A, B = b"a" * 16, b"b" * 16


def statement(
    name: str = "eu/p0",
    uuid: bytes = A,
    *,
    epoch: int = 1,
    leader: str = "n1",
    host: str = "eu",
    stated: dict[str, int] | None = None,
    agreed: bool = True,
    registered: int = 0,
    count: int = 3,
) -> KnownSet:
    nodes = tuple(
        KnownNode(
            f"n{number}",
            "leader" if f"n{number}" == leader else "replica",
            f"{host}-n{number}:7000",
            (stated or {}).get(f"n{number}", 0),
        )
        for number in range(1, count + 1)
    )
    return KnownSet(name, epoch, uuid, nodes, agreed, registered)


def own(name: str = "us/p0", uuid: bytes = b"o" * 16, **given: object) -> KnownSet:
    return statement(name, uuid, host="us", stated={"n1": 100}, **given)  # type: ignore[arg-type]


def directory(*heard: KnownSet, mine: KnownSet | None = None) -> Directory:
    made = Directory(mine or own(), "n1")
    made.merge(heard, 0.0)
    return made


def reasons(heard_by: Directory) -> list[str]:
    return heard_by.troubles(0.0)


def moved(known: KnownSet, node: str, address: str, stated_ms: int) -> KnownSet:
    return replace(
        known,
        nodes=tuple(
            replace(each, address=address, stated_ms=stated_ms) if each.name == node else each
            for each in known.nodes
        ),
    )


# --- one uuid -----------------------------------------------------------------------------------


def test_a_directory_begins_with_the_nodes_own_set() -> None:
    known = directory()
    assert known.sets() == (own(),) == (known.own,)
    assert known.find("eu/p0") is None
    assert known.statements() == (own(),)


def test_statements_are_sorted_by_name() -> None:
    known = directory(statement("z/p0", B), statement("a/p0"))
    assert [each.name for each in known.sets()] == ["a/p0", "us/p0", "z/p0"]


def test_the_same_again_changes_nothing() -> None:
    known = directory(statement())
    merged = known.merge([statement()], 0.0)
    assert (merged.changed, merged.refused) == (False, [])


@pytest.mark.parametrize("newer_first", [False, True])
@pytest.mark.parametrize("agreed", [False, True])
def test_a_higher_epoch_says_who_leads(newer_first: bool, agreed: bool) -> None:
    older, newer = (
        statement(epoch=1, agreed=agreed),
        statement(epoch=2, leader="n2", agreed=agreed),
    )
    heard = [newer, older] if newer_first else [older, newer]
    known = directory(*heard).find("eu/p0")
    assert known is not None
    assert (known.epoch, known.leader.name, known.agreed) == (2, "n2", agreed)


@pytest.mark.parametrize("newer_first", [False, True])
def test_a_higher_epoch_counts_once_a_majority_serves_by_it(newer_first: bool) -> None:
    """n3 was started early with the file by which n2 leads; n1 serves on."""
    older, newer = statement(epoch=1), statement(epoch=2, leader="n2", agreed=False)
    made = directory(*([newer, older] if newer_first else [older, newer]))
    known = made.find("eu/p0")
    assert known is not None
    assert (known.epoch, known.leader.name) == (1, "n1")
    assert not reasons(made)
    made.merge([replace(newer, agreed=True)], 0.0)
    known = made.find("eu/p0")
    assert known is not None
    assert (known.epoch, known.leader.name) == (2, "n2")


def test_a_higher_epoch_does_not_take_back_where_nodes_say_they_are() -> None:
    known = directory(
        moved(statement(epoch=1), "n3", "elsewhere:7000", 50), statement(epoch=2, leader="n2")
    ).find("eu/p0")
    assert known is not None
    assert known.node("n3") == KnownNode("n3", "replica", "elsewhere:7000", 50)


def test_the_latest_word_about_an_address_counts_the_nodes_own_above_hearsay() -> None:
    hearsay = moved(statement(), "n2", "zzz:7000", 0)
    said = moved(statement(), "n2", "aaa:7000", 10)
    for heard in ([hearsay, said], [said, hearsay], [moved(said, "n2", "old:7000", 9), said]):
        known = directory(*heard).find("eu/p0")
        assert known is not None
        assert known.node("n2") == KnownNode("n2", "replica", "aaa:7000", 10)


@pytest.mark.parametrize("agreed_first", [False, True])
def test_of_two_configurations_of_an_epoch_the_one_that_a_majority_serves_by_counts(
    agreed_first: bool,
) -> None:
    agreed, other = statement(leader="n1"), statement(leader="n2", agreed=False)
    heard = [agreed, other] if agreed_first else [other, agreed]
    made = directory(*heard)
    known = made.find("eu/p0")
    assert known is not None
    assert known.leader.name == "n1"
    (reason,) = reasons(made)
    assert reason.startswith("two configurations of epoch 1 of eu/p0 are in use: n1 (leader)")
    assert "n1 (replica), n2 (leader), n3 (replica) does not" in reason


def test_before_a_set_is_founded_its_configuration_is_known_and_then_its_uuid() -> None:
    made = directory(statement(uuid=b"", agreed=False))
    assert not reasons(made)
    assert made.merge([statement()], 0.0).changed
    known = made.find("eu/p0")
    assert known is not None
    assert known.uuid == A
    # A member whose disk is empty does not know it, and that says nothing.
    assert not made.merge([statement(uuid=b"", agreed=False, epoch=3)], 0.0).changed
    assert not reasons(made)


# --- the node's own -----------------------------------------------------------------------------


def test_the_nodes_own_statement_follows_its_state() -> None:
    made = directory(mine=own(uuid=b"", agreed=False))
    assert made.tell_own(own(uuid=A, agreed=False), 0.0)
    assert not made.tell_own(own(uuid=A, agreed=False), 0.0)
    assert made.tell_own(own(uuid=A, agreed=True), 0.0)
    assert made.own == own(uuid=A, agreed=True)


def test_a_node_with_an_old_file_learns_who_leads_its_set() -> None:
    made = directory(own(epoch=2, leader="n2"), mine=own(epoch=1))
    assert (made.own.epoch, made.own.leader.name) == (2, "n2")
    assert not made.tell_own(own(epoch=1), 0.0)
    assert made.own.leader.name == "n2"


def test_a_nodes_own_word_about_its_address_is_above_an_earlier_one_with_a_later_stamp() -> None:
    # Its clock was set back since.
    heard = moved(own(), "n1", "before:7000", 1_000)
    made = directory(heard)
    node = made.own.node("n1")
    assert node == KnownNode("n1", "leader", "us-n1:7000", 1_001)
    # Others believe it then, and it goes on so.
    other = directory(heard, mine=statement())
    other.merge(made.statements(), 0.0)
    assert other.find("us/p0") == made.own
    assert not made.tell_own(own(), 0.0)
    assert made.own.node("n1") == node


def test_two_processes_with_one_name_do_not_keep_the_whole_cluster_busy() -> None:
    one, other = Directory(own(), "n1"), Directory(moved(own(), "n1", "second:7000", 100), "n1")
    changes = []
    for second in range(100):
        changed = one.merge(other.statements(), float(second)).changed
        changed |= other.merge(one.statements(), float(second)).changed
        changes.append(changed)
        one.tell_own(own(), float(second))
    assert changes[0]
    assert sum(changes) <= 2 * (3 + 100 / 30)
    assert one.troubles(99.0) == [
        "n1 of us/p0 is said to be at second:7000, again and again: does a second process run "
        "with this node's name?"
    ]
    assert other.troubles(99.0)
    assert one.own == other.own


def test_a_node_that_has_left_its_set_says_nothing_of_its_address() -> None:
    without = replace(own(epoch=2, leader="n2"), nodes=own(epoch=2, leader="n2").nodes[1:])
    made = directory(without)
    assert made.own == without
    assert not made.tell_own(own(), 0.0)


def test_a_member_with_an_empty_disk_does_not_take_another_set_for_its_own() -> None:
    mine = own(uuid=b"", agreed=False)
    made = directory(statement("us/p0", A, host="other"), mine=mine)
    assert made.own == mine
    assert not reasons(made)
    made.tell_own(own(uuid=B), 0.0)
    made.merge([statement("us/p0", A, host="other")], 0.0)
    assert made.own == own(uuid=B)
    assert len(reasons(made)) == 1


def test_what_was_heard_before_the_founding_is_forgotten_with_it() -> None:
    made = directory(
        moved(own(uuid=b"", agreed=False), "n2", "other:7000", 5), mine=own(uuid=b"", agreed=False)
    )
    made.tell_own(own(uuid=A), 0.0)
    assert made.own == own(uuid=A)


# --- one name, two uuids ------------------------------------------------------------------------


def test_the_second_set_of_a_name_is_refused_and_told_once() -> None:
    made = directory(statement())
    second = statement(uuid=B, host="other")
    merged = made.merge([second], 0.0)
    assert [(each.said, merged.changed) for each in merged.refused] == [(second, False)]
    assert made.find("eu/p0") == statement()
    (reason,) = reasons(made)
    assert reason.startswith(
        f"two replica sets are called eu/p0: the one with uuid {B.hex()[:8]}, epoch 1, "
        "n1 at other-n1:7000, "
    )
    assert not made.merge([second], REFUSED_FOR_S / 2).refused
    assert made.troubles(REFUSED_FOR_S)
    assert not made.troubles(2 * REFUSED_FOR_S)
    assert made.merge([second], 3 * REFUSED_FOR_S).refused


def test_a_node_never_gives_up_its_own_set() -> None:
    made = directory(statement("us/p0", B, host="other", epoch=7, registered=7))
    assert made.own == own()
    (reason,) = reasons(made)
    assert reason.startswith("another replica set is called us/p0 as well: uuid ")
    assert "the metadata set has registered that one" in reason
    assert made.contenders() == ()


def test_a_registered_uuid_has_the_name_whoever_was_first() -> None:
    made = directory(statement())
    registered = statement(uuid=B, host="other", registered=1)
    assert made.merge([registered], 0.0).changed
    assert made.find("eu/p0") == registered
    assert "which the metadata set has registered" in reasons(made)[0]
    assert not made.merge([statement()], 0.0).changed


def test_who_is_told_of_a_registration_says_so_in_its_statement() -> None:
    made = directory(statement())
    assert made.register("eu/p0", A, 1)
    assert made.find("eu/p0") == statement(registered=1)
    assert not made.register("eu/p0", A, 1)
    assert not made.register("eu/p0", B, 1)
    assert made.merge([statement(epoch=2)], 0.0).changed
    assert made.find("eu/p0") == statement(epoch=2, registered=1)


def test_a_registration_may_be_known_before_the_set() -> None:
    made = directory()
    assert not made.register("eu/p0", A, 4)
    made.merge([statement(epoch=4)], 0.0)
    assert made.find("eu/p0") == statement(epoch=4, registered=4)


def test_a_restored_set_waits_for_its_registration_and_is_passed_on_meanwhile() -> None:
    old, new = statement(registered=1), statement(uuid=B, epoch=2)
    made = directory(old, new)
    assert made.find("eu/p0") == old
    assert made.contenders() == (new,)
    assert made.statements() == (old, own(), new)
    assert reasons(made)[0].startswith("eu/p0 has a new history, as after a restore (uuid ")
    assert made.register("eu/p0", B, 2)
    assert made.find("eu/p0") == replace(new, registered=2)
    assert made.contenders() == ()
    assert not reasons(made)
    # Whoever hears of it takes it over, and says nothing of the old one.
    other = directory(old, new)
    other.merge(made.statements(), 0.0)
    assert other.sets() == made.sets()
    assert not reasons(other)


def test_what_came_before_a_restore_is_no_other_set() -> None:
    old, new = statement(registered=1), statement(uuid=B, epoch=2)
    made = directory(mine=replace(new, nodes=moved(new, "n1", "eu-n1:7000", 100).nodes))
    merged = made.merge([old], 0.0)
    assert not merged.changed
    (reason,) = reasons(made)
    assert reason.startswith("eu/p0 has a new history, as after a restore (uuid ")
    assert "has not registered it yet" in reason
    assert made.register("eu/p0", B, 2)
    assert not reasons(made)
    # Whoever has not heard yet, of this set or another, is no trouble any more.
    assert not made.merge([old], 1.0, of="eu/p0").refused
    assert not made.merge([statement("asia/p0", b"c" * 16), old], 1.0, of="asia/p0").refused
    assert not reasons(made)


def test_a_set_restored_elsewhere_is_accused_by_nobody_but_the_old_one_itself() -> None:
    old = statement(registered=1)
    elsewhere = statement(uuid=B, epoch=2, host="new", registered=2)
    other = directory(elsewhere)
    assert not other.merge([old], 0.0, of="asia/p0").refused
    assert reasons(other) == []
    # It runs: its own node says so.
    assert other.merge([old], 0.0, of="eu/p0").refused
    assert reasons(other)[0].startswith("two replica sets are called eu/p0: ")
    assert other.find("eu/p0") == elsewhere


def test_a_contender_has_been_agreed_on_and_has_a_higher_epoch() -> None:
    made = directory(
        statement(epoch=2), statement(uuid=B, epoch=2), statement(uuid=B, epoch=3, agreed=False)
    )
    assert made.contenders() == ()
    made.merge([statement(uuid=B, epoch=3), statement(uuid=b"c" * 16, epoch=5)], 0.0)
    made.merge([statement(uuid=B, epoch=4)], 0.0)
    assert made.contenders() == (statement(uuid=b"c" * 16, epoch=5),)


# --- bounds -------------------------------------------------------------------------------------


def test_only_so_many_sets_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hadron.node.directory._MAX_SETS", 3)
    made = directory(*(statement(f"eu/p{number}") for number in range(4)))
    assert len(made.sets()) == 3
    assert reasons(made)[0].startswith("this node knows 3 replica sets already")
    assert made.merge([statement("eu/p0", epoch=2)], 0.0).changed


def test_only_so_many_bytes_of_sets_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hadron.node.directory._MAX_BYTES", 2_000)
    made = directory(*(statement(f"eu/p{number}") for number in range(100)))
    assert 3 < len(made.sets()) < 30
    assert "is too much" in reasons(made)[0]
    # What is there goes on, as long as it does not grow; the own set may.
    last = made.sets()[0]
    assert made.merge([statement(last.name, epoch=2)], 0.0).changed
    nodes = tuple(KnownNode(f"n{n}", "replica", "h" * 200 + ":1", 0) for n in range(9))
    large = replace(statement(last.name, epoch=3), nodes=(*last.nodes, *nodes))
    assert not made.merge([large], 0.0).changed


def test_what_is_known_grows_no_further_by_changing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender as large as the set whose name it wants, then the set as large as both, …"""
    limit = 2_000
    monkeypatch.setattr("hadron.node.directory._MAX_BYTES", limit)
    made = directory(*(statement(f"eu/p{number}") for number in range(5)))
    for epoch in range(2, 60):
        uuid = A if epoch % 2 else B
        nodes = statement(count=3).nodes + tuple(
            KnownNode(f"x{n}", "replica", "h" * 20 + ":1", 0) for n in range(epoch)
        )
        made.merge([replace(statement("eu/p0", uuid, epoch=epoch), nodes=nodes)], 0.0)
    assert sum(map(directory_module._size, made.statements())) <= 2 * limit


def test_only_so_many_refusals_are_kept() -> None:
    made = directory(statement())
    for number in range(200):
        made.merge([statement(uuid=number.to_bytes(16, "big"))], 0.0)
    assert len(reasons(made)) == 64


# --- convergence --------------------------------------------------------------------------------

_EPOCHS = st.integers(1, 3)
_SAID = st.builds(
    statement,
    st.sampled_from(["eu/p0", "asia/p0"]),
    uuid=st.sampled_from([A, b""]),
    epoch=_EPOCHS,
    leader=st.sampled_from(["n1", "n2"]),
    host=st.sampled_from(["x", "y"]),
    stated=st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(0, 3)),
    agreed=st.booleans(),
    registered=st.integers(0, 1),
    count=st.integers(2, 3),
)


def converse(one: Directory, other: Directory) -> None:
    """As nodes do: the answer has everything, and so has the second question."""
    one.merge(other.statements(), 0.0)
    other.merge(one.statements(), 0.0)
    one.merge(other.statements(), 0.0)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), _SAID), max_size=12), st.integers())
def test_directories_that_have_spoken_are_equal(
    heard: list[tuple[int, KnownSet]], seed: int
) -> None:
    nodes = [
        Directory(statement(f"own/p{number}", bytes([number]) * 16, stated={"n1": 9}), "n1")
        for number in range(4)
    ]
    for listener, said in heard:
        nodes[listener].merge([said], 0.0)
    chance = random.Random(seed)
    for _ in range(60):
        converse(*chance.sample(nodes, 2))
    assert len({node.digest() for node in nodes}) == 1
    assert all(node.sets() == nodes[0].sets() for node in nodes)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([A, B]), st.integers(1, 3)), max_size=8),
    st.sampled_from([A, B]),
    st.integers(),
)
def test_once_a_name_is_registered_all_have_its_owner(
    heard: list[tuple[int, bytes, int]], owner: bytes, seed: int
) -> None:
    """Whoever was heard first where, and however many epochs both have."""
    nodes = [
        Directory(statement(f"own/p{number}", bytes([number]) * 16), "n1") for number in range(4)
    ]
    for listener, uuid, epoch in heard:
        nodes[listener].merge([statement(uuid=uuid, epoch=epoch)], 0.0)
    # The metadata set has spoken with the owner.
    nodes[0].register("eu/p0", owner, 3)
    nodes[0].merge([statement(uuid=owner, epoch=3, registered=3)], 0.0)
    chance = random.Random(seed)
    for _ in range(60):
        converse(*chance.sample(nodes, 2))
    for node in nodes:
        known = node.find("eu/p0")
        assert known is not None
        assert (known.uuid, known.registered) == (owner, 3)
