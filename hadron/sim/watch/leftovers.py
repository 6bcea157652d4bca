"""W9: what is over leaves nothing behind.

Whoever serves keeps something of everybody whom it serves: a lock, a place in a line, a note that
somebody is to be told. Where one of them stays when its reason is gone, nothing is wrong for hours;
then memory is full, or what nobody holds any more is refused to all. So when a world is healed, and
nobody asks for anything, all objects of a node are walked through: every table, list and queue in
them is empty, but for those that are named here, and what their kind allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, Final

from hadron.delivery.machine import Group
from hadron.model.ranges import RangeSet
from hadron.node.runtime import Node
from hadron.wire.budget import Budget
from hadron.wire.connection import Connection

_PRODUCT: Final = "hadron."
_CONTAINERS: Final = dict, list, set, deque
_NOT_OF_A_NODE: Final = ("hadron.sim", "hadron.fakes", "hadron.testing", "hadron.wire._pb")

MADE_ONCE: Final = """
    node.accepting:Acceptor _for_kept_places _handlers
    partition.observers:Observers _subscribed
    replication.life:Course _steps
    server.forwarding:ForwardingService _handlers
    serving.catalog:Catalog _listeners
    serving.leading:Leading _parts
    serving.lock_table:LockTable _listeners
    serving.visible:VisibleStreams _on_gone _on_opened
    state.machine:Feature commands declared deleted gathers leftovers seals statements
    state.machine:StateMachine _apply _gather _seal _statements
    wire.connection:Connection _handlers
"""
"""What code has put together as a node, or its leadership, was made."""

OF_NODES: Final = """
    client.connecting.topology:OneCluster _histories
    metadata.pusher:SchemaPusher _troubles
    node.accepting:Acceptor _open
    node.directory:Directory _registered _sets
    node.discovery:Discovery _peers _strangers
    node.leader_links:LeaderLinks _links
    node.leader_links:_Link _ways
    node.rounds:Rounds _tried
    replication.feeding:Feeding applied_by diverged feeds
    replication.learners:Learners _feeds
    replication.majority:MajorityRounds _answered _feeds
    replication.membership:Membership addresses
    replication.peers:PeerLinks links
    replication.quorum:Quorum _persisted _voters
    replication.stalls:MajorityStalls _feeds
    replication.starts:PeerStarts _members
    server.forwarding:ForwardingService _ways
    serving.catalog:Catalog replica_sets
    storage.identity:IdentityFile peer_starts
    storage.presence:Presence _known
    transactions.machine:Machine _unfinished
    transactions.part:Transactions away
    transactions.remotes:Remotes _remotes
    wire.connection:Connection _calls _scopes
"""
"""By node, or by replica set: of those that there are."""

OF_OBJECTS: Final = """
    delivery.groups:Groups _by_id _drivers
    endpoints.driver:Endpoints _streams
    endpoints.machine:Broker _watched endpoints
    exchanges.driver:Exchanges _drivers
    node.pipelines.outputs:StageOutputs _numbers
    pipelines.assignments:Assignments _assigned _taken
    pipelines.awaiting:Awaiting _followers
    pipelines.consumer:Consumer _inputs followers
    pipelines.dispatcher:Dispatcher definitions
    pipelines.driver:Pipelines _drivers _scopes
    serving.catalog:Catalog _by_id _by_name _gone _ids
    serving.lock_table:LockTable _ranges
    serving.retention:RetentionDriver _due_s _limits_seen _room
    serving.visible:VisibleStreams _begun _first _next _waiting _watchers
"""
"""By stream, group, pipeline, exchange or endpoint: of those that are declared, or were."""

WITH_BOUNDS: Final = """
    delivery.keys:KeyLines _ascending _current _lines _parked
    delivery.sessions:Silence _heap
    delivery.shelf:Shelf _batches
    delivery.shelf:Shelves _sizes
    delivery.waiting:Waiting _delayed _due _due_apart _firsts _items
    endpoints.choice:Choice _regions
    endpoints.latencies:Latencies _latest_s
    exchanges.rates:Rate _counts
    exchanges.routes:Routes _audiences _known
    model.troubles:Troubles _standing
    node.directory:Directory _refused
    pipelines.losses:Losses _by_run _ended _lost
    replication.feed:Packed bodies
    replication.feed:Ring _by_first _latest
    replication.follower:FollowerLog _configurations
    replication.life:Course _story
    replication.repair:Repairer _hopeless
    replication.snapshots:_Outgoing _chunks
    replication.trimming:LogHorizon _buckets
    replication.trimming:LogTrimmer _pins
    serving.visible:VisibleStreams _ends _order _recent
    storage.store:Readers _idle
    transactions.machine:Machine _effects
"""
"""What is remembered of the latest, so many bytes or so long, as long as it is in the log, and what
waits for people: that has bounds with rules of their own. What is in it is not looked at, but for
the keys of what waits."""

AT_MOST_ONE: Final = """
    serving.retention:RetentionDriver _came
    transactions.blocks:Blocks _blocks _callers
    transactions.callers:Callers _end _send
"""
"""Of streams, the one that was looked at last; of callers, a feature that does transactions itself.
Of clients' calls nothing is left."""


