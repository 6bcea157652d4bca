"""Who leads is asked of the ballots; a file that nobody leads with yet is pending."""

from __future__ import annotations

import pytest

from hadron.cli.overview import Overview
from hadron.wire.messages import cluster_pb2


def file(epoch: int, *names: str, leader: str) -> cluster_pb2.ReplicaSet:
    return cluster_pb2.ReplicaSet(
        name="p0",
        epoch=epoch,
        nodes=[
            cluster_pb2.Node(
                name=name, role="leader" if name == leader else "replica", address=f"{name}:1"
            )
            for name in names
        ],
    )


def says(
    node: str, state: str, epoch: int, incarnation: int = 1, **peers: int
) -> cluster_pb2.StatusResponse:
    return cluster_pb2.StatusResponse(
        node=node,
        state=state,
        last_lsn=100,
        ballot={"epoch": epoch, "incarnation": incarnation},
        peers=[
            cluster_pb2.StatusResponse.Peer(name=name, match_lsn=lsn) for name, lsn in peers.items()
        ],
    )


OLD = file(7, "n1", "n3", "n4", leader="n1")
NEW = file(8, "n1", "n3", "n4", leader="n4")


def overview(early: str) -> Overview:
    """Everybody runs with the old file but for `early`, who has started with the new one."""
    made = Overview(OLD)
    for name in ("n1", "n3", "n4"):
        made.learn(f"{name}:1", NEW if name == early else OLD)
    made.found = {
        "n1:1": says("n1", "serving", 7, n3=100, n4=90),
        "n3:1": says("n3", "following", 7),
        "n4:1": says("n4", "following", 7),
    }
    return made


def test_roles_and_lags_are_those_in_force() -> None:
    made = overview("n3")
    assert made.newest == NEW
    assert [made.role(node.name) for node in made.nodes] == ["leader", "replica", "replica"]
    assert made.lags() == {"n1": 0, "n3": 0, "n4": 10}
    assert made.pending() == (
        "n3 was started with epoch 8 of p0: n4 leads once it is started with epoch 8; "
        "until then n1 leads with epoch 7"
    )
    assert "n4 leads with it once a majority has promised it" in overview("n4").pending()
    assert overview("nobody").pending() == ""


def test_the_higher_ballot_leads() -> None:
    """A deposed leader may think that it serves."""
    made = overview("n4")
    made.found = {**made.found, "n4:1": says("n4", "serving", 8, n1=1, n3=2)}
    assert [made.role(node.name) for node in made.nodes] == ["replica", "replica", "leader"]
    assert made.lags() == {"n1": 99, "n3": 98, "n4": 0}
    assert made.pending() == ""


def test_while_nobody_leads_the_newest_file_says_who_should() -> None:
    made = overview("n3")
    made.found = {**made.found, "n1:1": "no answer"}
    assert [made.role(node.name) for node in made.nodes] == ["replica", "replica", "leader"]
    assert made.lags() == {}
    assert made.pending() == ""


def test_members_that_come_and_go() -> None:
    made = Overview(file(1, "n1", "n2", leader="n1"))
    made.learn("n1:1", file(1, "n1", "n2", leader="n1"))
    made.learn("n3:1", file(2, "n1", "n3", leader="n1"))
    made.found = {"n1:1": says("n1", "serving", 1), "n3:1": says("n3", "following", 0)}
    assert made.addresses == ["n1:1", "n3:1", "n2:1"]
    assert [(node.name, made.role(node.name)) for node in made.nodes] == [
        ("n1", "leader"),
        ("n3", "pending"),
        ("n2", "replica"),
    ]


@pytest.mark.parametrize("epoch", [1, 9])
def test_order_of_learning_does_not_matter(epoch: int) -> None:
    made = Overview(file(epoch, "n1", leader="n1"))
    made.learn("n1:1", file(5, "n1", leader="n1"))
    assert made.newest.epoch == max(5, epoch)


