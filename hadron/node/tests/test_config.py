"""The configuration file: what it means, and every way in which it can be wrong."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hadron.model.errors import ConfigurationError
from hadron.model.ids import MAX_EPOCH
from hadron.node.config import (
    NodeConfig,
    ReplicaSetConfig,
    load_config,
    parse_config,
    render,
    single_node_config,
)
from hadron.node.main import open_to_others
from hadron.node.settings import Settings

FILE = Path("/etc/hadron/flights.yaml")

GOOD = """\
cluster: flights
metadata: local/p0
discovery: [127.0.0.1:7001]
replica_set:
  name: local/p0
  epoch: 1
  nodes:
    - {name: n1, role: leader,  address: 127.0.0.1:7001, grpc: 127.0.0.1:7101, data: var/n1}
    - {name: n2, role: replica, address: 127.0.0.1:7002, http: 127.0.0.1:7202, data: var/n2}
    - {name: n3, role: replica, address: 127.0.0.1:7003, data: /srv/n3}
durability: os
"""


def _parse(text: str, environ: dict[str, str] | None = None) -> ReplicaSetConfig:
    return parse_config(text, FILE, environ or {})


def _problems(text: str, environ: dict[str, str] | None = None) -> list[str]:
    """The problems of a file, without the file's name."""
    with pytest.raises(ConfigurationError) as caught:
        _parse(text, environ)
    heading, *several = caught.value.message.split("\n  ")
    if several:
        assert heading == f"{len(several)} problems in {FILE}:"
    return [line.removeprefix(f"{FILE}:") for line in several or [heading]]


def test_the_example_is_read() -> None:
    config = _parse(GOOD)
    assert config == ReplicaSetConfig(
        cluster="flights",
        metadata="local/p0",
        discovery=("127.0.0.1:7001",),
        name="local/p0",
        epoch=1,
        nodes=(
            NodeConfig(
                name="n1",
                role="leader",
                address="127.0.0.1:7001",
                grpc="127.0.0.1:7101",
                data=Path("/etc/hadron/var/n1"),
            ),
            NodeConfig(
                name="n2",
                role="replica",
                address="127.0.0.1:7002",
                http="127.0.0.1:7202",
                data=Path("/etc/hadron/var/n2"),
            ),
            NodeConfig(name="n3", role="replica", address="127.0.0.1:7003", data=Path("/srv/n3")),
        ),
        settings=Settings(durability="os"),
    )
    assert config.path == FILE
    assert config.leader is config.node("n1")
    assert config.members == ("n1", "n2", "n3")


def test_what_is_left_out_has_a_default() -> None:
    text = GOOD.replace("metadata: local/p0\n", "").replace("discovery: [127.0.0.1:7001]\n", "")
    config = _parse(text.replace("  epoch: 1\n", ""))
    assert config.metadata == "local/p0"
    assert config.discovery == ("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003")
    assert config.epoch == 1


def test_a_metadata_set_to_which_nothing_leads_is_refused() -> None:
    wrong = GOOD.replace("metadata: local/p0", "metadata: lcal/p0")
    expected = "expected `metadata: local/p0`, or in `discovery:` an address of a node that knows"
    (problem,) = _problems(wrong)
    assert problem.startswith(
        "2: metadata: 'lcal/p0' is another replica set than this one, local/p0, and `discovery:` "
        "has this set's own nodes only: nothing leads to it, and no stream could be created, "
        f"{expected} lcal/p0"
    )
    (problem,) = _problems(wrong.replace("discovery: [127.0.0.1:7001]\n", ""))
    assert "local/p0, and there is no `discovery:`: nothing leads to it" in problem
    # Whoever has that address may know where it is.
    assert _parse(wrong.replace("[127.0.0.1:7001]", "[10.0.0.1:7001]")).metadata == "lcal/p0"
    # What else is wrong may be the reason.
    (problem,) = _problems(wrong.replace("[127.0.0.1:7001]", "[here]"))
    assert problem.startswith("3: discovery[0]")


