"""Replica sets find each other, in whatever order they start, and refuse what does not fit."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from hadron.model.errors import FrameError, NotFoundError, NotReadyError, PeerError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.backup import backup_directory
from hadron.node.directory import REFUSED_FOR_S
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.restore import restore_set
from hadron.node.rounds import LIVELY_S
from hadron.node.set_messages import statement_to
from hadron.node.world import SystemDisk
from hadron.testing.nodes import Cluster, Nodes, running_cluster
from hadron.wire.connection import Connection
from hadron.wire.messages import cluster_pb2, method
from hadron.wire.system import SystemClock, SystemRandom

SETS = {"meta/p0": 1, "eu/p0": 3, "us/p0": 2}
ORDERS = list(itertools.permutations(SETS))


def known_at(nodes: Nodes, name: str) -> dict[str, str]:
    """Replica set → its leader's address, as the node says."""
    topology = nodes.node(name).discovery.topology()
    return {
        each.name: next(node.address for node in each.nodes if node.role == "leader")
        for each in topology.replica_sets
    }


async def wait_known(cluster: Cluster, *sets: str, at: str = "") -> None:
    """Until every running node (of the set `at`) knows exactly these sets."""
    wanted = sorted(sets or cluster)

    def known() -> bool:
        return all(
            sorted(known_at(nodes, node)) == wanted
            for name, nodes in cluster.items()
            if name == (at or name)
            for node in nodes.running
        )

    await cluster.wait_for(f"{wanted} known", known)


async def wait_registered(cluster: Cluster) -> None:
    """Until every node knows that all sets' uuids are registered."""
    await cluster.wait_for(
        "registered everywhere",
        lambda: all(
            known.registered
            for nodes in cluster.values()
            for node in nodes.running
            for known in nodes.node(node).discovery.sets()
        ),
    )


def troubles(nodes: Nodes, name: str = "n1") -> list[str]:
    return list(nodes.status(name).cluster_trouble)


async def trouble_at(cluster: Cluster, nodes: Nodes, start: str) -> str:
    """Wait until n1 of a set reports what begins so; returns the whole of it."""

    def said() -> list[str]:
        return [text for text in troubles(nodes) if text.startswith(start)]

    await cluster.wait_for(f"reported: {start}", lambda: said() != [])
    return said()[0]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_sets_find_each_other_whatever_order_they_start_in(
    tmp_path: Path, order: tuple[str, ...]
) -> None:
    async with running_cluster(tmp_path, SETS, start=False) as cluster:
        for name in order:
            await cluster.start(name)
            await cluster.wait_serving(name)
        await wait_known(cluster)
        digests = {
            nodes.node(node).discovery.directory.digest
            for nodes in cluster.values()
            for node in nodes.names
        }
        await cluster.wait_for(
            "the same everywhere", lambda: len({digest() for digest in digests}) == 1
        )
        for nodes in cluster.values():
            for node in nodes.names:
                await cluster.wait_for(
                    "no trouble",
                    lambda nodes=nodes, node=node: troubles(nodes, node) == [],  # type: ignore[misc]
                )
                known = nodes.node(node).discovery.sets()
                assert all(len(each.uuid) == 16 and each.agreed for each in known)
                assert known_at(nodes, node)["us/p0"] == "us-p0-n1:7000"