@pytest.mark.parametrize(
    ("found", "config", "several", "told"),
    [
        # Who has the most leads.
        (
            {"n1": "gone", "n3": ("fenced", 99), "n4": ("waiting for the leader", 100)},
            "",
            False,
            "`hadron promote n4` and `hadron cluster restart`",
        ),
        (
            {
                "n1": "gone",
                "n3": ("waiting for the leader", 100),
                "n4": ("waiting for the leader", 9),
            },
            " --config DIR|FILE",
            True,
            "`hadron promote n3 --config DIR|FILE --replica-set p0`, "
            "then restart n3 with that file",
        ),
        (
            {"n1": "gone", "n3": ("waiting for the leader", 100), "n4": "gone"},
            "",
            False,
            "p0 takes no writes, and answers no reads, while n1, n4 are away: start n1, which "
            "leads, by `hadron cluster up`",
        ),
        # All of a set, where others can be asked.
        (
            {"n1": "gone", "n3": "gone", "n4": "gone"},
            " --config DIR|FILE",
            True,
            "while n1, n3, n4 are away: start n1, which leads, and one of n3, n4, by "
            "`hadron node --config FILE --name n1`",
        ),
        # Who leads has nobody to take what is written, or waits for them after a restart.
        (
            {"n1": ("serving", 100), "n3": "gone", "n4": "gone"},
            "",
            False,
            "p0 takes no writes, while n3, n4 are away: start one of n3, n4, by "
            "`hadron cluster up`",
        ),
        (
            {"n1": ("waiting for a majority", 100), "n3": "gone", "n4": "gone"},
            " --config DIR|FILE",
            False,
            "p0 takes no writes, and answers no reads, while n3, n4 are away: start one of n3, n4, "
            "by `hadron node --config FILE --name n3`",
        ),
        ({"n1": ("serving", 100), "n3": "gone", "n4": ("following", 100)}, "", False, ""),
        ({"n1": ("reconciling", 100), "n3": ("following", 1), "n4": "gone"}, "", False, ""),
        # It may be led, and only who asks does not reach the leader.
        (
            {"n1": "too many connections", "n3": ("following", 100), "n4": ("following", 99)},
            "",
            False,
            "n3, n4 follow n1: either it hangs, which is noticed within 15 s, so look again then; "
            "or only this command does not reach it: see to the way there, to its log and to how "
            "many connections it has",
        ),
        (
            {"n1": "gone", "n3": ("following", 100), "n4": "gone"},
            "",
            False,
            "n3 follows n1: either it hangs, which is noticed within 15 s, so look again then; "
            "or only this command does not reach it: see to the way there, to its log and to how "
            "many connections it has",
        ),
        # Promoted already.
        ({"n1": "gone", "n3": ("following", 100), "n4": ("serving", 100)}, "", False, ""),
    ],
)
def test_who_is_to_lead_when_the_leader_is_away(
    found: dict[str, str | tuple[str, int]], config: str, several: bool, told: str
) -> None:
    made = Overview(OLD)
    made.found = {}
    for name, what in found.items():
        if isinstance(what, str):
            made.found[f"{name}:1"] = what
        else:
            status = says(name, what[0], 7)
            status.last_lsn = what[1]
            made.found[f"{name}:1"] = status
    way_out = made.way_out(config, several)
    assert way_out.endswith(told) if told else not way_out


def test_nodes_that_the_leader_reaches_are_not_away() -> None:
    made = overview("nobody")
    leader = says("n1", "serving", 7, n3=100)
    leader.peers[0].state = "in sync"
    made.found = {"n1:1": leader, "n3:1": "out of reach", "n4:1": "gone"}
    assert made.way_out("", several=False) == ""
    leader.peers[0].state = "disconnected"
    assert "start one of n3, n4" in made.way_out("", several=False)


@pytest.mark.parametrize(
    ("peer", "told"),
    [
        (says("n4", "waiting for the leader", 7), "answers no reads: where too many disks are los"),
        ("gone", "answers no reads: bring n4 back; where too many disks are lost"),
    ],
)
def test_lost_disks_have_a_way_out(peer: cluster_pb2.StatusResponse | str, told: str) -> None:
    made = Overview(OLD)
    waiting = says("n1", "waiting for a majority", 7)
    made.found = {"n1:1": waiting, "n3:1": says("n3", "waiting for the leader", 7), "n4:1": peer}
    assert made.way_out("", several=False) == ""
    waiting.memories_missing = 1
    assert told in made.way_out("", several=False)
    assert "`hadron restore --help`" in made.way_out("", several=False)


def test_who_is_to_lead_remembers_the_log() -> None:
    made = Overview(OLD)
    told = {name: says(name, "waiting for the leader", 7) for name in ("n3", "n4")}
    made.found = {"n1:1": "gone"} | {f"{name}:1": each for name, each in told.items()}
    assert "`hadron promote n3`" in made.way_out("", several=False)
    # It was wiped, and has learnt a part of the log.
    told["n3"].lacks_memory = True
    way_out = made.way_out("", several=False)
    assert "promote" not in way_out
    assert way_out.startswith(
        "p0 takes no writes, and answers no reads, while n1 is away, and nobody can lead in its "
        "place, as n3 counts in no majority before it has been taught: bring n1 back; where too "
        "many disks are lost"
    )


def test_of_four_two_that_remember_are_enough() -> None:
    made = Overview(file(7, "n1", "n3", "n4", "n5", leader="n1"))
    told = {name: says(name, "waiting for the leader", 7) for name in ("n3", "n4", "n5")}
    made.found = {"n1:1": "gone"} | {f"{name}:1": each for name, each in told.items()}
    told["n3"].lacks_memory = True
    assert "`hadron promote n4`" in made.way_out("", several=False)


def test_a_leader_that_does_not_reach_those_who_remember_needs_no_backup() -> None:
    """It was wiped, and has just started: both others are there, and whole."""
    made = Overview(OLD)
    waiting = says("n1", "waiting for a majority", 7, n3=0, n4=0)
    waiting.memories_missing = 2
    for peer in waiting.peers:
        peer.state = "connecting"
    others = {name: says(name, "waiting for the leader", 7) for name in ("n3", "n4")}
    made.found = {"n1:1": waiting} | {f"{name}:1": each for name, each in others.items()}
    assert made.way_out("", several=False) == (
        "p0 takes no writes, and answers no reads, until n1 reaches n3 and n4: it tries again and "
        "again; if that lasts, see to the way between them"
    )
    # With one of them, or with one that has forgotten, too little is remembered.
    others["n4"].lacks_memory = True
    assert "`hadron restore --help`" in made.way_out("", several=False)
    others["n4"].lacks_memory = False
    waiting.peers[1].state = "connected"
    assert "`hadron restore --help`" in made.way_out("", several=False)
