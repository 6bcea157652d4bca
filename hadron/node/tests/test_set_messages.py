"""What a peer may say about a replica set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hadron.model.errors import FrameError
from hadron.model.replica_sets import KnownNode, KnownSet
from hadron.node.set_messages import statement_from, statement_to, statements_from

KNOWN = KnownSet(
    "eu/p0",
    3,
    b"u" * 16,
    (KnownNode("n1", "leader", "h1:7000", 12), KnownNode("n2", "replica", "[::1]:7000")),
    agreed=True,
    registered=2,
)


def test_a_statement_travels_whole() -> None:
    assert statement_from(statement_to(KNOWN)) == KNOWN
    assert statement_from(statement_to(replace(KNOWN, uuid=b""))).uuid == b""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a b"}, "'a b' is not a valid name"),
        ({"name": "a/b/c"}, "not a valid name"),
        ({"uuid": b"short"}, "a uuid of 5 bytes"),
        ({"epoch": 0}, "epoch 0"),
        ({"epoch": 1 << 63}, "out of range"),
        ({"registered": 1 << 63}, "out of range"),
        ({"epoch": 1 << 31}, "epoch 2147483648 is out of range, the highest is 2147483647"),
        ({"registered": 1 << 31}, "epoch 2147483648 is out of range"),
        ({"nodes": ()}, "0 leaders"),
        ({"nodes": (KNOWN.nodes[0], replace(KNOWN.nodes[1], role="leader"))}, "2 leaders"),
        ({"nodes": (KNOWN.nodes[0], replace(KNOWN.nodes[1], name="n1"))}, "2 nodes with 1 names"),
        ({"nodes": (replace(KNOWN.nodes[0], role="king"),)}, "'king' is not a role"),
        ({"nodes": (replace(KNOWN.nodes[0], address="nowhere"),)}, "not an address"),
        ({"nodes": (replace(KNOWN.nodes[0], name=""),)}, "not a valid name"),
        (
            {"nodes": (KNOWN.nodes[0], *(KnownNode(f"r{n}", "replica", "h:1") for n in range(15)))},
            "16 nodes",
        ),
    ],
)
def test_what_no_configuration_can_hold_is_refused(changes: dict[str, Any], message: str) -> None:
    bad = statement_to(replace(KNOWN, **changes))
    with pytest.raises(FrameError, match=message.replace("(", r"\(")):
        statement_from(bad)
    good, errors = statements_from([bad, statement_to(KNOWN)])
    assert good == [KNOWN]
    assert len(errors) == 1
