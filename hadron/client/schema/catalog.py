"""The schema as a client sees it: looking objects up, and changing it.

The leader of the metadata set is asked first, so that what one client has applied another one
finds; while it cannot be reached, any node answers from its copy, as long as that is not older than
what this client has seen. Streams that were looked up are followed: `listen` tells of partitions
that were added to them, and of their end. What an answer says of a stream is told, by `follow`,
before the call returns to who has asked (PROTOCOL D3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import anyio
import msgspec

from hadron.client.connecting.session import Session
from hadron.client.schema.elsewhere import Elsewhere
from hadron.client.terms.arguments import Named, text_of, text_or_none_of
from hadron.client.terms.results import Applied, Change
from hadron.model.backoff import Backoff
from hadron.model.errors import (
    HadronError,
    MetadataBehindError,
    NotFoundError,
    PeerError,
    RequestError,
)
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.kinds import how_to_make, only_stored, spec_from_json
from hadron.model.problems import did_you_mean
from hadron.model.schema import SchemaObject, StreamSpec, spec_to_json
from hadron.model.services import TokenSpec
from hadron.model.tokens import hash_secret, make_secret
from hadron.model.words import with_article
from hadron.wire.calling import Caller
from hadron.wire.messages import method, schema_pb2

_APPLY: Final = method("ApplySchema")
_GET: Final = method("GetObjects")
_DELETE: Final = method("DeleteObjects")
_WATCH: Final = method("WatchSchema")

_PAGE_OBJECTS: Final = 1_000
"""Asked for at a time: some ten milliseconds of a node's time."""

T = TypeVar("T")

Follower: TypeAlias = Callable[[SchemaObject | None], None]

_FIRST_S: Final = 1.0
"""For the metadata set's leader, before another node's copy of the schema has to do."""


class _Asked:
    """A look-up that others wait for, too."""

    def __init__(self) -> None:
        self.is_over = anyio.Event()
        self.error: HadronError | None = None


