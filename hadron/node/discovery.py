"""How replica sets find each other: carries the directory's statements between nodes.

A node speaks with the addresses in its `discovery:` and with some node of every set that it has
heard of, and both know the same afterwards. Nobody is asked for leave: sets may start in any order,
and whoever comes back is told what it missed. What must not be believed, `directory` decides; what
people should know about it is logged once, and stands in `hadron status` for as long as it is so.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import trio

from hadron import __version__
from hadron.model.errors import FrameError, HadronError, NotFoundError, PeerError
from hadron.model.ids import is_valid_name, is_valid_replica_set_name
from hadron.model.ports import Network, Random
from hadron.model.principals import NodeName, Principal
from hadron.model.problems import shorten
from hadron.model.replica_sets import KnownNode, KnownSet
from hadron.model.troubles import Troubles
from hadron.node.directory import Directory, Merged, describe_set
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.rounds import CALM_S, LONELY_S, Rounds
from hadron.node.set_messages import statement_to, statements_from
from hadron.wire.calls import Call, Origin, ignore_message
from hadron.wire.connection import Connection, Cork
from hadron.wire.dialing import dial, talk
from hadron.wire.messages import Method, cluster_pb2, method
from hadron.wire.services import Served, served

_log = logging.getLogger(__name__)
T = TypeVar("T")

_DISCOVER: Final = method("Discover")
_STATUS: Final = method("Status")
_TIMEOUT_S: Final = 3.0
"""For dialing, and for each answer."""
_RELAY_TIMEOUT_S: Final = 1.5
"""For another node's status: less than the commands wait that ask for it."""
_ASK_ALL_S: Final = 1.0
"""For everybody together, while a user waits."""
_CALLED_WITHIN_S: Final = 2 * LONELY_S
"""From this node's start: whoever waited for it has called by then."""
_PATIENCE_S: Final = 10.0
"""Before it is called a trouble that somebody is not there yet."""
_MAX_BAD: Final = 8
"""Statements of one node that are told of by themselves: who says more that cannot be must not
push all other troubles out."""


