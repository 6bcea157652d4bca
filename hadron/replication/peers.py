"""Links to the other members: dial, shake hands, keep the connection, start over when it ends.

Every node dials every other one. What a link knows of its peer feeds the ballot (who may count),
`hadron status` (who is away, whose configuration differs) and, on a leader, the peer's feed.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import trio

from hadron.model.backoff import Backoff
from hadron.model.errors import HadronError, HandshakeError, PeerError
from hadron.model.ports import Network, Random
from hadron.replication.entries import configuration_from
from hadron.replication.membership import Membership, check_peer, epoch_note
from hadron.wire.connection import Connection, Cork
from hadron.wire.dialing import dial, talk
from hadron.wire.messages import ballot_from, check_number, method, position_from, replication_pb2

_log = logging.getLogger(__name__)

_HANDSHAKE: Final = method("Handshake")
_FIRST_DELAY_S: Final = 0.05
_MAX_DELAY_S: Final = 2.0
_HANDSHAKE_TIMEOUT_S: Final = 5.0


class _OldCopyError(PeerError):
    """The disk of one of the two has gone back in time."""


class LinkState(enum.Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    MISMATCH = "mismatch"
    OLD_COPY = "old copy"


class PeerLink:
    """One peer. `connection` and `answer` are valid while `state` is CONNECTED."""

    def __init__(self, name: str, role: str, address: str) -> None:
        self.name = name
        self.role = role
        self.address = address
        self.state = LinkState.CONNECTING
        self.trouble = ""
        self.connection: Connection | None = None
        self.answer: replication_pb2.HandshakeResponse | None = None
        self.old_file = ""
        """That the node's own configuration file is older than the peer's, in words."""
        self.their_old_file = ""
        """That the peer's is older, in words; it is told by its own handshake and says so too."""


class PeerLinks:
    """All links of a node. `changed` is set, and replaced, whenever a link's state changes."""

    def __init__(
        self,
        membership: Membership,
        own_identity: Callable[[], replication_pb2.HandshakeRequest],
        note: Callable[[replication_pb2.HandshakeRequest], Awaitable[bool]],
        on_old_copy: Callable[[str], Awaitable[None]],
        *,
        network: Network,
        random: Random,
        cork: Cork,
        keepalive_s: float,
        silence_limit_s: float,
    ) -> None:
        """
        Args:
            note: told who a peer is; returns whether its disk is an old copy.
            on_old_copy: told of a peer that says this of this node's own disk.
        """
        self._note = note
        self._on_old_copy = on_old_copy
        self._membership = membership
        self._own_identity = own_identity
        self._network = network
        self._random = random
        self._cork = cork
        self._keepalive_s = keepalive_s
        self._silence_limit_s = silence_limit_s
        roles = dict(membership.members)
        self.links: Mapping[str, PeerLink] = {
            name: PeerLink(name, roles[name], membership.addresses[name])
            for name in membership.peers
        }
        self.changed = trio.Event()

    def connected(self) -> list[PeerLink]:
        return [link for link in self.links.values() if link.state is LinkState.CONNECTED]

    async def run(self) -> None:
        """Keep all links up, for ever."""
        async with trio.open_nursery() as nursery:
            for link in self.links.values():
                nursery.start_soon(self._keep, link)

    async def _keep(self, link: PeerLink) -> None:
        backoff = Backoff(self._random, _FIRST_DELAY_S, _MAX_DELAY_S)
        warned = ""
        while True:
            try:
                await self._connect_and_stay(link)
                backoff.reset()
                warned = ""
            except HandshakeError as error:
                self._set(link, LinkState.MISMATCH, str(error))
                if str(error) != warned:
                    warned = str(error)
                    _log.warning("the handshake with %s failed: %s", link.name, error)
            except _OldCopyError as error:
                self._set(link, LinkState.OLD_COPY, str(error))
            except (HadronError, OSError) as error:
                self._set(link, LinkState.CONNECTING, _reason(link, error))
            await trio.sleep(backoff.next_s())

    async def _connect_and_stay(self, link: PeerLink) -> None:
        """Returns once a connection has ended on which the handshake had succeeded."""
        connection = await dial(
            self._network,
            link.address,
            timeout_s=_HANDSHAKE_TIMEOUT_S,
            cork=self._cork,
            keepalive_s=self._keepalive_s,
            silence_limit_s=self._silence_limit_s,
        )
        await talk(connection, partial(self._stay, link))
        self._set(link, LinkState.CONNECTING, f"the connection to {link.address} ended")

    async def _stay(self, link: PeerLink, connection: Connection) -> None:
        try:
            await self._shake_hands(link, connection)
            await connection.wait_closed()
        finally:
            link.connection = None

    async def _shake_hands(self, link: PeerLink, connection: Connection) -> None:
        shown = self._own_identity()
        answer, _ = await connection.request(_HANDSHAKE, shown, timeout_s=_HANDSHAKE_TIMEOUT_S)
        _check_numbers(answer)
        own = self._own_identity()
        check_peer(self._membership, own.replica_set_uuid, answer.identity, link.name)
        if answer.is_old_copy:
            if shown.disk == own.disk:
                # Else another peer has said so meanwhile, and it may have been taught since.
                await self._on_old_copy(link.name)
            raise _seen_elsewhere(link)
        if await self._note(answer.identity):
            # It hears of it from us when it dials, and then it says so itself.
            raise _OldCopyError(
                f"the disk of {link.name} is an old copy; it counts once it has been taught"
            )
        link.connection, link.answer = connection, answer
        note = epoch_note(self._membership, link.name, answer.identity.epoch)
        if note:
            _log.warning("%s", note)
        is_ours = answer.identity.epoch > self._membership.epoch
        link.old_file, link.their_old_file = (note, "") if is_ours else ("", note)
        self._set(link, LinkState.CONNECTED, link.their_old_file)

    async def ask_again(
        self, link: PeerLink, timeout_s: float
    ) -> replication_pb2.HandshakeResponse:
        """What a connected peer says of itself now; `link.answer` stays as it was. Raises
        `HadronError` when it does not answer, or does not take this node for a peer any more: the
        link ends then, and the next one's handshake tells why."""
        connection = link.connection
        if connection is None:
            raise PeerError(f"{link.name} is not connected")
        answer, _ = await connection.request(_HANDSHAKE, self._own_identity(), timeout_s=timeout_s)
        assert isinstance(answer, replication_pb2.HandshakeResponse)
        try:
            _check_numbers(answer)
            check_peer(
                self._membership, self._own_identity().replica_set_uuid, answer.identity, link.name
            )
            if answer.is_old_copy:
                raise _seen_elsewhere(link)
        except HadronError:
            connection.close()
            raise
        return answer

    def _set(self, link: PeerLink, state: LinkState, trouble: str) -> None:
        if (link.state, link.trouble) != (state, trouble):
            link.state, link.trouble = state, trouble
            self.changed.set()
            self.changed = trio.Event()


def _check_numbers(answer: replication_pb2.HandshakeResponse) -> None:
    """Raises `FrameError` for numbers that no node has: whoever asks a link takes them as they are,
    also where an error would end the node."""
    ballot_from(answer.promised)
    position_from(answer.last)
    check_number("lsn", answer.committed_lsn)
    check_number("stamp", answer.now_ms)
    for configuration in answer.configurations:
        configuration_from(configuration)


def _seen_elsewhere(link: PeerLink) -> _OldCopyError:
    return _OldCopyError(f"{link.name} has seen a start of this node that its disk has not")


def _reason(link: PeerLink, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{link.address} does not answer: {error.strerror or error}"
    return str(error)
