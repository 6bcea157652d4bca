"""Pushes the schema from the metadata set's leader to every other set's: `push` carried out.

One task and one connection for each set that the directory knows. What leaves here is committed
(`Controller.query`, PROTOCOL A2); what arrives there is logged there before it is answered.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

import trio

from hadron.metadata.driver import SchemaDriver
from hadron.metadata.messages import changes_to, check_uuid, lost_to
from hadron.metadata.push import Ask, Push, Read, Refuse, Register, Send, Step, Wait
from hadron.model.backoff import Backoff
from hadron.model.errors import FrameError, HadronError, HandshakeError, SchemaError
from hadron.model.ids import last_index_beside
from hadron.model.ports import Network, Random
from hadron.partition.controller import Controller
from hadron.serving.catalog import Catalog
from hadron.serving.leading import Part
from hadron.state.adoption import changes_since
from hadron.state.registry import RegisterReplicaSet
from hadron.state.schema import lost_ranges
from hadron.wire.connection import Connection, Cork
from hadron.wire.dialing import dial, talk
from hadron.wire.messages import check_epoch, method, schema_pb2

_log = logging.getLogger(__name__)

_ADOPT: Final = method("AdoptSchema")

_ANSWER_TIMEOUT_S: Final = 15.0
"""For one part to be committed there: a majority that is away is waited for by asking again."""

_REFUSED_EVERY_S: Final = 20.0
"""A set that is refused says so for 60 s after it was told. One that refuses a push in parts has
logged all but the last of them: it gets none more often."""

_REFUSALS: Final = (HandshakeError, SchemaError, FrameError)
"""What a set that adopts a schema says of one that it cannot take; it never says otherwise where
neither side has moved."""


class Target(NamedTuple):
    """A replica set that is to have the schema."""

    name: str
    uuid: bytes
    """Empty while it is not known."""
    epoch: int
    address: str
    """Of its leader."""


class ReplicaSets(Protocol):
    """Who else is in the cluster: what the pusher needs of the directory."""

    @property
    def changed(self) -> trio.Event:
        """Set, and another one put in its place, whenever `targets` has changed."""
        ...

    def names(self) -> Sequence[str]:
        """Of every replica set that was heard of. Streams may name one that is not founded yet:
        it is told of them once it is."""
        ...

    async def seek(self, names: Collection[str]) -> None:
        """Return once `names()` has these, or nobody is left who may know of them."""
        ...

    def targets(self) -> Sequence[Target]:
        """Every replica set but this one; also two of one name, when another uuid with a higher
        epoch claims it."""
        ...


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who the metadata set is."""

    cluster: str
    replica_set: str
    uuid: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class Wires:
    """What connections to other sets are made of.

    Attributes:
        introduce: says on one which node this is (CLUSTER R11).
    """

    network: Network
    random: Random
    cork: Cork
    keepalive_s: float
    silence_limit_s: float
    introduce: Callable[[Connection], None]


