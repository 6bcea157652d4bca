"""What `hadron status` makes of what the nodes say, and the status it ends with."""

from __future__ import annotations

from typing import Any

import pytest

from hadron.cli import main
from hadron.cli.commands import status
from hadron.cli.overview import Overview
from hadron.wire.messages import cluster_pb2

REFUSED = "n3:7000 does not answer: Connection refused"
NODES = cluster_pb2.ReplicaSet(
    name="local/p0",
    epoch=1,
    nodes=[
        cluster_pb2.Node(name=f"n{number}", role=role, address=f"n{number}:7000")
        for number, role in ((1, "leader"), (2, "replica"), (3, "replica"))
    ],
)


def said(
    state: str, trouble: str = "", *, last_lsn: int = 9, **peers: tuple[str, int, str]
) -> cluster_pb2.StatusResponse:
    """A node's status; of each peer (state, match_lsn, trouble)."""
    return cluster_pb2.StatusResponse(
        state=state,
        trouble=trouble,
        last_lsn=last_lsn,
        peers=[
            cluster_pb2.StatusResponse.Peer(
                name=name, state=each[0], match_lsn=each[1], trouble=each[2]
            )
            for name, each in peers.items()
        ],
    )


def rows(*answers: cluster_pb2.StatusResponse | str) -> list[dict[str, Any]]:
    overview = Overview(NODES)
    overview.found = {f"n{number}:7000": answer for number, answer in enumerate(answers, 1)}
    for number, answer in enumerate(answers, 1):
        if not isinstance(answer, str):
            answer.node = f"n{number}"
            overview.learn(f"n{number}:7000", NODES)
    return status._rows(overview)


WELL = (
    said("serving", n2=("in sync", 9, ""), n3=("in sync", 8, "")),
    said("following"),
    said("following"),
)
ONE_AWAY = (
    said("serving", n2=("in sync", 9, ""), n3=("connecting", 9, REFUSED)),
    said("following", n1=("connected", 0, ""), n3=("connecting", 0, REFUSED)),
    "nobody listens at n3:7000",
)


def test_lag_is_what_the_leader_does_not_know_to_be_there() -> None:
    assert [row["lag"] for row in rows(*WELL)] == [0, 0, 1]


def test_a_node_that_is_away_is_told_once_and_has_no_lag() -> None:
    found = rows(*ONE_AWAY)
    assert [row["lag"] for row in found] == [0, 0, None]
    assert [row["trouble"] for row in found] == [[], [], ["nobody listens at n3:7000"]]
    # For programs all of it is there.
    assert found[0]["peers"][1]["trouble"] == REFUSED


def test_a_leader_that_is_away_is_told_once() -> None:
    found = rows(
        "nobody listens at n1:7000",
        said("waiting for the leader", REFUSED, n1=("connecting", 0, REFUSED)),
        said("waiting for the leader", REFUSED, n1=("connecting", 0, REFUSED)),
    )
    assert [row["lag"] for row in found] == [None, None, None]
    assert [row["trouble"] for row in found] == [["nobody listens at n1:7000"], [], []]


def test_what_a_node_says_of_its_leader_is_told_once() -> None:
    """Who asks reaches it, the replica does not."""
    refused = "n1:7000 does not answer"
    found = rows(
        said("serving", n2=("connecting", 9, "n2:7000 does not answer"), n3=("in sync", 9, "")),
        said("waiting for the leader", refused, n1=("connecting", 0, refused)),
        said("following"),
    )
    assert found[0]["trouble"] == ["with n2 (connecting): n2:7000 does not answer"]
    assert found[1]["trouble"] == ["with n1 (connecting): n1:7000 does not answer"]


def test_what_two_nodes_say_of_each_other_is_told() -> None:
    found = rows(
        said("serving", n2=("mismatch", 0, "its members differ"), n3=("in sync", 9, "")),
        said("waiting for the leader", "its members differ"),
        said("following"),
    )
    assert found[0]["trouble"] == ["with n2 (mismatch): its members differ"]
    assert found[1]["trouble"] == ["its members differ"]


@pytest.mark.parametrize(
    ("answers", "checked"),
    [
        (WELL, 0),
        (ONE_AWAY, 1),
        ((said("serving", "no majority: 1 of 3 members answers, writes wait"), *WELL[1:]), 1),
        ((said("reconciling"), *WELL[1:]), 1),
    ],
    ids=["well", "one away", "trouble", "not yet"],
)
def test_the_status_it_ends_with(
    answers: tuple[Any, ...],
    checked: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def ask(_url: str) -> dict[str, Any]:
        return {
            "cluster": "local",
            "metadata": "local/p0",
            "nodes": rows(*answers),
            "pending": [],
            "ways_out": ["promote n2"],
        }

    monkeypatch.setattr(status, "_ask", ask)
    assert main(["status"]) == 0
    assert main(["status", "--check"]) == checked
    assert main(["status", "--check", "--output", "json"]) == checked
    told = capsys.readouterr().out
    assert told.startswith("cluster local, metadata on local/p0; no authentication, no TLS\n")
    assert "\nway out: promote n2\n" in told
    assert told.count("trouble at ") == 2 * sum(len(row["trouble"]) for row in rows(*answers))
