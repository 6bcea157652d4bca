"""Which of several nodes' answers about the cluster a client believes."""

from __future__ import annotations

import pytest

from hadron.client.connecting.topology import OneCluster, Topology
from hadron.model.errors import OtherClusterError
from hadron.wire.messages import cluster_pb2


def said(
    *,
    epoch: int = 1,
    leader: str = "n1",
    uuid: bytes = b"a",
    registered: int = 0,
    agreed: bool = True,
    n1: tuple[str, int] = ("one:1", 0),
) -> cluster_pb2.TopologyResponse:
    known = cluster_pb2.ReplicaSet(
        name="eu",
        epoch=epoch,
        uuid=uuid,
        registered=registered,
        agreed=agreed,
        nodes=[
            cluster_pb2.Node(
                name=name,
                role="leader" if name == leader else "replica",
                address=address,
                stated_ms=stated_ms,
            )
            for name, (address, stated_ms) in {"n1": n1, "n2": ("two:1", 0)}.items()
        ],
    )
    return cluster_pb2.TopologyResponse(replica_sets=[known], metadata="meta")


def leader(*answers: cluster_pb2.TopologyResponse) -> str | None:
    topology = Topology()
    for answer in answers:
        topology.merge(answer)
    return topology.leader("eu")


def test_the_higher_epoch_says_who_leads() -> None:
    old, new = said(epoch=1), said(epoch=2, leader="n2")
    assert leader(old, new) == leader(new, old) == "two:1"


def test_within_an_epoch_the_configuration_that_a_majority_serves_by() -> None:
    right, wrong = said(), said(leader="n2", agreed=False)
    assert leader(right, wrong) == leader(wrong, right) == "one:1"


def test_a_node_says_itself_where_it_is() -> None:
    hearsay, own = said(n1=("old:1", 0)), said(n1=("new:1", 7))
    assert leader(hearsay, own) == leader(own, hearsay) == "new:1"
    earlier = said(n1=("older:1", 6), epoch=2)
    assert leader(earlier, own) == leader(own, earlier) == "new:1"
    # Without stamps, as older nodes speak, the later answer counts.
    assert leader(said(n1=("x:1", 0)), said(n1=("y:1", 0))) == "y:1"


def test_what_was_heard_is_not_changed_by_what_is_heard_next() -> None:
    first = said(n1=("old:1", 0))
    leader(first, said(n1=("new:1", 7)), first)
    assert first == said(n1=("old:1", 0))


def test_of_two_sets_of_one_name_the_registered_one_counts() -> None:
    first, second = said(registered=1), said(uuid=b"b", epoch=3, leader="n2")
    assert leader(first, second) == leader(second, first) == "one:1"
    restored = said(uuid=b"b", epoch=3, leader="n2", registered=3)
    assert leader(first, restored) == leader(restored, first) == "two:1"


def answer(epoch: int, leader: str, *, by: str = "") -> cluster_pb2.TopologyResponse:
    """A statement about p, by its node `by` or a stranger."""
    nodes = [
        cluster_pb2.Node(
            name=name, role="leader" if name == leader else "replica", address=f"{name}:1"
        )
        for name in ("n1", "n2", "n3")
    ]
    return cluster_pb2.TopologyResponse(
        replica_sets=[cluster_pb2.ReplicaSet(name="p", epoch=epoch, nodes=nodes)],
        metadata="p",
        replica_set="p" if by else "",
        node=by,
    )


def test_the_higher_epoch_wins_whoever_says_it() -> None:
    topology = Topology()
    topology.merge(answer(2, "n2"))
    topology.merge(answer(1, "n1"))
    assert topology.leader("p") == "n2:1"
    topology.merge(answer(3, "n3"))
    assert topology.leader("p") == "n3:1"
    assert topology.leader("q") is None
    assert topology.addresses(["seed:1"]) == ["seed:1", "n1:1", "n2:1", "n3:1"]


