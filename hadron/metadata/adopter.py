"""The other end of a push: the leader of a replica set takes in the schema (PROTOCOL A4)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import trio

from hadron.metadata.messages import changes_from, check_uuid, lost_from
from hadron.metadata.push import SHOWN_OF_LOST
from hadron.model.errors import HandshakeError, NotReadyError
from hadron.model.problems import shorten
from hadron.model.troubles import Troubles
from hadron.partition.controller import Controller
from hadron.serving.catalog import Catalog
from hadron.serving.leading import Part
from hadron.state.adoption import AdoptObjects, current_source, what_was_lost
from hadron.state.schema import current_index
from hadron.wire.messages import check_epoch, schema_pb2

_log = logging.getLogger(__name__)

_PUSH: Final = "push"
"""The one trouble there is, by its key: what the latest push has met."""

_MAX_LOST_RANGES: Final = 1_024
"""The latest are looked for: as many as there are recoveries in one epoch (CLUSTER R7)."""


@dataclass(frozen=True, slots=True)
class Allegiance:
    """Who this replica set is, and which one it takes its schema from."""

    cluster: str
    replica_set: str
    uuid: bytes
    epoch: int
    metadata: str
    """The metadata set's name."""


class SchemaAdopter(Part):
    """One per leadership."""

    def __init__(self, allegiance: Allegiance, controller: Controller, catalog: Catalog) -> None:
        self._allegiance = allegiance
        self._controller = controller
        self._catalog = catalog
        self._troubles = Troubles(lambda text: _log.warning("%s", text))

    async def adopt(self, request: schema_pb2.AdoptSchemaRequest) -> schema_pb2.AdoptSchemaResponse:
        """Log what was pushed; answers with where the schema stands then, committed.

        Raises `HandshakeError` for a metadata set that is not this set's, `SchemaError` for what
        does not follow.
        """
        try:
            self._check(request)
            if request.HasField("changes"):
                await self._controller.execute(_command(request))
            lost = lost_from(request.lost, check_epoch(request.epoch))[-_MAX_LOST_RANGES:]
            index, source, has_lost = await self._controller.query(
                lambda db: (
                    current_index(db),
                    current_source(db),
                    what_was_lost(db, lost, SHOWN_OF_LOST + 1),
                )
            )
        except HandshakeError as error:
            self._note(str(error))
            raise
        self._note(request.refusal)
        own = self._allegiance
        return schema_pb2.AdoptSchemaResponse(
            replica_set=own.replica_set,
            uuid=own.uuid,
            epoch=own.epoch,
            metadata_index=index,
            source=source[0] if source is not None else b"",
            has_lost=has_lost,
        )

    def _check(self, request: schema_pb2.AdoptSchemaRequest) -> None:
        own = self._allegiance
        if (request.cluster, request.metadata) != (own.cluster, own.metadata):
            raise HandshakeError(
                f"a schema was pushed by {shorten(request.metadata)} of cluster "
                f"{shorten(request.cluster)}; "
                f"{own.replica_set} takes it from {own.metadata!r} of cluster {own.cluster!r}",
                "compare `cluster:` and `metadata:` in the configuration files of both",
            )
        if own.metadata == own.replica_set:
            raise HandshakeError(f"{own.replica_set} is the metadata set itself, it adopts nothing")

    def check_registered(self) -> None:
        """Raises `NotReadyError` unless the name is known to belong to this set, and to no other
        that has it too (PROTOCOL E1): what it calls its own is so for all others then."""
        own = self._allegiance
        registered = self._catalog.replica_sets.get(own.replica_set)
        if own.metadata != own.replica_set and (registered is None or registered.uuid != own.uuid):
            raise NotReadyError(
                self.trouble
                or f"{own.metadata} has not told {own.replica_set} yet that it is registered, and "
                "before that it takes part in no transactions",
                "ask again; `hadron status` tells whether the two reach each other",
            )

    @property
    def trouble(self) -> str:
        """Why the metadata set does not know this set, or this set does not take its word; "" when
        neither is so, or nobody has said so for a while: anybody may have pushed once."""
        return "".join(self.troubles)

    @property
    def troubles(self) -> list[str]:
        return self._troubles.standing(trio.current_time())

    def _note(self, trouble: str) -> None:
        if trouble:
            self._troubles.meet(_PUSH, trouble, trio.current_time())
        else:
            self._troubles.forget(_PUSH)


def _command(request: schema_pb2.AdoptSchemaRequest) -> AdoptObjects:
    changes = changes_from(request.changes, check_epoch(request.epoch))
    return AdoptObjects(
        check_uuid(request.uuid),
        request.epoch,
        changes.from_index,
        changes.to_index,
        request.part,
        request.is_last,
        changes.is_whole,
        changes.objects,
        changes.deleted,
        changes.replica_sets,
        changes.lost,
    )