def _named(lines: str, kind: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines.strip().splitlines():
        owner, *attributes = line.split()
        found.update((f"{owner}.{attribute}", kind) for attribute in attributes)
    return found


KINDS: Final[Mapping[str, str]] = {
    **_named(MADE_ONCE, "made once"),
    **_named(OF_NODES, "of nodes"),
    **_named(OF_OBJECTS, "of objects"),
    **_named(WITH_BOUNDS, "with bounds"),
    **_named(AT_MOST_ONE, "at most one"),
}
"""By "module:Class.attribute", the module below `hadron`: what may be in it at rest."""


def left_by(node: Node) -> Iterator[str]:
    """What a node, which is at rest, holds and has no reason for."""
    catalog = node.member._schema_copy.catalog
    return leftovers(
        node,
        nodes=sum(1 + len(each.nodes) for each in node.discovery.sets()),
        objects=len(catalog._by_id) + len(catalog._gone),
    )


def leftovers(owner: Any, *, nodes: int, objects: int) -> Iterator[str]:
    """What the objects hold that `owner` refers to, beyond what there may be of each kind.

    Args:
        nodes: of the cluster, and its replica sets.
        objects: that are declared, or were.
    """
    # Each stream may have as many groups; of nodes some have been others before.
    most = {"of nodes": 4 * nodes, "of objects": 4 * (1 + objects), "at most one": 1}
    found = reached(owner)
    for where, count in sorted(kept(found).items()):
        kind = KINDS.get(where, "")
        if count > most.get(kind, count if kind else 0):
            yield f"room for {count} of what is over, in {where} (W9)"
    yield from _miscounted(found)
    yield from _busy_for_nobody(found)


def kept(objects: Iterable[Any]) -> Mapping[str, int]:
    """How much is in the fullest container of each attribute of these."""
    found: dict[str, int] = {}
    for each in objects:
        for name, value in _attributes(each):
            if isinstance(value, _CONTAINERS):
                where = _where(each, name)
                found[where] = max(found.get(where, 0), _fullest(value))
    return found


def reached(owner: Any) -> list[Any]:
    """All objects of the product that `owner` refers to, itself included."""
    found: list[Any] = []
    seen: set[int] = set()
    waiting: deque[Any] = deque([owner])
    # What is seen is held: the id of what is gone would be another one's.
    alive: list[Any] = []
    while waiting:
        each = waiting.popleft()
        if isinstance(each, MethodType):
            each = each.__self__
        if id(each) in seen:
            continue
        seen.add(id(each))
        alive.append(each)
        module = type(each).__module__
        if isinstance(each, (*_CONTAINERS, tuple, frozenset)):
            waiting.extend(each)
            if isinstance(each, dict):
                waiting.extend(each.values())
        elif f"{module}.".startswith(_PRODUCT) and not module.startswith(_NOT_OF_A_NODE):
            found.append(each)
            waiting.extend(
                value
                for name, value in _attributes(each)
                if KINDS.get(_where(each, name)) != "with bounds"
            )
    return found


def _where(owner: Any, attribute: str) -> str:
    """As `KINDS` names it."""
    cls = type(owner)
    return f"{cls.__module__.removeprefix(_PRODUCT)}:{cls.__qualname__}.{attribute}"


def _miscounted(objects: Sequence[Any]) -> Iterator[str]:
    """W2: what connections hold together, where those that have left have given all back."""
    connections = [each for each in objects if isinstance(each, Connection)]
    for budget in (each for each in objects if isinstance(each, Budget)):
        held = [each for each in connections if each._budget is budget]
        for what, counted, there in (
            ("bytes that connections hold", budget.held_bytes, [each._charged for each in held]),
            ("bytes that are being read", budget._reading_bytes, [each.reserved for each in held]),
            ("calls of connections", budget.calls, [each._answering for each in held]),
        ):
            if counted != sum(there):
                yield f"a count: {counted} {what}, and there are {sum(there)} (W2)"


def _busy_for_nobody(objects: Iterable[Any]) -> Iterator[str]:
    """G3: where nobody holds anything, a key is busy by a record that waits for somebody, or for
    those that stand in line behind it."""
    for group in (each for each in objects if isinstance(each, Group)):
        if group.keys is None:
            continue
        keys = group.keys
        waiting = RangeSet(group.waiting.ranges())
        if held := [offset for offset in keys._current if offset not in waiting]:
            yield f"keys of {len(held)} records that do not wait, {held[0]} the first (W9)"
        if lines := keys._lines.keys() ^ {*keys._current.values()}:
            yield f"lines of {len(lines)} keys that no record makes busy (W9)"
        if keys._noted != len(keys._current) + len(keys._parked):
            yield f"room for {keys._noted} records that are busy or in line (W9)"


def _fullest(container: Any) -> int:
    """How much is in it, or in one that it contains."""
    within = container.values() if isinstance(container, dict) else container
    return max(
        [len(container), *(_fullest(each) for each in within if isinstance(each, _CONTAINERS))]
    )


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(owner, "__dict__", {}).items()
    for cls in type(owner).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            mangled = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            if hasattr(owner, mangled):
                yield mangled, getattr(owner, mangled)