async def test_the_metadata_set_comes_first_in_the_topology(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await wait_known(cluster)
        topology = await client.topology("us-p0-n2:7000")
        assert [each.name for each in topology.replica_sets] == ["meta/p0", "eu/p0", "us/p0"]
        assert (topology.node, topology.metadata) == ("n2", "meta/p0")


async def test_a_set_that_starts_last_is_known_to_all_without_being_in_their_discovery(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, SETS, start=False) as cluster:
        await cluster.start("meta/p0", "eu/p0")
        await wait_known(cluster, "meta/p0", "eu/p0")
        await cluster.start("us/p0")
        await wait_known(cluster)


async def test_a_set_that_was_away_hears_what_it_missed(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        await wait_known(cluster)
        await cluster.crash("eu/p0")
        late = cluster.add("asia/p0", 1)
        await late.start()
        await wait_known(cluster)
        await cluster.start("eu/p0")
        await wait_known(cluster, at="eu/p0")


async def test_sets_that_were_cut_off_from_each_other_find_together(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS, start=False) as cluster:
        cluster.isolate("eu/p0")
        await cluster.start()
        await wait_known(cluster, "meta/p0", "us/p0", at="us/p0")
        assert list(known_at(cluster["eu/p0"], "n1")) == ["eu/p0"]
        cluster.network.heal_all()
        await wait_known(cluster)


async def test_a_changed_address_is_heard_everywhere_without_a_new_epoch(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        await wait_known(cluster)
        moved = cluster["us/p0"]
        await moved.crash("n1")
        config = moved.config
        n1 = replace(config.node("n1"), address="us-new:7100")
        moved.configs["n1"] = replace(config, nodes=(n1, *config.nodes[1:]))
        await moved.start("n1")
        for name, nodes in cluster.items():
            for node in nodes.names:
                await cluster.wait_for(
                    f"{name} {node} told",
                    lambda nodes=nodes, node=node: (  # type: ignore[misc]
                        known_at(nodes, node)["us/p0"] == "us-new:7100"
                    ),
                )


def led_by_n2(config: ReplicaSetConfig) -> ReplicaSetConfig:
    """The next epoch's configuration file."""
    nodes = tuple(
        replace(node, role="leader" if node.name == "n2" else "replica") for node in config.nodes
    )
    return replace(config, epoch=config.epoch + 1, nodes=nodes)


@pytest.mark.long
async def test_a_replica_that_is_started_early_with_the_next_file_misleads_nobody(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        await wait_registered(cluster)
        eu = cluster["eu/p0"]
        await eu.crash("n3")
        eu.configs["n3"] = led_by_n2(eu.config)
        await eu.start("n3")
        nodes = [(cluster["us/p0"], "n1"), (eu, "n1"), (eu, "n2")]
        with trio.move_on_after(2 * LIVELY_S):
            await cluster.wait_for(
                "misled",
                lambda: any(
                    known_at(each, name)["eu/p0"] != "eu-p0-n1:7000" for each, name in nodes
                ),
            )
            pytest.fail("n1 serves, but clients and the schema would be sent to n2")
        assert known_at(eu, "n3")["eu/p0"] == "eu-p0-n1:7000"
        # A client that comes only now finds who leads, and so does the schema.
        async with cluster.client(through=["us/p0"]) as client:
            spec = StreamSpec(partitions=("eu/p0",))
            await client.apply([SchemaObject(kind="Stream", name="s", spec=spec)])
            async with client.producer("s") as producer:
                assert (await producer.send(b"x")).offset == 0


async def test_a_promotion_is_heard_by_other_sets(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        await wait_known(cluster)
        eu = cluster["eu/p0"]
        await eu.crash("n1", "n2")
        eu.configs["n2"] = led_by_n2(eu.config)
        await eu.start("n2")
        await cluster.wait_for(
            "told who leads", lambda: known_at(cluster["us/p0"], "n1")["eu/p0"] == "eu-p0-n2:7000"
        )
        # A node with the old file hears it as well.
        await cluster.wait_for(
            "told itself", lambda: known_at(eu, "n3")["eu/p0"] == "eu-p0-n2:7000"
        )


async def test_a_second_set_of_a_name_is_refused_and_reported_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "hadron.node.discovery")
    async with running_cluster(tmp_path, SETS) as cluster:
        await wait_known(cluster)
        await wait_registered(cluster)
        config = cluster["us/p0"].config
        nodes = tuple(
            replace(node, address=f"other-{node.name}:7000", data=tmp_path / "other" / node.name)
            for node in config.nodes
        )
        second = cluster.add("us/p0", 2, config=replace(config, nodes=nodes))
        await second.start()
        await second.wait_serving()
        text = await trouble_at(
            cluster, cluster["meta/p0"], "two replica sets are called us/p0: the one with uuid "
        )
        assert "n1 at other-n1:7000, n2 at other-n2:7000 is refused; the name belongs" in text
        assert (
            "n1 at us-p0-n1:7000, n2 at us-p0-n2:7000, which the metadata set has registered"
        ) in text
        await trouble_at(cluster, second, "another replica set is called us/p0 as well: uuid ")
        # The others go on with the first, the second with itself, and it knows all others.
        assert known_at(cluster["meta/p0"], "n1")["us/p0"] == "us-p0-n1:7000"
        assert known_at(second, "n1") == {
            "meta/p0": "meta-p0-n1:7000",
            "eu/p0": "eu-p0-n1:7000",
            "us/p0": "other-n1:7000",
        }
        for each in (second, *cluster.values()):
            for name in each.names:
                each.node(name).discovery._news()
        await trio.sleep(0.5)
        refusing = len(cluster.hosts())
        assert 0 < caplog.text.count("two replica sets are called us/p0") <= refusing
        assert 0 < caplog.text.count("another replica set is called us/p0") <= len(second.names)


@pytest.mark.parametrize("name", ["eu/p0", "meta/p0"])
async def test_nobody_takes_a_restored_set_for_another_one(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "hadron.node.discovery")
    async with running_cluster(tmp_path, SETS) as cluster:
        await wait_registered(cluster)
        nodes = cluster[name]
        before = nodes.node("n1").discovery.directory.own.uuid
        await nodes.crash()
        disk = SystemDisk()
        backup_directory(nodes.data("n1"), tmp_path / "backup", disk, SystemClock())
        nodes.config = replace(nodes.config, epoch=2)
        founded = restore_set(
            tmp_path / "backup", nodes.config, disk, SystemRandom(), SystemClock(), overwrite=True
        )
        await nodes.start()
        await nodes.wait_serving()
        everybody = [each.node(node) for each in cluster.values() for node in each.names]
        await cluster.wait_for(
            "the new history known everywhere",
            lambda: all(
                (known := node.discovery.directory.find(name)) is not None
                and (known.uuid, known.registered) == (founded.uuid, 2) != (before, 2)
                for node in everybody
            ),
        )
        await cluster.wait_for(
            "no trouble",
            lambda: not [text for node in everybody for text in node.status().cluster_trouble],
            patience_s=REFUSED_FOR_S / 2,
        )
        assert "replica sets are called" not in caplog.text
        assert "another replica set is called" not in caplog.text


async def test_names_are_registered_and_stay_so_when_the_set_comes_back(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        await wait_registered(cluster)
        await cluster["us/p0"].restart()
        await wait_registered(cluster)
        await cluster.wait_for("no trouble", lambda: troubles(cluster["meta/p0"]) == [])


async def test_a_node_of_another_cluster_is_refused_and_reported_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        await wait_known(cluster)
        config = replace(cluster["us/p0"].config, cluster="orders", name="asia/p0")
        nodes = (replace(config.nodes[0], address="asia:7000", data=tmp_path / "asia"),)
        stranger = cluster.add("asia/p0", 1, config=replace(config, nodes=nodes))
        await stranger.start()
        meta = cluster["meta/p0"]
        await trouble_at(
            cluster,
            meta,
            "nodes of asia/p0 on asia call here: refused, they belong to cluster "
            "'orders', this node to 'test' (is this node's address in their `discovery:`?)",
        )
        there = await trouble_at(
            cluster,
            stranger,
            "meta-p0-n1:7000 in `discovery:` is refused: node n1 of meta/p0 belongs to cluster "
            "'test', this node to 'orders' (take the address out, or correct `cluster:`)",
        )
        assert "asia/p0" not in known_at(meta, "n1")
        assert list(known_at(stranger, "n1")) == ["asia/p0"]
        dials = cluster.network.dials("asia", "meta-p0-n1")
        await cluster.wait_for(
            "tried again", lambda: cluster.network.dials("asia", "meta-p0-n1") > dials + 1
        )
        assert caplog.text.count(there) == 1
        assert caplog.text.count("nodes of asia/p0 on asia call here") == 1


async def test_sets_that_disagree_on_where_the_schema_is_say_so(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS, start=False) as cluster:
        us = cluster["us/p0"]
        for name in us.names:
            us.configs[name] = replace(us.config, metadata="us/p0")
        await cluster.start()
        await trouble_at(
            cluster,
            us,
            "node n1 of meta/p0 has `metadata: meta/p0`, this node `metadata: us/p0`: one of the "
            "two configuration files is wrong",
        )
        await wait_known(cluster)


async def test_any_node_says_how_another_one_is(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        await wait_known(cluster)
        async with cluster["meta/p0"].connection("n1") as connection:

            async def ask(replica_set: str, node: str) -> cluster_pb2.StatusResponse:
                request = cluster_pb2.StatusRequest(replica_set=replica_set, node=node)
                answer, _ = await connection.request(method("Status"), request)
                assert isinstance(answer, cluster_pb2.StatusResponse)
                return answer

            for name, nodes in cluster.items():
                for node in nodes.names:
                    status = await ask(name, node)
                    assert (status.replica_set, status.node) == (name, node)
            with pytest.raises(NotFoundError, match="no replica set is called 'asia/p0'"):
                await ask("asia/p0", "n1")
            with pytest.raises(NotFoundError, match=r"us/p0 has no node 'n9' \(it has n1, n2"):
                await ask("us/p0", "n9")
            await cluster["us/p0"].crash("n2")
            with pytest.raises(
                PeerError, match="us-p0-n2:7000 does not answer n1 of meta/p0 either: Conn"
            ):
                await ask("us/p0", "n2")


async def test_who_is_not_there_is_named_after_a_while_and_forgotten_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hadron.node.discovery._PATIENCE_S", 0.0)
    async with running_cluster(tmp_path, SETS, start=False) as cluster:
        us = cluster["us/p0"]
        await us.start()
        await trouble_at(
            cluster, us, "meta-p0-n1:7000 in `discovery:` does not answer: Connection refused"
        )
        await trouble_at(
            cluster, us, "the metadata replica set meta/p0 is not known here, so the schema cannot "
        )
        await cluster.start("meta/p0")
        await cluster.wait_for("no trouble", lambda: troubles(us) == [])


async def test_that_nobody_knows_the_metadata_set_is_told_from_the_start(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, SETS, start=False) as cluster:
        us = cluster["us/p0"]
        await us.start()
        await us.wait_for("us/p0 serves", lambda: us.status("n1").state == "serving")
        assert troubles(us)[0].startswith("the metadata replica set meta/p0 is not known here")
        asking = cluster.client("client", through=["us/p0"], request_timeout_s=1.0)
        async with asking as client:
            with pytest.raises(NotReadyError, match="schema belongs to replica set 'meta/p0'") as e:
                await client.create_stream("q")
            assert "correct `metadata:` and `discovery:`" in e.value.hint
        await cluster.start("meta/p0")
        await cluster.wait_for("no trouble", lambda: troubles(us) == [])


async def test_what_a_node_that_knows_no_other_sets_answers_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hadron.node.discovery._PATIENCE_S", 0.0)
    async with running_cluster(tmp_path, {"meta/p0": 1}, discovery=["old:7000"]) as cluster:
        listener = await cluster.network.host("old").listen("old:7000")
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                while True:
                    connection = Connection(await listener.accept(), dialed=False)
                    nursery.start_soon(connection.run)

            nursery.start_soon(serve)
            await trouble_at(
                cluster,
                cluster["meta/p0"],
                "old:7000 in `discovery:` does not answer: method Cluster.Discover is not served "
                "here, by Hadron ",
            )
            nursery.cancel_scope.cancel()


async def discover(connection: Connection, **fields: Any) -> cluster_pb2.DiscoverResponse:
    speaker = {"cluster": "test", "replica_set": "x/p0", "node": "n1", "metadata": "meta/p0"}
    request = cluster_pb2.DiscoverRequest(
        speaker=cluster_pb2.Speaker(**{**speaker, **fields.pop("speaker", {})}), **fields
    )
    answer, _ = await connection.request(method("Discover"), request)
    assert isinstance(answer, cluster_pb2.DiscoverResponse)
    return answer


@pytest.mark.parametrize(
    "speaker",
    [{"cluster": "\x1b[2J"}, {"node": ""}, {"replica_set": "a/b/c"}, {"metadata": "m" * 200}],
    ids=str,
)
async def test_who_has_no_name_is_not_listened_to(tmp_path: Path, speaker: dict[str, str]) -> None:
    async with running_cluster(tmp_path, {"meta/p0": 1}) as cluster:
        async with cluster["meta/p0"].connection("n1") as connection:
            with pytest.raises(FrameError, match=r"not a (replica set's )?name"):
                await discover(connection, speaker=speaker)
            assert len((await discover(connection)).replica_sets) == 1
        assert troubles(cluster["meta/p0"]) == []


async def test_what_cannot_be_is_not_believed_and_reported(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, {"meta/p0": 1}) as cluster:
        good = statement_to(cluster["meta/p0"].node("n1").discovery.directory.own)
        good.name, bad = "eu/p0", cluster_pb2.ReplicaSet()
        bad.CopyFrom(good)
        bad.name, bad.nodes[0].address = "us/p0", "nowhere"
        async with cluster["meta/p0"].connection("n1") as connection:
            await discover(connection, replica_sets=[bad, good])
        assert sorted(known_at(cluster["meta/p0"], "n1")) == ["eu/p0", "meta/p0"]
        await trouble_at(
            cluster,
            cluster["meta/p0"],
            "node n1 of x/p0 says what cannot be: replica set 'us/p0': 'nowhere' is not an address",
        )


async def test_however_much_is_said_that_cannot_be_the_log_and_the_status_stay_short(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each exchange of a node of another version brings it again; a stranger's has any length."""
    caplog.set_level(logging.WARNING, "hadron.node.discovery")
    async with running_cluster(tmp_path, {"meta/p0": 1}) as cluster:
        meta = cluster["meta/p0"]

        def bad(name: str, role: str = "observer") -> cluster_pb2.ReplicaSet:
            nodes = [cluster_pb2.Node(name="n1", role=role, address="h:7000")]
            return cluster_pb2.ReplicaSet(name=name, epoch=1, nodes=nodes)

        def told() -> list[str]:
            return [text for text in troubles(meta) if "says what cannot be" in text]

        async with meta.connection("n1") as connection:
            for _ in range(10):
                await discover(connection, replica_sets=[bad("y"), bad("z"), bad("z", "king")])
            assert caplog.text.count("says what cannot be: replica set 'y'") == 1
            assert caplog.text.count("says what cannot be: replica set 'z'") == 1
            assert len(told()) == 2
            caplog.clear()
            await discover(connection, replica_sets=[bad("a b" * 300_000), bad("x", "r" * 300_000)])
            assert len(told()) == 4
            assert sum(map(len, told())) < 1_000
            for _ in range(10):
                await discover(connection, replica_sets=[bad(f"x{n}") for n in range(1_000)])
            assert len(told()) < 20
            assert "node n1 of x/p0 says what cannot be of 1000 replica sets" in told()
            assert len(caplog.text) < 10_000


async def test_sets_alone_say_nothing_about_the_cluster(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, {"eu/p0": 3}) as cluster:
        before = [
            cluster.network.dials(one, other)
            for one in cluster.hosts()
            for other in cluster.hosts()
        ]
        for name in cluster["eu/p0"].names:
            cluster["eu/p0"].node(name).discovery._news()
        await trio.sleep(0.5)
        assert before == [
            cluster.network.dials(one, other)
            for one in cluster.hosts()
            for other in cluster.hosts()
        ]


async def test_a_node_is_dialed_where_it_says_and_listens_where_it_is(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, {"meta/p0": 1}, start=False) as cluster:
        nodes = cluster["meta/p0"]
        (node,) = nodes.config.nodes
        host = node.address.rpartition(":")[0]
        nodes.config = replace(nodes.config, nodes=(replace(node, listen=f"{host}:7777"),))
        await nodes.start()
        transport = await cluster.network.host("client").dial(f"{host}:7777")
        transport.close()
        with pytest.raises(OSError, match="refused"):
            await cluster.network.host("client").dial(node.address)
        assert nodes.node("n1").address == node.address
        assert known_at(nodes, "n1") == {"meta/p0": node.address}
