"""What a node tells about itself: `hadron status` shows it."""

from __future__ import annotations

from collections.abc import Callable

from hadron import __version__
from hadron.node.replica_set import ReplicaSetConfig
from hadron.partition.controller import Controller
from hadron.replication.follower import FollowerLog
from hadron.replication.life import Course
from hadron.replication.peers import LinkState, PeerLink, PeerLinks
from hadron.storage.identity import Identity
from hadron.wire.messages import ballot_to, cluster_pb2


def peer_status(link: PeerLink, controller: Controller | None) -> cluster_pb2.StatusResponse.Peer:
    """One peer, as this node sees it."""
    # Whose file is old says so itself: else every other member would, each in its own words.
    trouble = "" if link.trouble == link.their_old_file else link.trouble
    state, match_lsn = link.state.value, 0
    if controller is not None:
        match_lsn = controller.quorum.persisted(link.name)
        feed = controller.feed_of(link.name)
        if link.state is LinkState.CONNECTED:
            straggler = controller.feeding.needs_snapshot.get(link.name)
            # Who does not count in majorities yet must not be taken for one that does, by people
            # who want to know whether the next node may be taken away.
            counts = feed is not None and controller.quorum.is_voter(link.name)
            in_sync = counts and match_lsn >= controller.committed_lsn
            state = "in sync" if in_sync else "catching up"
            if straggler is not None:
                state, trouble = "needs a snapshot", straggler.reason
    return cluster_pb2.StatusResponse.Peer(
        name=link.name,
        role=link.role,
        address=link.address,
        state=state,
        trouble=trouble,
        match_lsn=match_lsn,
    )


class StatusPage:
    """Puts a node's status together."""

    def __init__(
        self,
        config: ReplicaSetConfig,
        node: str,
        *,
        identity: Callable[[], Identity],
        follower: FollowerLog,
        links: PeerLinks,
        durability: str,
        started_ms: int,
        pid: int,
        connections: Callable[[], int],
    ) -> None:
        self._config = config
        self._node = config.node(node)
        self._identity = identity
        self._follower = follower
        self._links = links
        self._durability = durability
        self._started_ms = started_ms
        self._pid = pid
        self._connections = connections

    def describe(
        self, course: Course, controller: Controller | None, metadata_index: int
    ) -> cluster_pb2.StatusResponse:
        """The whole page. The chain is given with the lsn it belongs to."""
        head = self._follower.head
        return cluster_pb2.StatusResponse(
            cluster=self._config.cluster,
            replica_set=self._config.name,
            node=self._node.name,
            role=self._node.role,
            state=course.life,
            trouble=course.trouble,
            ballot=ballot_to(self._identity().promised),
            last_lsn=head.lsn,
            committed_lsn=self._follower.committed_lsn,
            applied_lsn=self._follower.stored_applied_lsn,
            chain=head.chain.hex(),
            durability=self._durability,
            metadata_index=metadata_index,
            version=__version__,
            started_ms=self._started_ms,
            connections=self._connections(),
            peers=[peer_status(link, controller) for link in self._links.links.values()],
            pid=self._pid,
            first_lsn=self._follower.anchor.lsn + 1,
            memories_missing=course.memories_missing,
            lacks_memory=not self._identity().is_member,
        )
