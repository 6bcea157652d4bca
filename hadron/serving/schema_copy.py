"""A node's own copy of the schema, whatever its role: what it answers questions about it from.

While the node leads, this is the leadership's catalog; else it is read from the tables whenever a
change of the schema was applied. Safety rule: a table that may be ahead of the watermark, as that
of a leader that has stopped, is not read (PROTOCOL A2); what was known before stays known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import apsw
import trio

from hadron.model.errors import NotReadyError
from hadron.model.ports import Database
from hadron.partition.controller import Controller
from hadron.replication.follower import FollowerLog
from hadron.serving.catalog import Catalog, behind
from hadron.state import registry, schema
from hadron.state.adoption import changes_since, parse
from hadron.storage.database import read_transaction
from hadron.storage.log import get_meta
from hadron.storage.store import Store

T = TypeVar("T")


def load(db: Database) -> Catalog:
    """The whole schema as these tables have it."""
    return Catalog(
        schema.all_objects(db),
        schema.current_index(db),
        registry.registered_sets(db),
        schema.tombstones(db),
        schema.forgotten_index(db),
    )


class SchemaCopy:
    """One per opened data directory. `run` must be running.

    Attributes:
        changed: set, and another one put in its place, whenever the copy has changed.
    """

    def __init__(self, store: Store, follower: FollowerLog) -> None:
        self.changed = trio.Event()
        self._store = store
        self._follower = follower
        self._catalog: Catalog | None = None
        self._leading: Controller | None = None
        self._seen_lsn = -1
        self._wanted = trio.Event()
        self._wanted.set()

    # --- reading --------------------------------------------------------------------------------

    @property
    def index(self) -> int:
        """Where this copy stands; 0 while nothing is known."""
        return self._catalog.metadata_index if self._catalog is not None else 0

    @property
    def is_known(self) -> bool:
        return self._catalog is not None

    @property
    def catalog(self) -> Catalog:
        """Raises `NotReadyError` while it is not known what of the tables is committed."""
        if self._catalog is None:
            raise _unknown()
        return self._catalog

    async def at_least(self, index: int, max_wait_s: float) -> Catalog:
        """The catalog, once it stands at `index` or above.

        Raises `MetadataBehindError` when that takes longer than `max_wait_s`.
        """
        with trio.move_on_after(max_wait_s):
            while self.index < index:
                await self.changed.wait()
        catalog = self.catalog
        if catalog.metadata_index < index:
            raise behind(catalog.metadata_index, index)
        return catalog

    async def query(self, read: Callable[[Database], T]) -> T | None:
        """Read the tables. None when what they have of the schema is more than is visible: who asks
        again once it is `settled` holds no room meanwhile. Raises `NotReadyError` like `catalog`,
        also for a while after this node has led."""
        leading = self._leading
        if leading is None:
            found = await self._read_committed(read)
        else:
            found = await self._read_visible(read)
        if self._leading is not leading or (leading is None and found is None):
            # A leader's tables may be another history's by now.
            raise _unknown()
        return found

    async def _read_visible(self, read: Callable[[Database], T]) -> T | None:
        """As a leader: not all that was read is committed, but all of the schema is (PROTOCOL A2),
        whose every change takes an index."""

        def job(connection: apsw.Connection) -> tuple[T, int]:
            with read_transaction(connection):
                return read(connection), schema.current_index(connection)

        found, index = await self._store.readers.run(job)
        return found if index <= self.index else None

    async def settled(self) -> None:
        """Return once what the tables have now is committed; raises when leading ends."""
        if self._leading is not None:
            await self._leading.query(schema.current_index)

    # --- being told -----------------------------------------------------------------------------

    def lead(self, catalog: Catalog, controller: Controller) -> None:
        """This node leads: everything visible is in `catalog`."""
        self._catalog, self._leading = catalog, controller
        catalog.listen(self._tell)
        self._tell()

    def end_leading(self) -> None:
        """What the leadership has shown stays known."""
        self._leading = None
        # The tables may have more than the leadership has shown, by entries that are committed
        # later, or were applied before anybody asked which of them change the schema.
        self._seen_lsn = -1
        self._wanted.set()
        if self._catalog is not None:
            # They are what the leadership was, with all that it had in memory.
            self._catalog.forget_listeners()

    def note_applied(self) -> None:
        """This node has applied entries of its leader's."""
        if self._follower.schema_lsn != self._seen_lsn:
            self._wanted.set()

    async def run(self) -> None:
        """Keep a replica's copy in step, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if self._leading is None:
                follower = self._follower
                # Both are raised before the tables have it, `schema_lsn` before the COMMIT.
                self._seen_lsn = min(follower.schema_lsn, follower.stored_applied_lsn)
                await self._refresh()

    async def _refresh(self) -> None:
        known = self._catalog
        if known is not None:
            index = known.metadata_index
            changes = await self._read_committed(lambda db: changes_since(db, index))
            if changes is None:
                # Ahead of the watermark: whatever is applied next may have brought that up to it.
                self._seen_lsn = -1
                return
            if not changes.is_whole:
                if changes.to_index > index:
                    known.change(
                        changes.to_index,
                        objects=parse(changes.objects),
                        deleted=changes.deleted,
                        replica_sets=changes.replica_sets,
                    )
                    self._tell()
                return
        loaded = await self._read_committed(load)
        if loaded is None:
            self._seen_lsn = -1
        else:
            self._catalog = loaded
            self._tell()

    async def _read_committed(self, read: Callable[[Database], T]) -> T | None:
        """None when the tables may be ahead of the watermark, or are worth nothing."""

        def job(connection: apsw.Connection) -> tuple[T, int]:
            with read_transaction(connection):
                return read(connection), get_meta(connection, "applied_lsn")

        result, stood = await self._store.readers.run(job)
        follower = self._follower
        is_committed = (
            # Before the first entry there is no replica set, and nothing to know. What the tables
            # themselves say: of a leader that has just stopped, the last COMMIT may have come
            # before its report.
            0 < follower.committed_lsn >= max(stood, follower.applied_lsn) and not follower.diverged
        )
        return result if is_committed and self._leading is None else None

    def _tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


def _unknown() -> NotReadyError:
    return NotReadyError(
        "this node does not know yet which part of its schema is committed",
        "it does once it has met a majority of its replica set; ask another node",
    )
