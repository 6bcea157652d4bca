"""Drives the broker of a leadership: its clock, what is declared, and when streams are told.

No task works for a call: what comes in is dealt with where it is heard, and what follows from it is
sent at the end of that turn, on each stream as one message.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

import trio

from hadron.endpoints.endpoint import Endpoint
from hadron.endpoints.machine import Broker, Key
from hadron.model.errors import HadronError, NotFoundError
from hadron.model.ports import Random
from hadron.model.services import EndpointSpec
from hadron.serving.catalog import Catalog
from hadron.serving.leading import Part

_BEAT_S: Final = 0.25
"""Silence is looked for so often while there are servers that say something in time."""


class Stream(Protocol):
    """Of a caller or a server, on which something waits to be said."""

    def flush(self) -> None:
        """Say it."""
        ...

    def close(self, error: HadronError) -> None:
        """Say nothing more, for this reason."""
        ...


class Endpoints(Part):
    """All endpoints of a leadership. `run` must be running for anything to end by time.

    Attributes:
        broker: decides; after it was told something, `settle` sends what follows.
    """

    def __init__(self, catalog: Catalog, replica_set: str, random: Random) -> None:
        self._catalog = catalog
        self._replica_set = replica_set
        self._streams: dict[Stream, None] = {}
        self._touched: dict[Stream, None] = {}
        self._sleeps_until_s = math.inf
        self._wake = trio.Event()
        self.broker = Broker(random, trio.current_time())
        self._declare()
        catalog.listen(self._changed)

    async def run(self) -> None:
        """Look at what is over its time, until cancelled."""
        broker = self.broker
        while True:
            broker.tick(trio.current_time())
            self.settle()
            due_s = broker.next_s
            if broker.has_watched:
                due_s = min(due_s, trio.current_time() + _BEAT_S)
            self._sleeps_until_s = due_s
            self._wake = trio.Event()
            with trio.move_on_at(due_s):
                await self._wake.wait()

    def due(self, at_s: float) -> None:
        """Something new ends then, unless it is over before."""
        if at_s < self._sleeps_until_s:
            self._sleeps_until_s = -math.inf
            self._wake.set()

    # --- streams ----------------------------------------------------------------------------------

    def attach(self, stream: Stream) -> None:
        self._streams[stream] = None

    def detach(self, stream: Stream) -> None:
        self._streams.pop(stream, None)
        self._touched.pop(stream, None)

    def touch(self, stream: Stream) -> None:
        """Something waits to be said there."""
        self._touched[stream] = None

    def settle(self) -> None:
        """Say what waits to be said, everywhere; and wake in time for what follows from it."""
        while self._touched:
            # One by one: where a connection breaks, its streams are detached meanwhile.
            stream = next(iter(self._touched))
            del self._touched[stream]
            stream.flush()
        # A call that was begun, or that a server was given: it may be hedged before that is over.
        self.due(self.broker.next_s)

    def stop(self, reason: HadronError) -> None:
        streams, self._streams = list(self._streams), {}
        self._touched.clear()
        for stream in streams:
            stream.close(reason)

    # --- what is declared -------------------------------------------------------------------------

    def _changed(self) -> None:
        self._declare()
        self.settle()

    def _declare(self) -> None:
        declared: dict[Key, EndpointSpec] = {}
        for item in self._catalog.all():
            if isinstance(item.spec, EndpointSpec) and item.spec.replica_set == self._replica_set:
                declared[item.namespace, item.name] = item.spec
        self.broker.declare(declared)

    def check_known(self, key: Key, metadata_index: int) -> None:
        """Raises `MetadataBehindError` when the caller has seen more of the schema than this leader
        has heard of, and `NotFoundError` when what it names is not here."""
        # First: by an older declaration the right server, and the right call, have the wrong shape.
        self._catalog.check_index(metadata_index)
        if key in self.broker.endpoints:
            return
        item = self._catalog.named("Endpoint", *key)
        assert isinstance(item.spec, EndpointSpec)
        raise NotFoundError(
            f"endpoint {key[0]}/{key[1]} lives on {item.spec.replica_set}, this is "
            f"{self._replica_set}",
            "ask the leader of that one",
        )

    def found(self, namespace: str, name: str) -> list[tuple[Key, Endpoint]]:
        """The endpoints here: one, or all of a namespace where no name is given."""
        return [
            (key, endpoint)
            for key, endpoint in sorted(self.broker.endpoints.items())
            if key[0] == namespace and name in ("", key[1])
        ]
