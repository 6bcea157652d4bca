"""Changes the schema on the metadata set's leader: validated as a whole, logged as one entry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import trio

from hadron.metadata.deletion import meant, validate_deletion
from hadron.metadata.diff import Change, overtaken, plan
from hadron.metadata.homes import unheard, with_partitions
from hadron.metadata.judging import Key, key_of
from hadron.metadata.losses import CountKept, losses
from hadron.metadata.tokens import keep_hashes, missing_hashes
from hadron.metadata.validation import RULES, Own, validate
from hadron.model.documents.problem import Problem, schema_error
from hadron.model.errors import NotLeaderError, RequestError
from hadron.model.limits import MAX_MESSAGE_BYTES
from hadron.model.schema import RegisteredSet, SchemaObject, Tombstone, spec_to_json
from hadron.partition.controller import Controller
from hadron.serving.catalog import Catalog
from hadron.serving.leading import Part
from hadron.state.registry import RegisterReplicaSet
from hadron.state.schema import ApplySchema, Deleted, DeleteObjects, ObjectChange

T = TypeVar("T")

_OBJECT_BYTES: Final = 64
"""Of an object in a message beside its names and its specification: kind, id, index, lengths."""


_SEEKERS: Final = 4
"""Who may have everybody asked at the same time for replica sets that nobody has heard of."""

_QUESTIONS: Final = 16
"""Asked of leaders at the same time, each on a connection of its own, of what streams have: an
apply may shorten thousands, and with all at once they were not answered in time."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The schema that a change is judged against, and logged on: no part of it is looked up anew,
    for others may have moved it by then.

    Attributes:
        gone_since: what was deleted after the index that was asked for.
        forgotten_index: of what was deleted up to here not all is in `gone_since`.
    """

    objects: dict[Key, SchemaObject]
    index: int
    gone_since: tuple[Tombstone, ...]
    forgotten_index: int

    @classmethod
    def of(cls, catalog: Catalog, since: int | None) -> Standing:
        gone = () if since is None else tuple(catalog.deleted_since(since))
        return cls(catalog.by_key(), catalog.metadata_index, gone, catalog.forgotten_index)


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    result: T
    has_logged: bool


@dataclass(frozen=True, slots=True)
class _Counted:
    """What limits drop, and of which streams, as they stood when this was asked."""

    streams: dict[Key, SchemaObject | None]
    lost: dict[tuple[Key, str], str]


class SchemaDriver(Part):
    """One per leadership. Changes run one after another; each is judged against the one before.

    Args:
        replica_sets: the names of the cluster's replica sets, as far as they are known.
        seek: waits until these are among them, or nobody is left who may know of them.
        count_kept: asks whoever has a stream's records how many.
        metadata: the set that owns the schema; "" when that is this one.
    """

    def __init__(
        self,
        controller: Controller,
        catalog: Catalog,
        replica_sets: Callable[[], Collection[str]],
        seek: Callable[[Collection[str]], Awaitable[None]],
        count_kept: CountKept,
        metadata: str = "",
    ) -> None:
        self._controller = controller
        self._catalog = catalog
        self._replica_sets = replica_sets
        self._seek = seek
        self._count_kept = count_kept
        self._metadata = metadata
        self._one_at_a_time = trio.Lock()
        self._seekers = trio.CapacityLimiter(_SEEKERS)
        self._questions = trio.CapacityLimiter(_QUESTIONS)

    async def apply(
        self,
        objects: Sequence[SchemaObject],
        *,
        dry_run: bool,
        allow_destructive: bool,
        since: int | None = None,
    ) -> tuple[list[Change], int]:
        """All of `objects` valid, or nothing changes.

        Returns what happened to each object and the metadata index after it. With `dry_run`, what
        would happen. With `since`, a metadata index, what was changed after it is not changed once
        more. Raises `SchemaError` listing every problem, `RequestError` for more than an
        answer can hold, `NotLeaderError` when another set owns the schema, `NotReadyError` when no
        majority says that this node still leads.
        """
        self._check_owns()
        await self._seek_homes(objects)
        counted = None if allow_destructive else _Counted({}, {})
        if counted is not None and not dry_run:
            # It may take long, and nobody else's change waits for it.
            await self._count(objects, Standing.of(self._catalog, since), counted)

        async def change(stands: Standing) -> _Outcome[tuple[list[Change], int]]:
            changes = await self._plan(objects, stands, since, counted, is_dry=dry_run)
            if dry_run or all(change.action == "unchanged" for change in changes):
                return _Outcome((changes, stands.index), has_logged=False)
            return _Outcome(await self._log(changes, stands.index), has_logged=True)

        return await self._confirmed(change, since, is_dry=dry_run)

    async def _seek_homes(self, objects: Sequence[SchemaObject]) -> None:
        """Whoever declares a stream may know of a set a moment before this node does. Nobody else's
        change waits for it."""
        if unheard(objects, self._catalog.find, self._replica_sets()):
            async with self._seekers:
                if names := unheard(objects, self._catalog.find, self._replica_sets()):
                    await self._seek(names)

    async def _count(
        self, objects: Sequence[SchemaObject], stands: Standing, counted: _Counted
    ) -> None:
        """Ask what limits drop, of the streams that are others than when this was asked."""
        existing = stands.objects
        anew = [
            obj
            for obj in with_partitions(objects, existing, ())
            if existing.get(key_of(obj)) is not counted.streams.get(key_of(obj))
        ]
        now_ms = self._controller.log_now_ms()
        lost = await losses(anew, existing, self._count_kept, now_ms, self._questions)
        counted.lost.update(lost)
        counted.streams.update({key_of(obj): existing.get(key_of(obj)) for obj in anew})

    async def _plan(
        self,
        objects: Sequence[SchemaObject],
        stands: Standing,
        since: int | None,
        counted: _Counted | None,
        *,
        is_dry: bool,
    ) -> list[Change]:
        """What applying `objects` would do; raises as `apply` does. Who insists has nothing
        `counted`."""
        if counted is not None:
            await self._count(objects, stands, counted)
        existing = stands.objects
        objects = with_partitions(keep_hashes(objects, existing), existing, self._replica_sets())
        own = Own()
        for obj in objects:
            own.look_at(obj)
            # A pipeline of 100 stages takes milliseconds, and a request may have 700.
            await trio.lowlevel.checkpoint()
        problems = validate(
            objects,
            existing,
            replica_sets=self._replica_sets(),
            allow_destructive=counted is None,
            losses=counted.lost if counted is not None else {},
            own=own,
        )
        if not is_dry:
            problems += missing_hashes(objects)
        changes = plan(objects, existing) if not problems else []
        problems += [each for change in changes for each in _refused_changes(change)]
        if since is not None:
            problems += overtaken(changes, since, stands.gone_since, stands.forgotten_index)
        if problems:
            raise schema_error(problems)
        _check_answer(item for change in changes for item in (change.before, change.after) if item)
        return changes

    async def _log(self, changes: Sequence[Change], index: int) -> tuple[list[Change], int]:
        """Log those that change something, as one entry, on the schema at `index`; returns all, as
        they came to be, and the index after them."""
        applied: tuple[SchemaObject, ...] = await self._controller.execute(
            ApplySchema(
                index,
                tuple(
                    ObjectChange(
                        change.after.kind,
                        change.after.namespace,
                        change.after.name,
                        spec_to_json(change.after.spec).decode(),
                    )
                    for change in changes
                    if change.action != "unchanged"
                ),
            )
        )
        done = {key_of(item): item for item in applied}
        changes = [
            Change(change.action, change.before, done.get(key_of(change.after), change.after))
            for change in changes
        ]
        return changes, applied[-1].metadata_index

    async def delete(
        self,
        names: Sequence[tuple[Key, int]],
        *,
        dry_run: bool,
        allow_destructive: bool,
        since: int | None = None,
    ) -> tuple[list[SchemaObject], int]:
        """Delete the objects with these keys and ids (0 for any), all or none; returns them as they
        were, and the metadata index after it. With `since`, a metadata index, what was made after
        it is not meant, and what was deleted after it is done. Raises as `apply` does."""
        self._check_owns()

        async def change(stands: Standing) -> _Outcome[tuple[list[SchemaObject], int]]:
            existing = stands.objects
            keys, problems = meant(names, existing, since, stands.gone_since)
            problems += validate_deletion(keys, existing, allow_destructive=allow_destructive)
            if problems:
                raise schema_error(problems)
            gone = [existing[key] for key in keys]
            _check_answer(gone)
            if dry_run or not gone:
                return _Outcome((gone, stands.index), has_logged=False)
            command = DeleteObjects(stands.index, tuple(item.id for item in gone))
            deleted: Deleted = await self._controller.execute(command)
            return _Outcome((gone, deleted.metadata_index), has_logged=True)

        return await self._confirmed(change, since, is_dry=dry_run)

    async def _confirmed(
        self,
        change: Callable[[Standing], Awaitable[_Outcome[T]]],
        since: int | None,
        *,
        is_dry: bool,
    ) -> T:
        """What `change` comes to, told how the schema stands. It leaves once a majority has said
        that this node leads (PROTOCOL A2), unless it has logged something, which says as much.

        *(n2 is promoted and a stream made, while n1, alone, still believes that it leads. Asked to
        delete the stream, it would say that there is none; and of objects that others have changed
        since, that nothing would change.)*

        Where the schema has moved meanwhile, it is judged anew. Changes go one at a time, but who
        hangs up lets the next one begin, and what it has logged becomes visible during that one;
        the next one's is behind it in the log, so this ends. A dry run waits for nobody, and is of
        the schema as it was.
        """
        async with nullcontext() if is_dry else self._one_at_a_time:
            while True:
                stands, refusal = Standing.of(self._catalog, since), None
                try:
                    outcome = await change(stands)
                    if outcome.has_logged:
                        return outcome.result
                except RequestError as error:
                    refusal = error
                if is_dry or self._catalog.metadata_index == stands.index:
                    break
        await self._controller.confirm_leadership()
        if refusal is not None:
            raise refusal
        return outcome.result

    async def register(self, command: RegisterReplicaSet) -> RegisteredSet:
        """Log that a replica set has introduced itself; one that has before changes nothing.

        Raises `HandshakeError` when the name belongs to another set.
        """
        async with self._one_at_a_time:
            registered = await self._controller.execute(command)
        assert isinstance(registered, RegisteredSet)
        return registered

    def _check_owns(self) -> None:
        if self._metadata:
            raise NotLeaderError(
                "the schema is not changed here", f"ask the leader of {self._metadata}"
            )


def _check_answer(items: Iterable[SchemaObject]) -> None:
    """Raises `RequestError` when they fit into no answer: whoever asked would not hear that it was
    done."""
    size = sum(
        _OBJECT_BYTES + len(item.namespace) + len(item.name) + len(spec_to_json(item.spec))
        for item in items
    )
    if size > MAX_MESSAGE_BYTES:
        raise RequestError(
            f"the objects, as they are before and after it, come to {size} bytes, the limit is "
            f"{MAX_MESSAGE_BYTES}",
            "do it in several smaller steps",
        )


def _refused_changes(change: Change) -> list[Problem]:
    """What nobody can insist on."""
    before, after = change.before, change.after
    if before is None or after.kind not in RULES:
        return []
    return RULES[after.kind].refuse_change(before, after)