def test_the_environment_overrides_settings() -> None:
    assert _parse(GOOD, {"HADRON_DURABILITY": "fsync"}).settings == Settings()
    assert _problems(GOOD, {"HADRON_DURABILITY": "disk"}) == [
        "environment variable HADRON_DURABILITY: 'disk' is unknown, expected fsync or os"
    ]


def test_an_unknown_node_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigurationError) as caught:
        _parse(GOOD).node("n11")
    assert "there is no node 'n11'" in caught.value.message
    assert "(did you mean 'n1'?)" in caught.value.message
    assert caught.value.hint == "it has n1, n2, n3"


@pytest.mark.parametrize(
    ("found", "replaced", "problem"),
    [
        (
            "durability: os",
            "durabilty: os",
            "11: unknown key 'durabilty' (did you mean 'durability'?), "
            "expected one of cluster, metadata, discovery, replica_set, insecure, durability",
        ),
        (
            "  epoch: 1",
            "  epcoh: 1",
            "6: unknown key 'replica_set.epcoh' (did you mean 'epoch'?), "
            "expected one of name, epoch, nodes",
        ),
        (
            "http: 127",
            "htpp: 127",
            "9: unknown key 'replica_set.nodes[1].htpp' (did you mean "
            "'http'?), expected one of role, name, address, listen, grpc, http, data",
        ),
        ("durability: os", "cluster: x", "11: the key 'cluster' again (first in line 1)"),
        (
            "durability: os",
            "durability: never",
            "11: durability: 'never' is unknown, expected fsync or os",
        ),
        (
            "cluster: flights",
            "cluster: my flights",
            "1: cluster: 'my flights' is not a valid name, "
            "expected 1 to 100 of a-z A-Z 0-9 - _ and dots",
        ),
        ("cluster: flights\n", "", "1: cluster is missing, expected 1 to 100 of"),
        ("cluster: flights", "cluster: {a: b}", "1: cluster is a mapping, expected 1 to 100 of"),
        (
            "metadata: local/p0",
            "metadata: a/b/c",
            "2: metadata: 'a/b/c' is not a valid name, "
            "expected 1 to 100 of a-z A-Z 0-9 - _ and dots between non-empty segments, with at "
            "most one slash",
        ),
        (
            "[127.0.0.1:7001]",
            "127.0.0.1:7001",
            "3: discovery is the text '127.0.0.1:7001', "
            "expected a list, each an address such as 127.0.0.1:7001",
        ),
        (
            "[127.0.0.1:7001]",
            "[here]",
            "3: discovery[0]: 'here' is not an address, expected an address such as 127.0.0.1:7001",
        ),
        (
            "[127.0.0.1:7001]",
            "[127.0.0.1:0]",
            "3: discovery[0]: '127.0.0.1:0' has port 0, expected a port from 1 to 65535",
        ),
        ("  name: local/p0", "  name: local..p0", "5: replica_set.name: 'local..p0' is not a"),
        ("  name: local/p0\n", "", "5: replica_set.name is missing, expected"),
        (
            "  epoch: 1",
            "  epoch: 0",
            "6: replica_set.epoch: '0' is not an epoch, expected a whole number from 1",
        ),
        ("  epoch: 1", "  epoch: -1", "6: replica_set.epoch: '-1' is not an epoch"),
        (
            "  epoch: 1",
            "  epoch: 2147483648",
            "6: replica_set.epoch: '2147483648' is not an epoch, expected a whole number from 1 to "
            "2147483647",
        ),
        ("  epoch: 1", "  epoch: first", "6: replica_set.epoch: 'first', expected a whole number"),
        (
            "name: n2",
            "name: n1",
            "9: replica_set.nodes[1].name: 'n1' is in use already (line 8), expected unique names",
        ),
        ("name: n2", "name: n/2", "9: replica_set.nodes[1].name: 'n/2' is not a valid name"),
        ("name: n2, ", "", "9: replica_set.nodes[1].name is missing"),
        (
            "n3, role: replica",
            "n3, role: leader",
            "10: n3 is a second leader (n1 is one in line 8), expected exactly one leader",
        ),
        (
            "role: leader, ",
            "role: replica, ",
            "7: no node has role leader, expected exactly one leader",
        ),
        (
            "n3, role: replica",
            "n3, role: follower",
            "10: replica_set.nodes[2].role: 'follower' is not a role, expected leader or replica",
        ),
        (
            "address: 127.0.0.1:7003",
            "address: 127.0.0.1:7002",
            "10: replica_set.nodes[2].address: "
            "'127.0.0.1:7002' is in use already (line 9), expected unique addresses",
        ),
        (
            "http: 127.0.0.1:7202",
            "http: 127.0.0.1:7001",
            "9: replica_set.nodes[1].http: '127.0.0.1:7001' is in use already (line 8)",
        ),
        (
            "grpc: 127.0.0.1:7101",
            "grpc: 127.0.0.1:7001",
            "8: replica_set.nodes[0].grpc: '127.0.0.1:7001' is in use already (line 8)",
        ),
        (
            "address: 127.0.0.1:7003",
            "address: 127.0.0.1",
            "10: replica_set.nodes[2].address: '127.0.0.1' is not an address",
        ),
        (
            "address: 127.0.0.1:7003",
            "address: 127.0.0.1:70033",
            "10: replica_set.nodes[2].address: '127.0.0.1:70033' is not an address",
        ),
        ("address: 127.0.0.1:7003", "address: 127.0.0.1:x", "10: replica_set.nodes[2].address"),
        ("address: 127.0.0.1:7003", "address: 127.0.0.1:²", "10: replica_set.nodes[2].address"),
        (
            "address: 127.0.0.1:7003",
            "address: 'tcp://a:7003'",
            "10: replica_set.nodes[2].address: 'tcp://a:7003' is not an address",
        ),
        (
            "address: 127.0.0.1:7003",
            "address: 127.0.0.1:0",
            "10: replica_set.nodes[2].address: "
            "'127.0.0.1:0' has port 0, expected a port from 1 to 65535",
        ),
        ("address: 127.0.0.1:7003, ", "", "10: replica_set.nodes[2].address is missing"),
        (
            "data: var/n2",
            "data: var/n1",
            "9: replica_set.nodes[1].data: '/etc/hadron/var/n1' is in "
            "use already (line 8), expected a directory of its own",
        ),
        (", data: /srv/n3", "", "10: replica_set.nodes[2].data is missing, expected a directory"),
        (
            "data: /srv/n3",
            "data: ~nobody_has_this_name/x",
            "10: replica_set.nodes[2].data: '~nobody_has_this_name/x' cannot be a directory",
        ),
        (
            "    - {name: n3, role: replica, address: 127.0.0.1:7003, data: /srv/n3}",
            "    - n3",
            "10: replica_set.nodes[2] is the text 'n3', expected a mapping of keys to values",
        ),
        (
            "durability: os\n",
            "---\ncluster: other\n",
            "12: a second document, expected one replica set per file",
        ),
        ("  epoch: 1", "\tepoch: 1", "6: a tab in the indentation, expected spaces"),
        ("  epoch: 1", "  epoch: [1", "7: "),
    ],
)
def test_a_mistake_is_told_with_its_line(found: str, replaced: str, problem: str) -> None:
    assert found in GOOD
    problems = _problems(GOOD.replace(found, replaced, 1))
    assert len(problems) == 1, problems
    assert problems[0].startswith(problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", " the file is empty, expected a configuration with cluster and replica_set"),
        ("# nothing\n---\n", " the file is empty, expected"),
        ("- a\n", "1: the document is a list, expected a mapping of keys to values"),
        ("hello\n", "1: the document is the text 'hello', expected a mapping"),
        ("cluster: c\n", "1: replica_set is missing, expected its name, epoch and nodes"),
        ("cluster: c\nreplica_set: p0\n", "2: replica_set is the text 'p0', expected a mapping"),
        (
            "cluster: c\nreplica_set:\n  name: p0\n",
            "3: replica_set.nodes is missing, expected a "
            "list with one leader and any number of replicas",
        ),
        (
            "cluster: c\nreplica_set:\n  name: p0\n  nodes: n1\n",
            "4: replica_set.nodes is the text 'n1', expected a list of mappings",
        ),
        ("cluster: c\nreplica_set:\n  name: p0\n  nodes: []\n", "4: no node has role leader"),
    ],
)
def test_a_file_of_another_shape_is_refused(text: str, problem: str) -> None:
    (told,) = _problems(text)
    assert told.startswith(problem)