def test_a_configuration_begins_with_its_leader() -> None:
    """n3 was started early with the file by which n2 leads; n1 serves on."""
    topology = Topology()
    topology.merge(answer(1, "n1", by="n1"))
    topology.merge(answer(2, "n2", by="n3"))
    topology.merge(answer(1, "n1", by="n2"))
    assert topology.rule("p") == (1, "n1")
    topology.merge(answer(2, "n2", by="n2"))
    assert topology.rule("p") == (2, "n2")
    # The old leader comes back with its old file.
    topology.merge(answer(1, "n1", by="n1"))
    assert topology.rule("p") == (2, "n2")


def test_an_old_leader_that_does_not_answer_is_not_waited_for() -> None:
    topology = Topology()
    topology.merge(answer(1, "n1", by="n1"))
    topology.merge(answer(2, "n2", by="n3"))
    topology.doubt("p")
    assert topology.rule("p") == (2, "n2")
    topology.merge(answer(1, "n1", by="n1"))
    assert topology.rule("p") == (1, "n1")


def node_of(cluster: str, *, serves: bool) -> cluster_pb2.TopologyResponse:
    found = said(agreed=serves)
    found.cluster, found.replica_set = cluster, "eu"
    return found


def test_a_node_that_does_not_serve_decides_for_no_cluster() -> None:
    """Its file names another cluster by mistake, and it was the first one to answer."""
    cluster = OneCluster()
    cluster.recognize("n3:1", node_of("staging", serves=False))
    with pytest.raises(OtherClusterError, match="of cluster 'test', and not of 'staging'"):
        cluster.recognize("n2:1", node_of("test", serves=False))
    cluster.recognize("n1:1", node_of("test", serves=True))
    for serves in (False, True):
        with pytest.raises(OtherClusterError, match="of cluster 'staging', and not of 'test'"):
            cluster.recognize("n3:1", node_of("staging", serves=serves))


def test_the_cluster_that_was_named_is_meant_whoever_serves() -> None:
    cluster = OneCluster("test")
    with pytest.raises(OtherClusterError, match="of cluster 'staging', and not of 'test'"):
        cluster.recognize("n3:1", node_of("staging", serves=True))
    cluster.recognize("n1:1", node_of("test", serves=False))


def node_with(
    uuid: bytes, epoch: int = 1, registered: int = 0, *, serves: bool = True
) -> cluster_pb2.TopologyResponse:
    """Of the only set, which owns the schema where nobody has registered it."""
    said = node_of("local", serves=serves)
    (own,) = said.replica_sets
    own.uuid, own.epoch, own.registered = uuid, epoch, registered
    said.metadata = "another" if registered else own.name
    return said


def test_another_cluster_of_the_same_name_is_told_by_its_history() -> None:
    cluster = OneCluster()
    cluster.recognize("n1:1", node_with(b""))
    cluster.recognize("n1:1", node_with(b"other", serves=False))
    cluster.recognize("n1:1", node_with(b"first"))
    for serves in (False, True):
        with pytest.raises(OtherClusterError, match=r"another eu .* called 'local' as well"):
            cluster.recognize("n1:1", node_with(b"other", serves=serves))
    # One whose disk is empty will be taught by the others.
    cluster.recognize("n2:1", node_with(b"", serves=False))
    cluster.recognize("n1:1", node_with(b"first", epoch=2))


def test_a_restored_cluster_is_the_one_that_it_was() -> None:
    cluster = OneCluster()
    cluster.recognize("n1:1", node_with(b"first", epoch=2))
    cluster.recognize("n1:1", node_with(b"restored", epoch=3))
    with pytest.raises(OtherClusterError):
        cluster.recognize("n3:1", node_with(b"first", epoch=2))


def test_the_set_that_the_metadata_set_has_given_the_name_to_is_meant() -> None:
    """A stranger of that name had answered before."""
    cluster = OneCluster()
    cluster.recognize("n9:1", node_with(b"stranger"))
    cluster.recognize("n1:1", node_with(b"named", registered=1))
    with pytest.raises(OtherClusterError):
        cluster.recognize("n9:1", node_with(b"stranger"))
