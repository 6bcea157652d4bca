"""Schema objects as commands name and show them: kinds in any case and number, JSON of specs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from hadron.model.schema import SchemaObject


class KindType(click.ParamType[str]):
    """The click type of KIND: `stream`, `Streams` and `STREAM` all mean Stream."""

    name = "kind"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The kind's proper name, or fail naming those that exist."""
        from hadron.model.schema import SPECS

        kinds = {name: kind for kind in SPECS for name in (kind.lower(), f"{kind.lower()}s")}
        if value.lower() not in kinds:
            from hadron.model.problems import did_you_mean

            meant = did_you_mean(value.lower(), kinds)
            self.fail(f"{value!r} is no kind{meant}; there are {', '.join(SPECS)}", param, ctx)
        return kinds[value.lower()]


def object_to_dict(found: SchemaObject) -> dict[str, Any]:
    """For JSON: what is declared, as stored (milliseconds, bytes), and what the cluster adds."""
    from hadron.model.schema import spec_to_json

    spec: dict[str, Any] = json.loads(spec_to_json(found.spec))
    named = {"kind": found.kind, "namespace": found.namespace, "name": found.name}
    return {**named, **spec, "id": found.id, "metadata_index": found.metadata_index}