class Discovery:
    """One node's view of the cluster. `changed` is set, and replaced, whenever it changes.

    Args:
        uuid: the replica set's uuid, empty before it has one.
        agreed: whether a majority is known to serve by this node's configuration.
        started_ms: when this node started, by its own clock.
    """

    def __init__(
        self,
        config: ReplicaSetConfig,
        node: str,
        *,
        uuid: Callable[[], bytes],
        agreed: Callable[[], bool],
        started_ms: int,
        network: Network,
        random: Random,
        cork: Cork,
    ) -> None:
        self._config = config
        self._node = node
        self._uuid = uuid
        self._agreed = agreed
        self._started_ms = started_ms
        self._network = network
        self._cork = cork
        self._address = config.node(node).address
        self._peers = {each.name: each.address for each in config.nodes if each.name != node}
        members = {*self._peers.values(), self._address}
        self._strangers = [each for each in config.discovery if each not in members]
        self._rounds = Rounds(random, config.name, list(self._peers.values()), self._strangers)
        self._troubles = Troubles(lambda text: _log.warning("%s", text))
        self._began_s: float | None = None
        self._stirred = trio.Event()
        self.changed = trio.Event()
        self.directory = Directory(self._own(b""), node)

    def _own(self, uuid: bytes) -> KnownSet:
        return KnownSet(
            name=self._config.name,
            epoch=self._config.epoch,
            uuid=uuid,
            agreed=bool(uuid) and self._agreed(),
            nodes=tuple(
                KnownNode(each.name, each.role, self._address, self._started_ms)
                if each.name == self._node
                else KnownNode(each.name, each.role, each.address)
                for each in self._config.nodes
            ),
        )

    # --- what others read -----------------------------------------------------------------------

    def sets(self) -> tuple[KnownSet, ...]:
        """Every replica set of the cluster that is known here."""
        return self.directory.sets()

    def leader(self, replica_set: str) -> str | None:
        """The address of a replica set's leader; None when the set is unknown."""
        known = self.directory.find(replica_set)
        return None if known is None else known.leader.address

    def register(self, name: str, uuid: bytes, epoch: int) -> None:
        """The metadata set has given `name` to `uuid`: other sets of this name are refused."""
        before = {each.name: each for each in self.sets()}
        if self.directory.register(name, uuid, epoch):
            self._log_news(before)
            self._news()

    def topology(self) -> cluster_pb2.TopologyResponse:
        """The whole cluster, the metadata set first."""
        metadata = self._config.metadata
        known = sorted(self.sets(), key=lambda each: (each.name != metadata, each.name))
        return cluster_pb2.TopologyResponse(
            cluster=self._config.cluster,
            replica_set=self._config.name,
            node=self._node,
            version=__version__,
            metadata=metadata,
            replica_sets=[statement_to(each) for each in known],
        )

    def troubles(self) -> list[str]:
        """What people must know about the cluster, in words."""
        now_s = trio.current_time()
        told = self._troubles.standing(now_s)
        metadata = self._config.metadata
        # From the first moment: whoever asks whether all is well wants to create a stream next.
        if self._began_s is not None and self.directory.find(metadata) is None:
            told.append(
                f"the metadata replica set {metadata} is not known here, so the schema cannot "
                "change (does it run? is `metadata:` right, and an address in `discovery:` of a "
                "node that knows it?)"
            )
        return [*self.directory.troubles(now_s), *told]

    # --- this node's own part -------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Of this node, where others dial it."""
        return self._address

    def listens_at(self, address: str) -> None:
        """The address as bound, which others are to dial."""
        self._address = address

    def refresh(self) -> None:
        """Something about this node may have changed."""
        own = self._own(self._uuid())
        changed = self.directory.tell_own(own, trio.current_time())
        if own.agreed and own.name == self._config.metadata:
            # Nobody else gives the metadata set its name; a restored one has the higher epoch.
            changed |= self.directory.register(own.name, own.uuid, own.epoch)
        if changed:
            self._news()

    def _news(self) -> None:
        self._rounds.stir()
        self._stirred.set()
        self.changed.set()
        self.changed = trio.Event()

    async def run(self) -> None:
        """Speak with others, for ever."""
        if self._began_s is None:
            self._began_s = trio.current_time()
        self._rounds.begin_again()
        self.refresh()
        async with trio.open_nursery() as nursery:
            while True:
                now_s = trio.current_time()
                for address in self._rounds.due(now_s, self.sets()):
                    nursery.start_soon(self._speak, address)
                with trio.move_on_after(self._rounds.pause_s(trio.current_time())):
                    await self._stirred.wait()
                    self._stirred = trio.Event()

    async def seek(self, names: Collection[str]) -> None:
        """Return once these replica sets are known, or nobody is left who may know of them.

        Speaks at once with everybody, whether or not their time has come, for `_ASK_ALL_S`
        at most. A node that has just started also waits for those who find nobody but it: their
        next attempt may be `rounds.LONELY_S` away.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_known, names, nursery.cancel_scope)
            await self._ask_all()
            if self._began_s is not None:
                await trio.sleep_until(self._began_s + _CALLED_WITHIN_S)
            nursery.cancel_scope.cancel()

    async def _until_known(self, names: Collection[str], waiting: trio.CancelScope) -> None:
        while not {each.name for each in self.sets()}.issuperset(names):
            await self.changed.wait()
        waiting.cancel()

    async def _ask_all(self) -> None:
        known = {node.address for each in self.sets() for node in each.nodes}
        everybody = sorted({*self._strangers, *self._peers.values(), *known} - {self._address})
        with trio.move_on_after(_ASK_ALL_S):
            async with trio.open_nursery() as nursery:
                for address in everybody:
                    nursery.start_soon(self._speak, address)

    # --- speaking -------------------------------------------------------------------------------

    async def _speak(self, address: str) -> None:
        try:
            is_one_of_us = await self._with_connection(
                address, _TIMEOUT_S, partial(self._converse, address)
            )
        except (OSError, HadronError) as error:
            self._not_heard(address, error)
        else:
            if is_one_of_us:
                self._rounds.answered(address)
                self._troubles.forget(address)
            else:
                self._failed(address, trio.current_time())

    def _failed(self, address: str, now_s: float) -> None:
        is_lonely = self.directory.find(self._config.metadata) is None
        self._rounds.failed(address, now_s, LONELY_S if is_lonely else CALM_S)
        # The pause that `run` is in was chosen while this attempt was under way.
        self._stirred.set()

    def _not_heard(self, address: str, error: Exception) -> None:
        now_s = trio.current_time()
        self._failed(address, now_s)
        known = {node.address for each in self.sets() for node in each.nodes}
        began_s = now_s if self._began_s is None else self._began_s
        if address in known or now_s < began_s + _PATIENCE_S:
            # Whoever is known and away has a row of its own in `hadron status`.
            return
        reason = error.strerror or error if isinstance(error, OSError) else error
        self._troubles.meet(address, f"{address} in `discovery:` does not answer: {reason}", now_s)

    async def _converse(self, address: str, connection: Connection) -> bool:
        """Until both know the same; False when the other one belongs to another cluster."""
        for statements in ((), self.directory.statements()):
            request = cluster_pb2.DiscoverRequest(
                speaker=self._speaker(),
                digest=self.directory.digest(),
                replica_sets=[statement_to(each) for each in statements],
            )
            answer, _ = await connection.request(_DISCOVER, request, timeout_s=_TIMEOUT_S)
            if not self._heard(answer.speaker, address, dialed=True):
                return False
            self._take_in(answer.replica_sets, answer.speaker)
            if answer.digest == self.directory.digest():
                break
        return True

    def methods(self) -> tuple[Served, ...]:
        pb = cluster_pb2
        return (served("Discover", pb.DiscoverRequest, pb.DiscoverResponse, self._answer),)

    def _answer(
        self,
        call: Call[cluster_pb2.DiscoverRequest, cluster_pb2.DiscoverResponse],
        request: cluster_pb2.DiscoverRequest,
        _attachment: memoryview,
    ) -> None:
        self.refresh()
        response = cluster_pb2.DiscoverResponse(speaker=self._speaker())
        if self._heard(request.speaker, call.peer, dialed=False):
            self._take_in(request.replica_sets, request.speaker)
            self._recognize(call.origin, request.speaker)
            response.digest = self.directory.digest()
            if request.digest != response.digest:
                response.replica_sets.extend(map(statement_to, self.directory.statements()))
        call.send(response, end=True)

    def _recognize(self, origin: Origin, speaker: cluster_pb2.Speaker) -> None:
        """Whoever speaks as a node of the directory is taken for it (CLUSTER R11); a member that
        has shaken hands stays what it has shown to be."""
        known = self.directory.find(speaker.replica_set)
        if known is None or known.node(speaker.node) is None or origin.principal.node is not None:
            return
        origin.principal = Principal(NodeName(speaker.replica_set, speaker.node))

    def introduce(self, connection: Connection) -> None:
        """Say which node this is on a connection on which it asks, or clients' calls are to pass,
        and wait for no answer: a node that knows the speaker believes what it says of them."""
        own = self.directory.find(self._config.name)
        request = cluster_pb2.DiscoverRequest(
            speaker=self._speaker(),
            digest=self.directory.digest(),
            replica_sets=[] if own is None else [statement_to(own)],
        )
        connection.call(_DISCOVER, request, on_message=ignore_message)

    def _speaker(self) -> cluster_pb2.Speaker:
        return cluster_pb2.Speaker(
            cluster=self._config.cluster,
            replica_set=self._config.name,
            node=self._node,
            metadata=self._config.metadata,
        )

    def _take_in(self, messages: Any, other: cluster_pb2.Speaker) -> None:
        statements, bad = statements_from(messages)
        now_s = trio.current_time()
        who = f"node {other.node} of {other.replica_set}"
        for name, error in islice(bad.items(), _MAX_BAD):
            text = f"{who} says what cannot be: {error.message}"
            self._troubles.meet(f"bad {who} {name}", text, now_s)
        if len(bad) > _MAX_BAD:
            text = f"{who} says what cannot be of {len(bad)} replica sets"
            self._troubles.meet(f"bad {who}", text, now_s)
        before = {each.name: each for each in self.sets()}
        merged: Merged = self.directory.merge(statements, now_s, of=other.replica_set)
        for refused in merged.refused:
            self._troubles.log(refused.reason, now_s)
        if merged.changed:
            self._log_news(before)
            self._news()

    def _log_news(self, before: Mapping[str, KnownSet]) -> None:
        for known in self.sets():
            old = before.get(known.name)
            if old is None:
                _log.info("replica set %s is known now: %s", known.name, describe_set(known))
            elif (old.uuid, old.epoch) != (known.uuid, known.epoch):
                _log.info("replica set %s is now: %s", known.name, describe_set(known))

    def _heard(self, other: cluster_pb2.Speaker, peer: str, *, dialed: bool) -> bool:
        """Whether it belongs to this cluster; notes what does not fit, on both sides.

        Raises `FrameError` for names that no node has: they would stand in logs and on screens.
        """
        for name in (other.cluster, other.node):
            if not is_valid_name(name):
                raise FrameError(f"{peer} is called {shorten(name)}, which is not a name")
        for name in (other.replica_set, other.metadata):
            if not is_valid_replica_set_name(name):
                raise FrameError(f"{peer} is of {shorten(name)}, which is not a replica set's name")
        now_s = trio.current_time()
        own, who = self._config, f"node {other.node} of {other.replica_set}"
        if other.cluster != own.cluster:
            found = f"{who} belongs to cluster {other.cluster!r}, this node to {own.cluster!r}"
            if not dialed:
                # Of the whole set, and without the port: each of its calls comes from another one.
                host = peer.rpartition(":")[0]
                self._troubles.meet(
                    f"stranger {other.cluster} {other.replica_set} {host}",
                    f"nodes of {other.replica_set} on {host} call here: refused, they belong to "
                    f"cluster {other.cluster!r}, this node to {own.cluster!r} (is this node's "
                    "address in their `discovery:`?)",
                    now_s,
                )
            elif peer in self._strangers:
                self._troubles.meet(
                    peer,
                    f"{peer} in `discovery:` is refused: {found} (take the address "
                    "out, or correct `cluster:`)",
                    now_s,
                )
            else:
                self._troubles.meet(
                    peer,
                    f"{peer} is refused: {found} (it has the address of a node that "
                    "this cluster knows)",
                    now_s,
                )
            return False
        if other.metadata != own.metadata:
            self._troubles.meet(
                f"metadata {who}",
                f"{who} has `metadata: {other.metadata}`, this node `metadata: {own.metadata}`: "
                "one of the two configuration files is wrong",
                now_s,
            )
        return True

    # --- for clients that cannot reach every node -----------------------------------------------

    async def status_of(self, replica_set: str, node: str) -> cluster_pb2.StatusResponse:
        """What another node says of itself, asked from here.

        Raises `NotFoundError` for a node that is not known, `PeerError` when it does not answer.
        """
        address = self._address_of(replica_set, node)

        async def ask(connection: Connection) -> cluster_pb2.StatusResponse:
            self.introduce(connection)
            answer, _ = await connection.request(
                _STATUS, cluster_pb2.StatusRequest(), timeout_s=_RELAY_TIMEOUT_S
            )
            assert isinstance(answer, cluster_pb2.StatusResponse)
            return answer

        try:
            answer = await self._with_connection(address, _RELAY_TIMEOUT_S, ask)
        except OSError as error:
            raise PeerError(
                f"{address} does not answer {self._node} of {self._config.name} either: "
                f"{error.strerror or error}"
            ) from error
        if (answer.cluster, answer.replica_set, answer.node) != (
            self._config.cluster,
            replica_set,
            node,
        ):
            raise PeerError(
                f"{address} is node {answer.node} of {answer.replica_set} now, in cluster "
                f"{answer.cluster}"
            )
        return answer

    async def ask_leader(self, replica_set: str, method: Method, request: Any) -> Any:
        """One answer of a set's leader to one request, on a connection of its own. Raises
        `PeerError` for a set that is not known, else what dialing and asking raise."""
        address = self.leader(replica_set)
        if address is None:
            raise PeerError(f"no replica set is called {replica_set!r}")

        async def ask(connection: Connection) -> Any:
            self.introduce(connection)
            answer, _ = await connection.request(method, request, timeout_s=_RELAY_TIMEOUT_S)
            return answer

        return await self._with_connection(address, _RELAY_TIMEOUT_S, ask)

    def _address_of(self, replica_set: str, node: str) -> str:
        known = self.directory.find(replica_set)
        if known is None:
            names = ", ".join(each.name for each in self.sets())
            raise NotFoundError(
                f"no replica set is called {replica_set!r}", f"this node knows {names}"
            )
        found = known.node(node)
        if found is None:
            names = ", ".join(each.name for each in known.nodes)
            raise NotFoundError(f"{replica_set} has no node {node!r}", f"it has {names}")
        if replica_set == self._config.name:
            # By this node's own file, like everything between members.
            return self._peers.get(node, found.address)
        return found.address

    async def _with_connection(
        self, address: str, timeout_s: float, conversation: Callable[[Connection], Awaitable[T]]
    ) -> T:
        """Dial, talk, hang up. Raises what either raises, `OSError` when nobody is there."""
        connection = await dial(self._network, address, timeout_s=timeout_s, cork=self._cork)
        return await talk(connection, conversation)
