"""Serves exchanges on the leader: each with a machine, and all of them as a part of the leadership.

Everything runs in callbacks: what is published leaves in the same turn of the loop, and no task is
started but by a bridge that has to read what is no longer in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio

from hadron.exchanges.bridge import Bridge
from hadron.exchanges.machine import Exchange, Room, Session
from hadron.exchanges.parcels import Gaps, Parcel, Published, parts_of
from hadron.exchanges.port import ClientSink
from hadron.exchanges.rates import Rate
from hadron.model.errors import (
    HadronError,
    NotFoundError,
    NotReadyError,
    OverloadedError,
    ShuttingDownError,
)
from hadron.model.schema import SchemaObject
from hadron.model.services import ExchangeSpec
from hadron.serving.catalog import Catalog
from hadron.serving.leading import Part
from hadron.serving.visible import VisibleStreams

_log = logging.getLogger(__name__)


class ExchangeDriver:
    """One exchange with its clients.

    Attributes:
        not_logged: messages that its `to_stream` has not taken.
    """

    def __init__(
        self,
        item: SchemaObject,
        room: Room,
        find_stream: Callable[[str, str], SchemaObject],
        make_bridge: Callable[..., Bridge],
    ) -> None:
        """`find_stream`: with a namespace and a name. Raises `NotFoundError`."""
        self.item = item
        self.machine = Exchange(room)
        self.sinks: dict[Session, ClientSink] = {}
        self.published, self.delivered, self.dropped = Rate(), Rate(), Rate()
        self.not_logged = 0
        self.trouble = ""
        self._find_stream = find_stream
        self._make_bridge = make_bridge
        self._bridge: Bridge | None = None

    @property
    def spec(self) -> ExchangeSpec:
        assert isinstance(self.item.spec, ExchangeSpec)
        return self.item.spec

    # --- clients --------------------------------------------------------------------------------

    def attend(self, sink: ClientSink) -> Session:
        session = self.machine.attend(lambda: sink.writable)
        self.sinks[session] = sink
        sink.on_writable = lambda: self._pump(session)
        return session

    def leave(self, session: Session) -> None:
        self.machine.leave(session)
        self.sinks.pop(session, None)

    def subscribe(self, session: Session, wanted: Sequence[tuple[int, list[str], str]]) -> None:
        """(id, patterns, group) of each; those that are refused are told so."""
        sink = self.sinks.get(session)
        if sink is None:
            return
        self.bridge()
        if self._bridge is not None and not self.has_subscriptions:
            self._bridge.begin()
        done = []
        for id, patterns, group in wanted:
            try:
                self.machine.subscribe(session, id, patterns, group)
                done.append(id)
            except HadronError as error:
                sink.refuse(id, error)
        if done:
            sink.confirm(done)

    def unsubscribe(self, session: Session, ids: Sequence[int]) -> None:
        for id in ids:
            self.machine.unsubscribe(session, id)

    def _pump(self, session: Session) -> None:
        sink = self.sinks.get(session)
        while sink is not None and sink.writable:
            item = self.machine.next(session)
            if item is None:
                return
            _tell(sink, item)
            # To send may be to find that the client is gone.
            sink = self.sinks.get(session)

    # --- publishing -----------------------------------------------------------------------------

    @property
    def has_subscriptions(self) -> bool:
        return self.machine.has_subscriptions

    def publish(self, batches: Sequence[Published]) -> tuple[int, int]:
        """How many deliveries are on their way, and how many were dropped."""
        machine = self.machine
        published, deliveries, dropped = machine.published, machine.deliveries, machine.dropped
        now = trio.current_time()
        sends, idle = machine.publish(batches, now)
        for session, item in sends:
            sink = self.sinks.get(session)
            if sink is not None:
                _tell(sink, item)
        for session in idle:
            self._cut(session)
        self.published.add(machine.published - published, now)
        deliveries, dropped = machine.deliveries - deliveries, machine.dropped - dropped
        self.delivered.add(deliveries, now)
        self.dropped.add(dropped, now)
        return deliveries, dropped

    def publish_bridged(self, batches: Sequence[Published], without_topic: int) -> None:
        self.machine.without_topic += without_topic
        if batches:
            self.publish(batches)

    def _cut(self, session: Session) -> None:
        sink = self.sinks.get(session)
        if sink is None:
            return
        error = OverloadedError(
            f"{sink.peer} has read nothing from {self.item.label} for too long, and messages for "
            "it were dropped meanwhile",
            "take messages faster, subscribe to fewer topics, or share them in a group",
        )
        _log.warning("cut off: %s", error.message)
        self.leave(session)
        sink.fail(error)

    # --- its stream -----------------------------------------------------------------------------

    def bridge(self) -> None:
        """Have the stream published that its declaration names now, and no other: not one that was
        deleted, when it was made again under its name."""
        name, topic = self.spec.from_stream, self.spec.topic
        known, self.trouble = self._bridge, ""
        try:
            stream = self._find_stream(self.item.namespace, name) if name else None
            if known is not None and stream is not None and known.is_of(stream, topic):
                return
            self._close_bridge()
            if stream is not None:
                self._bridge = self._make_bridge(self, stream, topic)
        except HadronError as error:
            # The stream has not got here yet, perhaps: it is tried again once it has. Or it was
            # deleted by a metadata set that has lost this exchange (R7).
            self._close_bridge()
            self.trouble = f"nothing is published from {name}: {error.message}"

    def _close_bridge(self) -> None:
        if self._bridge is not None:
            self._bridge.close()
            self._bridge = None

    def interrupt(self, reason: HadronError) -> None:
        sinks, self.sinks = list(self.sinks.values()), {}
        self.machine.close()
        for sink in sinks:
            sink.fail(reason)

    def close(self, reason: HadronError) -> None:
        self._close_bridge()
        self.interrupt(reason)


def _tell(sink: ClientSink, item: Parcel | Gaps) -> None:
    if isinstance(item, Gaps):
        sink.tell_missed(item)
        return
    for part in parts_of(item):
        sink.deliver(part)


class Exchanges(Part):
    """All exchanges of a leadership that somebody uses."""

    def __init__(self, visible: VisibleStreams, catalog: Catalog, replica_set: str) -> None:
        self._visible = visible
        self._catalog = catalog
        self._replica_set = replica_set
        self._drivers: dict[int, ExchangeDriver] = {}
        self._room = Room()
        self._nursery: trio.Nursery | None = None
        catalog.listen(self._schema_changed)
        # The catalog knows a stream before there is anything of it to be read.
        visible.on_opened(self._opened)

    async def run(self) -> None:
        """Must be running for exchanges to be served."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                # Before the nursery is closed: nothing may be started in it any more.
                self._nursery = None
                self.stop(ShuttingDownError("this node does not serve the exchange any more"))

    def driver(self, item: SchemaObject) -> ExchangeDriver:
        """Raises `NotReadyError` when this leader does not serve yet, or no more."""
        if self._nursery is None:
            raise NotReadyError("this node does not serve exchanges yet, or no more")
        spec = item.spec
        assert isinstance(spec, ExchangeSpec)
        if spec.replica_set != self._replica_set:
            # Not that another node leads: who comes here has seen an older declaration.
            raise NotFoundError(
                f"exchange {item.name!r} lives on {spec.replica_set}, this is {self._replica_set}"
            )
        driver = self._drivers.get(item.id)
        if driver is None:
            driver = ExchangeDriver(item, self._room, self._find_stream, self._make_bridge)
            self._drivers[item.id] = driver
        return driver

    def _find_stream(self, namespace: str, name: str) -> SchemaObject:
        stream, _ = self._catalog.stream(namespace, name)
        return stream

    def _make_bridge(self, driver: ExchangeDriver, stream: SchemaObject, topic: str) -> Bridge:
        return Bridge(stream, topic, self._replica_set, self._visible, driver, self._start_soon)

    def _opened(self, _stream_id: int) -> None:
        for driver in self._drivers.values():
            driver.bridge()

    def _start_soon(self, task: Callable[..., Any]) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(task)

    def _schema_changed(self) -> None:
        for id, driver in list(self._drivers.items()):
            try:
                item = self._catalog.by_id(id)
            except NotFoundError as error:
                del self._drivers[id]
                driver.close(error)
                continue
            driver.item = item
            if driver.spec.replica_set != self._replica_set:
                del self._drivers[id]
                driver.close(
                    NotFoundError(
                        f"{item.label} has moved to {driver.spec.replica_set}", "subscribe again"
                    )
                )
            else:
                driver.bridge()

    def stop(self, reason: HadronError) -> None:
        drivers, self._drivers = list(self._drivers.values()), {}
        for driver in drivers:
            driver.close(reason)

    @property
    def troubles(self) -> list[str]:
        return [
            f"{driver.item.label}: {driver.trouble}"
            for driver in self._drivers.values()
            if driver.trouble
        ]