def test_everything_wrong_is_told_at_once() -> None:
    text = GOOD.replace("flights", "my flights").replace("epoch: 1", "epoch: 0")
    text = text.replace("durability: os", "durabilty: os\nkeepalive: soon")
    problems = _problems(text, {"HADRON_READER_THREADS": "no"})
    assert [problem.partition(" ")[0] for problem in problems] == [
        "environment",
        "1:",
        "6:",
        "11:",
        "12:",
    ]


def test_too_many_nodes_are_refused() -> None:
    nodes = "".join(
        f"    - {{name: n{i}, role: replica, address: 'h{i}:1', data: d}}\n" for i in range(4, 17)
    )
    (told,) = _problems(GOOD.replace("durability", f"{nodes}durability"))
    assert told == "7: 16 nodes, expected at most 15"


def test_one_path_on_several_hosts_is_fine() -> None:
    text = GOOD.replace("127.0.0.1:7002", "b:7001").replace("127.0.0.1:7003", "[::1]:7001")
    text = text.replace("address: [::1]:7001", "address: '[::1]:7001'")
    for data in ("var/n1", "var/n2", "/srv/n3"):
        text = text.replace(data, "/var/lib/hadron")
    assert {node.data for node in _parse(text).nodes} == {Path("/var/lib/hadron")}


