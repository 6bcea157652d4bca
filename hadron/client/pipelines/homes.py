"""Where a client's pipelines live: on one replica set each, whose leader their calls go to."""

from __future__ import annotations

from hadron.client.schema.catalog import Catalog
from hadron.model.errors import NotFoundError
from hadron.model.pipelines import PipelineSpec
from hadron.model.schema import SchemaObject


class Homes:
    """Replica sets of pipelines, as they were when they were last looked up."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[int, str] = {}

    async def find(self, name: str) -> tuple[SchemaObject, str]:
        """The pipeline called `name` as it is now, and its replica set. Raises `NotFoundError`."""
        found = await self._catalog.one("Pipeline", name)
        return found, self._learn(found)

    async def of_id(self, pipeline_id: int) -> str:
        """The replica set of a pipeline. Raises `NotFoundError`."""
        if pipeline_id not in self._known:
            for found in await self._catalog.objects("Pipeline", "", ""):
                self._learn(found)
        home = self._known.get(pipeline_id)
        if home is None:
            raise NotFoundError(f"no pipeline has the id {pipeline_id}", "was it deleted?")
        return home

    def _learn(self, found: SchemaObject) -> str:
        assert isinstance(found.spec, PipelineSpec)
        self._known[found.id] = found.spec.replica_set
        return found.spec.replica_set
