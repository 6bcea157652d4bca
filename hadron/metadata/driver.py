"""Applies schema changes on the leader: validated as a whole, logged as one entry."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import trio

from hadron.metadata.diff import Change, plan
from hadron.metadata.problem import schema_error
from hadron.metadata.validation import Key, key_of, validate
from hadron.model.schema import SchemaObject, spec_to_json
from hadron.partition.catalog import Catalog
from hadron.partition.controller import Controller
from hadron.state.schema import ApplySchema, ObjectChange


class SchemaChanges:
    """One per leadership. Changes run one after another; each is judged against the one before."""

    def __init__(
        self, controller: Controller, catalog: Catalog, replica_sets: Collection[str]
    ) -> None:
        self._controller = controller
        self._catalog = catalog
        self._replica_sets = replica_sets
        self._one_at_a_time = trio.Lock()

    async def apply(
        self, objects: Sequence[SchemaObject], *, dry_run: bool, allow_destructive: bool
    ) -> tuple[list[Change], int]:
        """All of `objects` valid, or nothing changes.

        Returns what happened to each object and the metadata index after it. With `dry_run`, what
        would happen. Raises `SchemaError` listing every problem.
        """
        async with self._one_at_a_time:
            existing: dict[Key, SchemaObject] = {
                key_of(item): item for item in self._catalog.all()
            }
            problems = validate(
                objects, existing, replica_sets=self._replica_sets,
                allow_destructive=allow_destructive,
            )
            if problems:
                raise schema_error(problems)
            changes = plan(objects, existing)
            new = [change for change in changes if change.action != "unchanged"]
            if dry_run or not new:
                return changes, self._catalog.metadata_index
            applied: tuple[SchemaObject, ...] = await self._controller.execute(
                ApplySchema(
                    self._catalog.metadata_index,
                    tuple(
                        ObjectChange(
                            change.after.kind, change.after.namespace, change.after.name,
                            spec_to_json(change.after.spec).decode(),
                        )
                        for change in new
                    ),
                )
            )
        done = {key_of(item): item for item in applied}
        return [
            Change(change.action, change.before, done.get(key_of(change.after), change.after))
            for change in changes
        ], self._catalog.metadata_index
