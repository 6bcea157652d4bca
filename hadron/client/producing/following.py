"""What becomes of a producer's stream while that is open: partitions are added, or it ends.

Rule: what the client has been told of the stream, the producer goes by before whoever asked has the
answer (PROTOCOL D3). Only a producer's name takes time at a partition that was added: one task
claims it, until it has, as two would shut each other out (PROTOCOL D6).
"""

from __future__ import annotations

import logging

import anyio

from hadron.client.connecting.session import Session
from hadron.client.producing.naming import Naming
from hadron.client.producing.publisher import Publisher
from hadron.client.producing.router import Router
from hadron.client.producing.settings import ProducerSettings
from hadron.client.schema.catalog import Catalog
from hadron.model.backoff import Backoff
from hadron.model.errors import HadronError, NotFoundError, ProducerFencedError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.wire.messages import streams_pb2

_log = logging.getLogger(__name__)


class Following:
    """One producer's; it hears of changes from the beginning, and acts on them once it has begun.

    Args:
        item: the stream as it was looked up.
        opening: what senders are made with, and kept at the index at which the stream has all of
            their partitions: a leader there which has not heard of that says that it is behind.
    """

    def __init__(
        self,
        session: Session,
        catalog: Catalog,
        item: SchemaObject,
        settings: ProducerSettings,
        opening: streams_pb2.ProduceRequest,
    ) -> None:
        self._session = session
        self._catalog = catalog
        self._now: SchemaObject | None = item
        self._settings = settings
        self._opening = opening
        self._parts: tuple[Router, Publisher, Naming | None] | None = None
        self._claiming: anyio.CancelScope | None = None
        self._forget = catalog.follow(item, self._told)

    def begin(self, router: Router, publisher: Publisher, naming: Naming | None) -> None:
        self._parts = router, publisher, naming
        publisher.stop_following = self.stop
        publisher.look_again = self._look_again
        self._go_by()

    def stop(self) -> None:
        self._forget()
        if self._claiming is not None:
            self._claiming.cancel()

    def _told(self, now: SchemaObject | None) -> None:
        self._now = now
        self._go_by()

    def _go_by(self) -> None:
        if self._parts is None:
            return
        router, publisher, naming = self._parts
        now, name = self._now, self._opening.stream
        if now is None:
            publisher.end(
                NotFoundError(
                    f"stream {name!r} was deleted",
                    "where another one has its name now, make another producer for that one",
                )
            )
            return
        assert isinstance(now.spec, StreamSpec)
        if gone := [each for each in router.partitions if each not in now.spec.partitions]:
            # Over those that are left keys are spread anew: by another producer.
            publisher.end(
                NotFoundError(
                    f"stream {name!r} has no partition {gone[0]!r} any more",
                    "make another producer",
                )
            )
            return
        for request in (self._opening, *(sender.request for sender in router.senders)):
            request.metadata_index = now.metadata_index
        if naming is not None and self._unclaimed(naming):
            if self._claiming is None:
                self._claiming = self._session.background.start(self._claim, publisher, naming)
        elif router.extend(self._settings.choose(now)):
            _log.info("stream %s has the partitions %s now", name, router.partitions)
            publisher.grown()

    async def _claim(self, publisher: Publisher, naming: Naming) -> None:
        """Claim the name where it is not yet, also what is added meanwhile; then use all of it: in
        another order keys would go elsewhere than other producers' do."""
        backoff = Backoff(self._session.ports.random)
        is_told = False
        while names := self._unclaimed(naming):
            try:
                await naming.open(self._opening, names)
            except ProducerFencedError as error:
                publisher.end(error)
                return
            except HadronError as error:
                if not is_told:
                    is_told = True
                    _log.warning("stream %s has more partitions: %s", self._opening.stream, error)
                await anyio.sleep(backoff.next_s())
        self._claiming = None
        self._go_by()

    def _unclaimed(self, naming: Naming) -> list[str]:
        if self._now is None:
            return []
        return [each for each in self._settings.choose(self._now) if each not in naming.claims]

    async def _look_again(self) -> None:
        """Ask anew: a leader knows nothing of the stream, or of a partition."""
        self._catalog.forget(self._opening.stream)
        try:
            await self._catalog.stream(self._opening.stream)
        except NotFoundError:
            self._told(None)
        except HadronError as error:
            _log.debug("stream %s was not looked up again: %s", self._opening.stream, error)
