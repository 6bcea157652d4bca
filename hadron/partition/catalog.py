"""Schema by name and by id, in memory, as of the watermark: where handlers look things up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from hadron.model.errors import NotFoundError
from hadron.model.schema import PipelineSpec, SchemaObject, Spec, StreamSpec
from hadron.partition.group_commit import Submission
from hadron.state.schema import ApplySchema

S = TypeVar("S", bound=Spec)


class Catalog:
    """Loaded when leading starts, then kept in step by what becomes visible."""

    def __init__(self, objects: Iterable[SchemaObject], metadata_index: int) -> None:
        self.metadata_index = metadata_index
        self._by_name: dict[tuple[str, str, str], SchemaObject] = {}
        self._by_id: dict[int, SchemaObject] = {}
        self._listeners: list[Callable[[], None]] = []
        for item in objects:
            self._put(item)

    def _put(self, item: SchemaObject) -> None:
        self._by_name[item.kind, item.namespace, item.name] = item
        if item.id:
            self._by_id[item.id] = item

    def on_visible(self, submissions: Sequence[Submission]) -> None:
        """`Controller.Observer`."""
        changed = False
        for submission in submissions:
            if isinstance(submission.command, ApplySchema):
                for item in submission.result:
                    self._put(item)
                    self.metadata_index = max(self.metadata_index, item.metadata_index)
                    changed = True
        if changed:
            for listener in self._listeners:
                listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change."""
        self._listeners.append(listener)

    def all(self) -> list[SchemaObject]:
        return list(self._by_name.values())

    def find(self, kind: str, namespace: str, name: str) -> SchemaObject | None:
        return self._by_name.get((kind, namespace, name))

    def stream(self, namespace: str, name: str) -> tuple[SchemaObject, StreamSpec]:
        """Raises `NotFoundError` naming what there is."""
        return self._typed("Stream", StreamSpec, namespace, name)

    def pipeline(self, namespace: str, name: str) -> tuple[SchemaObject, PipelineSpec]:
        """Raises `NotFoundError` naming what there is."""
        return self._typed("Pipeline", PipelineSpec, namespace, name)

    def by_id(self, object_id: int) -> SchemaObject:
        """Raises `NotFoundError`."""
        item = self._by_id.get(object_id)
        if item is None:
            raise NotFoundError(f"no object has the id {object_id}")
        return item

    def _typed(
        self, kind: str, spec_type: type[S], namespace: str, name: str
    ) -> tuple[SchemaObject, S]:
        item = self._by_name.get((kind, namespace, name))
        if item is None or not isinstance(item.spec, spec_type):
            others = sorted(
                known.name for known in self._by_name.values()
                if known.kind == kind and known.namespace == namespace
            )
            listed = ", ".join(others[:10]) + (", …" if len(others) > 10 else "")
            raise NotFoundError(
                f"{kind.lower()} {name!r} does not exist in namespace {namespace!r}",
                f"there are: {listed}" if others else
                f"there is no {kind.lower()} yet; declare one with `hadron apply -f FILE`",
            )
        return item, item.spec
