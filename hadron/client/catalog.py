"""The schema as a client sees it: looking objects up, and applying changes.

Everything goes to the leader of the metadata set, so that what a client has applied it also finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hadron.client.results import Applied, Change
from hadron.client.session import Session
from hadron.model.errors import NotFoundError, RequestError
from hadron.model.schema import (
    PipelineSpec,
    SchemaObject,
    StreamSpec,
    spec_from_json,
    spec_to_json,
)
from hadron.wire.messages import method, schema_pb2

_APPLY: Final = method("ApplySchema")
_GET: Final = method("GetObjects")


class Catalog:
    """Schema calls of one client, and the streams it has looked up."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._namespace = session.endpoint.namespace
        self._streams: dict[str, SchemaObject] = {}
        self._pipelines: dict[int, str] = {}

    async def apply(
        self, objects: Sequence[SchemaObject], *, dry_run: bool, allow_destructive: bool
    ) -> Applied:
        request = schema_pb2.ApplySchemaRequest(
            objects=[_to_message(entry) for entry in objects],
            dry_run=dry_run,
            allow_destructive=allow_destructive,
        )
        answer, _ = await self._session.request(self._session.topology.metadata, _APPLY, request)
        self._streams.clear()
        changes = [
            Change(
                change.action,
                _from_message(change.before) if change.HasField("before") else None,
                _from_message(change.after) if change.HasField("after") else None,
            )
            for change in answer.changes
        ]
        return Applied(changes, answer.metadata_index)

    async def objects(self, kind: str, namespace: str, name: str) -> list[SchemaObject]:
        request = schema_pb2.GetObjectsRequest(kind=kind, namespace=namespace, name=name)
        answer, _ = await self._session.request(self._session.topology.metadata, _GET, request)
        return [_from_message(entry) for entry in answer.objects]

    async def stream(self, name: str) -> SchemaObject:
        """The stream called `name` in the client's namespace. Raises `NotFoundError`."""
        known = self._streams.get(name)
        if known is None:
            known = self._streams[name] = await self._one("Stream", name)
        return known

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

    async def pipeline_home(self, name: str) -> str:
        """The replica set of the pipeline called `name`. Raises `NotFoundError`."""
        found = await self._one("Pipeline", name)
        assert isinstance(found.spec, PipelineSpec)
        self._pipelines[found.id] = found.spec.replica_set
        return found.spec.replica_set

    async def pipeline_home_by_id(self, pipeline_id: int) -> str:
        """The replica set of a pipeline. Raises `NotFoundError`."""
        home = self._pipelines.get(pipeline_id)
        if home is None:
            for found in await self.objects("Pipeline", "", ""):
                assert isinstance(found.spec, PipelineSpec)
                self._pipelines[found.id] = found.spec.replica_set
            home = self._pipelines.get(pipeline_id)
        if home is None:
            raise NotFoundError(f"no pipeline has the id {pipeline_id}", "was it deleted?")
        return home

    async def _one(self, kind: str, name: str) -> SchemaObject:
        if not name:
            raise RequestError(f"a {kind.lower()} needs a name", f"see `hadron get {kind}`")
        found = await self.objects(kind, self._namespace, name)
        if not found:
            raise NotFoundError(
                f"no {kind.lower()} is called {name!r} in namespace {self._namespace!r}",
                f"declare it with `hadron apply`, or look with `hadron get {kind}`",
            )
        return found[0]


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