class Catalog:
    """Schema calls of one client, and the streams it has looked up."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._namespace = session.endpoint.namespace
        self._streams: dict[str, SchemaObject] = {}
        self._asked: dict[str, _Asked] = {}
        """What somebody asks for just now, by the stream's name."""
        self._index = 0
        """The highest metadata index that any answer named."""
        self._watched: int | None = None
        self._elsewhere = Elsewhere(session)
        self._listeners: dict[Callable[[], None], None] = {}
        self._followers: dict[Follower, SchemaObject] = {}
        """Each with its stream as it was told last."""

    async def apply(
        self,
        objects: Sequence[SchemaObject],
        *,
        dry_run: bool,
        allow_destructive: bool,
        since: int | None = None,
    ) -> Applied:
        """`since`: the metadata index at which `objects` were made up; None for now. What others
        change after that is not changed back, also where the answer is lost and this asks again."""
        if since is None:
            _, since = await self.latest("Namespace", "", DEFAULT_NAMESPACE)
        secrets = {} if dry_run else await self._make_secrets(objects)
        request = schema_pb2.ApplySchemaRequest(
            objects=[
                _to_message(_with_secret(entry, secrets.get((entry.namespace, entry.name))))
                for entry in objects
            ],
            dry_run=dry_run,
            allow_destructive=allow_destructive,
            since_index=since,
        )
        answer, _ = await self._session.request(self._session.topology.metadata, _APPLY, request)
        if not dry_run:
            self.changed(answer)
        changes = [
            Change(
                change.action,
                _from_message(change.before) if change.HasField("before") else None,
                _from_message(change.after) if change.HasField("after") else None,
                secrets.get((change.after.namespace, change.after.name), "")
                if change.after.kind == "Token"
                else "",
            )
            for change in answer.changes
        ]
        return Applied(changes, answer.metadata_index)

    async def _make_secrets(self, objects: Sequence[SchemaObject]) -> dict[tuple[str, str], str]:
        """Secrets for tokens that are new and come without a hash, by (namespace, name)."""
        wanted = {
            (entry.namespace, entry.name): ""
            for entry in objects
            if isinstance(entry.spec, TokenSpec) and not entry.spec.sha256
        }
        if wanted:
            for known in await self.objects("Token", "", ""):
                wanted.pop((known.namespace, known.name), None)
        return {key: make_secret(self._session.ports.random) for key in wanted}

    async def delete(
        self, names: Sequence[Named], *, dry_run: bool, allow_destructive: bool
    ) -> list[SchemaObject]:
        """Delete these objects, all or none; returns them as they were. They are looked up first:
        this may have to ask again, and others make one of the same name meanwhile."""
        since: int | None = None
        found: dict[int, SchemaObject] = {}
        wanted: list[Named] = []
        if names:
            known, since = await self.latest(*names[0][:3])
            if len(names) > 1:
                known = await self.objects("", "", "")
            ids = {(item.kind, item.namespace, item.name): item.id for item in known}
            wanted = [each if each.id else each._replace(id=ids.get(each[:3], 0)) for each in names]
            found = {item.id: item for item in known}
        request = schema_pb2.DeleteObjectsRequest(
            names=[schema_pb2.DeleteObjectsRequest.Name(**each._asdict()) for each in wanted],
            dry_run=dry_run,
            allow_destructive=allow_destructive,
            since_index=since,
        )
        answer, _ = await self._session.request(self._session.topology.metadata, _DELETE, request)
        found |= {entry.id: _from_message(entry) for entry in answer.deleted}
        if not dry_run:
            self.changed(answer)
            # Also what an earlier try has deleted, whose answer was lost.
            self._tell((), {each.id for each in wanted})
        return [found[each] for each in dict.fromkeys(item.id for item in wanted) if each in found]

    async def objects(self, kind: str, namespace: str, name: str) -> list[SchemaObject]:
        """All objects that match, by id; "" matches all. Asked for a page at a time: what is there
        throughout is in the answer."""
        found, _ = await self._ask(kind, namespace, name)
        return found

    async def _ask(self, kind: str, namespace: str, name: str) -> tuple[list[SchemaObject], int]:
        """The objects that match, and the metadata index as of which, at least."""
        found: list[SchemaObject] = []
        indexes: list[int] = []
        more = True
        while more:
            answer = await self._page(
                schema_pb2.GetObjectsRequest(
                    kind=kind,
                    namespace=namespace,
                    name=name,
                    min_index=self._index,
                    limit=_PAGE_OBJECTS,
                    after_id=found[-1].id if found else None,
                )
            )
            found += [_from_message(entry) for entry in answer.objects]
            indexes.append(answer.metadata_index)
            more = answer.more
        return found, min(indexes)

    async def latest(self, kind: str, namespace: str, name: str) -> tuple[list[SchemaObject], int]:
        """The objects of one name as the metadata set's leader has them, and the metadata index as
        of which."""
        request = schema_pb2.GetObjectsRequest(
            kind=kind, namespace=namespace, name=name, latest=True
        )
        answer, _ = await self._session.request(self._session.topology.metadata, _GET, request)
        self._index = max(self._index, answer.metadata_index)
        self._tell(answer.objects)
        return [_from_message(entry) for entry in answer.objects], answer.metadata_index

    async def _ask_leader(
        self, kind: str, namespace: str, name: str
    ) -> tuple[list[SchemaObject], int]:
        """The same. Raises `PeerError` where it does not answer: then nobody knows that there is no
        such object.

        *(A stream was made, and its leader crashed: replicas that had it in their logs, and had not
        heard that it is committed, said that it does not exist.)*
        """
        try:
            return await self.latest(kind, namespace, name)
        except PeerError as error:
            raise PeerError(
                f"no {kind.lower()} {name!r} is known, but only the leader of "
                f"{self._session.topology.metadata} knows all that are: {error.message}",
                error.hint,
            ) from error

    async def _page(self, request: schema_pb2.GetObjectsRequest) -> schema_pb2.GetObjectsResponse:
        answer, _ = await self._session.request(
            self._session.topology.metadata,
            _GET,
            request,
            any_after_s=min(_FIRST_S, self._session.request_timeout_s / 2),
        )
        self._index = max(self._index, answer.metadata_index)
        self._tell(answer.objects)
        assert isinstance(answer, schema_pb2.GetObjectsResponse)
        return answer

    async def stream(self, name: str) -> SchemaObject:
        """The stream called `name` in the client's namespace. Raises `NotFoundError`.

        With its `id` and `metadata_index` any node knows which stream, and which state of it, is
        meant."""
        if not isinstance(name, str):
            text_of("stream", name)
        while (known := self._streams.get(name)) is None:
            if (asked := self._asked.get(name)) is None:
                await self._look_up(name)
            else:
                # Many may follow a stream that has changed.
                await asked.is_over.wait()
                if asked.error is not None:
                    raise asked.error
        return known

    async def _look_up(self, name: str) -> None:
        asked = self._asked[name] = _Asked()
        try:
            found, index = await self._one("Stream", name)
            if index < self._index:
                # The watch was quicker than this answer: what it has told meanwhile is not in it,
                # and does not come again.
                return
            self._streams[name] = found
            if self._watched is None:
                self._watched = index
                self._session.background.start(self._follow)
        except HadronError as error:
            asked.error = error
            raise
        finally:
            del self._asked[name]
            asked.is_over.set()

    def known(self, name: str) -> SchemaObject | None:
        """What `stream` would give without asking anybody; None where that has to be asked."""
        return self._streams.get(name)

    def forget(self, name: str) -> None:
        """What is known of a stream has turned out to be old."""
        self._streams.pop(name, None)

    # --- following ------------------------------------------------------------------------------

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when a stream that was looked up has changed, or was deleted (`stream`
        tells); returns how to stop that."""
        self._listeners[listener] = None
        return lambda: self._listeners.pop(listener, None)

    def follow(self, stream: SchemaObject, follower: Follower) -> Callable[[], None]:
        """Call `follower` with the stream whenever it has changed, and, at last, with None when it
        was deleted; returns how to stop that."""
        self._followers[follower] = stream

        def stop() -> None:
            self._followers.pop(follower, None)

        return stop

    def changed(
        self, answer: schema_pb2.ApplySchemaResponse | schema_pb2.DeleteObjectsResponse
    ) -> None:
        """The schema was, by this client, or past it by who uses it (a program at a door)."""
        self._index = max(self._index, answer.metadata_index)
        if isinstance(answer, schema_pb2.ApplySchemaResponse):
            self._tell([change.after for change in answer.changes])
        else:
            self._tell((), {entry.id for entry in answer.deleted})

    def _tell(
        self,
        entries: Iterable[Any],
        gone: Collection[int] = (),
        is_undone: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Take in objects as some answer has them, and the ids of those that were deleted. What is
        older than is known already is no news, unless that `is_undone`, by its index."""
        streams = {
            entry.name: entry
            for entry in entries
            if entry.kind == "Stream" and entry.namespace == self._namespace
        }

        def news_of(known: SchemaObject) -> Any:
            now, index = streams.get(known.name), known.metadata_index
            if now is None or now.metadata_index == index:
                return None
            return now if now.metadata_index > index or is_undone(index) else None

        for name, known in list(self._streams.items()):
            if (now := news_of(known)) is not None:
                self._streams[name] = _from_message(now)
            elif known.id in gone:
                del self._streams[name]
        for follower, known in list(self._followers.items()):
            now = news_of(known)
            if known.id in gone or (now is not None and now.id != known.id):
                self._followers.pop(follower, None)
                follower(None)
            elif now is not None:
                self._followers[follower] = stream = _from_message(now)
                follower(stream)

    async def _follow(self) -> None:
        """Watch the schema at some node, for as long as the client lives."""
        backoff = Backoff(self._session.ports.random)
        tries = 0
        while True:
            ahead, self._elsewhere.ahead = self._elsewhere.ahead, None
            try:
                if ahead is not None:
                    connection = ahead
                elif tries % 2:
                    connection = await self._session.connect(self._session.topology.metadata)
                else:
                    connection = await self._session.connect_any(turn=tries // 2)
                await self._watch(connection, backoff)
            except* HadronError:
                # Another node, when this one is behind, or away.
                tries += 1
            await anyio.sleep(backoff.next_s())

    async def _watch(self, connection: Caller, backoff: Backoff) -> None:
        """Until the call ends, or others know more; raises what ended it, in a group."""
        async with anyio.create_task_group() as tasks:

            async def look() -> None:
                await self._elsewhere.look(lambda: self._watched or 0, connection)
                tasks.cancel_scope.cancel()

            tasks.start_soon(look)
            await self._hear(connection, backoff)
            tasks.cancel_scope.cancel()

    async def _hear(self, connection: Caller, backoff: Backoff) -> None:
        """Until the call ends; raises what ended it."""
        seen: set[int] = set()
        request = schema_pb2.WatchSchemaRequest(from_index=self._watched or 0)
        async with connection.open_stream(_WATCH, request) as changes:
            async for message, _ in changes:
                if message.to_index < (self._watched or 0):
                    raise MetadataBehindError(f"{connection.peer} knows less of the schema")
                backoff.reset()
                self._elsewhere.told += 1
                seen.update(entry.id for entry in message.objects)
                changed = self._take(message)
                if not message.more_follows:
                    if message.is_whole:
                        changed |= self._keep_only(seen, message)
                    self._watched = message.to_index
                    self._index = max(self._index, message.to_index)
                    seen.clear()
                if changed:
                    for listener in list(self._listeners):
                        listener()

    def _take(self, message: Any) -> bool:
        """Whether a stream may have changed that somebody has looked up. What is known here does
        not tell: it is forgotten when this client changes the schema, and a later look-up may have
        been quicker than this message."""
        for told in (*message.objects, *message.deleted):
            self._index = max(self._index, told.metadata_index)
        changed = any(
            entry.kind == "Stream" and entry.namespace == self._namespace
            for entry in (*message.objects, *message.deleted)
        )
        before = dict(self._streams)
        self._tell(
            message.objects,
            {entry.id for entry in message.deleted},
            is_undone=partial(_is_undone, message),
        )
        return changed or self._streams != before

    def _keep_only(self, ids: set[int], message: Any) -> bool:
        """These are all that there were as of the last part of the whole schema; whether a stream
        is gone that somebody has looked up."""
        before = dict(self._streams)
        known = {each.id for each in (*before.values(), *self._followers.values())}
        self._tell((), {each for each in known - ids if _is_undone(message, each)})
        return self._streams != before

    # --- looking up -----------------------------------------------------------------------------

    async def partitions(self, stream: str, partition: str | None = None) -> list[str]:
        """The stream's partitions, or the one asked for. Raises `NotFoundError`."""
        spec = (await self.stream(stream)).spec
        assert isinstance(spec, StreamSpec)
        if partition is None:
            return list(spec.partitions)
        if partition not in spec.partitions:
            # It may have been added since the stream was looked up.
            self._streams.pop(stream, None)
            spec = (await self.stream(stream)).spec
            assert isinstance(spec, StreamSpec)
        if partition not in spec.partitions:
            raise NotFoundError(
                f"stream {self._namespace}/{stream} has no partition {partition!r}",
                f"it has {', '.join(spec.partitions)}",
            )
        return [partition]

    async def listed(self, found: list[T], namespace: str | None = None) -> list[T]:
        """What a namespace has, the client's where none is given, "" for all. Raises
        `NotFoundError` where it has nothing as there is no such namespace: every list is of one
        that is there."""
        if namespace is None:
            namespace = self._namespace
        if not found and namespace not in ("", DEFAULT_NAMESPACE):
            check_namespace(namespace, await self.objects("Namespace", "", ""))
        return found

    async def check_namespace(self, name: str) -> None:
        """Raises `NotFoundError` where it is not declared."""
        if name != DEFAULT_NAMESPACE and not (await self._ask("Namespace", "", name))[0]:
            # Whoever has answered may be a replica that is behind.
            found, _ = await self._ask_leader("Namespace", "", name)
            if not found:
                check_namespace(name, await self.objects("Namespace", "", ""))

    async def one(self, kind: str, name: str) -> SchemaObject:
        """The object called `name` in the client's namespace, as it is now. Raises
        `NotFoundError`."""
        found, _ = await self._one(kind, name)
        return found

    async def _one(self, kind: str, name: str) -> tuple[SchemaObject, int]:
        """The object, and the metadata index as of which. Raises `NotFoundError`."""
        if not text_or_none_of(kind.lower(), name):
            article = "an" if kind[0] in "AEIOU" else "a"
            raise RequestError(f"{article} {kind.lower()} needs a name", f"see `hadron get {kind}`")
        found, index = await self._ask(kind, self._namespace, name)
        if not found:
            # Whoever has answered may be a replica that is behind.
            found, index = await self._ask_leader(kind, self._namespace, name)
        if not found:
            await self.listed(found)
            known = [each.name for each in await self.objects(kind, self._namespace, "")]
            # One of this kind was made since, or is what a replica that is behind has not deleted.
            same_name = await self.objects("", self._namespace, name)
            others = [each for each in same_name if each.kind != kind]
            meant = did_you_mean(name, known)
            hint = (
                f"{how_to_make(kind, self._namespace, name)}, or look with "
                f"`hadron get {kind.lower()}s`"
            )
            if others:
                # Who calls an exchange does not want an endpoint beside it.
                kinds = [with_article(each.kind.lower()) for each in others]
                meant, hint = f", but {' and '.join(kinds)} is", "; ".join(map(_way_with, others))
            raise NotFoundError(
                f"no {kind.lower()} is called {name!r} in namespace {self._namespace!r}{meant}",
                hint,
            )
        return found[0], index


def _is_undone(message: schema_pb2.SchemaChanges, index: int) -> bool:
    """Whether what was done at an index counts no more where a message does not have it: that is of
    the whole schema, and not of what its owner has lost and others may have (CLUSTER R7).

    *(The metadata set is restored from a backup: what it has is older than what was seen of it.)*
    """
    return (
        message.is_whole
        and index <= message.to_index
        and not any(each.end_index < index <= each.above_index for each in message.lost)
    )


_USED_BY: Final = {
    "Stream": "`hadron pub` and `hadron sub`, client.send and client.subscribe are for that",
    "Exchange": "`hadron exchange`, client.exchange({!r}) are for that",
    "Endpoint": "`hadron call` and `hadron serve`, client.call and client.serve are for that",
    "Pipeline": "`hadron describe pipeline {}` shows it",
}


def _way_with(item: SchemaObject) -> str:
    """What is done with an object of its kind."""
    way = _USED_BY.get(item.kind, "`hadron get " + item.kind.lower() + "s` shows it")
    return "; ".join(only_stored([item])) or way.format(item.name)


def check_namespace(name: str, declared: Iterable[SchemaObject]) -> None:
    """Raises `NotFoundError` when it is not one of those: who finds nothing in it is to know."""
    known = [each.name for each in declared]
    if name != DEFAULT_NAMESPACE and name not in known:
        raise NotFoundError(
            f"there is no namespace {name!r}{did_you_mean(name, known)}",
            f"`hadron create namespace {name}` makes it; else name another one, as `namespace` or "
            "at the end of the server's URL",
        )


def _with_secret(entry: SchemaObject, secret: str | None) -> SchemaObject:
    """A token with its secret's hash: the secret itself goes nowhere."""
    if not isinstance(entry.spec, TokenSpec) or secret is None:
        return entry
    spec = msgspec.structs.replace(entry.spec, sha256=hash_secret(secret))
    return msgspec.structs.replace(entry, spec=spec)


def _to_message(entry: SchemaObject) -> schema_pb2.SchemaObject:
    return schema_pb2.SchemaObject(
        kind=entry.kind,
        namespace=entry.namespace,
        name=entry.name,
        spec_json=spec_to_json(entry.spec).decode(),
    )


def _from_message(message: schema_pb2.SchemaObject) -> SchemaObject:
    return SchemaObject(
        kind=message.kind,
        namespace=message.namespace,
        name=message.name,
        spec=spec_from_json(message.kind, message.spec_json),
        id=message.id,
        metadata_index=message.metadata_index,
    )
