"""Who makes a call that came through another node: decided by who says so."""

from __future__ import annotations

import pytest

from hadron.model.errors import FrameError
from hadron.model.principals import ANONYMOUS, NodeName, Principal
from hadron.wire.forwarded_calls import Caller, vouched

NODE, OTHER = NodeName("eu/p0", "n1"), NodeName("us/p0", "n2")
A_CLIENT, A_NODE = Caller(peer="x:1"), Caller(peer="x:1", replica_set="us/p0", node="n2")


@pytest.mark.parametrize("caller", [A_CLIENT, A_NODE, Caller()])
def test_who_is_no_node_calls_for_itself(caller: Caller) -> None:
    assert vouched(ANONYMOUS, caller) == ANONYMOUS


@pytest.mark.parametrize(("caller", "node"), [(A_CLIENT, None), (Caller(), None), (A_NODE, OTHER)])
def test_a_node_is_believed_and_named(caller: Caller, node: NodeName | None) -> None:
    assert vouched(Principal(NODE), caller) == Principal(node, forwarded_by=NODE)


@pytest.mark.parametrize(
    "caller",
    [Caller(node="n2"), Caller(replica_set="us/p0"), Caller(replica_set="us/p0", node="\n")],
)
def test_names_that_no_node_has_are_refused(caller: Caller) -> None:
    with pytest.raises(FrameError, match="node n1 of eu/p0 forwards for somebody"):
        vouched(Principal(NODE), caller)


def test_a_principal_says_who_it_is() -> None:
    said = [ANONYMOUS, Principal(NODE), Principal(None, NODE), Principal(OTHER, NODE)]
    assert list(map(str, said)) == [
        "a client",
        "node n1 of eu/p0",
        "a client through node n1 of eu/p0",
        "node n2 of us/p0 through node n1 of eu/p0",
    ]