class SchemaPusher(Part):
    """One per leadership of the metadata set. `run` must be running."""

    def __init__(
        self,
        own: Introduction,
        controller: Controller,
        catalog: Catalog,
        schema: SchemaDriver,
        sets: ReplicaSets,
        wires: Wires,
    ) -> None:
        self._own = own
        self._controller = controller
        self._catalog = catalog
        self._schema = schema
        self._sets = sets
        self._wires = wires
        self._moved = trio.Event()
        self._troubles: dict[Target, str] = {}
        catalog.listen(self._on_moved)

    def _on_moved(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    @property
    def troubles(self) -> list[str]:
        """Sets that the schema cannot be pushed to, and why."""
        return [
            f"the schema cannot be pushed to {target.name}: {self._troubles[target]}"
            for target in sorted(self._troubles)
        ]

    async def run(self) -> None:
        """Push to whoever is known, for ever."""
        scopes: dict[Target, trio.CancelScope] = {}
        async with trio.open_nursery() as nursery:
            while True:
                changed = self._sets.changed
                targets = dict.fromkeys(item for item in self._sets.targets() if item.address)
                for gone in [item for item in scopes if item not in targets]:
                    scopes.pop(gone).cancel()
                for target in targets:
                    if target not in scopes:
                        scopes[target] = trio.CancelScope()
                        nursery.start_soon(self._keep, target, scopes[target])
                await changed.wait()

    async def _keep(self, target: Target, scope: trio.CancelScope) -> None:
        backoff = Backoff(self._wires.random)
        with scope:
            while True:
                try:
                    await self._connect_and_push(target, backoff)
                except (HadronError, OSError) as error:
                    self._failed(target, error)
                await trio.sleep(backoff.next_s())
        # Being cancelled ends the connection, which is noted like any other end.
        self._troubles.pop(target, None)

    def _failed(self, target: Target, error: HadronError | OSError) -> None:
        is_passing = isinstance(error, OSError) or error.retryable
        text = error.strerror if isinstance(error, OSError) else None
        self._note(target, text or str(error), logging.INFO if is_passing else logging.WARNING)

    def _note(self, target: Target, trouble: str, level: int = logging.WARNING) -> None:
        if trouble and self._troubles.get(target) != trouble:
            _log.log(level, "the schema cannot be pushed to %s: %s", target.name, trouble)
        if trouble:
            self._troubles[target] = trouble
        else:
            self._troubles.pop(target, None)

    async def _connect_and_push(self, target: Target, backoff: Backoff) -> None:
        wires = self._wires
        connection = await dial(
            wires.network,
            target.address,
            cork=wires.cork,
            keepalive_s=wires.keepalive_s,
            silence_limit_s=wires.silence_limit_s,
        )
        await talk(connection, partial(self._converse, target, backoff))

    async def _converse(self, target: Target, backoff: Backoff, connection: Connection) -> None:
        """Push whatever changes until the connection ends; raises why."""
        self._wires.introduce(connection)
        push = Push(self._catalog.metadata_index, self._own.uuid)
        while True:
            moved = self._moved
            push.schema_moved(self._catalog.metadata_index)
            step = push.next()
            if isinstance(step, Wait):
                self._note(target, push.trouble)
                repeated = push.refusal
                with trio.move_on_after(_REFUSED_EVERY_S if repeated else math.inf) as waiting:
                    await _wait_while_open(connection, moved)
                if repeated and waiting.cancelled_caught:
                    await self._say(repeated, push, target, connection)
                continue
            await self._take(step, push, target, connection)
            if push.is_in_step:
                backoff.reset()

    async def _take(self, step: Step, push: Push, target: Target, connection: Connection) -> None:
        if isinstance(step, Read):
            push.has_read(
                await self._controller.query(
                    lambda db: changes_since(db, step.from_index, whole=step.whole)
                )
            )
        elif isinstance(step, Register):
            try:
                await self._schema.register(
                    RegisterReplicaSet(step.name, step.uuid, step.epoch, step.above_index)
                )
            except HandshakeError as error:
                await self._say(push.refused(str(error)), push, target, connection)
            else:
                push.registered()
        else:
            await self._say(step, push, target, connection)

    async def _say(self, step: Step, push: Push, target: Target, connection: Connection) -> None:
        """One request, and its answer. Whatever goes wrong ends the connection, and with it all
        that was believed of the other side."""
        lost = await self._controller.query(lost_ranges)
        request = schema_pb2.AdoptSchemaRequest(
            cluster=self._own.cluster,
            metadata=self._own.replica_set,
            uuid=self._own.uuid,
            epoch=self._own.epoch,
            lost=lost_to(lost),
        )
        if isinstance(step, Refuse):
            request.refusal = step.reason
        elif isinstance(step, Send):
            request.changes.CopyFrom(changes_to(step.changes))
            request.part, request.is_last = step.part, step.is_last
        else:
            assert isinstance(step, Ask)
        try:
            answer, _ = await connection.request(_ADOPT, request, timeout_s=_ANSWER_TIMEOUT_S)
        except _REFUSALS as error:
            passes = error.retryable and not isinstance(error, HandshakeError)
            if passes or connection.is_closed or not isinstance(step, Send):
                raise
            self._note(target, str(error))
            push.was_not_taken(str(error))
            # The parts before were logged: not again for each change that comes meanwhile.
            with trio.move_on_after(_REFUSED_EVERY_S if step.part else 0.0):
                await _wait_while_open(connection, trio.Event())
            return
        if answer.replica_set != target.name:
            raise HandshakeError(
                f"{target.address} leads {answer.replica_set!r}, not {target.name!r}",
                "two nodes were given the same address",
            )
        push.heard(
            answer.replica_set,
            check_uuid(answer.uuid),
            check_epoch(answer.epoch),
            self._check_index(answer.metadata_index),
            answer.source,
            answer.has_lost,
        )

    def _check_index(self, index: int) -> int:
        """Raises `FrameError` for one that this metadata set, and those before it, cannot have
        given: its own would go on above it, up to where there are no more."""
        own = self._catalog.metadata_index
        last = last_index_beside(own, self._own.epoch)
        if index > last:
            raise FrameError(
                f"it says that it knows the schema at index {index}: the metadata set stands at "
                f"{own}, in epoch {self._own.epoch}, and nobody can know more than {last}",
                "what it has was pushed by somebody else; restore it, or found it anew",
            )
        return index


async def _wait_while_open(connection: Connection, event: trio.Event) -> None:
    """Raises why the connection has ended when it does first."""
    async with trio.open_nursery() as nursery:

        async def end_with_connection() -> None:
            await connection.wait_closed()
            nursery.cancel_scope.cancel()

        nursery.start_soon(end_with_connection)
        await event.wait()
        nursery.cancel_scope.cancel()
    if connection.is_closed:
        raise await connection.wait_closed()