def test_a_file_is_loaded_with_data_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "a" / "flights.yaml"
    file.parent.mkdir()
    file.write_text(GOOD.replace("var/n1", "../n1"))
    assert load_config(str(file), {}).leader.data == tmp_path / "n1"


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"cluster: c\n\x80\x81")
    for file, problem in (
        (tmp_path / "none.yaml", "there is no such file, expected a YAML file"),
        (tmp_path, "this is a directory, expected a YAML file"),
        (binary, "byte 0x80, which is not UTF-8, expected a YAML text file"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            load_config(file, {})
        assert str(file) in caught.value.message
        assert caught.value.message.endswith(problem)


def test_the_digest_covers_what_members_must_agree_on() -> None:
    digest = _parse(GOOD).digest
    agreed = b'[1,"flights","local/p0",1,[["n1","leader"],["n2","replica"],["n3","replica"]]]'
    assert digest == xxhash.xxh3_128_digest(agreed)
    assert digest.hex() == "166c6ccd56c61bb3ab3b27d937803874"
    lines = GOOD.splitlines(keepends=True)
    same = [
        GOOD.replace("7003", "7009"),
        GOOD.replace("/srv/n3", "/srv/other"),
        GOOD.replace("durability: os", "durability: fsync"),
        GOOD.replace(
            "metadata: local/p0\ndiscovery: [127",
            "metadata: other/p0\ndiscovery: [10.0.0.1:7001, 127",
        ),
        GOOD.replace(", grpc: 127.0.0.1:7101", ""),
        "".join([*lines[:7], lines[9], lines[8], lines[7], lines[10]]),
    ]
    different = [
        GOOD.replace("flights", "other"),
        GOOD.replace("local/p0", "local/p1"),
        GOOD.replace("epoch: 1", "epoch: 2"),
        GOOD.replace("n3", "n4"),
        GOOD.replace("leader, ", "replica,").replace("n2, role: replica", "n2, role: leader"),
        "".join([*lines[:9], lines[10]]),
    ]
    assert {_parse(text).digest for text in same} == {digest}
    digests = {_parse(text).digest for text in different}
    assert len(digests) == len(different)
    assert digest not in digests


def test_a_node_on_its_own(tmp_path: Path) -> None:
    config = single_node_config(tmp_path / "data", "127.0.0.1:0")
    assert config.members == ("n1",)
    assert config.leader.data == tmp_path / "data"
    assert (config.cluster, config.name, config.metadata, config.epoch) == (
        "dev",
        "local/p0",
        "local/p0",
        1,
    )
    with pytest.raises(ConfigurationError) as caught:
        single_node_config(tmp_path, "nowhere", cluster="a b", name="a/b/c", node="")
    for value in ("'nowhere'", "'a b'", "'a/b/c'", "''"):
        assert value in caught.value.message


def test_a_relative_directory_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert single_node_config(Path("data"), "h:1").leader.data == tmp_path / "data"


def test_rendered_the_file_says_the_same() -> None:
    config = _parse(GOOD)
    text = render(config)
    assert _parse(text) == config
    assert "data: var/n1" in text
    assert "data: /srv/n3" in text
    assert "keepalive" not in text


_segments = st.text(alphabet="-_aZ09", min_size=1, max_size=8)
_names = st.lists(_segments, min_size=1, max_size=3).map(".".join)
_set_names = st.lists(_names, min_size=1, max_size=2).map("/".join)
_hosts = st.sampled_from(["127.0.0.1", "localhost", "node-1.example", "[::1]", "on"])
_addresses = st.builds("{}:{}".format, _hosts, st.integers(1, 65535))
_settings = st.builds(
    Settings,
    durability=st.sampled_from(["fsync", "os"]),
    keepalive_s=st.integers(100, 9_999).map(lambda ms: ms / 1_000),
    checkpoint_bytes=st.integers(64 << 10, 1 << 40),
    disk_reserve_bytes=st.sampled_from([0, 1 << 43]),
    reader_threads=st.integers(1, 64),
    idle_commit_notice_s=st.integers(0, 10).map(lambda ms: ms / 1_000),
    log_format=st.sampled_from(["text", "json"]),
)


@st.composite
def _configs(draw: st.DrawFn) -> ReplicaSetConfig:
    names = draw(st.lists(_names, min_size=1, max_size=4, unique=True))
    count = len(names)
    addresses = draw(st.lists(_addresses, min_size=3 * count, max_size=3 * count, unique=True))
    paths = draw(
        st.lists(
            st.text(alphabet="ab ~#:'é.-", min_size=1, max_size=6).filter(
                lambda s: set(s) != {"."}
            ),
            min_size=count,
            max_size=count,
            unique=True,
        )
    )
    leader = draw(st.integers(0, count - 1))
    base = draw(st.sampled_from([FILE.parent, Path("/srv"), FILE.parent / "var"]))
    nodes = tuple(
        NodeConfig(
            name=name,
            role="leader" if index == leader else "replica",
            address=addresses[3 * index],
            grpc=addresses[3 * index + 1] if draw(st.booleans()) else None,
            http=addresses[3 * index + 2] if draw(st.booleans()) else None,
            listen=draw(st.sampled_from([None, "0.0.0.0:7000", "[::]:7000"])),
            data=base / paths[index],
        )
        for index, name in enumerate(names)
    )
    name = draw(_set_names)
    discovery = tuple(draw(st.lists(_addresses, min_size=1, max_size=3)))
    leads_on = not {each.lower() for each in discovery} <= {node.address.lower() for node in nodes}
    return ReplicaSetConfig(
        cluster=draw(_names),
        name=name,
        epoch=draw(st.integers(1, MAX_EPOCH)),
        nodes=nodes,
        metadata=draw(_set_names) if leads_on else name,
        discovery=discovery,
        settings=draw(_settings),
        insecure=True,
        path=FILE,
    )


@given(_configs())
def test_any_configuration_round_trips(config: ReplicaSetConfig) -> None:
    again = _parse(render(config))
    assert again == config
    assert again.digest == config.digest


@given(st.text(max_size=40), st.integers(0, len(GOOD)), st.integers(0, 20))
def test_a_damaged_file_is_read_or_refused(text: str, at: int, cut: int) -> None:
    with suppress(ConfigurationError):
        _parse(GOOD[:at] + text + GOOD[at + cut :])


def test_a_node_listens_elsewhere_than_others_dial_it() -> None:
    config = _parse(
        GOOD.replace("address: 127.0.0.1:7001,", 'address: a.example:7001, listen: "0.0.0.0:7000",')
    )
    assert config.leader.address == "a.example:7001"
    assert config.leader.listens_on == "0.0.0.0:7000"
    assert config.node("n2").listens_on == "127.0.0.1:7002"
    # Where a node listens is its own affair.
    assert config.digest == _parse(GOOD).digest
    assert _problems(GOOD.replace("data: var/n2", "listen: 127.0.0.1:0, data: var/n2")) == [
        "9: replica_set.nodes[1].listen: '127.0.0.1:0' has port 0, expected a port from 1 to 65535"
    ]


@pytest.mark.parametrize("address", ["0.0.0.0:7002", "[::]:7002", "[::0]:7002"])
def test_what_nobody_can_dial_is_no_address(address: str) -> None:
    told = f"'{address}' is every address of this machine, which others cannot dial, expected "
    (problem,) = _problems(GOOD.replace("127.0.0.1:7002", f'"{address}"'))
    assert told in problem
    assert "others reach; to listen on all, give the node `listen: 0.0.0.0:PORT`" in problem
    assert told in _problems(GOOD.replace("[127.0.0.1:7001]", f'["{address}"]'))[0]
    with pytest.raises(ConfigurationError, match="which others cannot dial"):
        single_node_config(Path("data"), address)


@pytest.mark.parametrize("address", ["10.0.0.1:7202", "0.0.0.0:7202", "[::]:7202", "a.example:1"])
def test_a_door_is_for_this_machine_unless_the_file_says_otherwise(address: str) -> None:
    for key, node, mine in (("http", "n2", "127.0.0.1:7202"), ("grpc", "n1", "127.0.0.1:7101")):
        text = GOOD.replace(f"{key}: {mine}", f'{key}: "{address}"')
        (problem,) = _problems(text)
        told = f"{node} has `{key}: {address}`, which others than this machine reach: there is no"
        assert told in problem
        assert "or `insecure: true` at the top of the file" in problem
        config = _parse(f"insecure: true\n{text}")
        assert config.insecure
        assert config.node(node).addresses[key] == address
    assert not _parse(f"insecure: false\n{GOOD}").insecure
    assert "expected true or false" in _problems(f"insecure: maybe\n{GOOD}")[0]


@pytest.mark.parametrize(
    ("address", "only_here"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("10.0.0.1:1", False),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("a.example:1", False),
    ],
)
def test_whether_others_reach_an_address(address: str, only_here: bool) -> None:
    node = NodeConfig(
        name="n1", role="leader", address="a.example:7000", data=Path("/d"), listen=address
    )
    config = ReplicaSetConfig(
        cluster="c", name="p0", epoch=1, nodes=(node,), metadata="p0", discovery=()
    )
    warnings = open_to_others(config, "n1")
    assert bool(warnings) != only_here
    assert all("there is no authentication and no TLS yet" in each for each in warnings)


def test_a_configuration_without_a_leader_says_so() -> None:
    """No file has one; one that was made in memory may."""
    config = parse_config(GOOD, FILE, {})
    replicas = tuple(node for node in config.nodes if node.role != "leader")
    with pytest.raises(ConfigurationError, match=r"local/p0 has no leader .*\(n2, n3\)"):
        _ = replace(config, nodes=replicas).leader
