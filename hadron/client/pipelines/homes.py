"""Where a client's pipelines live: on one replica set each, whose leader their calls go to."""

from __future__ import annotations

from hadron.client.schema.catalog import Catalog
from hadron.model.errors import NotFoundError, RequestError
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.schema import SchemaObject


class Homes:
    """Pipelines, as they were when they were last looked up."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[int, SchemaObject] = {}

    async def find(self, name: str) -> tuple[SchemaObject, str]:
        """The pipeline called `name` as it is now, and its replica set. Raises `NotFoundError`."""
        found = await self._catalog.one("Pipeline", name)
        self._known[found.id] = found
        return found, _spec(found).replica_set

    async def of_id(self, pipeline_id: int) -> str:
        """The replica set of a pipeline. Raises `NotFoundError`."""
        return _spec(await self._of_id(pipeline_id)).replica_set

    async def stage(self, pipeline_id: int, name: str) -> tuple[str, StageSpec]:
        """The replica set of a pipeline, and one of its stages. Raises `NotFoundError`."""
        item = await self._of_id(pipeline_id)
        found = _stage(item, name)
        if found is None:
            # It may be younger than what is known of its pipeline.
            del self._known[pipeline_id]
            item = await self._of_id(pipeline_id)
            found = _stage(item, name)
        if found is None:
            raise NotFoundError(
                f"pipeline {item.name!r} has no stage {name!r}",
                f"it has {', '.join(each.name for each in _spec(item).stages)}",
            )
        return _spec(item).replica_set, found

    async def _of_id(self, pipeline_id: int) -> SchemaObject:
        if pipeline_id not in self._known:
            for found in await self._catalog.objects("Pipeline", "", ""):
                self._known[found.id] = found
        known = self._known.get(pipeline_id)
        if known is None:
            raise NotFoundError(f"no pipeline has the id {pipeline_id}", "was it deleted?")
        return known


def _spec(item: SchemaObject) -> PipelineSpec:
    """Raises `RequestError` for a pipeline that has none of what is asked for."""
    if not isinstance(item.spec, PipelineSpec):
        raise RequestError(
            f"pipeline {item.name!r} is a streaming query (`mode: stream`): it has no stages and "
            "no instances",
            f"`hadron pipeline run {item.name}` runs it, `hadron pipeline show {item.name}` tells "
            "how far it is",
        )
    return item.spec


def _stage(item: SchemaObject, name: str) -> StageSpec | None:
    return next((each for each in _spec(item).stages if each.name == name), None)
